//! Every way in which a call of arx can fail, as one enum. The Python classes are mapped from it in one place
//! (`python/errors.rs`); nothing matches on message text.

use std::io;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

/// Number of a process in its group.
pub type Rank = u32;

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group could not be formed.
    #[error("{0}")]
    Init(String),
    /// Ranks did not find each other in time.
    #[error("{0}")]
    Rendezvous(String),
    /// The other side is not who it should be.
    #[error("{0}")]
    Auth(String),
    /// Processes that are gone, and the sentence about it.
    #[error("{text}")]
    PeerLost { ranks: Vec<Rank>, text: String },
    /// Ranks that did not come in time.
    #[error("{text}")]
    Timeout { missing: Vec<Rank>, text: String },
    /// Ranks called different things, or one of them refused its arguments.
    #[error("{0}")]
    Mismatch(String),
    /// The group was closed by another rank (an interrupt there, or a failure that it saw first).
    #[error("{0}")]
    Aborted(String),
    /// Another thread is in a call of the group.
    #[error("{0}")]
    Busy(String),
    /// An argument is wrong, found on this rank before any data moved.
    #[error("{0}")]
    Invalid(String),
    /// An argument has the wrong type.
    #[error("{0}")]
    Type(String),
    /// The shared heap has no room.
    #[error("{0}")]
    NoMemory(String),
    /// The caller's own signal handler raised; the exception waits in the interpreter.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Two calls at once, on that rank.
    pub fn busy(rank: Rank) -> Error {
        Error::Busy(format!(
            "another thread (or an interrupted frame of this one) is inside a call of this group on rank {rank}: a group takes \
             one call at a time; use one group per thread"
        ))
    }

    /// A failed system call while the group forms.
    pub fn os(what: &str, source: impl Into<io::Error>) -> Error {
        let source: io::Error = source.into();
        Error::Init(format!("{what}: {source}"))
    }
}

/// "2", "2 and 3", "2, 3 and 5".
pub fn list(ranks: &[Rank]) -> String {
    let words: Vec<String> = ranks.iter().map(|r| r.to_string()).collect();
    match words.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

/// "rank 2", "ranks 2 and 3".
pub fn ranks(ranks: &[Rank]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list(ranks))
}

/// "0.25 s", "300 s".
pub fn seconds(time: Duration) -> String {
    let s = time.as_secs_f64();
    if s < 10.0 { format!("{:.2} s", s) } else { format!("{:.0} s", s) }
}
