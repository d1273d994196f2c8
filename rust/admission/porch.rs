//! Where those who call wait until it is known who they are. A stranger who says nothing, or says it slowly, keeps nobody
//! else waiting: all are listened to at once, each has a few seconds, and when the porch is full the one who has said
//! least for longest must go.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, acceptfrom_with, recv, send};

use super::handshake::{Claim, Handshake, Key, Refusal};
use super::{nonce, socket};

/// From the first packet to the last proof; the slowest network needs a tenth of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Strangers at the same time, besides two for each rank of the job.
const ROOM: usize = 64;
/// Taken in at a time, so that a flood at the door does not keep those inside waiting.
const BATCH: usize = 64;
/// How long nobody is taken in after the process has run out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Stranger {
    socket: OwnedFd,
    from: SocketAddr,
    handshake: Handshake,
    until: Instant,
}

/// Somebody who has proved who it is.
#[derive(Debug)]
pub struct Arrival {
    pub claim: Claim,
    pub socket: OwnedFd,
    pub from: SocketAddr,
}

#[derive(Debug)]
pub struct Porch {
    listener: OwnedFd,
    key: Key,
    me: u32,
    room: usize,
    strangers: Vec<Stranger>,
    closed_until: Option<Instant>,
    turned_away: u64,
    last: Option<String>,
}

impl Porch {
    /// Those who come to `listener` want rank `me`, in a job of `world` ranks.
    pub fn new(listener: OwnedFd, key: Key, me: u32, world: u32) -> Porch {
        let room = ROOM + 2 * world as usize;
        Porch { listener, key, me, room, strangers: Vec::new(), closed_until: None, turned_away: 0, last: None }
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        socket::local(&self.listener)
    }

    pub fn descriptor(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// How many have been sent away so far.
    pub fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// Who was sent away last, and why.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Whether the process has no descriptor left for another connection.
    pub fn is_starved(&self) -> bool {
        self.closed_until.is_some()
    }

    /// Adds what to sleep on.
    pub fn watch<'a>(&'a self, list: &mut Vec<PollFd<'a>>) {
        if self.closed_until.is_none() {
            list.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        list.extend(self.strangers.iter().map(|s| {
            let out = if s.handshake.outbox().is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(s.socket.as_fd(), PollFlags::IN | out)
        }));
    }

    /// When to call `advance` although nothing has happened.
    pub fn deadline(&self) -> Option<Instant> {
        self.strangers.iter().map(|s| s.until).chain(self.closed_until).min()
    }

    /// Takes in who has come, hears everybody, sends away whose time is up. Those who have proved who they are.
    pub fn advance(&mut self, now: Instant) -> Vec<Arrival> {
        self.closed_until = self.closed_until.filter(|until| now < *until);
        if self.closed_until.is_none() {
            self.take_in(now);
        }
        let mut arrivals = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match drive(&stranger.socket, &mut stranger.handshake) {
                Ok(Some(Ok(claim))) => {
                    arrivals.push(Arrival { claim, socket: stranger.socket, from: stranger.from });
                }
                Ok(Some(Err(refusal))) => self.turn_away(stranger.from, refusal.why()),
                Err(_) => self.turn_away(stranger.from, "it left before it had proved anything"),
                Ok(None) if now >= stranger.until => {
                    self.turn_away(stranger.from, "it took too long to prove anything")
                }
                Ok(None) => self.strangers.push(stranger),
            }
        }
        arrivals
    }

    /// Counts one who is sent away, also one who proved itself but is not wanted.
    pub fn turn_away(&mut self, from: SocketAddr, why: &str) {
        self.turned_away += 1;
        self.last = Some(format!("{from}: {why}"));
    }

    fn take_in(&mut self, now: Instant) {
        for _ in 0..BATCH {
            let (socket, from) = match acceptfrom_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok((socket, from)) => (socket, from.and_then(|from| from.try_into().ok())),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    if !self.make_room() {
                        self.closed_until = Some(now + PAUSE);
                    }
                    return;
                }
                Err(Errno::AGAIN) => return,
                // This one has left again; there may be others.
                Err(_) => continue,
            };
            let Some(from) = from.map(socket::canonical) else { continue };
            if !self.key.is_secret() && !from.ip().is_loopback() {
                self.turn_away(from, "it is on another host, and the job has no secret (ARX_SECRET)");
                continue;
            }
            let Ok(nonce) = nonce() else { continue };
            if self.strangers.len() >= self.room {
                self.make_room();
            }
            let handshake = Handshake::accept(&self.key, self.me, nonce);
            self.strangers.push(Stranger { socket, from, handshake, until: now + PATIENCE });
        }
    }

    /// Sends away the one who has been silent longest; if all have spoken, the one who came first. Whether there was one.
    fn make_room(&mut self) -> bool {
        let silent = self.strangers.iter().position(|s| s.handshake.is_silent());
        if self.strangers.is_empty() {
            return false;
        }
        let from = self.strangers.remove(silent.unwrap_or(0)).from;
        self.turn_away(from, "too many others were waiting");
        true
    }
}

/// Sends and receives what can be now; the outcome once there is one and everything is sent.
pub(super) fn drive(socket: &OwnedFd, handshake: &mut Handshake) -> Result<Option<Result<Claim, Refusal>>, Errno> {
    loop {
        while !handshake.outbox().is_empty() {
            match send(socket, handshake.outbox(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => handshake.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        if let Some(outcome) = handshake.outcome() {
            return Ok(Some(outcome));
        }
        let mut part = [0; 128];
        let wanted = handshake.wanted().min(part.len());
        match recv(socket, &mut part[..wanted], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Errno::CONNRESET),
            Ok((count, _)) => handshake.take(&part[..count]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}
