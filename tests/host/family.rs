//! One collective of the family as ranks call it, and what must come out of it: a plain oracle that cuts and joins arrays.

use std::ops::Range;

use arx::blocks::Blocks;
use arx::direct::{Algorithm, Deal, Dealt, Seat, Turn, Verdict};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, fill_identity};
use arx::wait::Stop;

use super::{Rank, SLACK, aligned, combined, fill, input, read, reducer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Reduce { root: usize },
    AllGather { certain: bool },
    Gather { root: usize, certain: bool },
    Scatter { root: usize },
    ReduceScatter,
    AllToAll { certain: bool },
    Scan,
    Exscan,
    AllReduce,
    Broadcast { root: usize },
}

impl Kind {
    /// All of the family, with a root where there is one.
    pub fn family(root: usize) -> Vec<Kind> {
        use Kind::*;
        let both = [true, false];
        let certain = both.map(|certain| [AllGather { certain }, Gather { root, certain }, AllToAll { certain }]);
        [vec![Reduce { root }, Scatter { root }, ReduceScatter, Scan, Exscan], certain.concat()].concat()
    }

    pub fn root(self) -> Option<usize> {
        match self {
            Kind::Reduce { root } | Kind::Gather { root, .. } | Kind::Scatter { root } | Kind::Broadcast { root } => {
                Some(root)
            }
            _ => None,
        }
    }

    fn combines(self) -> bool {
        matches!(self, Kind::Reduce { .. } | Kind::ReduceScatter | Kind::Scan | Kind::Exscan | Kind::AllReduce)
    }
}

/// How long blocks are, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    Even(usize),
    /// At most so many; every rank and every pair has another, or none.
    Uneven(usize),
}

