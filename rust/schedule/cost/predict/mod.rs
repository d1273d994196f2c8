//! Time by formula: the longest path through a schedule, as a few rows of messages.
//!
//! ```text
//! ring:    message k+1 follows message k into the same port        a row after another: as slow as latency or port
//! tree:    it is passed on, to a port that has nothing else to do  only latency; a rank's children one after another
//! ```
//! A test compares with `simulate`: the formulas of ring, tree, k-ary tree, pairwise and exchange agree to a hundredth or two,
//! that of recursive to a twentieth, that of the double tree, whose trees hinder each other, to a quarter from four ranks and eight
//! pieces on.

mod trees;

use super::Model;
use crate::schedule::{Algorithm, Collective};

impl Model {
    /// Seconds until the last rank is done; None if the algorithm does not serve this collective.
    pub fn predict(&self, algorithm: Algorithm, collective: Collective, world: u32, bytes: u64) -> Option<f64> {
        if !algorithm.serves(collective) {
            return None;
        }
        if world == 1 {
            return Some(0.0);
        }
        let by_one = collective == Collective::AllReduce
            && matches!(algorithm, Algorithm::Tree | Algorithm::ReduceBroadcast | Algorithm::Relay);
        let rooted = if by_one { self.rooted } else { 1.0 };
        let task = Task {
            model: Model { alpha: rooted * self.alpha, overhead: rooted * self.overhead, ..*self },
            collective,
            world,
            array: bytes as f64,
            share: bytes as f64 / f64::from(world),
            store: self.beta,
            reduce: self.beta + self.gamma,
        };
        let end = match algorithm {
            Algorithm::Ring => task.ring(),
            Algorithm::Recursive => task.recursive(),
            Algorithm::Doubling => task.doubling(),
            Algorithm::AllGatherReduce => task.all_gather_reduce(),
            Algorithm::ReduceBroadcast => task.reduce_broadcast(),
            Algorithm::Relay => task.relay(),
            Algorithm::Tree => task.tree(),
            Algorithm::KAry { arity, pieces } => task.k_ary(arity, pieces),
            Algorithm::DoubleTree { pieces } => task.double_tree(pieces),
            Algorithm::Pairwise => task.pairwise(),
            Algorithm::Exchange => task.exchange(),
        };
        Some(end.last)
    }
}

/// A message on the longest path: when its first and its last segment are there.
#[derive(Clone, Copy)]
struct Row {
    first: f64,
    last: f64,
}

impl Row {
    /// What a rank brings.
    const START: Row = Row { first: 0.0, last: 0.0 };

    fn later(self, by: f64) -> Row {
        Row { first: self.first + by, last: self.last + by }
    }

    fn max(self, other: Row) -> Row {
        Row { first: self.first.max(other.first), last: self.last.max(other.last) }
    }
}

#[derive(Clone, Copy)]
struct Task {
    model: Model,
    collective: Collective,
    world: u32,
    /// Bytes of the array, and of a rank's share of it.
    array: f64,
    share: f64,
    /// Seconds per byte that is received, and that is received and combined.
    store: f64,
    reduce: f64,
}

/// The steps that paths are made of.
impl Task {
    /// For how long a message occupies a port.
    fn port(&self, len: f64, rate: f64) -> f64 {
        self.model.overhead + len * rate
    }

    fn head(&self, len: f64) -> f64 {
        len.min(self.model.segment)
    }

    /// From when a message can be sent until its first segment is there.
    fn hop(&self, len: f64, rate: f64) -> f64 {
        self.model.alpha + self.port(self.head(len), rate)
    }

    /// A message that is passed on as it comes in, to a port that is busy until some time. Its last segment follows from that
    /// of `ready`, or from the one before, if the sender's port is still busy with it then.
    fn row(&self, ready: Row, busy: f64, len: f64, rate: f64) -> Row {
        let (head, segment) = (self.head(len), self.model.segment);
        let first = (ready.first + self.hop(len, rate)).max(busy + self.port(head, rate));
        let tail = len - ((len / segment).ceil() - 1.0).max(0.0) * segment;
        let still_busy = match len - head {
            0.0 => 0.0,
            more => (head * rate - tail * (ready.last - ready.first) / more).max(0.0),
        };
        let last = ready.last + self.model.alpha + tail * rate + still_busy;
        Row { first, last: last.max(first + (len - head) * rate) }
    }

