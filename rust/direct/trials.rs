//! Which way to move large blocks is the fastest? Found out by doing each.
//!
//! ```text
//! private arrays     through the rings | by the kernel        and of either, what is long:
//! symmetric arrays   in place                                 written through the caches | past them
//! ```
//! It depends on the machine, on how many take what one shows, and on what those who only show would do meanwhile. 1 MiB to one
//! other rank: 76 us by the kernel and 18 through a ring on Zen 5, 100 and 120 on Sapphire Rapids; a block of 8 MiB for each of two
//! ranks: 300 us by the kernel and 450 through the rings on the former. Written past the caches, 8 MiB take a fifth less time on
//! Sapphire Rapids; 4 MiB take twice the time on Zen 5, and 16 MiB half.
//!
//! So the first calls of each class, which is a kind of call with blocks of about the same length, go one way after the other, some
//! calls each, and the least time of each decides: from when the first rank hears that all have arrived until the last one is done. (Rank 0's own time
//! would not do: in a crowd it may sleep until the others are done.) No call is made twice, and none takes longer than the worst
//! way does.

use rustix::time::{ClockId, clock_gettime};

use crate::wait::{Stop, Wait};

use super::deal::{Deal, Take};
use super::in_place::InPlace;
use super::{Algorithm, Direct, MEASURE, Turn};

/// Calls of each way, one after the other. The first one does not count: it finds in the caches what another way has left there,
/// and may be the first to touch a page. Of the others the least time counts, so that a rank that was interrupted does not.
const RUNS: usize = 4;

/// Blocks shorter than this are not left to the kernel, and not tried. It was slower on every machine seen.
const LEAST: usize = 32 << 10;

/// How blocks are moved; in place it has no choice between kernel and rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    kernel: bool,
    /// What is long is written past the caches.
    past_caches: bool,
}

/// In the order in which they are preferred if they are equally fast.
const WAYS: [Way; 4] = [
    Way { kernel: false, past_caches: false },
    Way { kernel: false, past_caches: true },
    Way { kernel: true, past_caches: false },
    Way { kernel: true, past_caches: true },
];

/// Those among which there is a choice, each as a bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ways(u8);

impl Ways {
    fn those(allowed: impl Fn(Way) -> bool) -> Ways {
        let bits = WAYS.iter().enumerate().map(|(at, way)| u8::from(allowed(*way)) << at);
        Ways(bits.fold(0, |all, bit| all | bit))
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        (0..WAYS.len()).filter(move |at| self.0 >> at & 1 == 1)
    }

    fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    fn has_kernel(self) -> bool {
        self.iter().any(|at| WAYS[at].kernel)
    }

    /// If it is no choice.
    fn only(self) -> Option<Way> {
        (self.count() == 1).then(|| WAYS[self.0.trailing_zeros() as usize])
    }
}

/// Calls that should go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    in_place: bool,
    /// Whether the kernel may read the arrays of all ranks.
    readable: bool,
    /// Whether each rank is shown a block of its own.
    cut: bool,
    /// Whether only some take (`exscan` of two ranks).
    one_way: bool,
    rooted: bool,
    /// Of rooted calls: whether the root is the one that takes.
    gathers: bool,
    /// Logarithm of the length of the longest block.
    octave: u32,
}

impl Class {
    fn of(deal: &Deal<'_>, longest: usize, (in_place, readable): (bool, bool)) -> Class {
        let (cut, rooted, gathers) = (deal.cut.is_some(), deal.rooted, deal.push.is_some());
        let one_way = matches!(deal.take, Take::Identity { .. } | Take::Combined { .. });
        Class { in_place, readable, cut, one_way, rooted, gathers, octave: longest.max(1).ilog2() }
    }
}

#[derive(Clone, Debug)]
struct Trial {
    class: Class,
    calls: usize,
    /// Least time of each way so far, in nanoseconds.
    least: [u64; WAYS.len()],
    found: Option<Way>,
}

/// What has been tried so far; the same calls on all ranks.
#[derive(Debug, Default)]
pub(super) struct Trials(Vec<Trial>);

impl Trials {
    fn found(&self, class: Class) -> Option<Way> {
        self.0.iter().find(|trial| trial.class == class).and_then(|trial| trial.found)
    }

