//! Calling another rank: connect, prove, be proved to. One attempt; who wants more tries again. `dial` waits for it until a
//! deadline, `Attempt` does not wait.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::error::{Error, Rank, Result};
use crate::wait::{Host, SLICE};

use super::address::Network;
use super::handshake::{Claim, Handshake, Key, Refusal};
use super::porch::drive;
use super::{nonce, socket};

/// Who calls whom, and how.
pub struct Dial<'a> {
    pub key: &'a Key,
    pub claim: Claim,
    pub network: &'a Network,
    pub until: Instant,
    /// Looked at while waiting: true ends the attempt.
    pub stop: &'a dyn Fn() -> bool,
}

/// Why an attempt failed. Another may succeed.
#[derive(Debug)]
pub enum Missed {
    /// Nobody listens there, or the network does not lead there.
    Unreachable(io::Error),
    /// The other end closed the connection before anything was proved.
    HungUp,
    Refused(Refusal),
    /// The time was over, or the caller wanted to stop.
    Late,
}

impl std::fmt::Display for Missed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missed::Unreachable(error) => error.fmt(f),
            Missed::HungUp => f.write_str("the other end hung up"),
            Missed::Refused(refusal) => f.write_str(refusal.why()),
            Missed::Late => f.write_str("no answer"),
        }
    }
}

/// A connection to the rank that listens at `to`, proved on both sides. The outer error is one that ends all attempts: an
/// interrupt, no secret, no descriptors.
pub fn dial(call: &Dial<'_>, to: SocketAddr, host: &mut dyn Host) -> Result<std::result::Result<OwnedFd, Missed>> {
    let mut attempt = match Attempt::start(call.key, call.claim, call.network, to)? {
        Ok(attempt) => attempt,
        Err(missed) => return Ok(Err(missed)),
    };
    loop {
        if !rest_until(call, &attempt, host)? {
            return Ok(Err(Missed::Late));
        }
        if let Some(outcome) = attempt.advance() {
            return Ok(outcome.map(|()| attempt.socket));
        }
    }
}

/// Sleeps until something happens to `attempt`; false when it is time to stop.
fn rest_until(call: &Dial<'_>, attempt: &Attempt, host: &mut dyn Host) -> Result<bool> {
    loop {
        let left = call.until.saturating_duration_since(Instant::now());
        if left.is_zero() || (call.stop)() {
            return Ok(false);
        }
        let mut list = [attempt.interest()];
        socket::rest(&mut list, left.min(SLICE).max(Duration::from_millis(1)), host)?;
        if !list[0].revents().is_empty() {
            return Ok(true);
        }
    }
}

/// A call that is under way. Nothing here waits: it is for a thread that has others to listen to, and a time limit of its own.
#[derive(Debug)]
pub struct Attempt {
    socket: OwnedFd,
    handshake: Handshake,
    connected: bool,
}

impl Attempt {
    /// Calls the rank that listens at `to`. The outer error is one that ends all attempts, as with `dial`.
    pub fn start(
        key: &Key,
        claim: Claim,
        network: &Network,
        to: SocketAddr,
    ) -> Result<std::result::Result<Attempt, Missed>> {
        if !key.is_secret() && !to.ip().is_loopback() {
            return Err(super::address::no_secret(to));
        }
        let socket = match connecting(network, claim.from, to) {
            Ok(socket) => socket,
            Err(e) => match Errno::from_io_error(&e) {
                Some(Errno::MFILE | Errno::NFILE) => {
                    return Err(Error::os("no descriptor for a connection (ulimit -n)", e));
                }
                _ => return Ok(Err(Missed::Unreachable(e))),
            },
        };
        let handshake = Handshake::dial(key, claim, nonce()?);
        Ok(Ok(Attempt { socket, handshake, connected: false }))
    }

    /// What to sleep on.
    pub fn interest(&self) -> PollFd<'_> {
        let what = match (self.connected, self.handshake.outbox().is_empty()) {
            (false, _) => PollFlags::OUT,
            (true, false) => PollFlags::IN | PollFlags::OUT,
            (true, true) => PollFlags::IN,
        };
        PollFd::new(&self.socket, what)
    }

    /// To be called when what `interest` names has happened. What came of it, once that is known.
    pub fn advance(&mut self) -> Option<std::result::Result<(), Missed>> {
        if !self.connected {
            // In this order: a failed connection also has no remote address.
            match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => {}
                Ok(Err(e)) | Err(e) => return Some(Err(Missed::Unreachable(e.into()))),
            }
            if socket::local(&self.socket).ok() == socket::remote(&self.socket).ok() {
                // A socket can meet itself when nobody listens and the kernel has chosen the very port that is called.
                return Some(Err(Missed::Unreachable(Errno::CONNREFUSED.into())));
            }
            self.connected = true;
        }
        match drive(&self.socket, &mut self.handshake) {
            Ok(outcome) => outcome.map(|outcome| outcome.map(drop).map_err(Missed::Refused)),
            Err(_) => Some(Err(Missed::HungUp)),
        }
    }

    /// The connection, once both ends have proved themselves.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

/// A socket on its way to `to`, from an interface and a port that are allowed.
fn connecting(network: &Network, from: Rank, to: SocketAddr) -> io::Result<OwnedFd> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // What leaves by the loopback interface cannot come from another.
    let own = network.source(to.is_ipv4()).filter(|_| !to.ip().is_loopback());
    let Some(ports) = network.ports else {
        let socket = socket::open(to)?;
        if let Some(ip) = own {
            rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
        }
        start(&socket, to)?;
        return Ok(socket);
    };
    for port in ports.from(from) {
        let socket = socket::open(to)?;
        let bound = rustix::net::bind(&socket, &SocketAddr::new(own.unwrap_or(any), port));
        match bound.and_then(|()| start(&socket, to)) {
            Ok(()) => return Ok(socket),
            // Listened at, or on its way to the same address already.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {ports} is free for a connection to {to}")))
}

fn start(socket: &OwnedFd, to: SocketAddr) -> std::result::Result<(), Errno> {
    match rustix::net::connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}
