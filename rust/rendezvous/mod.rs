//! How the ranks of a job find each other.
//!
//! **On one host:** a unix socket with an abstract name, which no file system holds and which vanishes with its owner.
//! `local` is the protocol, `frame` its messages, `door` what becomes of the socket once the job has formed: it stays
//! with rank 0, to tell a process that comes too late (a child that inherited a rank's environment, a second launch with
//! the same job id) that the rank is taken, instead of letting it wait.
//!
//! **Over several hosts:** TCP to the master's address. `hosts` is the protocol, `roll` its notes, `store` rank 0 and
//! `guest` the others; `listening` finds the address for rank 0, `identity` says who may share memory. Nodes are then
//! formed by the one-host way.

mod door;
mod frame;
mod guest;
mod hosts;
mod hub;
mod identity;
mod listening;
mod local;
mod newcomer;
mod roll;
mod store;

pub use door::LateDoor;
pub use hosts::{Form, Meeting, Met, meet};
pub use listening::Listening;
pub use local::{Job, Joined, Terms, join};
