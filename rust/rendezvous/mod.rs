//! How the ranks of a job find each other. On one host: a unix socket with an abstract name, which no file system holds
//! and which vanishes with its owner.
//!
//! `local` is the protocol, `frame` its messages, `door` what becomes of the socket once the job has formed: it stays
//! with rank 0, to tell a process that comes too late (a child that inherited a rank's environment, a second launch with
//! the same job id) that the rank is taken, instead of letting it wait.

mod door;
mod frame;
mod hub;
mod local;
mod newcomer;

pub use door::LateDoor;
pub use local::{Job, Joined, Terms, join};