    fn of(&mut self, class: Class) -> &mut Trial {
        let at = self.0.iter().position(|trial| trial.class == class).unwrap_or_else(|| {
            self.0.push(Trial { class, calls: 0, least: [u64::MAX; WAYS.len()], found: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

impl Trial {
    /// Which of `ways` is next.
    fn next(&self, ways: Ways) -> usize {
        ways.iter().nth(self.calls / RUNS).expect("there is a way")
    }

    /// The next call took so long.
    fn note(&mut self, ways: Ways, took: u64) {
        if !self.calls.is_multiple_of(RUNS) {
            let least = &mut self.least[self.next(ways)];
            *least = took.min(*least);
        }
        self.calls += 1;
    }

    fn is_over(&self, ways: Ways) -> bool {
        self.calls == ways.count() * RUNS
    }

    fn fastest(&self) -> usize {
        (0..WAYS.len()).min_by_key(|way| self.least[*way]).expect("there are ways")
    }
}

impl Direct {
    /// After all have arrived. `longest`: bytes of the longest block.
    pub(super) fn deal_large(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        longest: usize,
    ) -> Result<(), Stop> {
        let in_place = self.way_in_place(turn, deal, longest);
        let offered = |rank| self.place(turn, rank).address.is_some();
        let readable = in_place.is_none() && (0..self.world).all(offered);
        let ways = self.ways(turn, deal, longest, readable);
        let class = Class::of(deal, longest, (in_place.is_some(), readable));
        if let Some(way) = ways.only().or_else(|| self.trials.found(class)) {
            return self.deal_by(way, turn, wait, (deal, longest, in_place));
        }
        if self.trials.0.is_empty() {
            // Pages of a ring that are touched for the first time would cost more than the bytes in them.
            self.boards.populate_rings(self.me);
        }
        let way = WAYS[self.trials.of(class).next(ways)];
        self.boards.of(self.me).progress.began.advance(now());
        self.deal_by(way, turn, wait, (deal, longest, in_place))?;
        if in_place.is_none() && !way.kernel {
            self.all_wrote(wait)?;
        }
        // Nobody begins the next call before this rank has arrived there.
        let began = (0..self.world).map(|rank| self.boards.of(rank).progress.began.position()).min();
        let trial = self.trials.of(class);
        trial.note(ways, now().saturating_sub(began.unwrap_or_default()));
        if trial.is_over(ways) {
            let fastest = trial.fastest() as u64;
            let answer = self.vote(fastest, wait)?;
            self.trials.of(class).found = Some(WAYS[answer as usize]);
        }
        Ok(())
    }

    fn deal_by(
        &mut self,
        way: Way,
        turn: &Turn,
        wait: &mut Wait<'_>,
        (deal, longest, in_place): (&Deal<'_>, usize, Option<InPlace>),
    ) -> Result<(), Stop> {
        self.past_caches = way.past_caches;
        match in_place {
            Some(way) => self.deal_in_place(turn, wait, deal, way),
            None if way.kernel => self.deal_by_kernel(turn, wait, deal, longest),
            None => self.deal_in_rounds(turn, wait, deal, longest),
        }
    }

    /// Which of `WAYS` blocks of `longest` bytes at most may go; the same on all ranks.
    fn ways(&self, turn: &Turn, deal: &Deal<'_>, longest: usize, readable: bool) -> Ways {
        let kernel = match self.tuning.kernel {
            _ if !readable || !is_moved(turn, deal) => [true, false],
            MEASURE => [true, longest >= LEAST],
            least => [longest < least, longest >= least],
        };
        // What is combined is written by who combines it; of that this is no question.
        let long = longest.saturating_mul(self.world) >= self.long();
        let past_caches = [!long || deal.moves, long];
        Ways::those(|way| kernel[usize::from(way.kernel)] && past_caches[usize::from(way.past_caches)])
    }

    /// Whether this rank, before it has heard of the others, need not stage blocks of `longest` bytes at most.
    pub(super) fn may_go_by_kernel(&self, turn: &Turn, deal: &Deal<'_>, longest: usize) -> bool {
        let ways = self.ways(turn, deal, longest, true);
        match self.trials.found(Class::of(deal, longest, (false, true))) {
            Some(way) => way.kernel,
            None => ways.has_kernel(),
        }
    }
}

/// Whether the kernel may do it.
fn is_moved(turn: &Turn, deal: &Deal<'_>) -> bool {
    deal.moves && turn.algorithm == Algorithm::Auto
}

/// Nanoseconds, by the clock that all processes of a host have in common.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Class =
        Class { in_place: false, readable: true, cut: false, one_way: false, rooted: true, gathers: false, octave: 20 };

    #[test]
    fn the_least_time_decides_but_for_the_first_of_each_way() {
        let ways = Ways::those(|way| !way.past_caches);
        assert_eq!((ways.count(), ways.only(), ways.has_kernel()), (2, None, true));
        let mut trials = Trials::default();
        for (call, took) in [1, 5, 6, 5, 9, 9, 4, 9].into_iter().enumerate() {
            let trial = trials.of(CLASS);
            assert!(!trial.is_over(ways));
            assert_eq!(WAYS[trial.next(ways)], Way { kernel: call >= RUNS, past_caches: false });
            trial.note(ways, took);
        }
        assert!(trials.of(CLASS).is_over(ways));
        assert_eq!(WAYS[trials.of(CLASS).fastest()], Way { kernel: true, past_caches: false });
    }

    #[test]
    fn the_plainest_way_wins_a_tie() {
        let ways = Ways::those(|_| true);
        let mut trials = Trials::default();
        (0..4 * RUNS).for_each(|_| trials.of(CLASS).note(ways, 7));
        assert!(trials.of(CLASS).is_over(ways));
        assert_eq!(trials.of(CLASS).fastest(), 0);
    }

    #[test]
    fn where_there_is_one_way_it_is_taken() {
        let last = Way { kernel: true, past_caches: true };
        assert_eq!(Ways::those(|way| way == last).only(), Some(last));
        assert_eq!(Ways::those(|way| way == WAYS[0]).only(), Some(WAYS[0]));
    }

    #[test]
    fn classes_are_tried_each_by_itself() {
        let mut trials = Trials::default();
        trials.of(CLASS).found = Some(WAYS[2]);
        let others = [
            Class { in_place: true, ..CLASS },
            Class { readable: false, ..CLASS },
            Class { cut: true, ..CLASS },
            Class { one_way: true, ..CLASS },
            Class { rooted: false, ..CLASS },
            Class { gathers: true, ..CLASS },
            Class { octave: 19, ..CLASS },
        ];
        for other in others {
            assert_eq!(trials.found(other), None);
            trials.of(other).found = Some(WAYS[0]);
        }
        assert_eq!(trials.found(CLASS), Some(WAYS[2]));
        assert_eq!(trials.0.len(), 1 + others.len());
    }
}
