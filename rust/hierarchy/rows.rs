//! Which blocks of an array the ranks of a host carry to other hosts, where each rank has a block of its own.
//!
//! ```text
//!           host 0    host 1    host 2
//! row 0     block 0   block 1   block 3     team 0: the first ranks of all hosts
//! row 1     block 2   block 4   block 6     team 1: the second ones
//! row 2     block 5      -      block 7     team 0 again: there are as many teams as the smallest host has ranks
//! ```
//! A team moves all its rows at once: what a host has of them is one chunk of its schedule, in parts that lie wherever the
//! blocks lie. So every block crosses the wire once for each host, whatever ranks are where.
//!
//! This file does arithmetic only.

use std::ops::Range;

use super::Hosts;
use crate::blocks::Blocks;
use crate::direct::Pieces;
use crate::error::Rank;
use crate::plan::{Chunk, Home};

pub(super) struct Rows<'a> {
    hosts: &'a Hosts,
    blocks: &'a Blocks<'a>,
    /// Bytes that each byte of the blocks has become: 2 for halves that were widened.
    scale: usize,
}

impl<'a> Rows<'a> {
    pub fn new(hosts: &'a Hosts, blocks: &'a Blocks<'a>, scale: usize) -> Rows<'a> {
        Rows { hosts, blocks, scale }
    }

    /// Where the block of `rank` lies.
    pub fn block(&self, rank: Rank) -> Range<usize> {
        let Range { start, end } = self.blocks.of(rank as usize);
        self.scale * start..self.scale * end
    }

    /// What team `team` moves: for each host its blocks in the team's rows, which lie in the array.
    pub fn chunks(&self, team: usize) -> Vec<Chunk> {
        let hosts = self.hosts.all().iter();
        hosts.flat_map(|host| self.numbers(team).map(|row| self.chunk(host.get(row).copied()))).collect()
    }

    /// What all ranks move together: everybody's blocks.
    pub fn all(&self) -> Vec<Chunk> {
        (0..self.blocks.count() as Rank).map(|rank| self.chunk(Some(rank))).collect()
    }

    /// What each rank of this host comes to own as a member of its team: the team's rows, of the hosts that count.
    pub fn carried(&self, counts: impl Fn(usize) -> bool) -> Pieces {
        let of_team = |team| {
            let hosts = self.hosts.all().iter().enumerate().filter(|(host, _)| counts(*host));
            let ranks = hosts.flat_map(move |(_, ranks)| self.numbers(team).filter_map(|row| ranks.get(row)));
            ranks.map(|rank| self.block(*rank))
        };
        Pieces((0..self.hosts.teams()).map(|team| of_team(team).collect()).collect())
    }

    /// Each rank of this host owns its block.
    pub fn own(&self) -> Pieces {
        Pieces(self.hosts.mine().1.iter().map(|rank| vec![self.block(*rank)]).collect())
    }

    /// Whether this host has ranks whose blocks others carry.
    pub fn some_are_carried(&self) -> bool {
        self.hosts.mine().1.len() > self.hosts.teams()
    }

    /// Rows of a team; the same on all hosts, though some have no block there.
    fn numbers(&self, team: usize) -> impl Iterator<Item = usize> + use<> {
        let rows = self.hosts.all().iter().map(Vec::len).max().unwrap_or(0);
        (team..rows).step_by(self.hosts.teams())
    }

    fn chunk(&self, rank: Option<Rank>) -> Chunk {
        let block = rank.map_or(0..0, |rank| self.block(rank));
        Chunk { home: Home::Array(block.start), len: block.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_carried_once() {
        let members = vec![vec![0, 2, 5], vec![1, 4], vec![3, 6, 7]];
        let edges = [0, 4, 4, 7, 9, 14, 15, 20, 26];
        for rank in 0..8 {
            let hosts = Hosts::new(members.clone(), rank);
            let blocks = Blocks::Cut(&edges);
            let rows = Rows::new(&hosts, &blocks, 1);
            let mut carried: Vec<_> =
                rows.carried(|_| true).0.into_iter().flatten().map(|r| (r.start, r.end)).collect();
            carried.sort_unstable();
            assert_eq!(carried, edges.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>());
        }
        let hosts = Hosts::new(members, 0);
        let blocks = Blocks::Cut(&edges);
        let rows = Rows::new(&hosts, &blocks, 2);
        let chunks = |team| rows.chunks(team).iter().map(|c| (c.home, c.len)).collect::<Vec<_>>();
        let at = |edge: usize, len: usize| (Home::Array(2 * edge), 2 * len);
        // Rows 0 and 2 of three hosts, of which the second has no third rank; then row 1.
        assert_eq!(chunks(0), [at(0, 4), at(14, 1), at(4, 0), at(0, 0), at(7, 2), at(20, 6)]);
        assert_eq!(chunks(1), [at(4, 3), at(9, 5), at(15, 5)]);
        let own: Vec<_> = rows.own().0.into_iter().flatten().map(|r| (r.start, r.end)).collect();
        assert_eq!(own, [(0, 8), (8, 14), (28, 30)]);
        assert!(rows.some_are_carried());
    }
}
