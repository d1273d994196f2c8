//! One collective of a world, and what must come out of it: the expressions of the schedules, evaluated step by step by the scalar
//! kernel.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use arx::dtype::{DType, ReduceOp};
use arx::engine::{self, Arithmetic, Call, Halt, Header, Memory};
use arx::kernels::{Bytes, Isa, Reducer};
use arx::plan::{self, Plan};
use arx::schedule::{Algorithm, Apply, Buf, Collective, Schedule, Span, Step};
use arx::wait::Plain;

use super::{Array, Medium, Rank, run, world};

pub const FOREVER: Duration = Duration::MAX;

/// One collective of a world.
#[derive(Clone, Debug)]
pub struct Case {
    pub algorithm: Algorithm,
    pub collective: Collective,
    pub world: usize,
    pub elements: usize,
    pub dtype: DType,
    pub op: ReduceOp,
    pub tile: usize,
    pub medium: Medium,
}

impl Case {
    fn schedule(&self, rank: usize) -> Schedule {
        let schedule = self.algorithm.schedule(self.collective, rank as u32, self.world as u32);
        schedule.unwrap_or_else(|| panic!("{} does not serve {:?}", self.algorithm, self.collective))
    }

    pub fn plan(&self, rank: usize) -> Plan {
        plan::compile(&self.schedule(rank), self.elements * self.dtype.size(), self.dtype.size(), self.tile)
    }

    pub fn arithmetic(&self, isa: Option<Isa>) -> Arithmetic {
        let reducer = |op| match isa {
            Some(isa) => Reducer::with_isa(self.dtype, op, isa),
            None => Reducer::of(self.dtype, op),
        };
        let partial = if self.op == ReduceOp::Avg { ReduceOp::Sum } else { self.op };
        Arithmetic {
            partial: reducer(partial).expect("a pair that goes together"),
            last: reducer(self.op).expect("a pair that goes together"),
            count: self.world,
        }
    }

    /// What `rank` brings: all bits of every element vary, with rank and position.
    pub fn input(&self, rank: usize) -> Vec<u8> {
        let byte = |k: usize| {
            let z = ((rank as u64) << 32 | k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
        };
        (0..self.elements * self.dtype.size()).map(byte).collect()
    }

    pub fn header(&self) -> Header {
        Header { kind: 1, sequence: 7, fingerprint: 0xfeed, bytes: (self.elements * self.dtype.size()) as u64 }
    }

    /// Runs it, twice over the same links, and compares.
    pub fn check(self) {
        let expected = self.expected();
        let what = format!("{self:?}");
        let case = self.clone();
        let results = run(what.clone(), world(self.world, self.medium), move |mut rank| {
            let plan = case.plan(rank.rank);
            let twice = [0, 1].map(|round| {
                let header = Header { sequence: round, ..case.header() };
                let data = Array::new(&case.input(rank.rank));
                let ended = reduce(&mut rank, &plan, &data, case.arithmetic(None), header, FOREVER);
                assert_eq!(ended, Ok(()), "rank {}", rank.rank);
                data.content()
            });
            // Nobody closes a pipe before all have read what is in it.
            (twice, rank)
        });
        for (rank, (twice, _)) in results.iter().enumerate() {
            for result in twice {
                assert!(*result == expected[rank], "rank {rank} of {what}");
                let same = self.collective != Collective::AllReduce || *result == expected[0];
                assert!(same, "ranks differ: {rank} of {what}");
            }
        }
    }

    /// What every rank ends with, tile by tile.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let schedules: Vec<_> = (0..self.world).map(|rank| self.schedule(rank)).collect();
        let mut results: Vec<_> = (0..self.world).map(|rank| self.input(rank)).collect();
        let bytes = results[0].len();
        let tile = (self.tile / self.dtype.size()).max(1).saturating_mul(self.dtype.size());
        for lo in (0..bytes).step_by(tile.min(bytes.max(1))) {
            let hi = bytes.min(lo + tile);
            let inputs = results.iter().map(|result| result[lo..hi].to_vec()).collect();
            let arithmetic = self.arithmetic(Some(Isa::Scalar));
            for (result, tile) in results.iter_mut().zip(evaluate(&schedules, inputs, &arithmetic)) {
                result[lo..hi].copy_from_slice(&tile);
            }
        }
        results
    }
}

/// One rank's part of it.
pub fn reduce(
    rank: &mut Rank,
    plan: &Plan,
    data: &Array,
    arithmetic: Arithmetic,
    header: Header,
    limit: Duration,
) -> Result<(), Halt> {
    let scratch = Array::new(&vec![0xff; plan.scratch]);
    let memory = Memory { array: data.bytes(), source: &[], scratch: scratch.bytes() };
    let mut links = std::mem::take(&mut rank.links);
    let call = Call { plan, memory, arithmetic, header };
    let ended = rank.waiting(limit, &mut Plain, |wait| engine::run(&call, &mut links, None, wait));
    rank.links = links;
    ended
}