    /// So many messages, each of which comes after the one before that it follows from, into the same port.
    fn rows(&self, from: Row, times: u32, len: f64, rate: f64) -> Row {
        let period = self.hop(len, rate).max(self.port(len, rate));
        self.row(from, from.last, len, rate).later(f64::from(times - 1) * period)
    }

    /// Every rank's share goes to one rank, or everybody's to everybody.
    fn spread(&self, from: Row) -> Row {
        self.row(from, from.last, self.share, self.store)
            .later(f64::from(self.world - 2) * self.port(self.share, self.store))
    }
}

impl Task {
    fn ring(&self) -> Row {
        let rows = |from, rate| self.rows(from, self.world - 1, self.share, rate);
        match self.collective {
            Collective::AllReduce => rows(rows(Row::START, self.reduce), self.store),
            Collective::ReduceScatter => rows(Row::START, self.reduce),
            Collective::AllGather => rows(Row::START, self.store),
            Collective::Reduce(_) => self.spread(rows(Row::START, self.reduce)),
            _ => {
                let messages = f64::from(log2(self.world)) * self.model.overhead;
                rows(Row::START.later(messages + (self.array - self.share) * self.store), self.store)
            }
        }
    }

    fn pairwise(&self) -> Row {
        let others = f64::from(self.world - 1);
        let there = Row::START.later(self.model.alpha + others * self.port(self.share, self.store));
        let combining = |len| others * len * self.model.gamma;
        let reduced =
            Row { first: there.first + combining(self.head(self.share)), last: there.last + combining(self.share) };
        match self.collective {
            Collective::ReduceScatter => reduced,
            Collective::AllGather => there,
            // The copy of the own chunk comes first, while nothing has arrived yet.
            Collective::AllToAll => there.later((self.model.gamma * self.share - self.model.alpha).max(0.0)),
            _ => self.spread(reduced),
        }
    }

    fn exchange(&self) -> Row {
        let others = f64::from(self.world - 1);
        let messages = |len, rate| Row::START.later(self.model.alpha + others * self.port(len, rate));
        match self.collective {
            Collective::Broadcast(_) => messages(self.array, self.store),
            Collective::Gather(_) | Collective::Scatter(_) => messages(self.share, self.store),
            Collective::AllReduce if self.world == 2 => self.row(Row::START, 0.0, self.array, self.reduce),
            Collective::Exscan => {
                messages(self.array, self.store).later((others - 1.0).max(1.0) * self.array * self.model.gamma)
            }
            _ => messages(self.array, self.reduce),
        }
    }

    fn reduce_broadcast(&self) -> Row {
        let reduced = Task { collective: Collective::Reduce(0), ..*self }.exchange();
        self.binomial(reduced, self.store)
    }

    fn relay(&self) -> Row {
        if self.world == 2 {
            return self.exchange();
        }
        let (first, second) = (self.world.div_ceil(2), self.world / 2);
        let combined = |from: Row, arrays: u32| {
            let combining = f64::from(arrays) * self.model.gamma;
            Row { first: from.first + combining * self.head(self.array), last: from.last + combining * self.array }
        };
        let there = self.model.alpha + f64::from(first - 1) * self.port(self.array, self.store);
        let half = combined(Row::START.later(there), first - 1);
        let all = combined(self.row(half, half.last, self.array, self.store), second);
        self.binomial(all, self.store)
    }

    /// Recursive doubling. Guests come before the rounds and go after them; what a guest brings reaches the host of another
    /// one after as many rounds as bits that the numbers of hosts differ in.
    fn doubling(&self) -> Row {
        let rounds = self.world.ilog2();
        let rows = |times| self.rows(Row::START, times, self.array, self.reduce);
        let guests = self.world - (1 << rounds);
        if guests == 0 {
            return rows(rounds);
        }
        let apart = u32::BITS - (guests - 1).leading_zeros();
        let waits = f64::from(rounds - apart) * self.port(self.array, self.reduce);
        rows(rounds + 1).max(self.row(rows(apart + 1).later(waits), 0.0, self.array, self.store))
    }
}

/// Halving and doubling. What is sent in a round was received in earlier ones, and leaves as far as it is there.
impl Task {
    fn recursive(&self) -> Row {
        match self.collective {
            Collective::AllReduce => self.gathered(self.halved()),
            Collective::AllGather => self.gathered(Row::START),
            Collective::Reduce(_) => self.climbed(self.halved()),
            _ => self.halved(),
        }
    }

