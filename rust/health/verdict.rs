//! What all ranks say when a group ends before its program does.

use std::time::Duration;

use crate::admission::{Reader, Writer};
use crate::error::{Error, Rank, ranks};

use super::roster::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Processes or hosts are gone.
    Lost = 1,
    /// Ranks did not come in time.
    TimedOut = 2,
    /// Ranks called different things, or one refused its arguments.
    Mismatch = 3,
    /// A rank left a call because of Ctrl-C.
    Interrupted = 4,
    /// A rank left with an exception.
    Raised = 5,
    /// A rank has finished that is still needed.
    Finished = 6,
    /// Something else keeps ranks from going on.
    Failed = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Lost, TimedOut, Mismatch, Interrupted, Raised, Finished, Failed].into_iter().find(|k| *k as u8 == byte)
    }
}

/// Pronounced once for a group, the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: Kind,
    /// Whose fault it is.
    pub ranks: Vec<Rank>,
    pub text: String,
}

impl Verdict {
    /// What a call raises.
    pub fn error(&self) -> Error {
        let (ranks, text) = (self.ranks.clone(), self.text.clone());
        match self.kind {
            Kind::Lost | Kind::Raised | Kind::Finished => Error::PeerLost { ranks, text },
            Kind::TimedOut => Error::Timeout { missing: ranks, text },
            Kind::Mismatch => Error::Mismatch(text),
            Kind::Interrupted | Kind::Failed => Error::Aborted(text),
        }
    }

    pub(super) fn write(&self, writer: Writer) -> Writer {
        writer.byte(self.kind as u8).ranks(&self.ranks).text(&self.text)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Verdict> {
        Some(Verdict { kind: Kind::of(reader.byte()?)?, ranks: reader.ranks()?, text: reader.text()? })
    }
}

/// A rank that has left by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub rank: Rank,
    pub state: State,
    /// Number of the last call that it completed: only later ones need it still.
    pub completed: u64,
}

/// What a rank tells about its own call. `call` describes it: `all_reduce(op=sum, …)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nothing has happened for as long as the caller wants to wait; `awaited` are those whose data it lacked.
    TimedOut { sequence: u64, call: String, waited: Duration, awaited: Vec<Rank> },
    /// Another rank came with another call.
    Differs { sequence: u64, call: String },
    /// This rank cannot take part: its arguments were refused.
    Refused { sequence: u64, reason: String },
    /// Somebody has left who is needed.
    Stuck { sequence: u64, call: String },
    /// The link to `rank` broke.
    Broken { sequence: u64, rank: Rank, why: String },
    /// This rank cannot go on for another reason.
    Failed { text: String },
}

impl Report {
    /// The call in which it happens, and its description.
    pub(super) fn call(&self) -> Option<(u64, &str)> {
        match self {
            Report::TimedOut { sequence, call, .. }
            | Report::Differs { sequence, call }
            | Report::Stuck { sequence, call } => Some((*sequence, call)),
            Report::Refused { .. } | Report::Broken { .. } | Report::Failed { .. } => None,
        }
    }
}

/// The sentence about ranks that left and are needed for call `sequence` of a group (`Group::suffix`); `None` if nobody is.
pub(super) fn departed(left: impl Iterator<Item = Left>, sequence: u64, of: &str, call: &str) -> Option<Verdict> {
    let behind: Vec<Left> = left.filter(|left| left.completed < sequence).collect();
    let space = if call.is_empty() { "" } else { " " };
    let named = format!("call #{sequence}{of}{space}{call}");
    let of = |states: &[State]| -> Vec<Left> { behind.iter().copied().filter(|l| states.contains(&l.state)).collect() };
    let who = |left: &[Left]| -> Vec<Rank> { left.iter().map(|l| l.rank).collect() };
    let verdict = |kind, left: &[Left], text| Some(Verdict { kind, ranks: who(left), text });

    let interrupted = of(&[State::Interrupted]);
    if !interrupted.is_empty() {
        let text = format!(
            "{} was interrupted (Ctrl-C or a signal handler that raised), so {named} cannot be completed. The group is closed",
            ranks(&who(&interrupted))
        );
        return verdict(Kind::Interrupted, &interrupted, text);
    }
    let raised = of(&[State::Raised]);
    if !raised.is_empty() {
        let text = format!(
            "{} left the group with an exception (see its output), so {named} cannot be completed. The group is closed",
            ranks(&who(&raised))
        );
        return verdict(Kind::Raised, &raised, text);
    }
    let finished = of(&[State::Finished]);
    if !finished.is_empty() {
        let last: Vec<String> = finished.iter().map(|left| format!("#{}", left.completed)).collect();
        let text = format!(
            "{} finished after call {} and will not take part in {named}. The group is closed. Did all ranks make the same \
             number of calls?",
            ranks(&who(&finished)),
            last.join(", ")
        );
        return verdict(Kind::Finished, &finished, text);
    }
    if behind.is_empty() {
        return None;
    }
    let text = format!("{} closed the group after a failure, so {named} cannot be completed", ranks(&who(&behind)));
    verdict(Kind::Failed, &behind, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(rank: Rank, state: State, completed: u64) -> Left {
        Left { rank, state, completed }
    }

    #[test]
    fn who_has_completed_the_call_does_not_break_it() {
        let all = [left(1, State::Finished, 7), left(2, State::Raised, 8)];
        assert_eq!(departed(all.into_iter(), 7, "", "barrier()"), None);
        let verdict = departed(all.into_iter(), 8, "", "barrier()").expect("rank 1 is needed");
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Finished, &[1][..]));
        assert!(verdict.text.contains("rank 1 finished after call #7") && verdict.text.contains("call #8 barrier()"));
        let verdict = departed(all.into_iter(), 9, " of group 'g'", "").expect("both are needed");
        assert_eq!((verdict.kind, &verdict.ranks[..]), (Kind::Raised, &[2][..]));
        assert!(verdict.text.contains("call #9 of group 'g' cannot be completed"), "{}", verdict.text);
    }

    #[test]
    fn each_verdict_is_an_error_of_its_kind() {
        let error = |kind| Verdict { kind, ranks: vec![3], text: "so it is".into() }.error();
        for kind in [Kind::Lost, Kind::Raised, Kind::Finished] {
            assert!(matches!(error(kind), Error::PeerLost { ranks, .. } if ranks == [3]));
        }
        assert!(matches!(error(Kind::TimedOut), Error::Timeout { missing, .. } if missing == [3]));
        assert!(matches!(error(Kind::Mismatch), Error::Mismatch(text) if text == "so it is"));
        for kind in [Kind::Interrupted, Kind::Failed] {
            assert!(matches!(error(kind), Error::Aborted(text) if text == "so it is"));
        }
    }
}
