//! Letters that stay where they are, until they have been read there.

use std::cell::Cell;

use crate::error::Rank;
use crate::transport::{Broken, Rx};

use super::inbound::{Goal, Receiving, Source, nonsense};
use super::stamp::{Stamp, Word};
use super::{Memory, Office, Peer};

/// What is read at once, before others have their turn and somebody looks whether it still makes sense. With 256 KiB it took a
/// fifth longer.
const PIECE: usize = 1 << 20;

/// The sender sees nothing of it, and waits with a limit: so it is told each time so many bytes have been read.
const SIGN: usize = 16 << 20;

impl Office {
    /// A letter that stays where it is. How many bytes said so.
    pub(super) fn begin_reading(&mut self, peer: Rank, stamp: Stamp, rx: &mut dyn Rx) -> Result<usize, Broken> {
        if self.peers[peer as usize].inbound.current.is_some() {
            return Err(nonsense(peer, "it offers again what could not be read"));
        }
        let arrived = rx.peek(Stamp::OFFER)?;
        let Some((place, _)) = arrived.get(Stamp::SIZE..Stamp::OFFER).and_then(|rest| rest.split_first_chunk()) else {
            return Ok(0);
        };
        let source = Source::Place(u64::from_le_bytes(place.each_ref().map(Cell::get)));
        rx.consume(Stamp::OFFER);
        let goal = self.goal(peer, stamp);
        if matches!(goal, Goal::Early) {
            self.early_of(peer).untold = true;
        }
        self.peers[peer as usize].inbound.current = Some(Receiving { stamp, goal, source, done: 0 });
        Ok(Stamp::OFFER)
    }

    /// Reads more of it; after that, its sender is told. How many bytes that was.
    pub(super) fn read_on(
        &mut self,
        peer: Rank,
        current: &mut Receiving,
        rx: &mut dyn Rx,
        memory: &dyn Memory,
    ) -> Result<usize, Broken> {
        let mut moved = 0;
        if let Source::Place(place) = current.source {
            moved += self.fetch(peer, current, place, memory);
        }
        if let Source::Answer(word) = current.source {
            // Looked at after the last byte has been read (`Sight::read`): if it is open, that was still the letter.
            if rx.is_closed() {
                return Err(nonsense(peer, "it took back what it had offered"));
            }
            if self.peers[peer as usize].outbound.tell(word, current.stamp) {
                current.source = Source::Told(word);
            }
        }
        if let Source::Told(word) = current.source {
            let Peer { outbound, sight, .. } = &mut self.peers[peer as usize];
            moved += usize::from(outbound.advance(peer, memory, sight.as_deref(), &mut self.done));
            if outbound.has_told() {
                moved += Stamp::SIZE;
                self.end_reading(peer, current, word);
            }
        }
        Ok(moved)
    }

    /// Its sender has been told.
    fn end_reading(&mut self, peer: Rank, current: &mut Receiving, word: Word) {
        if word == Word::Taken {
            current.source = Source::Taken;
            return;
        }
        (current.source, current.done) = (Source::Again, 0);
        if matches!(current.goal, Goal::Early) {
            self.early_of(peer).restart();
        }
    }

    /// Reads a piece. How many bytes that was.
    fn fetch(&mut self, peer: Rank, current: &mut Receiving, place: u64, memory: &dyn Memory) -> usize {
        let Receiving { stamp, goal, done: at, .. } = *current;
        let end = match goal {
            // The rest of one that is too long is not needed.
            Goal::Request(_, room) => stamp.len.min(room),
            Goal::Early => stamp.len,
        };
        let n = end.saturating_sub(at).min(PIECE);
        let mut sight = self.peers[peer as usize].sight.take();
        let read = n == 0
            || sight.as_mut().is_some_and(|sight| match goal {
                Goal::Request(ticket, _) => sight.read(place, at, &memory.of(ticket)[at..at + n]),
                Goal::Early => sight.read(place, at, self.early_of(peer).extend(n)),
            });
        let Peer { sight: of_peer, outbound, .. } = &mut self.peers[peer as usize];
        *of_peer = sight;
        current.done += n;
        if !read {
            current.source = Source::Answer(Word::Refused);
        } else if current.done >= end {
            current.source = Source::Answer(Word::Taken);
        } else if at / SIGN < current.done / SIGN {
            // Another sign that is still there does as well.
            let _ = outbound.tell(Word::Reading, stamp);
        }
        n
    }
}
