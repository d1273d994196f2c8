//! The direct path as a whole: worlds of threads in one process over one segment, with rings of a few lines, so that
//! wrapping and waiting for room happen at once. Every result is compared bit by bit with all inputs combined in rank
//! order by one call of the scalar kernel.

mod host;

use arx::direct::words::AHEAD;
use arx::direct::{Algorithm, Direct, NEVER, Shards, Tuning, Turn, Verdict};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::Bytes;
use arx::wait::{Stop, Wait};
use host::{Rank, SLACK, Terms, aligned, combined, fill, input, read, reducer};
use proptest::prelude::*;

/// Longest array of these tests, in bytes.
const MOST: usize = 16 << 10;

#[derive(Clone, Copy, Debug)]
enum What {
    Reduce(DType, ReduceOp),
    /// Into so many shards, and gathered again: what a host does in a collective that spans hosts.
    Shards(DType, ReduceOp, usize),
    Broadcast {
        root: usize,
    },
    Barrier,
    /// One rank comes with another call.
    Disagree {
        rank: usize,
    },
    /// One rank refuses its arguments, and does not wait.
    Refuse {
        rank: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    algorithm: Algorithm,
    elements: usize,
    /// One bit for each rank: whether its arrays lie in the segment, and whether its output is its input.
    symmetric: u32,
    in_place: u32,
}

#[derive(Clone, Debug)]
struct Case {
    world: usize,
    crowd: bool,
    tuning: Tuning,
    steps: Vec<Step>,
}

impl Case {
    fn terms(&self) -> Terms {
        Terms { world: self.world, crowd: self.crowd, tuning: self.tuning, heap: 2 * MOST }
    }

    fn run(self) {
        host::run(format!("{self:?}"), self.terms(), move |rank| {
            self.steps.iter().zip(1..).try_for_each(|(step, sequence)| take(rank, sequence, step))
        });
    }
}

fn take(rank: &mut Rank<'_>, sequence: u64, step: &Step) -> Result<(), Stop> {
    let me = rank.me;
    if matches!(step.what, What::Refuse { rank } if rank == me) {
        rank.direct.refuse(sequence, "not today");
        return Ok(());
    }
    let dtype = match step.what {
        What::Reduce(dtype, _) | What::Shards(dtype, ..) => dtype,
        _ => DType::Complex128,
    };
    let len = step.elements * dtype.size();
    let bit = |mask: u32| mask >> me & 1 == 1;
    let (mut one, mut other) = (vec![0; len + SLACK], vec![0; len + SLACK]);
    let shared = bit(step.symmetric);
    let src = if shared { rank.symmetric(0, len) } else { aligned(&mut one, len) };
    let dst = match bit(step.in_place) {
        true => src,
        false if shared => rank.symmetric(MOST, len),
        false => aligned(&mut other, len),
    };
    fill(dst, &input(me + 100, sequence, len, dtype));
    fill(src, &input(me, sequence, len, dtype));
    let before = read(dst);
    let verdict = rank.call(sequence, |direct, wait| call(direct, me, (sequence, step), wait, (dst, src)))?;
    let differs = matches!(step.what, What::Disagree { .. } | What::Refuse { .. });
    assert_eq!(verdict == Verdict::Differs, differs, "rank {me} call {sequence}");
    let expected = match step.what {
        What::Reduce(_, op) | What::Shards(_, op, _) => {
            let inputs: Vec<_> = (0..rank.world).map(|rank| input(rank, sequence, len, dtype)).collect();
            combined(&inputs, dtype, op)
        }
        What::Broadcast { root } => input(root, sequence, len, dtype),
        _ => before,
    };
    let result = if matches!(step.what, What::Broadcast { .. }) { src } else { dst };
    assert_eq!(read(result), expected, "rank {me} call {sequence}");
    Ok(())
}

fn call(
    direct: &mut Direct,
    me: usize,
    (sequence, step): (u64, &Step),
    wait: &mut Wait<'_>,
    (dst, src): (Bytes<'_>, Bytes<'_>),
) -> Result<Verdict, Stop> {
    let odd = matches!(step.what, What::Disagree { rank } if rank == me);
    let turn = Turn { sequence, fingerprint: 2 * sequence + u64::from(odd), algorithm: step.algorithm };
    match step.what {
        What::Broadcast { root } => direct.broadcast(&turn, wait, root, src),
        What::Barrier => direct.barrier(&turn, wait),
        What::Reduce(dtype, op) => direct.all_reduce(&turn, wait, reducer(dtype, op), dst, src),
        What::Shards(dtype, op, streams) => {
            let shards = Shards { len: src.len(), count: streams };
            let verdict = direct.reduce_scatter(&turn, wait, &reducer(dtype, op), (dst, src), &shards)?;
            if streams % 2 == 1 {
                direct.regroup(wait)?;
            }
            direct.all_gather(&turn, wait, dst, &shards)?;
            Ok(verdict)
        }
        What::Disagree { .. } | What::Refuse { .. } => {
            direct.all_reduce(&turn, wait, reducer(DType::UInt8, ReduceOp::Sum), dst, src)
        }
    }
}

fn pairs() -> Vec<What> {
    host::pairs().into_iter().map(|(dtype, op)| What::Reduce(dtype, op)).collect()
}

fn step(world: usize) -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        8 => prop::sample::select(pairs()),
        4 => (prop::sample::select(pairs()), 1..=world).prop_map(|(what, streams)| match what {
            What::Reduce(dtype, op) => What::Shards(dtype, op, streams),
            other => other,
        }),
        2 => (0..world).prop_map(|root| What::Broadcast { root }),
        1 => Just(What::Barrier),
        1 => (0..world).prop_map(|rank| What::Disagree { rank }),
        1 => (0..world).prop_map(|rank| What::Refuse { rank }),
    ];
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    let elements = prop_oneof![1..80usize, 1..=MOST / 16];
    // All private, all in the segment, or each rank as it likes.
    let symmetric = || prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    (what, algorithm, elements, symmetric(), symmetric()).prop_map(
        |(what, algorithm, elements, symmetric, in_place)| Step { what, algorithm, elements, symmetric, in_place },
    )
}

