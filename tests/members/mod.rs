//! Groups of whole `Communicator`s whose ranks are threads of one process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arx::communicator::{Across, Communicator, Config, Listening, Master, Network};
use arx::wait::Plain;

/// A group that does not form, or a call that does not end, within this long is a failure; arx itself ends the wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test has its own ways")]
pub enum Meet {
    /// As ranks of one host do.
    Here,
    /// Over the loopback interface; then they find out that they share memory, unless they are kept apart.
    Over { apart: bool },
}

/// Runs `rank` in a group of `world` threads.
pub fn group(world: u32, meet: Meet, tune: &str, rank: impl Fn(&mut Communicator) + Copy + Send + Sync) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job_id = format!("members-{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let mut first = (meet != Meet::Here).then(|| {
        let anywhere = Master::parse("127.0.0.1:0").expect("an address");
        Listening::bind(&anywhere, &Network::default(), true, Instant::now() + PATIENCE, &mut Plain)
            .expect("a free port")
    });
    let master = first.as_ref().map(|listening| format!("127.0.0.1:{}", listening.address.port()));
    thread::scope(|scope| {
        for me in 0..world {
            let across = master.as_ref().map(|master| Across {
                master: Master::parse(master).expect("an address"),
                secret: Some("a secret".into()),
                iface: None,
                ports: None,
                silence: PATIENCE,
                apart: meet == Meet::Over { apart: true },
                listening: first.take(),
            });
            let config = Config {
                rank: me,
                world,
                job_id: job_id.clone(),
                generation: 0,
                timeout: PATIENCE,
                spin: None,
                tune: Some(tune.into()),
                across,
            };
            scope.spawn(move || {
                let mut group = Communicator::connect(config, &mut Plain).expect("the group forms");
                rank(&mut group);
                group.shutdown(false);
            });
        }
    });
}
