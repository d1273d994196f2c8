//! More ranks than cores: the last to arrive does the work.
//!
//! Where ranks share a core, a rank that waits for another keeps it from running. So each rank arrives, adds one to a
//! counter and, unless it is the last, gives up the core until the call is done. The last one looks at all arrivals,
//! combines small arrays once for everybody, and rings one bell: one switch a rank and call at most, no matter how many ranks.
//! Who is the last on its own core keeps it for a moment, and goes on to the next call when those on other cores have come. With
//! four ranks on two cores that is half a switch a rank and call.
//! Up to 1 KiB they come with the arrival, up to `COMBINED` through the rings. Larger ones go through `staged` or
//! `symmetric`, after such a meeting: there the work of one core for all would take longer than the switches. In the other
//! collectives ranks end with different things, which each of them takes itself after the meeting.

use crate::kernels::{self, Bytes, Reducer};
use crate::sync::Ordering;
use crate::wait::{self, Stop, Wait};

use super::ring::place;
use super::words::Code;
use super::{Direct, Turn, Verdict};

/// Largest array that the last to arrive combines alone. Measured with 4 ranks on 2 cores: `benches/record`.
const COMBINED: usize = 32 << 10;

impl Direct {
    pub(super) fn all_reduce_crowd(
        &self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        kernels::copy(self.boards.payload(self.me, turn.sequence, src.len()), src);
        self.boards.of(self.me).arrival(turn.sequence).head.post(turn.sequence, turn.fingerprint, Code::Ready);
        let result = self.boards.result(turn.sequence, src.len());
        self.meet(turn, || self.combine_lines(turn, reducer, result, src));
        let verdict = self.await_meeting(turn, wait)?;
        if verdict == Verdict::Agreed {
            kernels::copy(dst, result);
        }
        Ok(verdict)
    }

    /// Whether the last to arrive combines an array of `len` bytes for all.
    pub(super) fn is_combined_by_last(&self, len: usize) -> bool {
        self.crowd && len <= COMBINED.min(self.boards.ring_len() / 8)
    }

    /// Through the rings: everybody's input in its own, the result in rank 0's, which has room for it once rank 0 has
    /// arrived.
    pub(super) fn all_reduce_crowd_ring(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        reducer: Reducer,
        dst: Bytes<'_>,
        src: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        let room = src.len().next_multiple_of(64);
        let (start, end) = place(self.position, 2 * room, self.boards.ring_len());
        self.make_room(end, wait)?;
        kernels::copy(self.boards.ring(self.me, start, src.len()), src);
        self.boards.of(self.me).arrival(turn.sequence).head.post(turn.sequence, turn.fingerprint, Code::Ready);
        let result = self.boards.ring(0, start + room as u64, src.len());
        let input = |rank| if rank == self.me { src } else { self.boards.ring(rank, start, src.len()) };
        self.meet(turn, || self.sources(input, |inputs| reducer.run(result, inputs)));
        let verdict = self.await_meeting(turn, wait)?;
        if verdict == Verdict::Agreed {
            kernels::copy(dst, result);
            self.leave_ring(end);
        }
        Ok(verdict)
    }

    /// Counts this rank's arrival, which has been published.
    pub(super) fn enter_meeting(&self, turn: &Turn) {
        self.meet(turn, || ());
    }

    /// Counts this rank in. The last one checks all arrivals, does `work` if they agree, and closes the meeting.
    fn meet(&self, turn: &Turn, work: impl FnOnce()) {
        self.show_core();
        let agrees = |rank| self.boards.of(rank).arrival(turn.sequence).head.agrees(turn.fingerprint);
        let meeting = self.boards.control().meeting(turn.sequence);
        let last = meeting.enter(turn.sequence, turn.fingerprint, self.world, || {
            let agreed = (0..self.world).all(agrees);
            if agreed {
                work();
            }
            agreed
        });
        if last {
            self.boards.control().bell.ring();
        }
    }

    /// Waits until the last one has come, and says what it found.
    pub(super) fn await_meeting(&self, turn: &Turn, wait: &mut Wait<'_>) -> Result<Verdict, Stop> {
        let done = &self.boards.control().meeting(turn.sequence).done;
        wait.until_in_crowd(|| done.arrived(turn.sequence), || self.shares_core(turn))?;
        Ok(if done.agrees(turn.fingerprint) { Verdict::Agreed } else { Verdict::Differs })
    }

    /// Says on which core this rank arrives.
    fn show_core(&self) {
        let (shown, core) = (&self.boards.of(self.me).progress.core, wait::core() as u64 + 1);
        if shown.load(Ordering::Relaxed) != core {
            shown.store(core, Ordering::Relaxed);
        }
    }

    /// Whether some rank that has not arrived was seen last on this core. Lines of ranks on other cores are not looked at: they are
    /// about to write there.
    fn shares_core(&self, turn: &Turn) -> bool {
        let core = |rank| self.boards.of(rank).progress.core.load(Ordering::Relaxed);
        let arrived = |rank| self.boards.of(rank).arrival(turn.sequence).head.arrived(turn.sequence);
        let own = core(self.me);
        self.others().any(|rank| core(rank) == own && !arrived(rank))
    }
}
