//! Broadcast: the root's bytes, on every rank.
//!
//! Small ones come with the root's arrival. Larger ones pass through the root's ring, from which everybody copies chunk
//! by chunk; a large symmetric array is copied straight out of the root's memory. All ranks wait for all arrivals, as in
//! every collective here: that is what finds a rank that called something else.

use crate::kernels::{self, Bytes};
use crate::wait::{Stop, Wait};

use super::words::{PAYLOAD, Place};
use super::{Algorithm, Direct, Turn, Verdict};

impl Direct {
    /// `array` becomes what it is on `root`.
    pub fn broadcast(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        root: usize,
        array: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        if array.len() <= PAYLOAD && matches!(turn.algorithm, Algorithm::Auto | Algorithm::Lines) {
            return self.broadcast_lines(turn, wait, root, array);
        }
        let mut place = Place::private(self.position);
        if self.me == root {
            place.input = self.boards.offset_of(array).filter(|_| self.wants_symmetric(turn, array.len()));
            if let (None, Some(first)) = (place.input, self.piece(0, self.position, array.len(), self.tuning.chunk)) {
                self.stage(&first, array, wait)?;
                place.staged = first.end;
            }
        }
        self.arrive(turn, place);
        if self.gather(turn, wait)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        match self.place(turn, root).input {
            Some(at) => {
                if self.me != root {
                    kernels::copy(array, self.boards.array(at, array.len()));
                }
                self.all_wrote(wait)?;
            }
            None => {
                let end = self.broadcast_staged(turn, wait, root, array)?;
                self.leave_ring(end);
            }
        }
        Ok(Verdict::Agreed)
    }

    fn broadcast_lines(
        &self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        root: usize,
        array: Bytes<'_>,
    ) -> Result<Verdict, Stop> {
        if self.me == root {
            self.send_lines(turn, array);
        } else {
            self.arrive(turn, Place::private(self.position));
        }
        let verdict = self.gather(turn, wait)?;
        if self.me != root && verdict == Verdict::Agreed {
            kernels::copy(array, self.boards.payload(root, turn.sequence, array.len()));
        }
        Ok(verdict)
    }

    /// Returns where the stream stands afterwards.
    fn broadcast_staged(
        &mut self,
        turn: &Turn,
        wait: &mut Wait<'_>,
        root: usize,
        array: Bytes<'_>,
    ) -> Result<u64, Stop> {
        let mut position = self.position;
        let mut at = 0;
        while let Some(piece) = self.piece(at, position, array.len(), self.tuning.chunk) {
            if self.me != root {
                self.await_staged(turn, root, piece.end, wait)?;
                let theirs = self.boards.ring(root, piece.start, piece.span.len());
                kernels::copy(&array[piece.span.clone()], theirs);
                self.advance(|p| &p.read, piece.end);
            } else if at > 0 {
                self.stage(&piece, array, wait)?;
                self.advance(|p| &p.staged, piece.end);
            }
            (at, position) = (piece.span.end, piece.end);
        }
        Ok(position)
    }
}
