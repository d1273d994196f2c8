//! Two ranks sum an array of float32 over loopback TCP by one full exchange, straight over a link: what a transport can give to
//! whatever runs on top of it. Both send what they have while they add what has arrived to what they have sent.
//!
//! `cargo bench --bench tcp_exchange`, or `-- 2` for two sockets. Prints the median of one exchange in microseconds.
#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use arx::dtype::{DType, ReduceOp};
use arx::kernels::{Bytes, Reducer};
use arx::transport::{Link, tcp};
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{CpuSet, sched_setaffinity};

const SIZES: [usize; 9] = [8, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are added at once: they stay in the second-level cache.
const SEGMENT: usize = 256 << 10;

fn socket() -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    tcp::prepare(&socket, SILENCE).expect("options");
    socket
}

fn pair() -> (OwnedFd, OwnedFd) {
    let listener = socket();
    rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    rustix::net::listen(&listener, 1).expect("listen");
    let here = socket();
    rustix::net::connect(&here, &rustix::net::getsockname(&listener).expect("an address")).expect("connect");
    let there = rustix::net::accept(&listener).expect("accept");
    tcp::prepare(&there, SILENCE).expect("options");
    (here, there)
}

/// Sums the arrays of both ranks into both.
fn exchange(link: &mut Link, array: Bytes<'_>, sum: &Reducer) {
    let (mut sent, mut summed) = (0, 0);
    while sent < array.len() || summed < array.len() {
        if sent < array.len() {
            sent += link.tx.write(&[], &array[sent..], &[]).expect("sent");
        }
        if summed < array.len() {
            let arrived = link.rx.peek(SEGMENT.min(array.len() - summed)).expect("received");
            let n = arrived.len().min(sent - summed) & !3;
            if n > 0 {
                let part = &array[summed..summed + n];
                sum.run(part, &[part, &arrived[..n]]);
                link.rx.consume(n);
                summed += n;
            }
        }
    }
}

fn rank(number: usize, mut link: Link) {
    let mut core = CpuSet::new();
    core.set(number);
    sched_setaffinity(None, &core).expect("a core for each rank");
    let sum = Reducer::of(DType::Float32, ReduceOp::Sum).expect("floats have sums");
    let array = vec![Cell::new(0); SIZES[SIZES.len() - 1]];
    for size in SIZES {
        let rounds = match size {
            ..0x10_0000 => 3000,
            0x10_0000..0x100_0000 => 200,
            _ => 10,
        };
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let from = Instant::now();
                exchange(&mut link, &array[..size], &sum);
                from.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        if number == 0 {
            println!("{size:>9} B  median {:>10.2} us  min {:>10.2} us", times[rounds / 2], times[0]);
        }
    }
}

fn main() {
    let streams = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(1);
    let (here, there) = (0..streams).map(|_| pair()).unzip();
    let (here, there) = (tcp::link(1, here), tcp::link(0, there));
    std::thread::scope(|ranks| {
        ranks.spawn(|| rank(0, here));
        ranks.spawn(|| rank(1, there));
    });
}
