//! Jobs of threads as ranks, which meet over the loopback interface.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arx::admission::address::Master;
use arx::admission::{Network, socket};
use arx::error::{Rank, Result};
use arx::health::{Control, Verdict};
use arx::rendezvous::{Job, Listening, Meeting, Met, meet};
use arx::wait::Plain;

pub const LONG: Duration = Duration::from_secs(60);
pub const SHORT: Duration = Duration::from_millis(1500);

/// Waits until it is so.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The verdict that a rank has, or gets.
pub fn verdict(control: &Control) -> Verdict {
    eventually("a verdict", || control.verdict().is_some());
    control.verdict().expect("there is one").clone()
}

/// A job that is to form, at a port of its own.
#[derive(Clone)]
pub struct Plan {
    pub id: String,
    pub world: u32,
    pub at: SocketAddr,
    pub secret: Option<String>,
    pub timeout: Duration,
    pub apart: bool,
}

/// Rank 0's socket, for one job.
pub fn listening(ip: &str) -> Listening {
    let master = Master::parse(&format!("{ip}:0")).expect("an address");
    Listening::bind(&master, &Network::default(), true, Instant::now() + LONG, &mut Plain).expect("a free port")
}

impl Plan {
    pub fn new(world: u32, at: SocketAddr) -> Plan {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let id = format!("meeting-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
        Plan { id, world, at, secret: Some("a secret".into()), timeout: LONG, apart: false }
    }

    pub fn meeting(&self, rank: Rank, listening: Option<Listening>) -> Meeting {
        let job = Job { id: self.id.clone(), generation: 0, rank, world: self.world, timeout: self.timeout };
        Meeting {
            job,
            master: Master { host: self.at.ip().to_string(), ports: vec![self.at.port()] },
            secret: self.secret.clone(),
            network: Network::default(),
            apart: self.apart,
            settings: if rank == 0 { vec![u64::MAX, 7, u64::from(self.world)] } else { vec![99] },
            listening,
            silence: socket::SILENCE,
        }
    }

    pub fn guest(&self, rank: Rank) -> Result<Met> {
        meet(self.meeting(rank, None), &mut |_, _| Ok(()), &mut Plain)
    }
}

/// A listening socket and the plan of a job that meets there.
pub fn planned(world: u32) -> (Listening, Plan) {
    let listening = listening("127.0.0.1");
    let plan = Plan::new(world, listening.address);
    (listening, plan)
}

/// Runs each rank of `ranks` in a thread; what each came to.
pub fn run<T: Send>(ranks: impl IntoIterator<Item = Rank>, rank: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = ranks.into_iter().map(|r| scope.spawn(move || rank(r))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank does not panic")).collect()
    })
}

/// Forms the job of `plan`, all ranks of which are there.
pub fn gather(
    listening: Listening,
    plan: &Plan,
    form: impl Fn(Rank, &[Rank]) -> Result<()> + Sync,
) -> Vec<Result<Met>> {
    let listening = Mutex::new(Some(listening));
    run(0..plan.world, |rank| {
        let socket = if rank == 0 { listening.lock().expect("not poisoned").take() } else { None };
        meet(plan.meeting(rank, socket), &mut |node, _| form(rank, node), &mut Plain)
    })
}

/// Everything that comes to an open port: silence, other protocols, noise, in whatever amount.
pub fn strangers(at: SocketAddr) -> Vec<TcpStream> {
    let connect = || TcpStream::connect(at).expect("rank 0 listens");
    let mut all: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    for words in [&b"GET / HTTP/1.1\r\nHost: h0\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"\x00arx\xffhi\n\x01\0\0\0"]
    {
        let mut stranger = connect();
        stranger.write_all(words).expect("a fresh connection takes a few bytes");
        all.push(stranger);
    }
    let mut noise = vec![0; 1 << 20];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in &mut noise {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (state >> 56) as u8 | 1;
    }
    let mut noisy = connect();
    // Rank 0 hangs up on the first byte.
    let _ = noisy.write_all(&noise);
    all.push(noisy);
    all
}

/// The streams 0 to `count` between this rank and another, whichever of the two opens them.
pub fn link(control: &Control, me: Rank, peer: Rank, count: u16) -> Vec<OwnedFd> {
    let until = Instant::now() + LONG;
    if peer < me {
        return (0..count).map(|stream| control.dial(peer, stream, until, &mut Plain).expect("it opens")).collect();
    }
    loop {
        if let Some(streams) = control.take(peer, count) {
            return streams;
        }
        assert!(Instant::now() < until, "rank {me} waited in vain for rank {peer}");
        thread::sleep(Duration::from_millis(1));
    }
}
