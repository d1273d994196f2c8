//! What a judge knows of each rank, what an inquiry may be about, and how long it takes.

use std::time::Duration;

use crate::admission::End;
use crate::error::{Rank, list, seconds};

use super::contacts::Member;
use super::verdict::Left;

/// Deaths, or departures, so close together are one event.
pub(super) const TOGETHER: Duration = Duration::from_millis(20);
/// In which a control thread answers, since it does nothing else.
pub(super) const ANSWER: Duration = Duration::from_millis(300);
/// In which a call says what it is: it looks at the alarm every 50 ms.
pub(super) const DESCRIBE: Duration = Duration::from_secs(1);
/// In which the reason for a broken link shows, if a death was the reason.
pub(super) const REASON: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    pub gone: Option<End>,
    pub left: Option<Left>,
    /// It has left the job by itself, so that its connection may end.
    pub departed: bool,
    /// Question that it answered last, calls begun and completed.
    pub here: Option<(u32, u64, u64)>,
    pub says: Option<(u64, String)>,
    /// A call in which it has been for long, and the fingerprint of that.
    pub lingers: Option<(u64, u64)>,
    /// It has waited as long as it wanted to.
    pub tired: bool,
    /// It is no member of the group.
    pub foreign: bool,
    /// A verdict has said that it is lost.
    pub mourned: bool,
}

impl Standing {
    /// Whether it still takes part in calls.
    pub fn is_there(&self) -> bool {
        self.gone.is_none() && self.left.is_none() && !self.foreign
    }
}

/// What an inquiry is about, weightier matters first.
#[derive(Clone, Debug)]
pub(super) enum Matter {
    Deaths,
    Differs { sequence: u64 },
    Refused { by: Rank, sequence: u64, reason: String },
    Stuck { sequence: u64, call: String },
    Broken { by: Rank, sequence: u64, rank: Rank, why: String },
    TimedOut { by: Rank, sequence: u64, call: String, waited: Duration, awaited: Vec<Rank> },
}

impl Matter {
    pub fn weight(&self) -> u32 {
        match self {
            Matter::Deaths => 5,
            Matter::Differs { .. } | Matter::Refused { .. } => 4,
            Matter::Stuck { .. } => 3,
            Matter::Broken { .. } => 2,
            Matter::TimedOut { .. } => 1,
        }
    }

    /// The call that not all ranks made, if that is what it is about.
    pub fn difference(&self) -> Option<u64> {
        match self {
            Matter::Differs { sequence } | Matter::Refused { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }
}

/// What became of ranks, host by host.
pub(super) fn epitaphs(lost: &[Rank], members: &[Member], standing: &[Standing], silence: Duration) -> Vec<String> {
    let mut found: Vec<(&str, Option<End>, Vec<u32>)> = Vec::new();
    for rank in lost {
        let (member, end) = (&members[*rank as usize], standing[*rank as usize].gone);
        match found.iter_mut().find(|(host, e, _)| *host == member.host && *e == end) {
            Some((_, _, pids)) => pids.push(member.pid),
            None => found.push((&member.host, end, vec![member.pid])),
        }
    }
    let tell = |(host, end, pids): (&str, Option<End>, Vec<u32>)| {
        let several = pids.len() > 1;
        let who = format!("process{} {}", if several { "es" } else { "" }, list(&pids));
        match end {
            Some(End::Silent) => format!("{host} ({who}) has not answered for {}", seconds(silence)),
            Some(End::Garbled) => format!("{who} on {host} said something that cannot be"),
            _ => {
                let are = if several { "are" } else { "is" };
                format!("{who} on {host} {are} gone (killed, crashed, out of memory?)")
            }
        }
    };
    found.into_iter().map(tell).collect()
}