/// One rank of `evaluate`.
struct Actor {
    data: Vec<u8>,
    chunks: Vec<Range<usize>>,
    scratch: Vec<Vec<u8>>,
    /// Bytes of what belongs into each chunk of it.
    room: Vec<usize>,
    step: usize,
    /// The first half of the current step is done.
    sent: bool,
}

impl Actor {
    fn new(schedule: &Schedule, data: Vec<u8>, elem: usize) -> Actor {
        let (elements, chunks) = (data.len() / elem, schedule.chunks as usize);
        let end = |k: usize| (k * (elements / chunks) + k.min(elements % chunks)) * elem;
        let chunks: Vec<_> = (0..chunks).map(|k| end(k)..end(k + 1)).collect();
        let long = |twin: Option<u32>| chunks[twin.expect("combined some time") as usize].len();
        let room = schedule.stands_for().into_iter().map(long).collect();
        Actor { data, chunks, scratch: vec![vec![]; schedule.scratch as usize], room, step: 0, sent: false }
    }

    fn get(&self, span: Span) -> Vec<u8> {
        match span.buf {
            Buf::Data => self.data[self.bytes_of(span)].to_vec(),
            Buf::Scratch => self.scratch[span.lo as usize..span.hi as usize].concat(),
        }
    }

    fn set(&mut self, span: Span, bytes: Vec<u8>) {
        match span.buf {
            Buf::Data => {
                let place = self.bytes_of(span);
                self.data[place].copy_from_slice(&bytes);
            }
            Buf::Scratch => {
                let mut rest = &bytes[..];
                for chunk in span.lo as usize..span.hi as usize {
                    let (this, others) = rest.split_at(self.room[chunk]);
                    (self.scratch[chunk], rest) = (this.to_vec(), others);
                }
                assert!(rest.is_empty(), "{} bytes too many", rest.len());
            }
        }
    }

    fn bytes_of(&self, span: Span) -> Range<usize> {
        self.chunks[span.lo as usize].start..self.chunks[span.hi as usize - 1].end
    }

    /// Whether the step is done.
    fn take(&mut self, me: u32, step: &Step, mail: &mut Mail, arithmetic: &Arithmetic) -> bool {
        match step {
            Step::Exchange { send, recv } => {
                if let (Some((to, span)), false) = (*send, self.sent) {
                    mail.entry((me, to)).or_default().push_back(self.get(span));
                }
                self.sent = true;
                let Some((from, span, apply)) = *recv else { return true };
                let Some(bytes) = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front) else { return false };
                let value = match apply {
                    Apply::Store => bytes,
                    Apply::Reduce => combined(&[self.get(span), bytes], &arithmetic.partial, 2),
                    Apply::Finish => combined(&[self.get(span), bytes], &arithmetic.last, arithmetic.count),
                };
                self.set(span, value);
            }
            Step::Local { dst, srcs, finish } => {
                let operands: Vec<_> = srcs.iter().map(|src| self.get(*src)).collect();
                let value = match &operands[..] {
                    [only] if !finish => only.clone(),
                    _ if *finish => combined(&operands, &arithmetic.last, arithmetic.count),
                    _ => combined(&operands, &arithmetic.partial, arithmetic.count),
                };
                self.set(*dst, value);
            }
        }
        true
    }
}

/// What every rank ends with, by the meaning of schedules alone: no positions, no gates, no streams.
fn evaluate(schedules: &[Schedule], inputs: Vec<Vec<u8>>, arithmetic: &Arithmetic) -> Vec<Vec<u8>> {
    let actor = |(schedule, input)| Actor::new(schedule, input, arithmetic.last.elem());
    let mut actors: Vec<_> = schedules.iter().zip(inputs).map(actor).collect();
    let mut mail = Mail::new();
    while actors.iter().zip(schedules).any(|(actor, schedule)| actor.step < schedule.steps.len()) {
        for (me, (actor, schedule)) in actors.iter_mut().zip(schedules).enumerate() {
            if let Some(step) = schedule.steps.get(actor.step)
                && actor.take(me as u32, step, &mut mail, arithmetic)
            {
                (actor.step, actor.sent) = (actor.step + 1, false);
            }
        }
    }
    actors.into_iter().map(|actor| actor.data).collect()
}

/// What is under way, from whom to whom.
type Mail = HashMap<(u32, u32), VecDeque<Vec<u8>>>;

fn combined(operands: &[Vec<u8>], reducer: &Reducer, count: usize) -> Vec<u8> {
    let operands: Vec<_> = operands.iter().map(|operand| Array::new(operand)).collect();
    let result = Array::new(&operands[0].content());
    let sources: Vec<Bytes<'_>> = operands.iter().map(Array::bytes).collect();
    reducer.run_counted(result.bytes(), &sources, count);
    result.content()
}
