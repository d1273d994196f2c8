//! Which way between hosts is the fastest? The model says which come into question. What short messages cost depends on who
//! shares cores and switches, and on how busy all are when the group forms; so the model's favourites go one after the other in the
//! first calls of a size, some calls each, and the times decide.
//!
//! ```text
//! rows       some calls of one way; the first do not count, since what another has left may still be on its way. Of the
//!            others the root mean square: who is late in one call finds there all that it waits for, and is early in the
//!            next; but of two ways that take as long on average the one is better of which no call takes longer than the others
//! cycles     a row of each way; as many as fit into some milliseconds. The median of its rows is what one usually takes
//! then       all ranks tell each other these times: the way whose slowest rank is the fastest is taken
//! later      all of it once more, after some times as many calls, and again after some times as many as that: when a job begins,
//!            the system has not yet settled which ranks share which cores, and later somebody else may use the network.
//!            Each time with longer rows: a token bucket that one way has emptied keeps the next one waiting for a hundred calls
//! ```
//! Which algorithm it is makes no difference to the bits of a result: where order matters, all that come into question keep it
//! (`select::Order`); which codec does, and is only tried where the program leaves it to arx. Long messages are left to the model:
//! bytes take as long as it says.

/// Calls in a row, of ways that send about the same.
pub(super) const ROW: usize = 6;

/// Rows of the favourite take about so long, in seconds, but are at least and at most so many.
const SPAN: f64 = 10e-3;
const CYCLES: (usize, usize) = (3, 24);

/// A trial is repeated after so many times as many calls as it then has, with rows so many times as long; the next time after so many
/// times as many as that, and so on: trials take up less and less.
const AGAIN: usize = 4;

/// Rows grow up to so many calls.
const LONGEST: usize = 128;

/// Of a row, one call in so many does not count: the first ones.
const DO_NOT_COUNT: usize = 3;

/// So many are tried at most.
pub(super) const MOST: usize = 4;

/// What is predicted to take so many times longer than the favourite does not come into question. Where ranks share cores,
/// predictions have been wrong by a factor of three.
const CLOSE: f64 = 4.0;

/// Above this, in seconds, the model is believed.
const SHORT: f64 = 1.5e-3;

/// Ways that take turns, for what `K` says.
#[derive(Debug)]
struct Trial<K, W> {
    what: K,
    /// None if the model decides.
    ways: Vec<W>,
    /// Calls in a row, and rows of each.
    row: usize,
    cycles: usize,
    calls: usize,
    /// Squares of the seconds of the row that is being done, together.
    spent: f64,
    /// A call's time, of each way in each of its rows.
    times: [Vec<f64>; MOST],
    found: Option<W>,
    /// For so many times as many calls as the next trial has there is none, and how many of them are left.
    pause: usize,
    until: usize,
}

impl<K, W: Copy> Trial<K, W> {
    fn new(what: K, row: usize, choices: &[(W, f64)]) -> Trial<K, W> {
        let ways = favourites(choices);
        let seconds = row as f64 * choices.first().map_or(SPAN, |(_, seconds)| *seconds);
        let cycles = ((SPAN / seconds) as usize).clamp(CYCLES.0, CYCLES.1);
        let mut trial = Trial {
            what,
            ways,
            row,
            cycles,
            calls: 0,
            spent: 0.0,
            times: Default::default(),
            found: None,
            pause: AGAIN,
            until: 0,
        };
        trial.until = trial.calls_until_next();
        trial
    }

    /// Calls in a row, and cycles, of the next trial.
    fn longer(&self) -> (usize, usize) {
        let row = (self.row * AGAIN).min(LONGEST).max(self.row);
        (row, (self.cycles * self.row / row).max(CYCLES.0))
    }

    fn calls_until_next(&self) -> usize {
        let (row, cycles) = self.longer();
        self.pause.saturating_mul(row * cycles * self.ways.len())
    }

    /// A call without a trial, or, after so many of them, the first of another one.
    fn count_down(&mut self) {
        if self.until > 0 {
            self.until -= 1;
            return;
        }
        (self.calls, self.times, self.found) = (0, Default::default(), None);
        (self.row, self.cycles) = self.longer();
        self.pause = self.pause.saturating_mul(AGAIN);
        self.until = self.calls_until_next();
    }

    /// Which of the ways is next.
    fn next(&self) -> Option<usize> {
        let rows = self.calls / self.row;
        (rows < self.cycles * self.ways.len()).then(|| rows % self.ways.len())
    }
}

/// All that has been tried; the same on all ranks, but for the times.
#[derive(Debug)]
pub(super) struct Tried<K, W> {
    trials: Vec<Trial<K, W>>,
    /// The one whose call is being made.
    now: usize,
}

impl<K: PartialEq, W: Copy> Tried<K, W> {
    pub fn new() -> Tried<K, W> {
        Tried { trials: Vec::new(), now: 0 }
    }

    /// Found to be the fastest, and of how many.
    pub fn found(&self, what: &K) -> Option<(W, usize)> {
        let trial = self.trials.iter().find(|trial| trial.what == *what)?;
        Some((trial.found?, trial.ways.len()))
    }

    /// What the next call takes, and whether its time is to be noted; None if the model decides. `choices`: the model's, and how
    /// many seconds it predicts, the fastest first. `row`: so many calls in a row.
    pub fn next(&mut self, what: K, row: usize, choices: impl FnOnce() -> Vec<(W, f64)>) -> Option<(W, bool)> {
        self.now = self.trials.iter().position(|trial| trial.what == what).unwrap_or_else(|| {
            self.trials.push(Trial::new(what, row, &choices()));
            self.trials.len() - 1
        });
        let trial = &mut self.trials[self.now];
        if trial.found.is_some() {
            trial.count_down();
        }
        trial.found.map(|found| (found, false)).or(trial.next().map(|next| (trial.ways[next], true)))
    }

