//! Who is alive.
//!
//! **On one host.** The `roster` in shared memory has one entry a rank: its state, its process id, the last call it
//! completed. The `watcher`, one thread a process, sleeps on the pidfds of all local peers; when a process is gone
//! (SIGKILL, the out-of-memory killer, `os._exit`) it marks the entry, advances the alarm and rings the bell, which every
//! wait listens to. A rank that leaves by itself (it finished, timed out, was interrupted) does the same to its own entry.
//!
//! A rank blocks a call only if it is not active *and* has not completed that call: what a rank published before it left
//! stays readable, since the memory is shared.
//!
//! **Over several hosts.** `control` is what a rank's calls see; its thread is the `operator`, who on rank 0 has a `court` with a
//! `judge` for each group. `desk` is where calls and thread meet, with a `seat` for each group, `news` what the control
//! connections carry, `verdict` what comes of it. When rank 0 is gone the others find out among themselves what it said last
//! (`inquest`), over connections that they open then (`circle`). Whatever happens in a group closes that group; only who is lost
//! is lost to all groups of which it is a member.
//!
//! No thread of this room runs Python, and each is joined at shutdown.

mod circle;
mod contacts;
mod control;
mod court;
mod desk;
mod inquest;
#[cfg(test)]
mod inquest_scene;
#[cfg(test)]
mod inquest_trials;
mod judge;
mod matter;
mod news;
mod operator;
mod roster;
mod seat;
#[cfg(test)]
mod trials;
mod verdict;
mod watcher;

pub use contacts::{Contacts, Member};
pub use control::Control;
pub use desk::Ear;
pub use roster::{Entry, MAX_WORLD, Roster, State};
pub use seat::Group;
pub use verdict::{Kind, Left, Report, Verdict};
pub use watcher::{Alarm, Door, Watcher};
