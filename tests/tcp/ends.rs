//! Connected sockets, streams whose every byte is known from its position, and a watchdog.
#![allow(dead_code, reason = "not every test file needs all of it")]

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use arx::kernels::Bytes;
use arx::transport::{Rx, Tx, tcp};
use rustix::net::{AddressFamily, SocketType, accept, bind, connect, getsockname, listen, socket, sockopt};

/// These tests take seconds; this is how long a hang lasts before it is shown.
const HANG: Duration = Duration::from_secs(100);
const SILENCE: Duration = Duration::from_secs(5);

pub const V4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
pub const V6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

/// Runs `test`, and ends the process if that hangs.
pub fn watched<T>(test: impl FnOnce() -> T) -> T {
    let (done, waits) = channel::<()>();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if waits.recv_timeout(HANG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{name} hangs");
            std::process::abort();
        }
    });
    let result = test();
    drop(done);
    result
}

/// A socket as a link wants it; with `buffer`, then with buffers of about so many bytes instead of large ones.
fn prepared(address: SocketAddr, buffer: Option<usize>) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::STREAM, None).expect("a socket");
    tcp::prepare(&socket, SILENCE).expect("options");
    shrink(&socket, buffer);
    socket
}

fn shrink(socket: &OwnedFd, buffer: Option<usize>) {
    if let Some(size) = buffer {
        sockopt::set_socket_send_buffer_size(socket, size).expect("any size is granted, or the least");
        sockopt::set_socket_recv_buffer_size(socket, size).expect("any size is granted, or the least");
    }
}

/// `count` connections, as sockets of the one end and of the other.
pub fn connections(address: SocketAddr, count: usize, buffer: Option<usize>) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let listener = prepared(address, buffer);
    bind(&listener, &address).expect("a port");
    listen(&listener, 8).expect("listen");
    let at = getsockname(&listener).expect("an address");
    (0..count)
        .map(|_| {
            let here = prepared(address, buffer);
            connect(&here, &at).expect("connect");
            let there = accept(&listener).expect("accept");
            tcp::prepare(&there, SILENCE).expect("options");
            shrink(&there, buffer);
            (here, there)
        })
        .unzip()
}

/// Numbers from 0 to `below`, the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((self.0 >> 33) as usize) % below
    }
}

/// The byte at `position` of a stream, different for every stream.
pub fn byte(stream: u64, position: usize) -> u8 {
    ((position as u64 + (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub fn bytes(stream: u64, from: usize, len: usize) -> Vec<Cell<u8>> {
    (from..from + len).map(|position| Cell::new(byte(stream, position))).collect()
}

/// Fails at the first byte that is not what `stream` has at `from`.
pub fn check(stream: u64, from: usize, seen: Bytes<'_>) {
    for (i, cell) in seen.iter().enumerate() {
        assert_eq!(cell.get(), byte(stream, from + i), "stream {stream}, position {}", from + i);
    }
}

/// Writes all of `body`, waiting when the link is full. How often it took a part.
pub fn write_all(tx: &mut dyn Tx, body: Bytes<'_>) -> usize {
    let (mut done, mut parts) = (0, 0);
    while done < body.len() {
        let n = tx.write(&[], &body[done..], &[]).expect("written");
        parts += usize::from(n > 0 && n < body.len() - done);
        done += n;
        if n == 0 {
            thread::yield_now();
        }
    }
    parts
}

/// Peeks until `enough` bytes are there.
pub fn peek_all(rx: &mut dyn Rx, enough: usize) -> Bytes<'_> {
    while rx.peek(enough).expect("received").len() < enough {
        thread::yield_now();
    }
    rx.peek(enough).expect("received")
}

/// Reads until `dst` is full.
pub fn read_all(rx: &mut dyn Rx, dst: Bytes<'_>) {
    let mut done = 0;
    while done < dst.len() {
        let n = rx.read(&dst[done..]).expect("received");
        done += n;
        if n == 0 {
            thread::yield_now();
        }
    }
}
