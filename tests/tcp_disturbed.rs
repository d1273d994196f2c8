//! Links over TCP when the world is unkind: signals all the time, a peer that does not read, a host that vanishes.
//!
//! The last needs two hosts, which are network namespaces here; where they cannot be made the test says so and is skipped.

#[path = "tcp/ends.rs"]
mod ends;

use std::cell::Cell;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arx::transport::{Link, tcp};
use ends::{V4, bytes, check, connections, read_all, watched, write_all};
use rustix::net::{AddressFamily, SocketType, accept, bind, connect, getsockname, listen, socket, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_interrupt_nothing() {
    const TOTAL: usize = 16 << 20;
    // SAFETY: `count` does nothing but add to an atomic; the struct is plain data. No SA_RESTART, so that calls are cut short.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    watched(|| {
        let (here, there) = connections(V4, 2, Some(65536));
        let (mut tx, mut rx) = (tcp::link(1, here).tx, tcp::link(0, there).rx);
        let done = AtomicBool::new(false);
        let done = &done;
        thread::scope(|threads| {
            let (say, reader) = std::sync::mpsc::channel();
            threads.spawn(move || {
                let target: libc::pthread_t = reader.recv().expect("the reader's thread");
                while !done.load(Ordering::Relaxed) {
                    // SAFETY: the reader ends only after it has set `done`, and is joined after this thread.
                    unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
                    thread::sleep(Duration::from_micros(20));
                }
            });
            threads.spawn(move || write_all(&mut *tx, &bytes(1, 0, TOTAL)));
            // SAFETY: asks for the calling thread.
            say.send(unsafe { libc::pthread_self() }).expect("the other thread waits");
            let room = vec![Cell::new(0); TOTAL];
            read_all(&mut *rx, &room);
            done.store(true, Ordering::Relaxed);
            check(1, 0, &room);
        });
    });
    assert!(SIGNALS.load(Ordering::Relaxed) > 0, "no signal arrived");
}

const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn a_peer_that_does_not_read_is_not_dead() {
    watched(|| {
        let (here, there) = connections(V4, 1, Some(65536));
        // As on a link between hosts, with less patience than this test has.
        for socket in here.iter().chain(&there) {
            tcp::prepare(socket, SILENCE).expect("options");
        }
        let (mut here, mut there) = (tcp::link(1, here), tcp::link(0, there));
        let body = bytes(2, 0, 16 << 20);
        let mut sent = 0;
        let from = Instant::now();
        while from.elapsed() < 3 * SILENCE {
            sent += here.tx.write(&[], &body[sent..], &[]).expect("the peer is alive");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(sent < body.len(), "the link holds everything");
        let room = vec![Cell::new(0); body.len()];
        thread::scope(|threads| {
            let rest = body.len() - sent;
            threads.spawn(move || write_all(&mut *here.tx, &bytes(2, sent, rest)));
            read_all(&mut *there.rx, &room);
        });
        check(2, 0, &room);
    });
}

#[test]
fn options_follow_the_silence() {
    let seconds = Duration::from_secs;
    for (silence, idle, interval, probes) in
        [(seconds(5), 2, 1, 3), (seconds(60), 24, 12, 3), (seconds(2), 1, 1, 1), (Duration::from_millis(500), 1, 1, 1)]
    {
        let (link, control) =
            [(); 2].map(|()| socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket")).into();
        tcp::prepare(&link, silence).expect("options");
        tcp::heartbeat(&control, silence).expect("options");
        for socket in [&link, &control] {
            assert_eq!(sockopt::tcp_nodelay(socket), Ok(true));
            assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
            assert_eq!(sockopt::tcp_keepidle(socket), Ok(seconds(idle)));
            assert_eq!(sockopt::tcp_keepintvl(socket), Ok(seconds(interval)));
            assert_eq!(sockopt::tcp_keepcnt(socket), Ok(probes));
        }
        assert_eq!(sockopt::tcp_user_timeout(&link), Ok(0), "it would end links to ranks that come late");
        assert_eq!(sockopt::tcp_user_timeout(&control), Ok(silence.as_millis() as u32));
    }
}

type Prepare = fn(&OwnedFd, Duration) -> arx::error::Result<()>;

/// Two hosts with a cable between them, gone when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn new() -> Result<Hosts, String> {
        let id = std::process::id();
        let hosts = Hosts { names: [format!("arx{id}a"), format!("arx{id}b")] };
        let [a, b] = &hosts.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b])?;
        for (name, address) in [(a, "10.99.0.1/24"), (b, "10.99.0.2/24")] {
            ip(&["-n", name, "address", "add", address, "dev", "cable"])?;
            ip(&["-n", name, "link", "set", "cable", "up"])?;
        }
        Ok(hosts)
    }

    /// What `make` returns on a thread that lives on one of the hosts.
    fn on<T: Send>(&self, host: usize, make: impl FnOnce() -> T + Send) -> T {
        let name = File::open(format!("/run/netns/{}", self.names[host])).expect("the namespace");
        thread::scope(|threads| {
            let there = threads.spawn(move || {
                move_into_link_name_space(name.as_fd(), Some(LinkNameSpaceType::Network)).expect("a way in");
                make()
            });
            there.join().expect("it ends")
        })
    }

    /// A connection from the first host to the second.
    fn connection(&self, prepare: Prepare) -> (Link, Link) {
        let open = || socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let listener = self.on(1, || {
            let listener = open();
            prepare(&listener, SILENCE).expect("options");
            bind(&listener, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
            listen(&listener, 1).expect("listen");
            listener
        });
        let port = SocketAddr::try_from(getsockname(&listener).expect("an address")).expect("an IP address").port();
        let here = self.on(0, || {
            let here = open();
            prepare(&here, SILENCE).expect("options");
            connect(&here, &SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 2), port)).expect("connect");
            here
        });
        let there = accept(&listener).expect("accept");
        prepare(&there, SILENCE).expect("options");
        (tcp::link(1, vec![here]), tcp::link(0, vec![there]))
    }

    fn unplug(&self) {
        ip(&["-n", &self.names[1], "link", "set", "cable", "down"]).expect("unplugged");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[test]
fn a_host_that_vanishes_breaks_its_connections() {
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("SKIPPED a_host_that_vanishes_breaks_its_connections: {why}"),
    };
    watched(|| {
        let link: Prepare = |socket, silence| tcp::prepare(socket, silence);
        let heartbeat: Prepare = |socket, silence| tcp::heartbeat(socket, silence);
        let mut ends = [link, heartbeat, heartbeat].map(|prepare| hosts.connection(prepare));
        for (here, there) in &mut ends {
            write_all(&mut *here.tx, &bytes(3, 0, 100));
            let room = vec![Cell::new(0); 100];
            read_all(&mut *there.rx, &room);
            check(3, 0, &room);
        }
        hosts.unplug();
        // The first two are idle, the last one has bytes under way.
        assert_eq!(ends[2].0.tx.write(b"are you there?", &[], &[]), Ok(14));
        for (here, there) in &mut ends {
            for (end, rank) in [(here, 1), (there, 0)] {
                let broken = loop {
                    match end.rx.read(&[Cell::new(0)]) {
                        Ok(n) => assert_eq!(n, 0, "nothing was sent"),
                        Err(broken) => break broken,
                    }
                    thread::sleep(Duration::from_millis(10));
                };
                assert_eq!(broken.rank, rank);
                assert!(broken.why.contains("os error"), "{broken:?}");
            }
        }
    });
}
