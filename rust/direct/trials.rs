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
//! calls each, and the least time of each decides: from when the last rank comes until the last one is done. (Rank 0's own time
//! would not do: in a crowd it may sleep until the others are done.) What can be done before all have arrived is done in these
//! calls as in all others. No call is made twice, and none takes longer than the worst way does.

use rustix::time::{ClockId, clock_gettime};

use crate::wait::{Stop, Wait};

use super::calibrate::ANSWERS;
use super::deal::{Deal, Take};
use super::in_place::InPlace;
use super::ways::{WAYS, Way, Ways};
use super::words::Place;
use super::{Algorithm, Direct, MEASURE, Turn};

/// Calls of a way, one after the other. The first one does not count: it finds in the caches what another way has left there,
/// and may be the first to touch a page. Of the others the least time counts, so that a rank that was interrupted does not.
const ROW: usize = 4;

/// The ways take turns, in rows, until they have taken so much time or had so many turns. Four ranks that have just started on two
/// cores take 300 us for a call that takes 7 when the system has settled which of them share a core, whatever the way.
const ENOUGH: u64 = 10_000_000;
const TURNS: usize = 8;

/// What was found is believed for so many times as many calls as it took; then all ways are tried once more, and each time after so many
/// times as many calls as the time before.
const AGAIN: usize = 16;

/// Blocks shorter than this are not left to the kernel, and not tried. It was slower on every machine seen.
const LEAST: usize = 32 << 10;

/// Said instead of one of them.
const GO_ON: u64 = WAYS.len() as u64;

const _: () = assert!(GO_ON < ANSWERS);

/// Calls that should go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    ways: Ways,
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
    fn of(deal: &Deal<'_>, longest: usize, (in_place, readable): (bool, bool), ways: Ways) -> Class {
        let (cut, rooted, gathers) = (deal.cut.is_some(), deal.rooted, deal.push.is_some());
        let one_way = matches!(deal.take, Take::Identity { .. } | Take::Combined { .. });
        Class { ways, in_place, readable, cut, one_way, rooted, gathers, octave: longest.max(1).ilog2() }
    }
}

#[derive(Clone, Debug)]
struct Trial {
    class: Class,
    calls: usize,
    /// Nanoseconds of all calls so far that count.
    spent: u64,
    /// Least time of each way so far, in nanoseconds.
    least: [u64; WAYS.len()],
    found: Option<usize>,
    /// Calls between the last trial and the next, and how many of them are left.
    pause: usize,
    until: usize,
}

/// What has been tried so far; the same calls on all ranks.
#[derive(Debug, Default)]
pub(super) struct Trials(Vec<Trial>);

impl Trials {
    fn find(&self, class: Class) -> Option<&Trial> {
        self.0.iter().find(|trial| trial.class == class)
    }

    /// The way to go, and whether that is a trial.
    fn way(&self, class: Class) -> (Way, bool) {
        let (way, tried) = match (class.ways.only(), self.find(class)) {
            (Some(only), _) => (only, false),
            (None, Some(Trial { found: Some(found), .. })) => (*found, false),
            (None, Some(trial)) => (trial.next(), true),
            (None, None) => (class.ways.turn(0), true),
        };
        (WAYS[way], tried)
    }

    /// A call goes the way that was found.
    fn count_down(&mut self, class: Class) {
        if let Some(trial) = self.0.iter_mut().find(|trial| trial.class == class) {
            trial.count_down();
        }
    }