    /// The call took so long. Whether all have been tried, and ranks have to `agree`.
    pub fn note(&mut self, seconds: f64) -> bool {
        let trial = &mut self.trials[self.now];
        let Some(way) = trial.next() else { return false };
        let others = trial.row / DO_NOT_COUNT;
        match trial.calls % trial.row {
            call if call < others => trial.spent = 0.0,
            _ => trial.spent += seconds * seconds,
        }
        trial.calls += 1;
        if trial.calls.is_multiple_of(trial.row) {
            trial.times[way].push((trial.spent / (trial.row - others) as f64).sqrt());
        }
        trial.next().is_none()
    }

    /// What calls of each usually took on this rank, after `note` has said so.
    pub fn usual(&self) -> [f64; MOST] {
        self.trials[self.now].times.each_ref().map(|rows| {
            let mut rows = rows.clone();
            rows.sort_by(f64::total_cmp);
            rows.get(rows.len() / 2).copied().unwrap_or(f64::INFINITY)
        })
    }

    /// The same of the slowest ranks.
    pub fn agree(&mut self, slowest: [f64; MOST]) {
        let trial = &mut self.trials[self.now];
        let fastest = trial.ways.iter().zip(slowest).min_by(|a, b| a.1.total_cmp(&b.1));
        trial.found = fastest.map(|(way, _)| *way);
    }
}

/// Those that are tried: none if it is clear which is the fastest.
fn favourites<W: Copy>(choices: &[(W, f64)]) -> Vec<W> {
    let close = choices.iter().take_while(|(_, seconds)| *seconds < CLOSE * choices[0].1).take(MOST);
    let ways: Vec<W> = close.map(|(way, _)| *way).collect();
    let clear = ways.len() < 2 || choices[0].1 > SHORT;
    if clear { Vec::new() } else { ways }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [char; 4] = ['a', 'b', 'c', 'd'];

    fn choices(seconds: [f64; 4]) -> Vec<(char, f64)> {
        ALL.into_iter().zip(seconds).collect()
    }

    /// Takes and notes calls until it is over, each as long as `seconds` says; what was taken.
    fn play(tried: &mut Tried<u32, char>, seconds: impl Fn(char, usize) -> f64) -> Vec<char> {
        let mut taken = Vec::new();
        loop {
            let (way, timed) = tried.next(7, ROW, || choices([1e-4, 1.5e-4, 3.9e-4, 4.1e-4])).expect("they are close");
            assert!(timed);
            taken.push(way);
            if tried.note(seconds(way, taken.len() - 1)) {
                return taken;
            }
        }
    }

    #[test]
    fn favourites_take_turns_in_rows_and_the_slowest_rank_counts() {
        let mut tried = Tried::new();
        let taken = play(&mut tried, |way, call| match way {
            _ if call % ROW < ROW / DO_NOT_COUNT => 1.0,
            _ if call < 15 * ROW => 9e-5, // what disturbs some of the rows does not count either
            'b' => 2e-5,
            _ => 3e-5,
        });
        let cycle = [[ALL[0]; ROW], [ALL[1]; ROW], [ALL[2]; ROW]].concat();
        assert_eq!(taken[..cycle.len()], cycle, "the fourth is too slow");
        assert_eq!(taken.len(), 16 * cycle.len(), "ten milliseconds of the first");
        let (close, usual) = (|a: f64, b: f64| (a / b - 1.0).abs() < 1e-9, tried.usual());
        assert!(close(usual[0], 3e-5) && close(usual[1], 2e-5) && close(usual[2], 3e-5), "{usual:?}");
        assert_eq!(tried.found(&7), None);
        // Another rank found the second slow.
        tried.agree([3e-5, 9e-5, 2.9e-5, f64::INFINITY]);
        assert_eq!(tried.found(&7), Some((ALL[2], 3)));
        let known = || unreachable!("it is known");
        let mut pause = AGAIN;
        for (found, row, cycles) in [(ALL[2], 4 * ROW, 4), (ALL[1], 16 * ROW, 3), (ALL[1], LONGEST, 3)] {
            let calls = pause * 3 * row * cycles;
            (0..calls).for_each(|_| assert_eq!(tried.next(7, ROW, known), Some((found, false))));
            pause *= AGAIN;
            for call in 0..3 * row * cycles {
                let way = ALL[call / row % 3];
                assert_eq!(tried.next(7, ROW, known), Some((way, true)), "all is tried once more, in longer rows");
                assert_eq!(tried.note(1e-5), call == 3 * row * cycles - 1);
            }
            tried.agree([2e-5, 1e-5, 3e-5, f64::INFINITY]);
        }
    }

    #[test]
    fn the_model_decides_where_it_is_clear_and_what_takes_long() {
        let mut tried = Tried::new();
        assert_eq!(tried.next(1, ROW, || choices([1e-5, 4e-5, 5e-5, 6e-5])), None);
        assert_eq!(tried.next(2, ROW, || choices([4e-3, 4e-3, 4e-3, 4e-3])), None);
        assert_eq!(tried.next(2, ROW, || unreachable!("it is remembered")), None);
        assert_eq!(tried.next(3, ROW, || choices([1e-5; 4])), Some((ALL[0], true)));
    }
}