impl Lengths {
    /// Of the block that rank `from` has for rank `to`.
    pub fn of(self, from: usize, to: usize) -> usize {
        match self {
            Lengths::Even(len) => len,
            Lengths::Uneven(most) => match (3 * from + 5 * to) % 4 {
                0 => 0,
                k => most * k / 3,
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub kind: Kind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub lengths: Lengths,
    pub algorithm: Algorithm,
    /// One bit for each rank: whether its arrays lie in the segment, and whether its output is (part of) its input.
    pub symmetric: u32,
    pub in_place: u32,
    /// A rank that comes with another call.
    pub stray: Option<usize>,
}

impl Step {
    /// A plain call.
    pub fn new(kind: Kind, dtype: DType, lengths: Lengths) -> Step {
        let (op, algorithm) = (ReduceOp::Sum, Algorithm::Auto);
        Step { kind, dtype, op, lengths, algorithm, symmetric: 0, in_place: 0, stray: None }
    }

    /// What must be known beforehand, is.
    fn lengths(&self) -> Lengths {
        match (self.kind, self.lengths) {
            (Kind::AllToAll { certain: true }, Lengths::Uneven(most)) => Lengths::Even(most),
            (_, lengths) => lengths,
        }
    }

    /// Bytes of the block that goes from one rank to another; where all get the same one `to` is not looked at.
    fn bytes(&self, from: usize, to: usize) -> usize {
        use Kind::*;
        let elements = match self.kind {
            AllGather { .. } | Gather { .. } => self.lengths().of(from, 0),
            Scatter { .. } | ReduceScatter => self.lengths().of(0, to),
            AllToAll { .. } => self.lengths().of(from, to),
            _ => self.lengths().of(0, 1),
        };
        elements * self.dtype.size()
    }

    /// Where the blocks lie that rank `me` gives.
    fn give(&self, me: usize, world: usize) -> Vec<usize> {
        edges((0..world).map(|to| self.bytes(me, to)))
    }

    fn take(&self, me: usize, world: usize) -> Vec<usize> {
        edges((0..world).map(|from| self.bytes(from, me)))
    }

    fn src_len(&self, me: usize, world: usize) -> usize {
        use Kind::*;
        match self.kind {
            Scatter { root } if root != me => 0,
            Scatter { .. } | ReduceScatter | AllToAll { .. } => self.give(me, world)[world],
            _ => self.bytes(me, 0),
        }
    }

    fn dst_len(&self, me: usize, world: usize) -> usize {
        use Kind::*;
        match self.kind {
            Gather { root, .. } | Reduce { root } if root != me => 0,
            AllGather { .. } | Gather { .. } | AllToAll { .. } => self.take(me, world)[world],
            Scatter { .. } | ReduceScatter => self.bytes(0, me),
            _ => self.bytes(me, 0),
        }
    }

    /// Where one array is a part of the other if a call is in place: the output of the input, or the input of the output.
    fn overlap(&self, me: usize, world: usize) -> Option<Overlap> {
        use Kind::*;
        let (give, take) = (self.give(me, world), self.take(me, world));
        match self.kind {
            Reduce { root } | Gather { root, .. } | Scatter { root } if root != me => None,
            AllToAll { .. } => None,
            Scatter { .. } | ReduceScatter => Some(Overlap::Output(give[me]..give[me + 1])),
            AllGather { .. } | Gather { .. } => Some(Overlap::Input(take[me]..take[me + 1])),
            _ => Some(Overlap::Output(0..self.bytes(me, 0))),
        }
    }

    /// The call that follows when lengths have become known.
    fn with_lengths(&self) -> Step {
        let kind = match self.kind {
            Kind::AllGather { .. } => Kind::AllGather { certain: true },
            Kind::Gather { root, .. } => Kind::Gather { root, certain: true },
            other => other,
        };
        Step { kind, ..*self }
    }

    /// Numbers that a call takes, with the one that may follow.
    pub fn calls(&self, world: usize) -> u64 {
        1 + u64::from(self.stray.is_none() && self.is_uneven(world))
    }

    fn input(&self, rank: usize, world: usize, sequence: u64) -> Vec<u8> {
        input(rank, sequence, self.src_len(rank, world), self.dtype)
    }

    /// What `me` ends with in its output; `before` where that is left as it was.
    fn expected(&self, me: usize, world: usize, sequence: u64, before: Vec<u8>) -> Vec<u8> {
        let inputs: Vec<_> = (0..world).map(|rank| self.input(rank, world, sequence)).collect();
        let block = |from: usize| {
            let edges = self.give(from, world);
            inputs[from][edges[me]..edges[me + 1]].to_vec()
        };
        let sum = |arrays: &[Vec<u8>]| match arrays {
            [one] => one.clone(),
            _ => combined(arrays, self.dtype, self.op),
        };
        match self.kind {
            Kind::Reduce { root } | Kind::Gather { root, .. } if root != me => before,
            Kind::Reduce { .. } | Kind::AllReduce => sum(&inputs),
            Kind::AllGather { .. } | Kind::Gather { .. } => inputs.concat(),
            Kind::Scatter { root } => block(root),
            Kind::ReduceScatter => sum(&(0..world).map(block).collect::<Vec<_>>()),
            Kind::AllToAll { .. } => (0..world).flat_map(block).collect(),
            Kind::Scan => sum(&inputs[..=me]),
            // That it is neutral is tested where it is made.
            Kind::Exscan if me == 0 => identity(self.dtype, self.op, self.bytes(me, 0)),
            Kind::Exscan => sum(&inputs[..me]),
            Kind::Broadcast { root } => inputs[root].clone(),
        }
    }

    /// Whether blocks differ in a call in which they are supposed not to.
    fn is_uneven(&self, world: usize) -> bool {
        let supposed = matches!(self.kind, Kind::AllGather { certain: false } | Kind::Gather { certain: false, .. });
        supposed && (0..world).any(|rank| self.bytes(rank, 0) != self.bytes(0, 0))
    }
}

enum Overlap {
    Output(Range<usize>),
    Input(Range<usize>),
}

fn edges(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let ends = lengths.scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    [0].into_iter().chain(ends).collect()
}

fn identity(dtype: DType, op: ReduceOp, len: usize) -> Vec<u8> {
    let mut array = vec![7; len + SLACK];
    let array = aligned(&mut array, len);
    fill_identity(dtype, op, array);
    read(array)
}

fn dealt(verdict: Verdict) -> Dealt {
    match verdict {
        Verdict::Agreed => Dealt::Done,
        Verdict::Differs => Dealt::Differs,
    }
}

impl Rank<'_> {
    /// Takes part in a call, and looks at every byte of both arrays afterwards.
    pub fn play(&mut self, sequence: u64, step: &Step) -> Result<(), Stop> {
        let (me, world) = (self.me, self.world);
        let bit = |mask: u32| mask >> me & 1 == 1;
        let (src_len, dst_len) = (step.src_len(me, world), step.dst_len(me, world));
        let (mut one, mut other) = (vec![0; src_len + SLACK], vec![0; dst_len + SLACK]);
        let (mut src, mut dst) = match bit(step.symmetric) {
            true => (self.symmetric(0, src_len), self.symmetric(src_len.next_multiple_of(64), dst_len)),
            false => (aligned(&mut one, src_len), aligned(&mut other, dst_len)),
        };
        if matches!(step.kind, Kind::Broadcast { .. }) {
            dst = src;
        } else if bit(step.in_place) {
            match step.overlap(me, world) {
                Some(Overlap::Output(span)) => dst = &src[span],
                Some(Overlap::Input(span)) => src = &dst[span],
                None => {}
            }
        }
        let apart = !(dst.as_ptr_range().contains(&src.as_ptr()) || src.as_ptr_range().contains(&dst.as_ptr()));
        fill(dst, &input(me + 100, sequence, dst_len, step.dtype));
        fill(src, &step.input(me, world, sequence));
        let (input, before) = (read(src), read(dst));
        let dealt = self.deal(sequence, step, (dst, src))?;
        let here = format!("rank {me} of {world} in call {sequence}, {step:?}");
        let expected = match (step.stray, step.is_uneven(world)) {
            (Some(_), _) => (Dealt::Differs, before),
            (None, true) => (Dealt::Uneven((0..world).map(|rank| step.bytes(rank, 0)).collect()), before),
            (None, false) => (Dealt::Done, step.expected(me, world, sequence, before)),
        };
        assert_eq!(dealt, expected.0, "{here}");
        assert!(read(dst) == expected.1, "{here}: wrong result");
        assert!(!apart || read(src) == input, "{here}: the input has changed");
        if step.is_uneven(world) && step.stray.is_none() {
            return self.play(sequence + 1, &step.with_lengths());
        }
        Ok(())
    }

    fn deal(&mut self, sequence: u64, step: &Step, (dst, src): (Bytes<'_>, Bytes<'_>)) -> Result<Dealt, Stop> {
        let (me, world) = (self.me, self.world);
        let odd = step.stray == Some(me);
        let turn = Turn { sequence, fingerprint: 2 * sequence + u64::from(odd), algorithm: step.algorithm };
        let (give, take) = (step.give(me, world), step.take(me, world));
        // A rank that supposes.
        let guess = Blocks::Even { len: src.len(), count: world };
        let (give, take) = (Blocks::Cut(&give), Blocks::Cut(&take));
        let blocks = |certain: bool| if certain { take } else { guess };
        let seat = Seat { me, world };
        let code = step.kind.combines().then(|| reducer(step.dtype, step.op));
        let code = || code.expect("a reduction");
        let both = (dst, src);
        self.call(sequence, |direct, wait| {
            let deal = match step.kind {
                Kind::AllReduce => return direct.all_reduce(&turn, wait, code(), dst, src).map(dealt),
                Kind::Broadcast { root } => return direct.broadcast(&turn, wait, root, src).map(dealt),
                Kind::Reduce { root } => Deal::reduce(seat, root, code(), both),
                Kind::AllGather { certain } => Deal::all_gather(blocks(certain), certain, both),
                Kind::Gather { root, certain } => Deal::gather(me, root, blocks(certain), certain, both),
                Kind::Scatter { root } => Deal::scatter(me, root, give, both),
                Kind::ReduceScatter => Deal::reduce_scatter(me, code(), give, both),
                Kind::AllToAll { certain } => Deal::all_to_all(me, (give, take), certain, both),
                Kind::Scan => Deal::scan(seat, code(), both),
                Kind::Exscan => Deal::exscan(seat, code(), (step.dtype, step.op), both),
            };
            direct.deal(&turn, wait, &deal)
        })
    }
}
