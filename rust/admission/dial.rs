//! Calling another rank: connect, prove, be proved to. One attempt with a deadline; who wants more tries again.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::error::{Error, Result};
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
    if !call.key.is_secret() && !to.ip().is_loopback() {
        return Err(super::address::no_secret(to));
    }
    let socket = match connecting(call, to) {
        Ok(socket) => socket,
        Err(e) => match Errno::from_io_error(&e) {
            Some(Errno::MFILE | Errno::NFILE) => {
                return Err(Error::os("no descriptor for a connection (ulimit -n)", e));
            }
            _ => return Ok(Err(Missed::Unreachable(e))),
        },
    };
    if !rest_until(call, &socket, PollFlags::OUT, host)? {
        return Ok(Err(Missed::Late));
    }
    // In this order: a failed connection also has no remote address.
    match sockopt::socket_error(&socket) {
        Ok(Ok(())) => {}
        Ok(Err(e)) | Err(e) => return Ok(Err(Missed::Unreachable(e.into()))),
    }
    if socket::local(&socket).ok() == socket::remote(&socket).ok() {
        // A socket can meet itself when nobody listens and the kernel has chosen the very port that is called.
        return Ok(Err(Missed::Unreachable(Errno::CONNREFUSED.into())));
    }
    let mut handshake = Handshake::dial(call.key, call.claim, nonce()?);
    loop {
        match drive(&socket, &mut handshake) {
            Ok(Some(Ok(_))) => return Ok(Ok(socket)),
            Ok(Some(Err(refusal))) => return Ok(Err(Missed::Refused(refusal))),
            Ok(None) => {}
            Err(_) => return Ok(Err(Missed::HungUp)),
        }
        let out = if handshake.outbox().is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        if !rest_until(call, &socket, PollFlags::IN | out, host)? {
            return Ok(Err(Missed::Late));
        }
    }
}

/// Sleeps until `socket` is ready for `what`; false when it is time to stop.
fn rest_until(call: &Dial<'_>, socket: &OwnedFd, what: PollFlags, host: &mut dyn Host) -> Result<bool> {
    loop {
        let left = call.until.saturating_duration_since(Instant::now());
        if left.is_zero() || (call.stop)() {
            return Ok(false);
        }
        let mut list = [PollFd::new(socket, what)];
        socket::rest(&mut list, left.min(SLICE).max(Duration::from_millis(1)), host)?;
        if !list[0].revents().is_empty() {
            return Ok(true);
        }
    }
}

/// A socket on its way to `to`, from an interface and a port that are allowed.
fn connecting(call: &Dial<'_>, to: SocketAddr) -> io::Result<OwnedFd> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // What leaves by the loopback interface cannot come from another.
    let own = call.network.source(to.is_ipv4()).filter(|_| !to.ip().is_loopback());
    let Some(ports) = call.network.ports else {
        let socket = socket::open(to)?;
        if let Some(ip) = own {
            rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
        }
        start(&socket, to)?;
        return Ok(socket);
    };
    for port in ports.from(call.claim.from) {
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
