//! A rank that gives up on a call has its array back, whatever the others still read there: who was slow must not take what it
//! finds then for the result.
//!
//! ```text
//! rank 0   arrives, does its part, waits for rank 1 in vain, gives up, leaves, writes over its array ──► tells rank 1
//! rank 1   arrives                                                      (held up)                          does its part
//! ```

mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use arx::blocks::Blocks;
use arx::direct::{Algorithm, Control, Deal, Dealt, Direct, NEVER, Tuning, Turn, Verdict};
use arx::dtype::{DType, ReduceOp};
use arx::kernels::Bytes;
use arx::wait::{Host, Patience, Plain, Stop, Wait, raise};
use host::{Rank, SLACK, Terms, aligned, fill, input, reducer};

/// Enough to be dealt in place by a crowd, too.
const LEN: usize = 40 << 10;

#[derive(Default)]
struct Stage {
    /// Rank 1 waits for rank 0 to arrive.
    waits: AtomicBool,
    /// Rank 0 has left the group, and then
    left: AtomicBool,
    /// has written over its array.
    overwritten: AtomicBool,
}

fn await_flag(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        thread::yield_now();
    }
}

/// Holds rank 1 up between its wait for the arrival of rank 0 and what it does then.
struct Slow<'a>(&'a Stage);

impl Host for Slow<'_> {
    fn aside(&mut self, wait: &mut dyn FnMut()) {
        self.0.waits.store(true, Ordering::SeqCst);
        wait();
        await_flag(&self.0.overwritten);
    }

    fn interrupted(&mut self) -> bool {
        false
    }
}

type Work = fn(&mut Direct, &Turn, &mut Wait<'_>, Bytes<'_>, Bytes<'_>) -> Result<(), Stop>;

fn run(kernel: usize, crowd: bool, work: Work) {
    let tuning = Tuning { chunk: 16 << 10, round: 4096, symmetric: 1, kernel };
    let terms = Terms { world: 2, crowd, tuning, heap: 4 * LEN };
    let stage = Arc::new(Stage::default());
    host::run(format!("kernel from {kernel}, crowd: {crowd}"), terms, move |rank| {
        let mut memory = vec![0; 3 * LEN + SLACK];
        let private = aligned(&mut memory, 3 * LEN);
        let shared = rank.symmetric(0, 3 * LEN);
        let (dst, src) = if kernel == NEVER { shared } else { private }.split_at(2 * LEN);
        fill(src, &input(rank.me, 1, LEN, DType::UInt8));
        match rank.me {
            0 => give_up(rank, &stage, work, (dst, src)),
            _ => come_late(rank, &stage, kernel == NEVER, work, (dst, src)),
        }
        Ok(())
    });
}

fn turn(algorithm: Algorithm) -> Turn {
    Turn { sequence: 1, fingerprint: 5, algorithm }
}

fn waiting<'a>(control: &'a Control, gone: &'a dyn Fn() -> bool, limit: Duration, host: &'a mut dyn Host) -> Wait<'a> {
    Wait { bell: &control.bell, alarm: &control.alarm, gone, patience: Patience { spin: Duration::ZERO, limit }, host }
}

fn give_up(rank: &mut Rank<'_>, stage: &Stage, work: Work, (dst, src): (Bytes<'_>, Bytes<'_>)) {
    let boards = rank.direct.boards().clone();
    let control = boards.control();
    await_flag(&stage.waits);
    let (stays, mut plain) = (|| false, Plain);
    let mut wait = waiting(control, &stays, Duration::from_millis(100), &mut plain);
    assert_eq!(work(&mut rank.direct, &turn(Algorithm::Auto), &mut wait, dst, src), Err(Stop::Timeout));
    stage.left.store(true, Ordering::SeqCst);
    raise(&control.alarm, &control.bell);
    fill(src, &[0xee; LEN]);
    stage.overwritten.store(true, Ordering::SeqCst);
}

/// `early`: rank 1 arrives first, and is held up when it has seen rank 0 arrive. Else it is held up where it looks whether rank 0
/// is still there, before it reads.
fn come_late(rank: &mut Rank<'_>, stage: &Stage, early: bool, work: Work, (dst, src): (Bytes<'_>, Bytes<'_>)) {
    let boards = rank.direct.boards().clone();
    let control = boards.control();
    let gone = || {
        let left = stage.left.load(Ordering::SeqCst);
        if !early {
            await_flag(&stage.overwritten);
        }
        left
    };
    if !early {
        stage.waits.store(true, Ordering::SeqCst);
        while !boards.of(0).arrival(1).head.arrived(1) {
            thread::yield_now();
        }
    }
    let mut slow = Slow(stage);
    let mut wait = waiting(control, &gone, Duration::MAX, &mut slow);
    let ended = work(&mut rank.direct, &turn(Algorithm::Auto), &mut wait, dst, src);
    assert_eq!(ended, Err(Stop::Gone), "its array holds what rank 0 wrote over what it had brought");
}

fn all_reduce(
    direct: &mut Direct,
    turn: &Turn,
    wait: &mut Wait<'_>,
    dst: Bytes<'_>,
    src: Bytes<'_>,
) -> Result<(), Stop> {
    let verdict = direct.all_reduce(turn, wait, reducer(DType::UInt8, ReduceOp::Sum), &dst[..LEN], src)?;
    assert_eq!(verdict, Verdict::Agreed);
    Ok(())
}

fn broadcast(direct: &mut Direct, turn: &Turn, wait: &mut Wait<'_>, _: Bytes<'_>, src: Bytes<'_>) -> Result<(), Stop> {
    let verdict = direct.broadcast(turn, wait, 0, src)?;
    assert_eq!(verdict, Verdict::Agreed);
    Ok(())
}

fn all_gather(
    direct: &mut Direct,
    turn: &Turn,
    wait: &mut Wait<'_>,
    dst: Bytes<'_>,
    src: Bytes<'_>,
) -> Result<(), Stop> {
    let blocks = Blocks::Even { len: LEN, count: 2 };
    let dealt = direct.deal(turn, wait, &Deal::all_gather(blocks, true, (dst, src)))?;
    assert_eq!(dealt, Dealt::Done);
    Ok(())
}

#[test]
fn what_is_read_in_place_after_its_owner_gave_up_is_no_result() {
    for crowd in [false, true] {
        for work in [all_reduce as Work, broadcast, all_gather] {
            run(NEVER, crowd, work);
        }
    }
}

#[test]
fn what_the_kernel_reads_after_its_owner_gave_up_is_no_result() {
    run(64, false, all_gather);
}
