//! Symmetric arrays under every interleaving: a rank touches the others' arrays only between their arrival and its own
//! `wrote`, and its owner has the array for itself before and afterwards.
#![cfg(loom)]

mod watched;

use arx::direct::words::{Board, Code};
use loom::sync::Arc;
use loom::thread;
use watched::{Plain, until};

struct Rank {
    board: Board,
    /// One word for the part of each rank.
    array: Vec<Plain>,
}

fn value(rank: usize, part: usize, sequence: u64) -> u64 {
    (10 * sequence + part as u64) * 1000u64.pow(rank as u32)
}

/// `Direct::all_reduce_symmetric`, between the stores and the loads of a caller
fn all_reduce(ranks: &[Rank], me: usize, sequence: u64) {
    let own = &ranks[me];
    for (part, word) in own.array.iter().enumerate() {
        word.set(value(me, part, sequence));
    }
    own.board.arrival(sequence).head.post(sequence, sequence, Code::Ready);
    for other in ranks {
        until(|| other.board.arrival(sequence).head.arrived(sequence));
    }
    let sum = ranks.iter().map(|rank| rank.array[me].get()).sum();
    for rank in ranks {
        rank.array[me].set(sum);
    }
    own.board.progress.wrote.advance(sequence);
    for other in ranks {
        until(|| other.board.progress.wrote.reached(sequence));
    }
    for (part, word) in own.array.iter().enumerate() {
        assert_eq!(word.get(), (0..ranks.len()).map(|rank| value(rank, part, sequence)).sum());
    }
}

fn explore(world: usize, calls: u64) {
    loom::model(move || {
        let rank = |_| Rank { board: Board::default(), array: (0..world).map(|_| Plain::default()).collect() };
        let ranks: Arc<Vec<Rank>> = Arc::new((0..world).map(rank).collect());
        let start = |me| {
            let ranks = Arc::clone(&ranks);
            thread::spawn(move || (1..=calls).for_each(|sequence| all_reduce(&ranks, me, sequence)))
        };
        let threads: Vec<_> = (1..world).map(start).collect();
        (1..=calls).for_each(|sequence| all_reduce(&ranks, 0, sequence));
        for thread in threads {
            thread.join().expect("a rank");
        }
    });
}

#[test]
fn an_array_is_its_owners_again_after_each_call() {
    explore(2, 3);
}
