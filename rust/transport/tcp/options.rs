//! What is set on sockets, in one place.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::error::{Error, Result};

/// Bytes in flight that a link should be able to hold: 100 Gb/s for a third of a millisecond, and several bursts of the caller.
const BUFFER: usize = 4 << 20;

/// Congestion control that spreads packets over time by a timer, made for long ways. Between hosts of one room it gains
/// nothing, and on machines with coarse timers it was seen to halve the speed of large messages.
const PACING: &str = "bbr";
const USUAL: &str = "cubic";

/// Prepares a socket for a link: before `listen` or `connect`, since the size of the buffers decides how large a window the
/// connection can ever have, and again after `accept`. An idle link to a host that has vanished breaks after `silence`.
///
/// No `TCP_USER_TIMEOUT`, which would also find hosts that vanish while bytes are under way: it counts the time in which the
/// peer's window is closed, too, and so takes a rank that comes late, or is stopped, for dead. See [`heartbeat`].
pub fn prepare(socket: impl AsFd, silence: Duration) -> Result<()> {
    let socket = socket.as_fd();
    set("TCP_NODELAY", sockopt::set_tcp_nodelay(socket, true))?;
    keep_alive(socket, silence)?;
    let (receive, send) = grants();
    if receive {
        set("SO_RCVBUF", sockopt::set_socket_recv_buffer_size(socket, BUFFER))?;
    }
    if send {
        set("SO_SNDBUF", sockopt::set_socket_send_buffer_size(socket, BUFFER))?;
    }
    if sockopt::tcp_congestion(socket).is_ok_and(|name| name.starts_with(PACING)) {
        // Not every system has it or lets us choose; then it stays as it is.
        let _ = sockopt::set_tcp_congestion(socket, USUAL);
    }
    Ok(())
}

/// Prepares a socket for a connection that carries little, whose other end always reads: it breaks when the host at the other
/// end has not been heard of for `silence`, whether or not bytes are under way. The kernels of both hosts do this by
/// themselves; a process that is stopped or busy is not mistaken for a host that is gone.
pub fn heartbeat(socket: impl AsFd, silence: Duration) -> Result<()> {
    let socket = socket.as_fd();
    set("TCP_NODELAY", sockopt::set_tcp_nodelay(socket, true))?;
    keep_alive(socket, silence)?;
    let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    set("TCP_USER_TIMEOUT", sockopt::set_tcp_user_timeout(socket, millis))
}

/// Three probes, the last of which has had its time for an answer when `silence` is over. The kernel counts whole seconds.
fn keep_alive(socket: impl AsFd + Copy, silence: Duration) -> Result<()> {
    let total = silence.as_secs().max(2);
    let probes = (total - 1).min(3);
    let interval = (total / 5).max(1);
    set("SO_KEEPALIVE", sockopt::set_socket_keepalive(socket, true))?;
    set("TCP_KEEPIDLE", sockopt::set_tcp_keepidle(socket, Duration::from_secs(total - probes * interval)))?;
    set("TCP_KEEPINTVL", sockopt::set_tcp_keepintvl(socket, Duration::from_secs(interval)))?;
    set("TCP_KEEPCNT", sockopt::set_tcp_keepcnt(socket, probes as u32))
}

/// Whether the system lets a socket have `BUFFER` bytes for receiving and for sending. Where its limit is lower
/// (`net.core.rmem_max`, often 208 KiB), asking would end the kernel's own tuning, which goes further, for something worse.
fn grants() -> (bool, bool) {
    let Ok(trial) = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None) else {
        return (false, false);
    };
    let receive = sockopt::set_socket_recv_buffer_size(&trial, BUFFER)
        .and_then(|()| sockopt::socket_recv_buffer_size(&trial))
        .is_ok_and(|granted| granted >= BUFFER);
    let send = sockopt::set_socket_send_buffer_size(&trial, BUFFER)
        .and_then(|()| sockopt::socket_send_buffer_size(&trial))
        .is_ok_and(|granted| granted >= BUFFER);
    (receive, send)
}

fn set(option: &str, done: rustix::io::Result<()>) -> Result<()> {
    done.map_err(|errno| Error::os(&format!("cannot set {option} on a connection"), errno))
}
