//! Memory that all ranks of a host share: one sealed, sparse memfd a job.
//!
//! ```text
//! | control: magic, bell, alarm, roster, crowd | rank 0: lines, notes, staging ring, heap | rank 1: … | … |
//! ```
//! `segment` maps it, `layout` says what lies where, `heap` gives out the memory of symmetric arrays and of groups within the
//! job, `invitations` says to others where such memory is, `handover` passes the descriptor to the other ranks. There is never a name in the file system: whatever kills whom, nothing is left, and
//! the size of `/dev/shm` does not matter. Pages exist once they are touched; a job that never stages never pays for the ring.
//!
//! One memfd for all ranks, not one for each: a rank holds a constant number of descriptors however many ranks there are.
//!
//! This room knows no collective and no call. What the words mean is the business of `direct/` and `health`.

pub mod handover;
pub mod heap;
pub mod invitations;
pub mod layout;
pub mod segment;

pub use layout::Layout;
pub use segment::Segment;
