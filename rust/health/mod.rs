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
//! No thread of this room runs Python, and each is joined at shutdown.

mod contacts;
mod roster;
mod watcher;

pub use contacts::{Contacts, Member};
pub use roster::{Entry, MAX_WORLD, Roster, State};
pub use watcher::{Alarm, Door, Watcher};
