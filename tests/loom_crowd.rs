//! The meeting of a crowd under every interleaving: the last to arrive, whoever that is, sees every arrival whole, works
//! once for all, and all the others get its result and its verdict; then the same meeting serves a later call.
//!
//! `Meeting::enter` and the words around it are those of production; their order is that of `direct/crowd.rs`.
#![cfg(loom)]

mod watched;

use arx::direct::words::{Board, Code, Control, GENERATIONS};
use loom::sync::Arc;
use loom::thread;
use watched::{Plain, until};

/// What all ranks share.
#[derive(Default)]
struct Job {
    control: Control,
    boards: Vec<Board>,
    /// By rank and generation.
    payload: Vec<[Plain; GENERATIONS as usize]>,
    result: [Plain; GENERATIONS as usize],
}

fn value(rank: usize, sequence: u64) -> u64 {
    sequence * 10u64.pow(rank as u32)
}

impl Job {
    fn of(world: usize) -> Job {
        Job {
            boards: (0..world).map(|_| Board::default()).collect(),
            payload: (0..world).map(|_| Default::default()).collect(),
            ..Job::default()
        }
    }

    /// `Direct::all_reduce_crowd`; what the call says of the ranks' agreement.
    fn all_reduce(&self, me: usize, sequence: u64, fingerprint: u64) -> bool {
        let generation = (sequence % GENERATIONS) as usize;
        self.payload[me][generation].set(value(me, sequence));
        self.arrive(me, sequence, fingerprint, Code::Ready);
        let done = &self.control.meeting(sequence).done;
        until(|| done.arrived(sequence));
        let agreed = done.agrees(fingerprint);
        if agreed {
            let sum: u64 = (0..self.boards.len()).map(|rank| value(rank, sequence)).sum();
            assert_eq!(self.result[generation].get(), sum);
        }
        agreed
    }

    fn arrive(&self, me: usize, sequence: u64, fingerprint: u64, code: Code) {
        let generation = (sequence % GENERATIONS) as usize;
        self.boards[me].arrival(sequence).head.post(sequence, fingerprint, code);
        self.control.meeting(sequence).enter(sequence, fingerprint, self.boards.len(), || {
            let agreed = self.boards.iter().all(|board| board.arrival(sequence).head.agrees(fingerprint));
            if agreed {
                self.result[generation].set(self.payload.iter().map(|p| p[generation].get()).sum());
            }
            agreed
        });
    }
}

/// Every rank runs `rank`, the first of them in the model's own thread.
fn explore(world: usize, rank: fn(&Job, usize)) {
    loom::model(move || {
        let job = Arc::new(Job::of(world));
        let start = |me| {
            let job = Arc::clone(&job);
            thread::spawn(move || rank(&job, me))
        };
        let threads: Vec<_> = (1..world).map(start).collect();
        rank(&job, 0);
        for thread in threads {
            thread.join().expect("a rank");
        }
    });
}

#[test]
fn meetings_follow_each_other() {
    explore(2, |job, me| {
        for sequence in 1..=GENERATIONS + 2 {
            assert!(job.all_reduce(me, sequence, sequence));
        }
    });
}

#[test]
fn any_of_three_may_be_the_last() {
    explore(3, |job, me| {
        for sequence in 1..=2 {
            assert!(job.all_reduce(me, sequence, sequence));
        }
    });
}

#[test]
fn all_learn_that_calls_differ_and_meet_again() {
    explore(2, |job, me| {
        assert!(!job.all_reduce(me, 1, 7 + me as u64));
        assert!(job.all_reduce(me, 2, 9));
    });
}

#[test]
fn a_rank_that_refuses_and_runs_ahead_keeps_meetings_apart() {
    explore(2, |job, me| {
        for sequence in 1..=GENERATIONS + 1 {
            if me == 1 && (sequence == 2 || sequence == 3) {
                job.arrive(me, sequence, 0, Code::Refused);
            } else {
                assert_eq!(job.all_reduce(me, sequence, sequence), sequence != 2 && sequence != 3);
            }
        }
    });
}
