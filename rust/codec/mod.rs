//! How float32 values travel in fewer bytes: what a rank sends, as a *payload*, instead of an array or a part of it. Pure: knows
//! neither ranks nor how payloads travel.
//!
//! ```text
//! dense    every value, with fewer bits     halves · int8 · int4          payload of a fixed length
//! sparse   some values, with their places   top-k · random · threshold    payload as long as it comes
//! ```
//! A payload comes from another process, so decoding takes it as any bytes: what no encoder writes is refused (`Malformed`), and
//! nothing panics or allocates by a length that is only claimed. The bits of a result do not depend on the instruction set.

mod choice;
mod dense;
mod dice;
mod feedback;
pub mod low_rank;
pub mod sparse;

pub use choice::{Codec, Pick, Selection, Share};
pub use dense::Dense;
pub use dice::Dice;
pub use feedback::{Feedback, Of, State};

/// A payload that no encoder writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);