    fn of(&mut self, class: Class) -> &mut Trial {
        let at = self.0.iter().position(|trial| trial.class == class).unwrap_or_else(|| {
            self.0.push(Trial::new(class, 0));
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

impl Trial {
    fn new(class: Class, pause: usize) -> Trial {
        Trial { class, calls: 0, spent: 0, least: [u64::MAX; WAYS.len()], found: None, pause, until: 0 }
    }

    /// All of this class go that way, for some time.
    fn settle(&mut self, found: usize) {
        self.pause = AGAIN.saturating_mul(self.pause.max(self.calls));
        (self.found, self.until) = (Some(found), self.pause);
    }

    /// A call without a trial. After so many of them there will be another one.
    fn count_down(&mut self) {
        match self.until {
            0 => *self = Trial::new(self.class, self.pause),
            left => self.until = left - 1,
        }
    }

    fn next(&self) -> usize {
        self.class.ways.turn(self.calls / ROW)
    }

    /// The next call took so long.
    fn note(&mut self, took: u64) {
        if !self.calls.is_multiple_of(ROW) {
            let least = &mut self.least[self.next()];
            *least = took.min(*least);
            self.spent += took;
        }
        self.calls += 1;
    }

    /// Whether each way has had the same number of turns.
    fn is_even(&self) -> bool {
        self.calls.is_multiple_of(self.class.ways.count() * ROW)
    }

    /// What rank 0 says when it is: the fastest way, or, if it wants to know more, none.
    fn answer(&self) -> u64 {
        let enough = self.spent >= ENOUGH || self.calls >= TURNS * self.class.ways.count() * ROW;
        if enough { self.fastest() as u64 } else { GO_ON }
    }

    fn fastest(&self) -> usize {
        (0..WAYS.len()).min_by_key(|way| self.least[*way]).expect("there are ways")
    }
}

impl Direct {
    /// Before this rank has heard of the others: whether what it shows stays where it is, as far as it can tell. If the call is
    /// to be a trial, also says when it began here.
    pub(super) fn begin(&self, turn: &Turn, deal: &Deal<'_>, place: &Place) -> bool {
        let longest = deal.size.bytes();
        let in_place = place.input.is_some() && self.is_large(turn, deal, longest);
        let (way, tried) = self.trials.way(self.class(turn, deal, longest, (in_place, place.address.is_some())));
        if tried {
            self.boards.of(self.me).progress.began.advance(now());
        }
        in_place || way.kernel
    }

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
        let class = self.class(turn, deal, longest, (in_place.is_some(), (0..self.world).all(offered)));
        let (way, tried) = self.trials.way(class);
        if !tried {
            self.trials.count_down(class);
            return self.deal_by(way, turn, wait, (deal, longest, in_place));
        }
        if self.trials.0.is_empty() {
            // Pages of a ring that are touched for the first time would cost more than the bytes in them.
            self.boards.populate_rings(self.me);
        }
        // Nobody comes to the next call before all are done with this one.
        let began = (0..self.world).map(|rank| self.boards.of(rank).progress.began.position()).max();
        self.deal_by(way, turn, wait, (deal, longest, in_place))?;
        if in_place.is_none() && !way.kernel {
            self.all_wrote(wait)?;
        }
        let trial = self.trials.of(class);
        trial.note(now().saturating_sub(began.unwrap_or_default()));
        if trial.is_even() {
            let mine = trial.answer();
            let answer = self.vote(mine, wait)?;
            if answer != GO_ON {
                self.trials.of(class).settle(answer as usize);
            }
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

    /// Which of `WAYS` blocks of `longest` bytes at most may go, and what they have in common; the same on all ranks.
    fn class(&self, turn: &Turn, deal: &Deal<'_>, longest: usize, (in_place, offered): (bool, bool)) -> Class {
        let readable = offered && !in_place;
        let kernel = match self.tuning.kernel {
            _ if !readable || !is_moved(turn, deal) => [true, false],
            MEASURE => [true, longest >= LEAST],
            least => [longest < least, longest >= least],
        };
        // What is combined is written by who combines it; of that this is no question.
        let long = longest.saturating_mul(self.world) >= self.long();
        let past_caches = [!long || deal.moves, long];
        let ways = Ways::those(|way| kernel[usize::from(way.kernel)] && past_caches[usize::from(way.past_caches)]);
        Class::of(deal, longest, (in_place, readable), ways)
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

    const CLASS: Class = Class {
        ways: Ways(0b0101),
        in_place: false,
        readable: true,
        cut: false,
        one_way: false,
        rooted: true,
        gathers: false,
        octave: 20,
    };

    #[test]
    fn the_least_time_decides_but_for_the_first_of_each_way() {
        assert_eq!((CLASS.ways, CLASS.ways.only()), (Ways::those(|way| !way.past_caches), None));
        let mut trials = Trials::default();
        for (call, took) in [1, 5, 6, 5, 9, 9, 4, 9].into_iter().enumerate() {
            assert_eq!(trials.way(CLASS), (Way { kernel: call >= ROW, past_caches: false }, true));
            trials.of(CLASS).note(took);
            assert_eq!(trials.of(CLASS).is_even(), call + 1 == 2 * ROW);
        }
        let fastest = trials.of(CLASS).fastest();
        assert_eq!(WAYS[fastest], Way { kernel: true, past_caches: false });
        trials.of(CLASS).settle(fastest);
        for pause in [AGAIN * 2 * ROW, AGAIN * AGAIN * 2 * ROW] {
            for _ in 0..pause {
                assert_eq!(trials.way(CLASS), (WAYS[fastest], false));
                trials.count_down(CLASS);
            }
            trials.count_down(CLASS);
            assert_eq!(trials.way(CLASS), (WAYS[0], true));
            (0..2 * ROW).for_each(|_| trials.of(CLASS).note(9));
            trials.of(CLASS).settle(fastest);
        }
    }

    #[test]
    fn the_plainest_way_wins_a_tie() {
        let class = Class { ways: Ways::those(|_| true), ..CLASS };
        let mut trials = Trials::default();
        (0..4 * ROW).for_each(|_| trials.of(class).note(7));
        assert!(trials.of(class).is_even());
        assert_eq!(trials.of(class).fastest(), 0);
    }

    #[test]
    fn ways_take_turns_until_they_have_taken_enough_time_or_had_enough_turns() {
        for (took, turns) in [(ENOUGH, 1), (ENOUGH / 5, 1), (ENOUGH / 10, 2), (1, TURNS)] {
            let mut trials = Trials::default();
            for turn in 0..turns {
                for call in 0..2 * ROW {
                    assert_eq!(trials.way(CLASS), (Way { kernel: call >= ROW, past_caches: false }, true));
                    trials.of(CLASS).note(took);
                }
                assert_eq!(trials.of(CLASS).answer() == GO_ON, turn + 1 < turns);
            }
        }
    }

    #[test]
    fn where_there_is_one_way_it_is_taken() {
        for way in WAYS {
            let class = Class { ways: Ways::those(|other| way == other), ..CLASS };
            assert_eq!(Trials::default().way(class), (way, false));
        }
    }

    #[test]
    fn classes_are_tried_each_by_itself() {
        let mut trials = Trials::default();
        trials.of(CLASS).found = Some(2);
        let others = [
            Class { ways: Ways::those(|_| true), ..CLASS },
            Class { in_place: true, ..CLASS },
            Class { readable: false, ..CLASS },
            Class { cut: true, ..CLASS },
            Class { one_way: true, ..CLASS },
            Class { rooted: false, ..CLASS },
            Class { gathers: true, ..CLASS },
            Class { octave: 19, ..CLASS },
        ];
        for other in others {
            assert_eq!(trials.way(other), (WAYS[0], true));
            trials.of(other).found = Some(0);
        }
        assert_eq!(trials.way(CLASS), (WAYS[2], false));
        assert_eq!(trials.0.len(), 1 + others.len());
    }
}