    fn halved(&self) -> Row {
        let mut held = Held::new();
        let (mut row, mut far) = (Row::START, self.world);
        while far > 1 {
            let (near, len) = (far.div_ceil(2), self.chunks(far / 2));
            let sent = held.sent(self.chunks(near), len, self.head(len));
            row = self.row(sent, row.last, len, self.reduce);
            if far == self.world && self.wraps() {
                row = row.later(self.model.overhead); // two messages; the longest path meets no other such run
            }
            held.add(0.0, len, self.head(len), row);
            far = near;
        }
        row
    }

    fn gathered(&self, from: Row) -> Row {
        let row = self.doubled(from);
        // The longest path meets none of the runs that are two messages, or one, or two of them.
        if self.wraps() { row.later(0.5 * self.model.overhead) } else { row }
    }

    /// Whole arrays are gathered, without runs that are two messages, the own one from a copy, and combined in the end.
    fn all_gather_reduce(&self) -> Row {
        if self.world == 2 {
            return self.exchange();
        }
        let copied_and_combined = f64::from(self.world) * self.array * self.model.gamma;
        Task { share: self.array, ..*self }.doubled(Row::START).later(copied_and_combined)
    }

    fn doubled(&self, from: Row) -> Row {
        let mut held = Held::new();
        held.add(0.0, self.share, self.head(self.share), from);
        let mut row = from;
        for k in (0..log2(self.world)).rev() {
            let far = self.world.div_ceil(1 << k);
            let len = self.chunks(far / 2);
            // In a hypercube what came last may have to leave first.
            let sent = if self.world.is_power_of_two() { row } else { held.sent(0.0, len, self.head(len)) };
            row = self.row(sent, row.last, len, self.store);
            held.add(self.chunks(far.div_ceil(2)), len, self.head(len), row);
        }
        row
    }

    /// Gathered along a binomial tree.
    fn climbed(&self, from: Row) -> Row {
        let levels = log2(self.world);
        (0..levels).fold(from, |row, k| {
            let len = self.chunks((1 << k).min(self.world - (1 << k)));
            match self.world.is_power_of_two() || k + 1 < levels {
                true => self.row(row, row.last, len, self.store),
                false => row.later(self.port(len, self.store)),
            }
        })
    }

    fn chunks(&self, chunks: u32) -> f64 {
        f64::from(chunks) * self.share
    }

    /// Whether there are runs that pass the end of the array, and are two messages.
    fn wraps(&self) -> bool {
        !self.world.is_power_of_two() && self.world > 3
    }
}

/// When which bytes of what a rank holds are there, counted from its own chunk on.
struct Held {
    rows: [Received; u32::BITS as usize + 1],
    count: usize,
}

#[derive(Clone, Copy)]
struct Received {
    start: f64,
    len: f64,
    head: f64,
    row: Row,
}

impl Held {
    fn new() -> Held {
        let nothing = Received { start: 0.0, len: 0.0, head: 0.0, row: Row::START };
        Held { rows: [nothing; u32::BITS as usize + 1], count: 0 }
    }

    fn add(&mut self, start: f64, len: f64, head: f64, row: Row) {
        self.rows[self.count] = Received { start, len, head, row };
        self.count += 1;
    }

    /// When the first segment and all of these bytes are there.
    fn sent(&self, start: f64, len: f64, head: f64) -> Row {
        Row { first: self.until(start, start + head), last: self.until(start, start + len) }
    }

    fn until(&self, start: f64, end: f64) -> f64 {
        let slightly = 1.0 - 1e-9; // sums of shares are rounded
        let within = self.rows[..self.count]
            .iter()
            .filter(|had| had.start < end * slightly && start < (had.start + had.len) * slightly);
        within.map(|had| had.when(end - had.start)).fold(0.0, f64::max)
    }
}

impl Received {
    fn when(&self, bytes: f64) -> f64 {
        let tail = self.len - self.head;
        let part = if tail > 0.0 { ((bytes - self.head) / tail).clamp(0.0, 1.0) } else { 1.0 };
        self.row.first + part * (self.row.last - self.row.first)
    }
}

/// Rounded up.
fn log2(world: u32) -> u32 {
    world.next_power_of_two().ilog2()
}
