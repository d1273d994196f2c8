//! Notes over a connection whose two ends have proved themselves: a length, then so many bytes. Never waits, neither to
//! send nor to receive.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Room for what arrives, extended by so much at a time: a length that is only claimed makes nobody allocate.
const GULP: usize = 4 << 10;
/// Bytes that may lie unsent; a peer that takes nothing for so long is as good as gone.
const UNSENT: usize = 4 << 20;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The other end's kernel said so: the process closed it, or is gone.
    Closed,
    /// The other end's host does not answer any more.
    Silent,
    /// The other end said something that cannot be.
    Garbled,
}

impl End {
    fn of(error: Errno) -> End {
        match error {
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN => End::Silent,
            _ => End::Closed,
        }
    }
}

#[derive(Debug)]
pub struct Framed {
    socket: OwnedFd,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Bytes of the longest note that can be meant.
    limit: usize,
    /// What sending ran into; told once everything that had arrived has been read.
    failed: Option<End>,
}

impl AsFd for Framed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Framed {
    pub fn new(socket: OwnedFd, limit: usize) -> Framed {
        Framed { socket, inbox: Vec::new(), outbox: Vec::new(), limit, failed: None }
    }

    /// What to sleep on.
    pub fn interest(&self) -> PollFd<'_> {
        let out = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&self.socket, PollFlags::IN | out)
    }

    /// Sends `note` now, or as soon as `flush` is called and there is room.
    pub fn send(&mut self, note: &[u8]) {
        self.outbox.extend_from_slice(&(note.len() as u32).to_le_bytes());
        self.outbox.extend_from_slice(note);
        self.flush();
        if self.outbox.len() > UNSENT {
            self.failed.get_or_insert(End::Silent);
        }
    }

    /// Sends what there is room for. Whether nothing is left.
    pub fn flush(&mut self) -> bool {
        while !self.outbox.is_empty() && self.failed.is_none() {
            match send(&self.socket, &self.outbox, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(e) => self.failed = Some(End::of(e)),
            }
        }
        true
    }

    /// The next note, if all of it has arrived.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, End> {
        loop {
            if let Some(note) = self.whole()? {
                return Ok(Some(note));
            }
            self.inbox.reserve(GULP);
            match recv(&self.socket, spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(self.failed.unwrap_or(End::Closed)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.failed.map_or(Ok(None), Err),
                Err(e) => return Err(End::of(e)),
            }
        }
    }

    /// The first note of the inbox, if it is complete.
    fn whole(&mut self) -> Result<Option<Vec<u8>>, End> {
        let Some(length) = self.inbox.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(End::Garbled);
        }
        if self.inbox.len() < 4 + length {
            return Ok(None);
        }
        let note = self.inbox[4..4 + length].to_vec();
        self.inbox.drain(..4 + length);
        Ok(Some(note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const LIMIT: usize = 10_000;

    fn pair() -> (OwnedFd, Framed) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a pair");
        (a, Framed::new(b, LIMIT))
    }

    #[test]
    fn notes_come_whole_and_in_order_before_the_end() {
        let (socket, mut to) = pair();
        let mut from = Framed::new(socket, LIMIT);
        let notes = [vec![], vec![1], vec![2; LIMIT], vec![3; 17]];
        for note in &notes {
            from.send(note);
        }
        drop(from);
        for note in notes {
            assert_eq!(to.receive(), Ok(Some(note)));
        }
        assert_eq!(to.receive(), Err(End::Closed));
    }

    #[test]
    fn a_note_may_come_byte_by_byte() {
        let (socket, mut to) = pair();
        for byte in [3, 0, 0, 0, 7, 8] {
            send(&socket, &[byte], SendFlags::empty()).expect("room");
            assert_eq!(to.receive(), Ok(None));
        }
        send(&socket, &[9, 1], SendFlags::empty()).expect("room");
        assert_eq!(to.receive(), Ok(Some(vec![7, 8, 9])));
        assert_eq!(to.receive(), Ok(None));
    }

    #[test]
    fn a_length_that_cannot_be_ends_it_and_makes_nobody_allocate() {
        for length in [LIMIT as u32 + 1, u32::MAX] {
            let (socket, mut to) = pair();
            send(&socket, &length.to_le_bytes(), SendFlags::empty()).expect("room");
            assert_eq!(to.receive(), Err(End::Garbled));
            assert!(to.inbox.capacity() <= 2 * GULP);
        }
    }

    #[test]
    fn who_never_reads_is_given_up() {
        let (_socket, mut to) = pair();
        let note = vec![0; 1 << 20];
        for _ in 0..3 {
            to.send(&note);
            assert_eq!(to.receive(), Ok(None));
        }
        assert!(!to.flush());
        to.send(&note);
        to.send(&note);
        assert_eq!(to.receive(), Err(End::Silent));
    }
}
