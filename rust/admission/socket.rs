//! TCP sockets as arx wants them: they never block, and have from the start what a link over them needs.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getpeername, getsockname, ipproto, socket_with, sockopt};

use crate::error::{Error, Result};
use crate::transport::tcp;
use crate::wait::Host;

/// How long a peer may be silent before it counts as gone, where nothing else is asked for.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Connections that the kernel holds while nobody accepts them: a whole job may dial at once.
const BACKLOG: i32 = 4096;

/// A socket that never blocks, for addresses like `address`, and not for child processes. What links need is set before it
/// connects or listens, since later is too late for the size of the window; a socket that is accepted inherits it.
pub fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A job that is started again at once finds its port still cooling down from the one before.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    tcp::prepare(&socket, SILENCE).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(socket)
}

/// Listens at `address`, and says where that is if the port was left to the kernel. `::` takes IPv4 too.
pub fn listen(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let socket = open(address)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let address = local(&socket)?;
    Ok((socket, address))
}

pub fn local(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(canonical(getsockname(socket)?.try_into()?))
}

pub fn remote(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(canonical(getpeername(socket)?.ok_or(Errno::NOTCONN)?.try_into()?))
}

/// An IPv4 address that came in IPv6 clothes, as itself.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip == address.ip() => address,
        ip => SocketAddr::new(ip, address.port()),
    }
}

/// Sleeps until something in `list` happens, a signal arrives, or for a slice of time; lets the host run meanwhile.
pub fn rest(list: &mut [PollFd<'_>], slice: Duration, host: &mut dyn Host) -> Result<()> {
    let time = Timespec { tv_sec: slice.as_secs() as _, tv_nsec: slice.subsec_nanos() as _ };
    host.aside(&mut || {
        // A signal ends the sleep early, as it should; nothing else can go wrong that looking again would not show.
        let _ = poll(list, Some(&time));
    });
    if host.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}
