//! Why a message was not sent or received, in words. Called only when something has gone wrong, or might have.

use std::time::Duration;

use crate::error::{Error, Rank, seconds};
use crate::health::{Report, Roster, State};
use crate::post::{Office, Status};
use crate::transport::Broken;
use crate::wait::{Host, Stop};

use super::mail::{Arrays, Exchange, Fault, Mail, Own, Reach, Take};
use super::roll::Roll;

impl Mail {
    /// Whether somebody who is needed is gone. True: no longer, for something has moved.
    pub(super) fn check_presence(&mut self, own: Option<&Own<'_>>, host: &mut dyn Host) -> Result<bool, Fault> {
        let broken = |rest: &Exchange<'_>| is_broken((&self.reach, &self.roll, self.me), &self.office, rest);
        let of_own = own.is_some_and(|own| broken(&own.due.rest(&self.office)));
        let of_others = self.outstanding.iter().position(|letter| broken(&letter.rest(&self.office)));
        if !of_own && of_others.is_none() {
            return Ok(false);
        }
        // They may have sent their letters and left since these were looked for: they are looked for once more, now that it is known
        // that no others will come.
        if self.progress_with(own.map_or(&Arrays::default(), |own| own.arrays)) {
            return Ok(true);
        }
        if let Some(own) = own.filter(|_| of_own) {
            return Err(self.stopped(Stop::Gone, (own.due.call, &own.due.rest(&self.office)), own.limit, host));
        }
        let letter =
            of_others.and_then(|at| self.outstanding.iter().nth(at)).expect("found, and nothing has moved since");
        let (call, rest) = (letter.parcel.call(), letter.rest(&self.office));
        Err(self.stopped(Stop::Gone, (&call, &rest), letter.limit, host))
    }

    /// `rest`: what of the call is still to be done.
    #[cold]
    pub(super) fn stopped(
        &self,
        stop: Stop,
        (call, rest): (&Exchange<'_>, &Exchange<'_>),
        limit: Duration,
        host: &mut dyn Host,
    ) -> Fault {
        match stop {
            Stop::Interrupted => interrupted(),
            Stop::Gone => self.gone(&self.awaited(rest), call, host),
            Stop::Timeout => {
                let missing = self.awaited(rest);
                let text = format!(
                    "rank {} waited {} in {}{} for {}. The group is closed. Has the other side made the matching call, with this \
                     tag?",
                    self.roll.of(self.me),
                    seconds(limit),
                    call.describe(),
                    self.roll.of_group(),
                    self.roll.say(&missing)
                );
                let error = Error::Timeout { missing: self.roll.all_of(&missing), text };
                Fault { leave: Some((State::TimedOut, missing)), error }
            }
        }
    }

    /// Ranks without whom the `rest` of a call cannot end.
    fn awaited(&self, rest: &Exchange<'_>) -> Vec<Rank> {
        let others = || (0..self.roll.ranks().len() as Rank).filter(|rank| *rank != self.me).collect();
        match (rest.give, rest.take) {
            (Some(give), None) => vec![give.to],
            (None, Some(Take { from: Some(from), .. })) => vec![from],
            (Some(give), Some(Take { from: Some(from), .. })) if from == give.to => vec![from],
            (Some(give), Some(Take { from: Some(from), .. })) => vec![give.to, from],
            _ => others(),
        }
    }

    /// Some of `ranks` have left, or died.
    #[cold]
    pub(super) fn gone(&self, ranks: &[Rank], call: &Exchange<'_>, host: &mut dyn Host) -> Fault {
        let (me, here) = (self.roll.of(self.me), format!("{}{}", call.describe(), self.roll.of_group()));
        match &self.reach {
            Reach::Hosts(control) => {
                if let Some(verdict) = control.verdict() {
                    return failed(verdict.error());
                }
            }
            Reach::Host(roster) if is_anybody_dead(roster, &self.roll) => return failed(self.dead(roster, &here)),
            _ => {}
        }
        let left: Vec<Rank> = ranks.iter().copied().filter(|rank| is_gone(&self.reach, &self.roll, *rank)).collect();
        if left.is_empty() {
            // The way broke first; what has happened to the other end will be known soon.
            let rank = ranks.first().copied().unwrap_or(self.me);
            return self.broken(Broken { rank, why: "the other end was closed".to_owned() }, call, host);
        }
        let text = format!(
            "{} left the group, so rank {me} cannot complete {here}. The group is closed. Does every send have its recv?",
            self.roll.say(&left)
        );
        failed(Error::PeerLost { ranks: self.roll.all_of(&left), text })
    }

