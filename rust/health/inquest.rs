//! Rank 0 is dead. What did it say last? Those who are left find out together, so that all of them say the same.
//!
//! Rank 0 may die in the moment in which it pronounces on somebody else: some have read that then, and some never will. A
//! rank has heard everything that it will ever hear of rank 0 when their connection has been read to its end. It tells that to
//! the *heir*, the lowest rank above 0 that lives, and waits for what the heir has to say:
//!
//! ```text
//!           others                                       heir
//! bereft ── call it, tell all verdicts known ──► passes on at once what is news to anybody
//!           and then "that is all" (Bereft)      calls those who have not come within 20 ms: the dead do not answer
//!              ▲                                         │ all have said that this is all
//!              └──────────── "rank 0 is lost" ◄──────────┘ one text, which ends it
//! ```
//!
//! If the heir is gone too, the next one takes its place, and is told everything again. **Why all agree**, as long as it is
//! only death that keeps anybody from answering: a rank says "that is all" to an heir only after it has read its connections to
//! all lower ones to their ends. So when an heir has heard this of everybody, it knows whatever any survivor knows, whether that
//! came from rank 0 or from an heir who is dead; and before it says that rank 0 is lost, it has passed all of it on.
//!
//! A host that has vanished, and a process that is stopped, do not say that they are gone. Nobody waits for them longer than
//! `WORD`, nor for anything longer than `LIMIT`; then a rank says what it knows.
//!
//! Pure, as the judges are.

use std::time::{Duration, Instant};

use crate::error::Rank;

use super::matter::TOGETHER;
use super::news::{Letter, News};
use super::roster::State;
use super::seat::Group;
use super::verdict::{Kind, Left, Verdict};

/// Whoever is called and does not answer for so long is not expected any more; an heir waits as long for those who have not
/// told everything.
pub(super) const WORD: Duration = Duration::from_millis(500);
/// The longest that all this takes on a rank. A call whose link broke a little earlier is still waiting for a verdict then
/// (`control::PATIENCE`), and those who notice later that rank 0's host has vanished have been able to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// What the thread is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Call(Rank),
    /// On all connections to it.
    Tell(Rank, Letter),
    /// Something that this rank has not heard from rank 0 itself.
    Know(Letter),
    /// It is over: rank 0 is lost, or had left.
    Over(Option<Verdict>),
}

#[derive(Clone, Debug, Default)]
struct Witness {
    /// Connections between the two: one called, one was called, or both.
    lines: u32,
    /// When this rank has called it, until there is an outcome.
    called: Option<Instant>,
    /// It has left, is lost, or does not answer. What it says nevertheless does not count: others may have heard something else.
    absent: bool,
    /// It has told this rank all it knows.
    spoken: bool,
    /// And the other way round.
    told: bool,
}

#[derive(Debug)]
pub(super) struct Inquest {
    me: Rank,
    job: Group,
    /// Verdicts, and rank 0's departure, in the order in which this rank has heard of them.
    said: Vec<Letter>,
    /// What others have told before this rank was bereft.
    early: Vec<Letter>,
    /// Everybody, by rank.
    others: Vec<Witness>,
    /// What this rank would say by itself, and since when it has been alone.
    bereft: Option<(Verdict, Instant)>,
    /// Since when this rank has been the heir, and whether it has called those who did not come.
    heir: Option<(Instant, bool)>,
    over: bool,
    out: Vec<Deed>,
}

/// Whether nothing follows it: rank 0 is lost, or has left the job.
fn is_last(letter: &Letter) -> bool {
    letter.group.id.is_job()
        && match &letter.news {
            News::Verdict(verdict) => verdict.kind == Kind::Lost && verdict.ranks.contains(&0),
            News::Left(Left { rank: 0, state, .. }) => matches!(state, State::Finished | State::Raised),
            _ => false,
        }
}

