//! arx: collective communication for Python on CPUs. The core.
//!
//! ```text
//!   user code ──► python/arx  (API, launcher)                                   thin: checks, calls, returns
//!                      │
//!                   python/   the only room that names pyo3
//!                      │
//!                  progress      a queue and a thread per group, for calls that do not wait; another one for messages
//!                      │
//!                 communicator   one group: what was called, by whom, what to say when it fails
//!                      │
//!                  hierarchy     ranks of one host by memory, hosts by messages
//!           ┌──────────┴──────────────────┐
//!    DIRECT path (one host)        MESSAGE path (any two ranks)
//!    direct/  lines · staged ·     messages ─► select ─► schedule/ ─► plan/ ─► engine/        post/ (send, recv)
//!      symmetric · crowd · deal                  pure: no I/O, no clock           │ the loop        │
//!           │                                                                     ▼  of collectives ▼
//!        arena/  one shared memfd                                          transport/  tcp · shm · mem
//!           └──────────┬──────────────────┘
//!        kernels/   codec/   wait   health/ (who is alive)   rendezvous/ (how ranks meet)   admission/ (who gets in)
//!                      dtype · blocks · error · sync · machine       leaves
//! ```
//!
//! **Invariants** (a test reads the `use crate::` lines and fails on an arrow that is not in the picture)
//! 1. `schedule`, `select` and `plan` do no I/O, read no clock, have no unsafe: same arguments, same value.
//! 2. `engine` names no algorithm and no medium; `transport` knows its peer, not the world, and never reduces; `kernels`
//!    knows no ranks, `direct` knows neither Python nor how ranks met, `arena` knows no collective.
//! 3. `unsafe` stays in `arena/segment`, `direct/{board, peers}`, `kernels/{cast, copy, x86}`,
//!    `transport/{shm/ring, tcp/sockets}` and `python/`; each of these files says `#![allow(unsafe_code)]` and every block has
//!    its `SAFETY`.
//! 4. Once a group is connected only `wait` blocks, and nothing waits without a deadline and a look at the alarm.
//! 5. Every rank ends with the same bits, on every run, whatever the order of arrival.
//! 6. No thread of arx attaches to Python, except the caller's own.
#![deny(unsafe_code)]

pub mod blocks;
pub mod dtype;
pub mod error;
pub mod sync;
pub mod wait;

#[cfg(not(loom))]
pub mod admission;
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod codec;
#[cfg(not(loom))]
pub mod communicator;
#[cfg(not(loom))]
pub mod direct;
/// Models bring memory of their own; of this room they need the protocol alone.
#[cfg(loom)]
pub mod direct {
    pub mod words;
}
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod health;
#[cfg(not(loom))]
pub mod hierarchy;
#[cfg(not(loom))]
pub mod kernels;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
pub mod messages;
#[cfg(not(loom))]
pub mod plan;
#[cfg(not(loom))]
pub mod post;
#[cfg(not(loom))]
pub mod progress;
#[cfg(not(loom))]
pub mod rendezvous;
#[cfg(not(loom))]
pub mod schedule;
#[cfg(not(loom))]
pub mod select;
#[cfg(not(loom))]
pub mod transport;
/// As of `direct`, the protocol alone.
#[cfg(loom)]
pub mod transport {
    pub mod shm {
        pub mod words;
    }
}

#[cfg(all(feature = "python", not(loom)))]
mod python;