fn case() -> impl Strategy<Value = Case> {
    (2..=9usize).prop_flat_map(|world| {
        let tuning = (1..=8usize, 1..=16usize, prop_oneof![Just(256), Just(usize::MAX)]).prop_map(
            |(chunk, round, symmetric)| Tuning { chunk: 64 * chunk, round: 64 * round, symmetric, kernel: NEVER },
        );
        let steps = prop::collection::vec(step(world), 1..8);
        (any::<bool>(), tuning, steps).prop_map(move |(crowd, tuning, mut steps)| {
            rest_after_refusals(&mut steps);
            Case { world, crowd, tuning, steps }
        })
    })
}

/// A rank that refuses does not wait; this is what `Communicator::refuse` sees to.
fn rest_after_refusals(steps: &mut [Step]) {
    let mut row = 0;
    for step in steps {
        row = if matches!(step.what, What::Refuse { .. }) { row + 1 } else { 0 };
        if row > AHEAD {
            (step.what, row) = (What::Barrier, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_ends_with_the_bits_of_the_oracle(case in case()) {
        case.run();
    }
}

/// Lengths at which something changes: elements, lines of the head, the payload, chunks, rounds and turns of the ring.
fn lengths(world: usize, ring: usize) -> Vec<usize> {
    let mut lengths = vec![1, world - 1, world, world + 1, 10, 11, 256, 257, 1000, ring / 4 + 1, 2 * ring / 4 + 3];
    lengths.retain(|n| *n > 0 && 4 * n <= MOST);
    lengths
}

fn every_length(algorithm: Algorithm, symmetric: u32, crowd: bool) {
    for world in 2..=9 {
        let tuning = Tuning { chunk: 256, round: 192, symmetric: 1, kernel: NEVER };
        let mut case = Case { world, crowd, tuning, steps: Vec::new() };
        let step = |elements| Step {
            what: What::Reduce(DType::Float32, ReduceOp::Sum),
            algorithm,
            elements,
            symmetric,
            in_place: 0b0101_0101,
        };
        case.steps = lengths(world, case.terms().ring()).into_iter().map(step).collect();
        case.run();
    }
}

#[test]
fn lines_at_every_length() {
    every_length(Algorithm::Lines, 0, false);
}

#[test]
fn staged_at_every_length() {
    every_length(Algorithm::Staged, 0, false);
}

#[test]
fn symmetric_at_every_length() {
    every_length(Algorithm::Symmetric, u32::MAX, false);
}

#[test]
fn some_arrays_symmetric_some_private_at_every_length() {
    every_length(Algorithm::Symmetric, 0b0011_0110, false);
}

#[test]
fn a_crowd_at_every_length() {
    every_length(Algorithm::Auto, 0, true);
}