/// Whether it is worth telling those who have not heard it.
fn is_lasting(letter: &Letter) -> bool {
    matches!(letter.news, News::Verdict(_)) || is_last(letter)
}

impl Inquest {
    pub fn new(me: Rank, job: Group) -> Inquest {
        let others = vec![Witness::default(); job.ranks.len()];
        let (said, early, out) = (Vec::new(), Vec::new(), Vec::new());
        Inquest { me, job, said, early, others, bereft: None, heir: None, over: false, out }
    }

    /// What is to be done.
    pub fn take(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.out)
    }

    /// Whether nothing is going on here that others may count on.
    pub fn is_quiet(&self) -> bool {
        self.bereft.is_none() || self.over
    }

    /// Whether rank 0 has pronounced on all, and may since have died without this rank's having seen it.
    pub fn has_word(&self) -> bool {
        self.bereft.is_none()
            && self.said.iter().any(|letter| letter.group.id.is_job() && matches!(letter.news, News::Verdict(_)))
    }

    /// Rank 0 has said something to this rank. What concerns groups that this rank has left since (`is_past`) is forgotten.
    pub fn note(&mut self, letter: &Letter, is_past: impl Fn(&Group) -> bool) {
        if is_lasting(letter) {
            self.said.retain(|known| !is_past(&known.group));
            self.keep(letter.clone(), None);
        }
    }

    /// The connection to rank 0 has ended. `own`: what this rank makes of it; `left`: who has left the job before.
    pub fn bereave(&mut self, own: Verdict, left: &[Rank], now: Instant) {
        own.ranks.iter().chain(left).for_each(|rank| self.excuse(*rank));
        self.bereft = Some((own, now));
        if self.said.iter().any(is_last) {
            self.end(None);
        }
        std::mem::take(&mut self.early).into_iter().for_each(|letter| self.learn(letter, None));
        self.step(now);
    }

    /// A rank has called this one.
    pub fn arrived(&mut self, rank: Rank, now: Instant) {
        self.others[rank as usize].lines += 1;
        self.out.extend(self.said.iter().map(|letter| Deed::Tell(rank, letter.clone())));
        self.step(now);
    }

    /// A rank has answered the call of this one.
    pub fn reached(&mut self, rank: Rank, now: Instant) {
        self.others[rank as usize].called = None;
        self.arrived(rank, now);
    }

    /// It has not, and will not.
    pub fn missed(&mut self, rank: Rank, now: Instant) {
        self.others[rank as usize].called = None;
        self.lose(rank, now);
    }

    /// A connection to a rank has ended.
    pub fn ended(&mut self, rank: Rank, now: Instant) {
        self.others[rank as usize].lines -= 1;
        self.lose(rank, now);
    }

    fn lose(&mut self, rank: Rank, now: Instant) {
        let other = &mut self.others[rank as usize];
        other.absent |= other.lines == 0 && other.called.is_none();
        self.step(now);
    }

    /// A rank other than 0 has said something; whether that can be.
    pub fn hear(&mut self, from: Rank, letter: Letter, now: Instant) -> bool {
        let all = letter.news == News::Bereft && letter.group.id.is_job();
        if !all && !is_lasting(&letter) {
            return false;
        }
        if !self.others[from as usize].absent {
            match all {
                true => self.others[from as usize].spoken = true,
                false if self.bereft.is_some() => self.learn(letter, Some(from)),
                // Rank 0 may yet say more, and comes first.
                false => self.early.push(letter),
            }
            self.step(now);
        }
        true
    }

    /// When to call `tick`.
    pub fn deadline(&self) -> Option<Instant> {
        let (_, since) = self.bereft.as_ref().filter(|_| !self.over)?;
        let next = match self.heir {
            Some((since, false)) => Some(since + TOGETHER),
            Some((since, true)) => Some(since + TOGETHER + WORD),
            None => self.silent(self.lowest()).map(|called| called + WORD),
        };
        next.into_iter().chain([*since + LIMIT]).min()
    }

    pub fn tick(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let limit = self.bereft.as_ref().is_some_and(|(_, since)| now >= *since + LIMIT);
        match self.heir {
            Some((since, false)) if !limit => {
                self.heir = Some((since, true));
                self.missing().into_iter().for_each(|rank| self.call(rank, now));
            }
            None if !limit => {
                self.excuse(self.lowest());
                self.step(now);
            }
            _ => self.decide(),
        }
    }

    /// Goes on as far as is possible now.
    fn step(&mut self, now: Instant) {
        if self.bereft.is_none() {
            return;
        }
        let lowest = self.lowest();
        for rank in 1..self.me.min(lowest + 1) {
            let other = &mut self.others[rank as usize];
            if other.lines > 0 && !other.told {
                other.told = true;
                self.out.push(Deed::Tell(rank, Letter { group: self.job.clone(), news: News::Bereft }));
            }
        }
        if self.over {
            return;
        }
        if lowest < self.me {
            self.call(lowest, now);
        } else {
            self.heir.get_or_insert((now, false));
            if self.missing().is_empty() {
                self.decide();
            }
        }
    }

    /// The lowest rank above 0 that may be there: the heir, as far as this rank knows.
    fn lowest(&self) -> Rank {
        (1..self.me).find(|rank| !self.others[*rank as usize].absent).unwrap_or(self.me)
    }

    /// Ranks above this one that are expected to say more.
    fn missing(&self) -> Vec<Rank> {
        let all = (0..).zip(&self.others).skip(self.me as usize + 1);
        all.filter(|(_, other)| !other.absent && !other.spoken).map(|(rank, _)| rank).collect()
    }

    /// Since when a rank that has been called has not answered.
    fn silent(&self, rank: Rank) -> Option<Instant> {
        let other = &self.others[rank as usize];
        other.called.filter(|_| other.lines == 0)
    }

    fn call(&mut self, rank: Rank, now: Instant) {
        let other = &mut self.others[rank as usize];
        if other.lines == 0 && other.called.is_none() {
            other.called = Some(now);
            self.out.push(Deed::Call(rank));
        }
    }

    /// Nobody who can be asked has heard that rank 0 said anything else.
    fn decide(&mut self) {
        if let Some((own, _)) = &self.bereft {
            let news = News::Verdict(own.clone());
            self.learn(Letter { group: self.job.clone(), news }, None);
        }
    }

    /// Takes in what rank 0 has said to others, or an heir to all.
    fn learn(&mut self, letter: Letter, from: Option<Rank>) {
        if self.said.contains(&letter) || (self.over && is_last(&letter)) {
            return;
        }
        self.keep(letter.clone(), from);
        let (last, is_member) = (is_last(&letter), letter.group.ranks.contains(&self.me));
        match letter.news {
            News::Verdict(verdict) if last => self.end(Some(verdict)),
            // Otherwise it is for others.
            _ if is_member => self.out.push(Deed::Know(letter)),
            _ => {}
        }
        if last && !self.over {
            self.end(None);
        }
    }

    /// A rank is known to be lost, or to have left.
    fn excuse(&mut self, rank: Rank) {
        if let Some(other) = self.others.get_mut(rank as usize) {
            other.absent = true;
        }
    }

    /// Remembers it, for those who come later, and tells those who are there.
    fn keep(&mut self, letter: Letter, from: Option<Rank>) {
        if let News::Verdict(Verdict { kind: Kind::Lost, ranks, .. }) = &letter.news {
            ranks.iter().for_each(|rank| self.excuse(*rank));
        }
        let there = (0..).zip(&self.others).filter(|(rank, other)| other.lines > 0 && from != Some(*rank));
        self.out.extend(there.map(|(rank, _)| Deed::Tell(rank, letter.clone())));
        self.said.push(letter);
    }

    fn end(&mut self, verdict: Option<Verdict>) {
        self.over = true;
        self.out.push(Deed::Over(verdict));
    }
}
