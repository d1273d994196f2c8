//! The staging rings under every interleaving: bytes are announced after they are written, read after they are announced,
//! and written again after everybody has read them; with rings so small that they wrap within a few pieces.
//!
//! `place`, `has_left` and the marks are those of production (`direct/words.rs`); their order is that of `direct/ring.rs`,
//! `staged.rs` and `broadcast.rs`. A line of 64 bytes, the unit in which the stream advances, is one watched word here.
#![cfg(loom)]

mod watched;

use arx::direct::words::{Progress, place};
use loom::sync::Arc;
use loom::thread;
use watched::{Plain, until};

const LINE: usize = 64;

#[derive(Default)]
struct Rank {
    progress: Progress,
    ring: Vec<Plain>,
}

/// The rings of all ranks.
struct Rings(Vec<Rank>);

/// Lines of the stream.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
}

impl Rings {
    fn of(world: usize, lines: usize) -> Rings {
        let ring = || (0..lines).map(|_| Plain::default()).collect();
        Rings((0..world).map(|_| Rank { ring: ring(), ..Rank::default() }).collect())
    }

    fn world(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> usize {
        self.0[0].ring.len() * LINE
    }

    fn others(&self, me: usize) -> impl Iterator<Item = &Rank> {
        self.0.iter().enumerate().filter(move |(rank, _)| *rank != me).map(|(_, other)| other)
    }

    fn line(&self, rank: usize, position: u64) -> &Plain {
        &self.0[rank].ring[position as usize % self.bytes() / LINE]
    }

    fn piece(&self, position: u64, lines: usize) -> Piece {
        let (start, end) = place(position, lines * LINE, self.bytes());
        assert!(start as usize % self.bytes() + lines * LINE <= self.bytes(), "a piece never wraps");
        Piece { start, end }
    }

    /// `Direct::make_room`
    fn make_room(&self, me: usize, end: u64) {
        for other in self.others(me) {
            until(|| other.progress.has_left(end, self.bytes() as u64));
        }
    }

    /// `Direct::stage`, and the announcement
    fn stage(&self, me: usize, piece: Piece) {
        self.make_room(me, piece.end);
        for position in positions(piece) {
            self.line(me, position).set(staged(me, position));
        }
        self.0[me].progress.staged.advance(piece.end);
    }

    /// Waits for a piece of `rank`, and looks at all of it.
    fn read(&self, rank: usize, piece: Piece) {
        until(|| self.0[rank].progress.staged.reached(piece.end));
        for position in positions(piece) {
            assert_eq!(self.line(rank, position).get(), staged(rank, position));
        }
    }
}

fn positions(piece: Piece) -> impl Iterator<Item = u64> {
    (piece.start..piece.end).step_by(LINE)
}

/// What `rank` stages at `position`.
fn staged(rank: usize, position: u64) -> u64 {
    (position + 1) * 10u64.pow(rank as u32)
}

/// Every rank runs `rank`, the first of them in the model's own thread.
fn explore(world: usize, lines: usize, rank: fn(&Rings, usize)) {
    loom::model(move || {
        let rings = Arc::new(Rings::of(world, lines));
        let start = |me| {
            let rings = Arc::clone(&rings);
            thread::spawn(move || rank(&rings, me))
        };
        let threads: Vec<_> = (1..world).map(start).collect();
        rank(&rings, 0);
        for thread in threads {
            thread.join().expect("a rank");
        }
    });
}

/// `Direct::broadcast_staged`, with pieces of `sizes` lines
fn broadcast(rings: &Rings, me: usize, sizes: &[usize]) {
    let mut position = 0;
    for lines in sizes {
        let piece = rings.piece(position, *lines);
        if me == 0 {
            rings.stage(me, piece);
        } else {
            rings.read(0, piece);
            rings.0[me].progress.read.advance(piece.end);
        }
        position = piece.end;
    }
}

#[test]
fn a_reader_follows_a_writer_round_the_ring() {
    explore(2, 2, |rings, me| broadcast(rings, me, &[1; 6]));
}

#[test]
fn pieces_that_do_not_fit_skip_the_rest_of_the_ring() {
    explore(2, 4, |rings, me| broadcast(rings, me, &[1, 2, 2, 1, 2, 2]));
}

#[test]
fn the_slower_of_two_readers_counts() {
    explore(3, 2, |rings, me| broadcast(rings, me, &[1; 3]));
}

/// `Direct::one_shot`, with pieces of one line
fn one_shot(rings: &Rings, me: usize, pieces: usize) {
    let mut piece = rings.piece(0, 1);
    rings.stage(me, piece);
    for k in 1..=pieces {
        let next = rings.piece(piece.end, 1);
        if k < pieces {
            rings.stage(me, next);
        }
        rings.read(1 - me, piece);
        rings.0[me].progress.read.advance(piece.end);
        piece = next;
    }
}

#[test]
fn two_ranks_stage_ahead_of_each_other() {
    explore(2, 2, |rings, me| one_shot(rings, me, 4));
}

/// One round of `Direct::parts`: a line for each rank, and one for the result of the ring's own rank.
fn round(rings: &Rings, position: u64) -> Piece {
    rings.piece(position, rings.world() + 1)
}

/// `Direct::reduce_part`
fn reduce_part(rings: &Rings, me: usize, piece: Piece) {
    for other in rings.others(me) {
        until(|| other.progress.staged.reached(piece.end));
    }
    let mine = piece.start + (me * LINE) as u64;
    let sum = (0..rings.world()).map(|rank| rings.line(rank, mine).get()).sum();
    rings.line(me, piece.start + (rings.world() * LINE) as u64).set(sum);
    rings.0[me].progress.reduced.advance(piece.end);
}

/// `Direct::collect_parts`
fn collect_parts(rings: &Rings, me: usize, piece: Piece) {
    let world = rings.world();
    for (rank, other) in rings.0.iter().enumerate().filter(|(rank, _)| *rank != me) {
        until(|| other.progress.reduced.reached(piece.end));
        let part = piece.start + (rank * LINE) as u64;
        let sum = (0..world).map(|rank| staged(rank, part)).sum::<u64>();
        assert_eq!(rings.line(rank, piece.start + (world * LINE) as u64).get(), sum);
    }
    rings.0[me].progress.read.advance(piece.end);
}

/// `Direct::parts`
fn parts(rings: &Rings, me: usize, rounds: usize) {
    let mut staged = Some(round(rings, 0));
    let mut reduced = None;
    rings.stage(me, round(rings, 0));
    let mut left = rounds - 1;
    while staged.is_some() || reduced.is_some() {
        let current = staged.take();
        if let Some(piece) = current {
            reduce_part(rings, me, piece);
            if left > 0 {
                let next = round(rings, piece.end);
                rings.stage(me, next);
                staged = Some(next);
                left -= 1;
            }
        }
        if let Some(piece) = reduced.take() {
            collect_parts(rings, me, piece);
        }
        reduced = current;
    }
}

#[test]
fn parts_are_reduced_and_collected_round_the_ring() {
    explore(2, 9, |rings, me| parts(rings, me, 4));
}

#[test]
fn three_ranks_reduce_a_part_each() {
    explore(3, 4, |rings, me| parts(rings, me, 1));
}
