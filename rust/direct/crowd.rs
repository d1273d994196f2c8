//! More ranks than cores: the last to arrive does the work.
//!
//! Where ranks share a core, a rank that waits for another keeps it from running. So each rank arrives, adds one to a
//! counter and, unless it is the last, gives up the core until the call is done. The last one looks at all arrivals,
//! combines small payloads once for everybody, and rings one bell: one switch a rank and call, no matter how many ranks.
//! Larger arrays still go through `staged` or `symmetric`, after such a meeting.

use crate::kernels::{self, Bytes, Reducer};
use crate::wait::{Stop, Wait};

use super::words::Code;
use super::{Direct, Turn, Verdict};

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

    /// Counts this rank's arrival, which has been published.
    pub(super) fn enter_meeting(&self, turn: &Turn) {
        self.meet(turn, || ());
    }

    /// Counts this rank in. The last one checks all arrivals, does `work` if they agree, and closes the meeting.
    fn meet(&self, turn: &Turn, work: impl FnOnce()) {
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
        wait.until(|| done.arrived(turn.sequence))?;
        Ok(if done.agrees(turn.fingerprint) { Verdict::Agreed } else { Verdict::Differs })
    }
}