    fn dead(&self, roster: &Roster, here: &str) -> Error {
        let dead = roster.lost(self.me);
        let pids: Vec<String> = dead.iter().map(|rank| roster.pid(*rank).to_string()).collect();
        let text = format!(
            "{} lost: gone (pid {}), noticed by rank {} in {here}. Killed, crashed or out of memory? The group is closed",
            self.roll.say(&dead),
            pids.join(", "),
            self.roll.of(self.me)
        );
        Error::PeerLost { ranks: self.roll.all_of(&dead), text }
    }

    #[cold]
    pub(super) fn broken(&self, broken: Broken, call: &Exchange<'_>, host: &mut dyn Host) -> Fault {
        let Broken { rank, why } = broken;
        match &self.reach {
            Reach::Hosts(control) if control.verdict().is_none() && control.has_left(self.roll.of(rank)) => {
                self.gone(&[rank], call, host)
            }
            Reach::Hosts(control) => {
                let report = Report::Broken { sequence: control.next(), rank: self.roll.of(rank), why };
                failed(control.settle(report, host).map_or_else(|error| error, |verdict| verdict.error()))
            }
            Reach::Host(roster) if is_left(roster.state(rank)) => self.gone(&[rank], call, host),
            Reach::Host(_) | Reach::Alone => failed(Error::Aborted(format!(
                "the way between ranks {} and {} failed in {}{}: {why}. The group is closed. Does something else write to its \
                 shared memory?",
                self.roll.of(rank),
                self.roll.of(self.me),
                call.describe(),
                self.roll.of_group()
            ))),
        }
    }

    /// Nobody else can send it, and this rank waits.
    #[cold]
    pub(super) fn never_sent(&self, call: &Exchange<'_>) -> Fault {
        let error = Error::Invalid(format!(
            "rank {} would wait for ever in {}{} for a message of its own: it has sent itself none with this tag",
            self.roll.of(self.me),
            call.describe(),
            self.roll.of_group()
        ));
        Fault { leave: None, error }
    }

    /// Only that message is lost.
    #[cold]
    pub(super) fn too_long(&self, status: Status, call: &Exchange<'_>) -> Fault {
        let room = call.take.map_or(0, |take| take.array.len());
        let error = Error::Mismatch(format!(
            "the message of rank {} with tag {} has {} bytes, and out has room for {room}: it was received by {}{} and dropped",
            self.roll.of(status.peer),
            status.tag,
            status.len,
            call.describe(),
            self.roll.of_group()
        ));
        Fault { leave: None, error }
    }
}

/// The group is closed.
fn failed(error: Error) -> Fault {
    Fault { leave: Some((State::Failed, Vec::new())), error }
}

pub(super) fn interrupted() -> Fault {
    Fault { leave: Some((State::Interrupted, Vec::new())), error: Error::Interrupted }
}

fn is_left(state: State) -> bool {
    !matches!(state, State::Active | State::Absent)
}

pub(super) fn is_gone(reach: &Reach, roll: &Roll, rank: Rank) -> bool {
    match reach {
        Reach::Alone => false,
        Reach::Host(roster) => is_left(roster.state(rank)),
        Reach::Hosts(control) => control.verdict().is_some() || control.has_left(roll.of(rank)),
    }
}

/// A rank that has died ends the group for all, as over hosts, also for those who wait for somebody else.
fn is_anybody_dead(roster: &Roster, roll: &Roll) -> bool {
    (0..roll.ranks().len() as Rank).any(|rank| roster.state(rank) == State::Dead)
}

/// Whether what a rank sent before it left may still be on its way, which ends with it.
fn is_under_way(reach: &Reach, roll: &Roll, rank: Rank) -> bool {
    match reach {
        Reach::Hosts(control) => control.verdict().is_none() && control.has_hung_up(roll.of(rank)),
        Reach::Host(_) | Reach::Alone => false,
    }
}

/// Whether the `rest` of a call can no longer be done: somebody who is needed is gone, or everybody who could send, or anybody has
/// died.
pub(super) fn is_broken((reach, roll, me): (&Reach, &Roll, Rank), office: &Office, rest: &Exchange<'_>) -> bool {
    let gone = |rank: Rank| is_gone(reach, roll, rank);
    // Between hosts that somebody has left is heard of by another way than what it sent before, and may come first.
    let silent = |rank: Rank| gone(rank) && !(office.is_connected_from(rank) && is_under_way(reach, roll, rank));
    if matches!(reach, Reach::Host(roster) if is_anybody_dead(roster, roll)) {
        return true;
    }
    let of_give = rest.give.is_some_and(|give| gone(give.to));
    let of_take = rest.take.is_some_and(|take| match take.from {
        Some(rank) => silent(rank),
        None => (0..roll.ranks().len() as Rank).filter(|rank| *rank != me).all(silent),
    });
    of_give || of_take
}
