//! Whose fault it was, in words. Called only when something has gone wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::direct::{Boards, Direct, Turn};
use crate::engine::Halt;
use crate::error::{Error, Rank, seconds};
use crate::health::{Roster, State};
use crate::transport::Broken;
use crate::wait::{Stop, Wait};

use super::algorithm::Algorithm;
use super::call::{Call, Collective};
use super::roll::Roll;

/// Everything that is known where a wait ended without its condition.
pub(super) struct Scene<'a> {
    /// Of the group, as all ranks here; what is said of them are their numbers in the job.
    pub rank: Rank,
    pub roll: &'a Roll,
    pub turn: &'a Turn,
    pub call: &'a Call<'a>,
    pub boards: &'a Boards,
    pub roster: &'a Roster,
    pub limit: Duration,
}

impl Scene<'_> {
    /// The state in which this rank leaves the group, the ranks for which it waited in vain, and the error for its caller.
    pub fn explain(&self, halt: Halt) -> (State, Vec<Rank>, Error) {
        let failed = |error| (State::Failed, Vec::new(), error);
        match halt {
            Halt::Stop(Stop::Interrupted) => (State::Interrupted, Vec::new(), Error::Interrupted),
            Halt::Stop(Stop::Timeout) => {
                let missing = self.missing();
                let error = self.timeout(&missing);
                (State::TimedOut, missing, error)
            }
            Halt::Stop(Stop::Gone) => failed(self.gone()),
            // Who leaves says so in the roster before it lets go of its pipes.
            Halt::Broken(_) if self.roster.broken(self.turn.sequence, self.rank) => failed(self.gone()),
            Halt::Broken(Broken { rank, why }) => failed(self.spoilt(rank, &why)),
            Halt::Differs { rank, .. } => failed(self.spoilt(rank, "it carries bytes of another call")),
        }
    }

    /// All have arrived at the same call and nobody has left, so neither can be anybody's doing.
    fn spoilt(&self, rank: Rank, why: &str) -> Error {
        Error::Aborted(format!(
            "the pipe between ranks {} and {} failed in {}: {why}. The group is closed. Does something else write to \
             its shared memory?",
            self.roll.of(rank),
            self.me(),
            self.here()
        ))
    }

    fn here(&self) -> String {
        format!("call #{}{} {}", self.turn.sequence, self.roll.of_group(), self.call.describe())
    }

    fn me(&self) -> Rank {
        self.roll.of(self.rank)
    }

    fn lost(&self, ranks: &[Rank], text: String) -> Error {
        Error::PeerLost { ranks: self.roll.all_of(ranks), text }
    }

    fn late(&self, missing: &[Rank], text: String) -> Error {
        Error::Timeout { missing: self.roll.all_of(missing), text }
    }

    fn timeout(&self, missing: &[Rank]) -> Error {
        let details: Vec<String> = missing.iter().map(|r| self.standing(*r)).collect();
        let text = format!(
            "rank {} waited {} in {} for {}: {}. The group is closed. Is it stuck, or busy for longer than \
             timeout= allows?",
            self.me(),
            seconds(self.limit),
            self.here(),
            self.roll.say(missing),
            details.join("; ")
        );
        self.late(missing, text)
    }

    /// Those on whom the others wait: of the ranks that have not arrived, the ones furthest behind; if all have arrived,
    /// the ones that have done least in this call.
    fn missing(&self) -> Vec<Rank> {
        let others = || (0..self.boards.world() as Rank).filter(|r| *r != self.rank);
        let read = |r: Rank| self.boards.of(r as usize).progress.read.position();
        let absent: Vec<Rank> = others().filter(|r| !self.arrived(*r)).collect();
        if !absent.is_empty() {
            // A rank may be kept from arriving by another that has not read what it staged.
            return least(absent, |r| (self.roster.completed(r), read(r)));
        }
        if let Algorithm::Flat(_) = self.call.algorithm {
            // What has gone through a pipe does not say who should have moved next.
            return least(others().collect(), |r| self.roster.completed(r));
        }
        match self.call.collective {
            Collective::Broadcast { root } => {
                // Readers are behind the root at all times; they are late if they have not read what is there.
                let board = self.boards.of(root as usize);
                let staged =
                    board.progress.staged.position().max(board.arrival(self.turn.sequence).head.place().staged);
                let slow: Vec<Rank> = others().filter(|r| *r != root && read(*r) < staged).collect();
                match (slow.is_empty(), root == self.rank) {
                    (true, false) => vec![root],
                    (true, true) => others().collect(),
                    (false, _) => least(slow, read),
                }
            }
            _ => least(others().collect(), |r| {
                let p = &self.boards.of(r as usize).progress;
                [&p.staged, &p.reduced, &p.read, &p.wrote].iter().fold(0_u64, |sum, w| sum.wrapping_add(w.position()))
            }),
        }
    }

    fn arrived(&self, rank: Rank) -> bool {
        self.boards.of(rank as usize).arrival(self.turn.sequence).head.arrived(self.turn.sequence)
    }

    fn standing(&self, rank: Rank) -> String {
        let named = format!("{} (process {})", self.roll.say(&[rank]), self.roster.pid(rank));
        if self.arrived(rank) {
            return format!("{named} arrived but stopped half-way");
        }
        match self.roster.completed(rank) {
            0 => format!("{named} has not called anything yet"),
            last => format!("{named} has not called it; the last call it completed is #{last}"),
        }
    }

    fn gone(&self) -> Error {
        let behind = |state| -> Vec<Rank> {
            self.roster.behind(self.turn.sequence, state).into_iter().filter(|r| *r != self.rank).collect()
        };
        if !behind(State::Dead).is_empty() {
            let dead = self.roster.lost(self.rank);
            let pids: Vec<String> = dead.iter().map(|r| self.roster.pid(*r).to_string()).collect();
            let text = format!(
                "{} lost: {} gone (pid {}), noticed by rank {} in {}. Killed, crashed or out of memory? The group is closed",
                self.roll.say(&dead),
                if dead.len() == 1 { "the process is" } else { "their processes are" },
                pids.join(", "),
                self.me(),
                self.here()
            );
            return self.lost(&dead, text);
        }
        let tired = behind(State::TimedOut);
        if !tired.is_empty() {
            let mut missing: Vec<Rank> = tired.iter().flat_map(|r| self.roster.missing(*r)).collect();
            missing.sort_unstable();
            missing.dedup();
            let text = format!(
                "{} gave up waiting for {}, so rank {} cannot complete {}. The group is closed",
                self.roll.say(&tired),
                self.roll.say(&missing),
                self.me(),
                self.here()
            );
            return self.late(&missing, text);
        }
        let interrupted = behind(State::Interrupted);
        if !interrupted.is_empty() {
            return Error::Aborted(format!(
                "{} was interrupted (Ctrl-C or a signal handler that raised), so rank {} cannot complete {}. The group is closed",
                self.roll.say(&interrupted),
                self.me(),
                self.here()
            ));
        }
        let raised = behind(State::Raised);
        if !raised.is_empty() {
            let text = format!(
                "{} left the group with an exception (see its output), so rank {} cannot complete {}. The group is closed",
                self.roll.say(&raised),
                self.me(),
                self.here()
            );
            return self.lost(&raised, text);
        }
        let finished = behind(State::Finished);
        if !finished.is_empty() {
            let last: Vec<String> = finished.iter().map(|r| format!("#{}", self.roster.completed(*r))).collect();
            let text = format!(
                "{} finished after call {} and will not take part in {} of rank {}. The group is closed. Did all ranks make \
                 the same number of calls?",
                self.roll.say(&finished),
                last.join(", "),
                self.here(),
                self.me()
            );
            return self.lost(&finished, text);
        }
        let failed = behind(State::Failed);
        Error::Aborted(format!(
            "{} closed the group after a failure, so rank {} cannot complete {}",
            self.roll.say(&failed),
            self.me(),
            self.here()
        ))
    }
}

