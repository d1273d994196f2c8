//! Does the kernel move private blocks faster than the rings do? Found out by doing both.
//!
//! It depends on the machine, on how many take what one shows, and on what those who only show would do meanwhile. 1 MiB to one
//! other rank: 76 us by the kernel and 18 through a ring on Zen 5, 100 and 120 on Sapphire Rapids; a block of 8 MiB for each of two
//! ranks: 300 us by the kernel and 450 through the rings on the former. So the first calls of each class, which is a kind of call
//! with blocks of about the same length, go one way and the other in turn, and the least time of each way decides: from when the
//! first rank hears that all have arrived until the last one is done. (Rank 0's own time would not do: in a crowd it may sleep until
//! the others are done.) No call is made twice, and none takes longer than the worse way does.

use rustix::time::{ClockId, clock_gettime};

use crate::wait::{Stop, Wait};

use super::deal::{Deal, Take};
use super::{Direct, MEASURE, Turn};

/// Calls of each way. The least time counts, so that a rank that was interrupted, or pages that were touched for the first time,
/// do not.
const RUNS: usize = 4;

/// Blocks shorter than this are not left to the kernel, and not tried. It was slower on every machine seen.
const LEAST: usize = 32 << 10;

/// How private blocks are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Rings,
    Kernel,
    /// One of the two, and its time is taken.
    Trial,
}

/// Calls that should go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
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
    fn of(deal: &Deal<'_>, longest: usize) -> Class {
        let (cut, gathers) = (deal.cut.is_some(), deal.push.is_some());
        let one_way = matches!(deal.take, Take::Identity { .. } | Take::Combined { .. });
        Class { cut, one_way, rooted: deal.rooted, gathers, octave: longest.max(1).ilog2() }
    }
}

#[derive(Clone, Debug)]
struct Trial {
    class: Class,
    calls: usize,
    /// Least time through the rings, and by the kernel, in nanoseconds.
    least: [u64; 2],
    found: Option<Way>,
}

/// What has been tried so far; the same calls on all ranks.
#[derive(Debug, Default)]
pub(super) struct Trials(Vec<Trial>);

impl Trials {
    fn found(&self, class: Class) -> Way {
        let trial = self.0.iter().find(|trial| trial.class == class);
        trial.and_then(|trial| trial.found).unwrap_or(Way::Trial)
    }

    fn of(&mut self, class: Class) -> &mut Trial {
        let at = self.0.iter().position(|trial| trial.class == class).unwrap_or_else(|| {
            self.0.push(Trial { class, calls: 0, least: [u64::MAX; 2], found: None });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

impl Trial {
    fn next(&self) -> Way {
        if self.calls.is_multiple_of(2) { Way::Rings } else { Way::Kernel }
    }

    /// The call that was next took so long.
    fn note(&mut self, took: u64) {
        let least = &mut self.least[self.calls % 2];
        *least = took.min(*least);
        self.calls += 1;
    }

    fn is_over(&self) -> bool {
        self.calls == 2 * RUNS
    }

    fn kernel_wins(&self) -> bool {
        let [rings, kernel] = self.least;
        kernel < rings
    }
}

impl Direct {
    /// How blocks of `longest` bytes at most are moved if the kernel may read all ranks.
    pub(super) fn way(&self, deal: &Deal<'_>, longest: usize) -> Way {
        match self.tuning.kernel {
            MEASURE if longest >= LEAST => self.trials.found(Class::of(deal, longest)),
            MEASURE => Way::Rings,
            least if longest >= least => Way::Kernel,
            _ => Way::Rings,
        }
    }

    /// One of the first calls of its class.
    pub(super) fn deal_and_time(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        deal: &Deal<'_>,
        longest: usize,
    ) -> Result<(), Stop> {
        if self.trials.0.is_empty() {
            // Pages of a ring that are touched for the first time would cost more than the bytes in them.
            self.boards.populate_rings(self.me);
        }
        let class = Class::of(deal, longest);
        self.boards.of(self.me).progress.began.advance(now());
        if self.trials.of(class).next() == Way::Kernel {
            self.deal_by_kernel(turn, wait, deal, longest)?;
        } else {
            self.deal_in_rounds(turn, wait, deal, longest)?;
            self.all_wrote(wait)?;
        }
        // Nobody begins the next call before this rank has arrived there.
        let began = (0..self.world).map(|rank| self.boards.of(rank).progress.began.position()).min();
        let trial = self.trials.of(class);
        trial.note(now().saturating_sub(began.unwrap_or_default()));
        if trial.is_over() {
            let kernel_wins = trial.kernel_wins();
            let found = if self.vote(kernel_wins, wait)? { Way::Kernel } else { Way::Rings };
            self.trials.of(class).found = Some(found);
        }
        Ok(())
    }
}

/// Nanoseconds, by the clock that all processes of a host have in common.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Class = Class { cut: false, one_way: false, rooted: true, gathers: false, octave: 20 };

    #[test]
    fn ways_take_turns_and_the_least_time_decides() {
        let mut trials = Trials::default();
        // The kernel's calls take longer but for one.
        for took in [5, 9, 5, 9, 6, 4, 5, 9] {
            let trial = trials.of(CLASS);
            assert!(!trial.is_over());
            assert_eq!(trial.next(), if trial.calls % 2 == 0 { Way::Rings } else { Way::Kernel });
            trial.note(took);
        }
        assert!(trials.of(CLASS).is_over() && trials.of(CLASS).kernel_wins());
    }

    #[test]
    fn classes_are_tried_each_by_itself() {
        let mut trials = Trials::default();
        trials.of(CLASS).found = Some(Way::Kernel);
        let others = [
            Class { cut: true, ..CLASS },
            Class { one_way: true, ..CLASS },
            Class { rooted: false, ..CLASS },
            Class { gathers: true, ..CLASS },
            Class { octave: 19, ..CLASS },
        ];
        for other in others {
            assert_eq!(trials.found(other), Way::Trial);
            trials.of(other).found = Some(Way::Rings);
        }
        assert_eq!(trials.found(CLASS), Way::Kernel);
        assert_eq!(trials.0.len(), 6);
    }
}
