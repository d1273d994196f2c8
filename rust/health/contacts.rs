//! What a rank knows of the others once a job has formed.

use std::net::SocketAddr;
use std::time::Duration;

use crate::admission::{Framed, Key, Network, Porch};
use crate::error::Rank;

/// One rank, as everybody knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it listens for data connections.
    pub address: SocketAddr,
    /// Ranks with the same number share memory.
    pub node: u32,
    /// For people: its process, and the name of its host.
    pub pid: u32,
    pub host: String,
}

impl std::fmt::Display for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)
    }
}

/// A rank's connections at the moment when the job has formed, and what it takes to make others.
#[derive(Debug)]
pub struct Contacts {
    pub me: Rank,
    /// One for each rank of the job.
    pub members: Vec<Member>,
    /// On rank 0 the control connections to all others, on another rank the one to rank 0.
    pub lines: Vec<(Rank, Framed)>,
    /// Where data connections come in.
    pub porch: Porch,
    pub key: Key,
    pub network: Network,
    pub job: String,
    /// How long a host may be silent before its ranks count as lost.
    pub silence: Duration,
    /// On rank 0: the note by which a latecomer is told why it may not join.
    pub refuse: fn(String) -> Vec<u8>,
}