/// Those of `ranks` for which `key` is smallest.
fn least<K: Ord>(ranks: Vec<Rank>, key: impl Fn(Rank) -> K) -> Vec<Rank> {
    let low = ranks.iter().map(|r| key(*r)).min();
    ranks.into_iter().filter(|r| Some(key(*r)) == low).collect()
}

/// Ranks came with different calls: exchanges descriptions, and returns the sentence that all of them raise.
pub(super) fn disagreement(
    roll: &Roll,
    direct: &Direct,
    turn: &Turn,
    call: &Call<'_>,
    wait: &mut Wait<'_>,
) -> Result<String, Stop> {
    let boards = direct.boards();
    let sequence = turn.sequence;
    direct.note(sequence, &call.describe());
    let mut said: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    let mut refused = Vec::new();
    for rank in 0..boards.world() {
        let note = boards.of(rank).note(sequence);
        wait.until(|| note.written(sequence))?;
        if boards.of(rank).arrival(sequence).head.refused() {
            refused.push(format!("{} could not take part ({})", roll.say(&[rank as Rank]), note.read()));
        } else {
            said.entry(note.read()).or_default().push(rank as Rank);
        }
    }
    let mut calls: Vec<(String, Vec<Rank>)> = said.into_iter().collect();
    calls.sort_by_key(|(_, who)| who[0]);
    let calls = calls.iter().map(|(what, who)| format!("{} called {what}", roll.say(who)));
    let parts: Vec<String> = refused.into_iter().chain(calls).collect();
    Ok(format!(
        "call #{sequence}{} differs between ranks: {}. No data has moved; the group stays usable",
        roll.of_group(),
        parts.join("; ")
    ))
}
