//! Who gets in. Every TCP connection between two ranks begins here, for whatever it is used later.
//!
//! ```text
//!   porch: accept ─┐                       ┌─ dial: connect, until a deadline
//!                  ├─► handshake ◄─────────┤
//!   strangers leave┘   both prove it       └─ address: which one, from which interface and port
//!                           │
//!                        framed: notes of bounded length, never a wait
//! ```
//! `handshake` is pure; `socket` holds every option that arx sets on a connection. This room does not know what the
//! connections are for: forming a job is `rendezvous`, watching it is `health`.

pub mod address;
mod dial;
mod framed;
mod handshake;
mod interfaces;
mod porch;
pub mod socket;
mod words;

pub use address::{Network, Ports};
pub use dial::{Attempt, Dial, Missed, dial};
pub use framed::{End, Framed};
pub use handshake::{Channel, Claim, GroupId, Handshake, Key, Nonce, Refusal, VERSION};
pub use porch::{Arrival, Porch};
pub use words::{Reader, Writer};

use crate::error::{Error, Result};

/// A number that nobody has used before.
pub fn nonce() -> Result<Nonce> {
    let mut nonce = [0; 32];
    // The kernel gives up to 256 bytes in one piece.
    match rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()) {
        Ok(32) => Ok(nonce),
        Ok(_) => Err(Error::Init("the kernel gave too few random bytes".into())),
        Err(e) => Err(Error::os("cannot get random bytes", e)),
    }
}
