//! The arrival line under every interleaving: whoever waits for an arrival sees all of it, and nothing of a later one.
//!
//! Each model runs a few ranks through more calls than there are generations, so that lines are written again while a
//! slow rank may still look at them. `post`, `arrived` and what follows are the lines of production (`direct/words.rs`);
//! their order is that of `Direct` and `Communicator`.
#![cfg(loom)]

mod watched;

use arx::direct::words::{AHEAD, Board, Code, GENERATIONS, Place};
use loom::sync::Arc;
use loom::thread;
use watched::{Plain, until};

#[derive(Default)]
struct Rank {
    board: Board,
    payload: [Plain; GENERATIONS as usize],
}

impl Rank {
    fn payload(&self, sequence: u64) -> &Plain {
        &self.payload[(sequence % GENERATIONS) as usize]
    }
}

/// What a rank does in one of its calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Takes,
    /// Takes part, in a call of its own making.
    Strays,
    Refuses,
}
use Part::{Refuses, Strays, Takes};

/// One rank in its thread.
struct Actor {
    ranks: Arc<Vec<Rank>>,
    /// What every rank does in call 1, 2, …
    script: &'static [&'static [Part]],
    me: usize,
    sequence: u64,
    refusals: u64,
}

fn value(rank: usize, sequence: u64) -> u64 {
    100 * sequence + rank as u64
}

fn place(rank: usize, sequence: u64) -> Place {
    let at = value(rank, sequence) as usize;
    Place { input: Some(at), output: Some(at + 10), staged: 1000 + at as u64, address: Some(at + 20) }
}

fn text(rank: usize, sequence: u64) -> String {
    format!("{rank} in {sequence}")
}

impl Actor {
    fn run(mut self) {
        for part in self.script[self.me] {
            match part {
                Takes | Strays => self.take_part(),
                Refuses => self.refuse(),
            }
        }
    }

    /// `Communicator::refuse`
    fn refuse(&mut self) {
        if self.refusals >= AHEAD {
            let awaited = self.sequence + 1 - self.refusals;
            for rank in self.ranks.iter() {
                until(|| rank.board.arrival(awaited).head.arrived(awaited));
            }
            self.refusals -= 1;
        }
        self.sequence += 1;
        self.refusals += 1;
        let (sequence, board) = (self.sequence, &self.ranks[self.me].board);
        board.note(sequence).write(sequence, &text(self.me, sequence));
        board.arrival(sequence).head.post(sequence, 0, Code::Refused);
    }

    /// `Communicator::run`, with the words of `Direct::arrive` and `gather`
    fn take_part(&mut self) {
        self.sequence += 1;
        self.refusals = 0;
        let (sequence, own) = (self.sequence, &self.ranks[self.me]);
        own.payload(sequence).set(value(self.me, sequence));
        let head = &own.board.arrival(sequence).head;
        head.set_place(place(self.me, sequence));
        head.set_length(self.me);
        let part = |rank: usize| self.script[rank][sequence as usize - 1];
        let fingerprint = 2 * sequence + u64::from(part(self.me) == Strays);
        head.post(sequence, fingerprint, Code::Ready);
        let others = || (0..self.ranks.len()).filter(|rank| *rank != self.me);
        let mut agreed = true;
        for rank in others() {
            let head = &self.ranks[rank].board.arrival(sequence).head;
            until(|| head.arrived(sequence));
            agreed &= head.agrees(fingerprint);
        }
        assert_eq!(agreed, others().all(|rank| part(rank) == part(self.me)));
        for rank in others().filter(|rank| part(*rank) != Refuses) {
            let head = &self.ranks[rank].board.arrival(sequence).head;
            assert_eq!((head.place(), head.length()), (place(rank, sequence), rank));
            assert_eq!(self.ranks[rank].payload(sequence).get(), value(rank, sequence));
        }
        if !agreed {
            self.compare_notes(sequence, |rank| part(rank) == Refuses);
        }
    }

    /// `blame::disagreement`
    fn compare_notes(&self, sequence: u64, refused: impl Fn(usize) -> bool) {
        self.ranks[self.me].board.note(sequence).write(sequence, &text(self.me, sequence));
        for (rank, Rank { board, .. }) in self.ranks.iter().enumerate() {
            let note = board.note(sequence);
            until(|| note.written(sequence));
            assert_eq!(board.arrival(sequence).head.refused(), refused(rank));
            assert_eq!(note.read(), text(rank, sequence));
        }
    }
}

fn explore(script: &'static [&'static [Part]]) {
    loom::model(move || {
        let ranks: Arc<Vec<Rank>> = Arc::new(script.iter().map(|_| Rank::default()).collect());
        let actor = |me| Actor { ranks: Arc::clone(&ranks), script, me, sequence: 0, refusals: 0 };
        let others: Vec<_> = (1..script.len()).map(|me| (me, actor(me))).collect();
        let threads: Vec<_> = others.into_iter().map(|(_, actor)| thread::spawn(move || actor.run())).collect();
        actor(0).run();
        for thread in threads {
            thread.join().expect("a rank");
        }
    });
}

#[test]
fn lines_are_written_again_only_when_nobody_looks() {
    explore(&[&[Takes; 6], &[Takes; 6]]);
}

#[test]
fn three_ranks_see_each_other_whole() {
    explore(&[&[Takes], &[Takes], &[Takes]]);
}

#[test]
fn a_rank_that_refuses_call_after_call_does_not_run_over_a_slow_one() {
    explore(&[&[Takes; 5], &[Takes, Refuses, Refuses, Refuses, Refuses]]);
}

#[test]
fn a_rank_that_refused_twice_and_then_takes_part_does_not_either() {
    explore(&[&[Takes; 5], &[Takes, Refuses, Refuses, Takes, Takes]]);
}

#[test]
fn ranks_that_called_different_things_read_each_others_notes() {
    explore(&[&[Takes, Strays, Takes, Takes, Takes, Strays], &[Takes, Takes, Takes, Takes, Strays, Takes]]);
}

#[test]
fn two_ranks_may_refuse_at_the_same_time() {
    explore(&[&[Refuses, Takes, Refuses, Refuses, Takes], &[Takes, Refuses, Refuses, Takes, Refuses]]);
}
