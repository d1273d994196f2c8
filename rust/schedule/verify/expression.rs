//! Values without numbers: how a chunk came about. Two chunks have the same bits whatever the contributions are if and only if
//! their expressions are the same, so an expression is made once and is equal to another if its number is.
//!
//! The operands of a reduction are sorted, because the kernels commute bit for bit (not associate, which is why `(0+1)+2` and
//! `0+(1+2)` differ).

use std::collections::HashMap;

use crate::schedule::Rank;

/// Number of an expression.
pub(super) type Id = u32;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// What a rank brought.
    Leaf(Rank, u32),
    Reduced(Id, Id),
    Finished(Id),
}

/// Why two values cannot be combined.
pub(super) enum Refusal {
    /// They are different chunks, the second this one.
    OtherChunk(u32),
    FinishedBefore,
    Twice(Rank),
    Lacks(Rank),
}

pub(super) struct Expressions {
    world: u32,
    ids: HashMap<Form, Id>,
    known: Vec<Known>,
}

struct Known {
    chunk: u32,
    finished: bool,
    /// Whose contributions it holds, a bit each.
    contributors: Box<[u64]>,
}

impl Expressions {
    pub fn new(world: u32) -> Expressions {
        Expressions { world, ids: HashMap::new(), known: Vec::new() }
    }

    pub fn leaf(&mut self, rank: Rank, chunk: u32) -> Id {
        let mut contributors = vec![0; self.world.div_ceil(64) as usize].into_boxed_slice();
        contributors[rank as usize / 64] |= 1 << (rank % 64);
        // What one rank alone contributes to is complete, and needs no finish.
        self.intern(Form::Leaf(rank, chunk), Known { chunk, finished: false, contributors })
    }

    pub fn reduced(&mut self, a: Id, b: Id) -> Result<Id, Refusal> {
        let form = Form::Reduced(a.min(b), a.max(b));
        if let Some(&id) = self.ids.get(&form) {
            return Ok(id);
        }
        let (x, y) = (&self.known[a as usize], &self.known[b as usize]);
        if x.chunk != y.chunk {
            return Err(Refusal::OtherChunk(y.chunk));
        }
        if x.finished || y.finished {
            return Err(Refusal::FinishedBefore);
        }
        if let Some(whose) = (0..self.world).find(|&rank| x.holds(rank) && y.holds(rank)) {
            return Err(Refusal::Twice(whose));
        }
        let contributors = x.contributors.iter().zip(&y.contributors).map(|(x, y)| x | y).collect();
        let chunk = x.chunk;
        Ok(self.intern(form, Known { chunk, finished: false, contributors }))
    }

    pub fn finished(&mut self, a: Id) -> Result<Id, Refusal> {
        let x = &self.known[a as usize];
        if x.finished {
            return Err(Refusal::FinishedBefore);
        }
        if let Some(whose) = self.lacks(a) {
            return Err(Refusal::Lacks(whose));
        }
        let (chunk, contributors) = (x.chunk, x.contributors.clone());
        Ok(self.intern(Form::Finished(a), Known { chunk, finished: true, contributors }))
    }

    pub fn chunk(&self, a: Id) -> u32 {
        self.known[a as usize].chunk
    }

    pub fn is_finished(&self, a: Id) -> bool {
        self.known[a as usize].finished
    }

    /// A rank whose contribution is not in it.
    pub fn lacks(&self, a: Id) -> Option<Rank> {
        (0..self.world).find(|&rank| !self.known[a as usize].holds(rank))
    }

    /// `0+2`, or `[0+1+2]` when finished.
    pub fn text(&self, a: Id) -> String {
        let known = &self.known[a as usize];
        let ranks: Vec<String> = (0..self.world).filter(|&rank| known.holds(rank)).map(|r| r.to_string()).collect();
        let sum = ranks.join("+");
        if known.finished { format!("[{sum}]") } else { sum }
    }

    fn intern(&mut self, form: Form, known: Known) -> Id {
        let next = self.known.len() as Id;
        let id = *self.ids.entry(form).or_insert(next);
        if id == next {
            self.known.push(known);
        }
        id
    }
}

impl Known {
    fn holds(&self, rank: Rank) -> bool {
        self.contributors[rank as usize / 64] >> (rank % 64) & 1 == 1
    }
}
