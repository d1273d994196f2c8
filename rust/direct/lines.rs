//! Small arrays: the payload travels with the arrival.
//!
//! One store-to-load transfer each way is all that happens between two cores: the head line carries up to 40 bytes, and
//! up to 1 KiB more lies right behind it, written before the head is published, so that one acquire covers all of it and
//! the kernel reads every contribution in place. There is no second phase and no trailing barrier; generations
//! (`words`) make that safe.
//!
//! Cost: p - 1 line transfers in, every rank combines all p contributions: right for small payloads only.

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::words::Code;
use super::{Direct, Turn, Verdict};

impl Direct {
    pub(super) fn all_reduce_lines(
        &self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        self.send_lines(turn, src);
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        self.combine_lines(turn, reducer, dst, src);
        Ok(Verdict::Agreed)
    }

    /// Arrives with `src` as payload.
    pub(super) fn send_lines(&self, turn: &Turn, src: Bytes<'_>) {
        kernels::copy(self.boards.payload(self.me, turn.sequence, src.len()), src);
        self.boards.of(self.me).arrival(turn.sequence).head.post(turn.sequence, turn.fingerprint, Code::Ready);
        self.after_arrival(turn);
    }

    /// `dst` = everybody's payload of this call, combined; `own` is what this rank sent.
    pub(super) fn combine_lines(&self, turn: &Turn, reducer: Reducer, dst: Bytes<'_>, own: Bytes<'_>) {
        let payload = |rank| if rank == self.me { own } else { self.boards.payload(rank, turn.sequence, own.len()) };
        self.sources(payload, |sources| reducer.run(dst, sources));
    }
}
