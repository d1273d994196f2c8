//! Whose fault it was, in words. Called only when something has gone wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::direct::words::Mark;
use crate::direct::{Boards, Direct, Turn};
use crate::error::{Error, Rank, ranks, seconds};
use crate::health::{Roster, State};
use crate::wait::{Stop, Wait};

use super::call::Call;

/// Everything that is known where a wait ended without its condition.
pub(super) struct Scene<'a> {
    pub rank: Rank,
    pub turn: &'a Turn,
    pub call: &'a Call<'a>,
    pub boards: &'a Boards,
    pub roster: &'a Roster,
    pub limit: Duration,
}

impl Scene<'_> {
    /// The state in which this rank leaves the group, and the error for its caller.
    pub fn explain(&self, stop: Stop) -> (State, Error) {
        match stop {
            Stop::Interrupted => (State::Interrupted, Error::Interrupted),
            Stop::Timeout => (State::TimedOut, self.timeout()),
            Stop::Gone => (State::Failed, self.gone()),
        }
    }

    fn here(&self) -> String {
        format!("call #{} {}", self.turn.sequence, self.call.describe())
    }

    fn timeout(&self) -> Error {
        let missing = self.missing();
        let details: Vec<String> = missing.iter().map(|r| self.standing(*r)).collect();
        let text = format!(
            "rank {} waited {} in {} for {}: {}. The group is closed. Is that rank stuck, or is it busy for longer than \
             timeout= allows?",
            self.rank,
            seconds(self.limit),
            self.here(),
            ranks(&missing),
            details.join("; ")
        );
        Error::Timeout { missing, text }
    }

    /// Ranks that have not arrived; if all have, those that are furthest behind.
    fn missing(&self) -> Vec<Rank> {
        let others = || (0..self.boards.world() as Rank).filter(|r| *r != self.rank);
        let absent: Vec<Rank> = others().filter(|r| !self.arrived(*r)).collect();
        if !absent.is_empty() {
            return absent;
        }
        let progress = |r: &Rank| {
            let p = &self.boards.of(*r as usize).progress;
            [&p.staged, &p.reduced, &p.read, &p.wrote]
                .map(Mark::position)
                .iter()
                .fold(0, |a: u64, b| a.wrapping_add(*b))
        };
        let least = others().map(|r| progress(&r)).min();
        others().filter(|r| Some(progress(r)) == least).collect()
    }

    fn arrived(&self, rank: Rank) -> bool {
        self.boards.of(rank as usize).arrival(self.turn.sequence).head.arrived(self.turn.sequence)
    }

    fn standing(&self, rank: Rank) -> String {
        let pid = self.roster.pid(rank);
        if self.arrived(rank) {
            return format!("rank {rank} (process {pid}) arrived but stopped half-way");
        }
        match self.roster.completed(rank) {
            0 => format!("rank {rank} (process {pid}) has not called anything yet"),
            last => format!("rank {rank} (process {pid}) has not called it; the last call it completed is #{last}"),
        }
    }

    fn gone(&self) -> Error {
        let behind = |state| -> Vec<Rank> {
            self.roster.behind(self.turn.sequence, state).into_iter().filter(|r| *r != self.rank).collect()
        };
        let dead = behind(State::Dead);
        if !dead.is_empty() {
            let pids: Vec<String> = dead.iter().map(|r| self.roster.pid(*r).to_string()).collect();
            let text = format!(
                "{} {} lost: the process is gone (pid {}), noticed by rank {} in {}. Killed, crashed or out of memory? The \
                 group is closed",
                ranks(&dead),
                if dead.len() == 1 { "was" } else { "were" },
                pids.join(", "),
                self.rank,
                self.here()
            );
            return Error::PeerLost { ranks: dead, text };
        }
        let tired = behind(State::TimedOut);
        if !tired.is_empty() {
            let mut missing: Vec<Rank> = tired.iter().flat_map(|r| self.roster.missing(*r)).collect();
            missing.sort_unstable();
            missing.dedup();
            let text = format!(
                "{} gave up waiting for {}, so rank {} cannot complete {}. The group is closed",
                ranks(&tired),
                ranks(&missing),
                self.rank,
                self.here()
            );
            return Error::Timeout { missing, text };
        }
        let interrupted = behind(State::Interrupted);
        if !interrupted.is_empty() {
            return Error::Aborted(format!(
                "{} was interrupted (Ctrl-C or a signal handler that raised), so rank {} cannot complete {}. The group is closed",
                ranks(&interrupted),
                self.rank,
                self.here()
            ));
        }
        let finished = behind(State::Finished);
        if !finished.is_empty() {
            let last: Vec<String> = finished.iter().map(|r| format!("#{}", self.roster.completed(*r))).collect();
            let text = format!(
                "{} finished after call {} and will not take part in {} of rank {}. The group is closed. Did all ranks make \
                 the same number of calls?",
                ranks(&finished),
                last.join(", "),
                self.here(),
                self.rank
            );
            return Error::PeerLost { ranks: finished, text };
        }
        let failed = behind(State::Failed);
        Error::Aborted(format!(
            "{} closed the group after a failure, so rank {} cannot complete {}",
            ranks(&failed),
            self.rank,
            self.here()
        ))
    }
}

/// Ranks came with different calls: exchanges descriptions, and returns the sentence that all of them raise.
pub(super) fn disagreement(direct: &Direct, turn: &Turn, call: &Call<'_>, wait: &mut Wait<'_>) -> Result<String, Stop> {
    let boards = direct.boards();
    let sequence = turn.sequence;
    direct.note(sequence, &call.describe());
    let mut said: BTreeMap<String, Vec<Rank>> = BTreeMap::new();
    let mut refused = Vec::new();
    for rank in 0..boards.world() {
        let note = boards.of(rank).note(sequence);
        wait.until(|| note.written(sequence))?;
        if boards.of(rank).arrival(sequence).head.refused() {
            refused.push(format!("rank {rank} could not take part ({})", note.read()));
        } else {
            said.entry(note.read()).or_default().push(rank as Rank);
        }
    }
    let mut calls: Vec<(String, Vec<Rank>)> = said.into_iter().collect();
    calls.sort_by_key(|(_, who)| who[0]);
    let calls = calls.iter().map(|(what, who)| format!("{} called {what}", ranks(who)));
    let parts: Vec<String> = refused.into_iter().chain(calls).collect();
    Ok(format!(
        "call #{sequence} differs between ranks: {}. No data has moved; the group stays usable",
        parts.join("; ")
    ))
}
