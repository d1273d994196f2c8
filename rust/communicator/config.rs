//! How a group is to be formed, and the settings that the environment may change.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::admission::address::Master;
use crate::direct::{MEASURE, NEVER, Tuning};
use crate::error::{Error, Rank, Result};
use crate::health::MAX_WORLD;
use crate::machine;
use crate::rendezvous::Listening;
use crate::schedule::cost::Model;

use super::probe::SEGMENT;

/// Spinning longer than this costs the others more than a wake-up costs this rank.
const SPIN: Duration = Duration::from_micros(50);

/// Bounds of a staging ring. Below 2 MiB lines are written again while they are still in the reader's cache on machines
/// with 1 MiB of second-level cache; above it pieces leave for the third level or memory before they are written again.
const RING: Range<usize> = 2 << 20..7 << 20;
/// Two ranks: unit in which an array passes through the ring. Measured: `benches/record`.
const CHUNK: usize = 256 << 10;
/// More ranks: bytes of the array on which all work at the same time.
const ROUND: usize = 256 << 10;
/// Bounds of a pipe. Two ranks with a core each lose up to a fifth with 64 KiB and gain nothing from 256 KiB on; ranks that share
/// cores, or pass on what comes from another host, change places whenever a pipe is full, and 1 MiB halves the time of 16 MiB.
const PIPE: Range<usize> = 256 << 10..1 << 20;
/// All pipes to one rank together, as long as the bounds allow: with `exchange` every one of them is used.
const PIPES: usize = 16 << 20;

/// Says that the kernel reads nothing.
const NO_KERNEL: &str = "kernel=off";

/// Connections that a link may be made of.
pub(super) const STREAMS: RangeInclusive<u16> = 1..=16;

/// Place and settings of one rank.
#[derive(Debug)]
pub struct Config {
    pub rank: Rank,
    pub world: u32,
    pub job_id: String,
    /// How often this process has formed a group of this job id before.
    pub generation: u32,
    pub timeout: Duration,
    /// `ARX_SPIN_US`.
    pub spin: Option<Duration>,
    /// `ARX_TUNE`: `chunk=65536,round=262144,symmetric=4194304,kernel=65536,ring=4194304,pipe=262144` (bytes; `kernel=off`: the
    /// kernel is not asked to read other ranks' memory), `cores=2` (instead of those that are there), `streams=2` (connections
    /// between two ranks of different hosts), any of them; and, all of them, `alpha_ns=`, `overhead_ns=`, `beta_fs=` and
    /// `gamma_fs=` (per byte), with `rooted_pct=` or without, which say how the network is instead of measuring it. Rank 0's word
    /// counts for all.
    pub tune: Option<String>,
    /// None: all ranks are on this host.
    pub across: Option<Across>,
}

/// What a job over several hosts needs to form.
#[derive(Debug)]
pub struct Across {
    /// Where rank 0 listens.
    pub master: Master,
    /// Known to the ranks of this job alone; none: loopback only.
    pub secret: Option<String>,
    /// `ARX_IFACE`.
    pub iface: Option<String>,
    /// `ARX_PORT_RANGE`.
    pub ports: Option<String>,
    /// How long a host may be silent before its ranks count as lost.
    pub silence: Duration,
    /// `ARX_TRANSPORT=tcp`: ranks share no memory even where they could.
    pub apart: bool,
    /// On rank 0: its socket, if it listens already.
    pub listening: Option<Listening>,
}

/// How a rank waits in calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub spin: Duration,
    /// Of a call that names none.
    pub timeout: Duration,
}

impl Config {
    pub(super) fn manner(&self, crowd: bool) -> Manner {
        Manner { spin: self.spin(crowd), timeout: self.timeout }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.world as usize > MAX_WORLD {
            return Err(Error::Init(format!("{} ranks on one host; at most {MAX_WORLD} are supported", self.world)));
        }
        if self.rank >= self.world {
            return Err(Error::Init(format!("rank {} of a world of {}: ranks go from 0", self.rank, self.world)));
        }
        let local = ["chunk", "round", "symmetric", "kernel", "ring", "pipe", "cores"];
        let known = local.iter().chain(&["streams", "alpha_ns", "overhead_ns", "beta_fs", "gamma_fs", "rooted_pct"]);
        for word in self.tune.iter().flat_map(|t| t.split(',')).filter(|w| !w.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if !known.clone().any(|k| *k == key) || word != NO_KERNEL && value.parse::<usize>().is_err() {
                let known = known.map(|key| format!("{key}=NUMBER")).collect::<Vec<_>>().join(", ");
                return Err(Error::Init(format!("ARX_TUNE: '{word}' is not one of {known}, {NO_KERNEL}")));
            }
        }
        check_descriptors(self.world)
    }

