//! TCP sockets as arx wants them: every option that is set on one is set here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getpeername, getsockname, ipproto, socket_with, sockopt};

use crate::error::{Error, Result};
use crate::wait::Host;

/// How long a peer may be silent before it counts as gone, where nothing else is asked for.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Connections that the kernel holds while nobody accepts them: a whole job may dial at once.
const BACKLOG: i32 = 4096;

/// A socket that never blocks, for addresses like `address`, and not for child processes.
pub fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A job that is started again at once finds its port still cooling down from the one before.
    sockopt::set_socket_reuseaddr(&socket, true)?;
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

/// Makes a connected socket one that does not wait to fill segments, and that breaks when the peer's host does not answer
/// for `silence`: probes when nothing is on its way, a limit on what is not acknowledged when something is.
pub fn prepare(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    rustix::io::ioctl_fionbio(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    // In whole seconds. The first probe leaves early enough that several are lost before the connection is given up.
    sockopt::set_tcp_keepidle(socket, Duration::from_secs((silence.as_secs() / 3).max(1)))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, silence.as_secs().clamp(1, 127) as u32)?;
    // The kernel looks when a probe or a repetition is due, once a second or more often: the last look that comes in time
    // must find the limit passed.
    let limit = silence.saturating_sub(Duration::from_millis(500)).max(Duration::from_millis(500));
    sockopt::set_tcp_user_timeout(socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
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
