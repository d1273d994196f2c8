//! Letters to one rank, one after the other, and answers to what that rank has offered.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::error::Rank;
use crate::transport::{Broken, Tx};

use super::stamp::{Stamp, Word};
use super::{Failure, Memory, Outcome, SEGMENT, Sight, Status, Tag, Ticket};

const PADDING: [u8; Stamp::SIZE] = [0; Stamp::SIZE];

/// How a letter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Its turn has not come.
    Unknown,
    Bytes,
    /// It stays at this place, until the other rank has answered.
    Offer(u64),
}

struct Sending {
    ticket: Ticket,
    stamp: Stamp,
    form: Form,
    /// Bytes that are on their way, of stamp, letter and padding, or of the offer.
    done: usize,
}

#[derive(Default)]
pub(super) struct Outbound {
    tx: Option<Box<dyn Tx>>,
    queue: VecDeque<Sending>,
    /// What is said of a letter of the other rank, and how many bytes of that are on their way.
    answer: Option<([u8; Stamp::SIZE], usize)>,
    /// The other rank cannot read here.
    refused: bool,
}

impl Outbound {
    pub fn is_open(&self) -> bool {
        self.tx.is_some()
    }

    pub fn open(&mut self, tx: Box<dyn Tx>) {
        self.tx = Some(tx);
    }

    pub fn push(&mut self, ticket: Ticket, tag: Tag, len: usize) {
        self.queue.push_back(Sending { ticket, stamp: Stamp { tag, len }, form: Form::Unknown, done: 0 });
    }

    /// The next letter, of one rank to itself.
    pub fn pop(&mut self) -> Option<(Ticket, Tag, usize)> {
        self.queue.pop_front().map(|sending| (sending.ticket, sending.stamp.tag, sending.stamp.len))
    }

    /// Whether there is nothing to be sent or said.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.answer.is_none()
    }

    /// Sends as much as the way takes, up to a segment. Whether that was anything.
    pub fn advance(
        &mut self,
        peer: Rank,
        memory: &dyn Memory,
        sight: Option<&dyn Sight>,
        done: &mut Vec<(Ticket, Outcome)>,
    ) -> bool {
        let mut sent = 0;
        while sent < SEGMENT && !self.is_idle() {
            match self.write(memory, sight) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(broken) => {
                    self.fail(&broken, done);
                    return true;
                }
            }
            if self.queue.front().is_some_and(Sending::is_through)
                && let Some(sent) = self.sent(peer)
            {
                done.push(sent);
            }
        }
        sent > 0
    }

    /// More of what is due. How many bytes that was.
    #[inline]
    fn write(&mut self, memory: &dyn Memory, sight: Option<&dyn Sight>) -> Result<usize, Broken> {
        let Outbound { tx: Some(tx), queue, answer, refused } = self else { return Ok(0) };
        if let Some((bytes, done)) = answer
            && queue.front().is_none_or(Sending::is_beside)
        {
            let n = tx.write(&bytes[*done..], &[], &[])?;
            *done += n;
            if *done == Stamp::SIZE {
                *answer = None;
            }
            return Ok(n);
        }
        let sight = sight.filter(|_| !*refused);
        queue.front_mut().map_or(Ok(0), |sending| sending.advance(&mut **tx, memory, sight))
    }

    /// The first letter has been sent.
    fn sent(&mut self, peer: Rank) -> Option<(Ticket, Outcome)> {
        let Sending { ticket, stamp: Stamp { tag, len }, .. } = self.queue.pop_front()?;
        Some((ticket, Ok(Status { peer, tag, len })))
    }

    /// No letter will arrive any more, nor be answered.
    pub fn fail(&mut self, broken: &Broken, done: &mut Vec<(Ticket, Outcome)>) {
        self.answer = None;
        done.extend(self.queue.drain(..).map(|s| (s.ticket, Err(Failure::Broken(broken.clone())))));
    }

    /// Has the other rank told what is to be said of a letter of its own. False if there is still something else to be told.
    pub fn tell(&mut self, word: Word, stamp: Stamp) -> bool {
        let free = self.answer.is_none();
        if free {
            self.answer = Some((stamp.to_bytes(word), 0));
        }
        free
    }

    /// Whether the other rank has been told all that there is to tell.
    pub fn has_told(&self) -> bool {
        self.answer.is_none()
    }

    /// What the other rank says of the letter that it was offered; what has come of that, if it is over. `Err` if it was offered
    /// no such letter.
    pub fn answered(&mut self, peer: Rank, word: Word, stamp: Stamp) -> Result<Option<(Ticket, Outcome)>, ()> {
        let offered = self.queue.front_mut().filter(|sending| sending.is_offered() && sending.stamp == stamp);
        let sending = offered.ok_or(())?;
        match word {
            Word::Taken => Ok(self.sent(peer)),
            Word::Refused => {
                (sending.form, sending.done) = (Form::Bytes, 0);
                self.refused = true;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Whether a letter has been offered that has not been answered.
    pub fn is_waiting(&self) -> bool {
        self.queue.front().is_some_and(|sending| matches!(sending.form, Form::Offer(_)) && sending.done > 0)
    }

    /// Closes the way if there is something on offer.
    pub fn withdraw(&mut self) {
        if self.is_waiting() {
            self.tx = None;
        }
    }

    /// What becomes writable when a letter that is under way can go on; None if none is, or the bell says so.
    pub fn interest(&self) -> Option<Option<BorrowedFd<'_>>> {
        self.tx.as_ref().filter(|_| !self.queue.is_empty()).map(|tx| tx.fd())
    }
}

impl Sending {
    #[inline]
    fn advance(&mut self, tx: &mut dyn Tx, memory: &dyn Memory, sight: Option<&dyn Sight>) -> Result<usize, Broken> {
        let array = memory.of(self.ticket);
        if self.form == Form::Unknown {
            self.form = sight.and_then(|sight| sight.place(array)).map_or(Form::Bytes, Form::Offer);
        }
        let n = match self.form {
            Form::Offer(_) if self.is_offered() => 0,
            Form::Offer(place) => tx.write(&self.stamp.offer(place)[self.done..], &[], &[])?,
            Form::Bytes | Form::Unknown => {
                let Stamp { len, .. } = self.stamp;
                let head = &self.stamp.to_bytes(Word::Letter)[self.done.min(Stamp::SIZE)..];
                let lo = self.done.saturating_sub(Stamp::SIZE).min(len);
                let hi = len.min(lo + SEGMENT);
                let padded = self.done.saturating_sub(Stamp::SIZE + len);
                let tail = if hi == len { &PADDING[padded..self.stamp.pad()] } else { &[] };
                tx.write(head, &array[lo..hi], tail)?
            }
        };
        self.done += n;
        Ok(n)
    }

    fn is_through(&self) -> bool {
        self.form == Form::Bytes && self.done == Stamp::SIZE + self.stamp.len + self.stamp.pad()
    }

    /// Whether all of its offer has been written.
    fn is_offered(&self) -> bool {
        matches!(self.form, Form::Offer(_)) && self.done == Stamp::OFFER
    }

    /// Whether something else may be written now.
    fn is_beside(&self) -> bool {
        self.done == 0 || self.is_offered()
    }
}