    pub(super) fn spin(&self, crowd: bool) -> Duration {
        self.spin.unwrap_or(if crowd { Duration::ZERO } else { SPIN })
    }

    fn tuned(&self, key: &str) -> Option<usize> {
        let pairs = self.tune.as_deref()?.split(',').filter_map(|word| word.split_once('='));
        pairs.filter(|(k, _)| *k == key).find_map(|(_, value)| value.parse().ok())
    }

    fn says(&self, word: &str) -> bool {
        self.tune.iter().any(|tune| tune.split(',').any(|said| said == word))
    }

    /// As large as the second-level cache, within bounds (why: `direct/ring.rs`).
    pub(super) fn ring(&self) -> usize {
        let ring = machine::second_level_cache().clamp(RING.start, RING.end);
        self.tuned("ring").unwrap_or(ring).clamp(1 << 20, 64 << 20).next_multiple_of(64 << 10)
    }

    /// Of a host with so many ranks.
    pub(super) fn pipe(&self, ranks: usize) -> usize {
        let pipe = (PIPES / ranks).clamp(PIPE.start, PIPE.end);
        self.tuned("pipe").unwrap_or(pipe).clamp(128, 64 << 20).next_multiple_of(64)
    }

    pub(super) fn tuning(&self) -> Tuning {
        // Three pieces at least must fit into the ring: one staged, one read, one on its way.
        let cap = self.ring() / 8;
        let from = |key| self.tuned(key).map_or(MEASURE, |least| least.max(1));
        Tuning {
            chunk: self.tuned("chunk").unwrap_or(CHUNK).clamp(64, cap).next_multiple_of(64),
            round: self.tuned("round").unwrap_or(ROUND).clamp(64, cap).next_multiple_of(64),
            symmetric: from("symmetric"),
            kernel: if self.says(NO_KERNEL) { NEVER } else { from("kernel") },
        }
    }

    /// Connections that a link between hosts is made of.
    pub(super) fn streams(&self) -> u16 {
        let streams = self.tuned("streams").unwrap_or(1).try_into().unwrap_or(u16::MAX);
        streams.clamp(*STREAMS.start(), *STREAMS.end())
    }

    /// How the network between hosts is, if that is said.
    pub(super) fn network(&self) -> Option<Model> {
        let [alpha, overhead] = ["alpha_ns", "overhead_ns"].map(|key| self.tuned(key).map(|n| n as f64 * 1e-9));
        let [beta, gamma] = ["beta_fs", "gamma_fs"].map(|key| self.tuned(key).map(|n| n as f64 * 1e-15));
        let rooted = self.tuned("rooted_pct").map_or(1.0, |n| n as f64 * 1e-2);
        Some(Model { alpha: alpha?, overhead: overhead?, beta: beta?, gamma: gamma?, segment: SEGMENT, rooted })
    }

    /// What rank 0 tells the others.
    pub(super) fn settings(&self) -> [u64; 5] {
        let Tuning { chunk, round, symmetric, kernel } = self.tuning();
        [chunk, round, symmetric, kernel, self.tuned("cores").unwrap_or(0)].map(|word| word as u64)
    }
}

/// What rank 0 told: the tuning, and the cores that count instead of those that are there.
pub(super) fn told(settings: [u64; 5]) -> (Tuning, Option<usize>) {
    let [chunk, round, symmetric, kernel, cores] = settings.map(|word| word as usize);
    (Tuning { chunk, round, symmetric, kernel }, (cores > 0).then_some(cores))
}

/// Each rank holds one descriptor for every other; that it has so many is better known before the others wait for it.
fn check_descriptors(world: u32) -> Result<()> {
    const OWN: usize = 8;
    let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current else { return Ok(()) };
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    let need = open + world as usize + OWN;
    if need as u64 > limit {
        return Err(Error::Init(format!(
            "{world} ranks need {need} file descriptors in each process ({open} are open already), and the limit is \
             {limit}: raise it with `ulimit -n {}`",
            need.next_multiple_of(256)
        )));
    }
    Ok(())
}
