//! Time by formula of what goes along trees and chains.

use super::{Row, Task, log2};
use crate::schedule::{Collective, double_tree};

impl Task {
    pub(super) fn tree(&self) -> Row {
        match self.collective {
            Collective::Broadcast(_) => self.binomial(Row::START, self.store),
            Collective::Reduce(_) => self.binomial(Row::START, self.reduce),
            Collective::Gather(_) | Collective::Scatter(_) => self.shares(self.world),
            _ => self.binomial(self.binomial(Row::START, self.reduce), self.store),
        }
    }

    /// The longest path goes down a level or waits while a message is sent to another child, whatever takes longer, as often
    /// as there are levels; but unless `p` is a power of two no path goes down all of them.
    pub(super) fn binomial(&self, from: Row, rate: f64) -> Row {
        let (hop, port) = (self.hop(self.array, rate), self.port(self.array, rate));
        let levels = log2(self.world);
        let waits = match levels - 1 {
            more if self.world.is_power_of_two() => f64::from(more) * hop.max(port),
            more => port + f64::from(more - 1) * hop.max(port),
        };
        self.row(from, 0.0, self.array, rate).later(waits)
    }

    /// Gathered by the root of a subtree of `ranks`: from the children, small ones first, each of which passes on what it has as
    /// the rest comes in. A scatter is the same backwards.
    fn shares(&self, ranks: u32) -> Row {
        let mut row = Row::START;
        for bit in (0..log2(ranks)).map(|k| 1 << k) {
            let below = bit.min(ranks - bit);
            let (len, own) = (self.chunks(below), self.head(self.share));
            // A child whose subtree is full has gathered what this rank has so far.
            let there = if below == bit { row.last } else { self.shares(below).last };
            let early = if len > self.share { (self.head(len) - own) / (len - own) } else { 0.0 };
            row = self.row(Row { first: there * early, last: there }, row.last, len, self.store);
        }
        row
    }

    /// Along a chain, each rank's prefix; of an exclusive one after everybody has handed on its array.
    fn prefixes(&self) -> Row {
        let (len, rate) = (self.array, self.reduce);
        let hops = |from: Row, busy, ranks: u32| match ranks {
            0 => from,
            more => self.row(from, busy, len, rate).later(f64::from(more - 1) * self.hop(len, rate)),
        };
        if self.collective == Collective::Scan {
            return hops(Row::START, 0.0, self.world - 1);
        }
        let shift = self.row(Row::START, 0.0, len, self.store);
        hops(shift, shift.last, self.world - 2)
    }

    pub(super) fn k_ary(&self, arity: u32, pieces: u32) -> Row {
        let tree = |from, top, count, rate| self.k_ary_below(from, top, arity, (pieces, count), rate);
        let up = |top, count| tree(Row::START, top, count, self.reduce);
        let down = |from, top, count| tree(from, top, count, self.store);
        match self.collective {
            Collective::Broadcast(_) => return down(Row::START, 0, pieces),
            Collective::Reduce(_) => return up(0, pieces),
            Collective::Scan | Collective::Exscan => return self.prefixes(),
            _ => {}
        }
        // The root sends the first piece while it still receives others, but its child must have sent all of its own.
        let (first, all) = (up(0, 1), up(0, pieces));
        let end = down(first, 0, pieces).max(down(all, 0, 1));
        match children(0, arity, self.world) {
            Some(siblings) if children(1, arity, self.world).is_some() => {
                let len = self.array / f64::from(pieces);
                let sent = first.later(f64::from(siblings - 1) * self.port(len, self.store));
                end.max(down(self.row(sent, up(1, pieces).last, len, self.store), 1, pieces))
            }
            _ => end,
        }
    }

    /// `count` of the pieces from `top` to the leaves below its first child, which is served last, or up from them.
    fn k_ary_below(&self, from: Row, top: u64, arity: u32, (pieces, count): (u32, u32), rate: f64) -> Row {
        let len = self.array / f64::from(pieces);
        if arity == 1 {
            let levels = u64::from(self.world) - 1 - top;
            return self
                .row(from, 0.0, len, rate)
                .later((levels - 1) as f64 * self.hop(len, rate) + f64::from(count - 1) * self.port(len, rate));
        }
        let (mut v, mut row, mut most) = (top, from, 0);
        while let Some(children) = children(v, arity, self.world) {
            most = most.max(children);
            row = self.row(row, 0.0, len, rate).later(f64::from(children - 1) * self.port(len, rate));
            v = v * u64::from(arity) + 1;
        }
        row.later(f64::from(count - 1) * f64::from(most) * self.port(len, rate))
    }

    pub(super) fn double_tree(&self, pieces: u32) -> Row {
        let (world, levels) = match self.collective {
            Collective::AllReduce => (self.world, log2(self.world)),
            _ => (self.world - 1, log2(self.world - 1) + 1),
        };
        let phase = |from, rate| self.both_trees(from, world, levels, pieces, rate);
        match self.collective {
            Collective::Broadcast(_) => phase(Row::START, self.store),
            Collective::Reduce(_) => phase(Row::START, self.reduce),
            _ => phase(phase(Row::START, self.reduce), self.store),
        }
    }

    /// A rank deals with a piece of both trees in a unit of time; on the way a piece waits for about one of these per level.
    fn both_trees(&self, from: Row, world: u32, levels: u32, pieces: u32, rate: f64) -> Row {
        let len = self.array / f64::from(2 * pieces);
        let (hop, port) = (self.hop(len, rate), self.port(len, rate));
        let row = self.row(from, 0.0, len, rate);
        match (self.collective, world) {
            (Collective::AllReduce, 2) => return row.later(f64::from(pieces - 1) * port),
            (_, 1) => return row.later(f64::from(2 * pieces - 1) * port),
            _ => {}
        }
        let unit = (2.0 * port).max(hop / f64::from(double_tree::LAG));
        let waits = if pieces == 1 { 0.5 } else { 1.5 };
        row.later(port + f64::from(levels - 1) * (hop + waits * port) + f64::from(pieces - 1) * unit)
    }
}

/// How many children `v` has in a k-ary tree; None for a leaf.
fn children(v: u64, arity: u32, world: u32) -> Option<u32> {
    let first = v * u64::from(arity) + 1;
    (first < u64::from(world)).then(|| u64::from(arity).min(u64::from(world) - first) as u32)
}
