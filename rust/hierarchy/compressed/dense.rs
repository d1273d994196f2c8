//! Codecs that say something of every value: all hosts send each chunk to its owner, who adds, encodes the sums, and sends them to
//! all.
//!
//! ```text
//!   host h:  values ─► encode ─► chunk c to host c
//!   host c:  sum of what all hosts say of chunk c, in their order ─► encode ─► to all hosts
//!   host h:  decode all chunks
//! ```
//! As many bytes as a ring sends, and two roundings for each value, however many hosts there are; a ring that encodes anew in each
//! step has one for each host. Chunks are whole grains, so which host owns what makes no difference to the result.

use std::ops::Range;

use super::leg::Leg;
use super::{Workspace, cut};
use crate::codec::{Dense, Dice, Malformed};
use crate::engine::Halt;

/// Elements that are worked on at once, in the nearest cache.
const TILE: usize = 4 << 10;

pub(super) struct Coding {
    pub dense: Dense,
    /// Of the first value, in the whole array.
    pub start: u64,
    /// The values become what was not said of them.
    pub keep: bool,
}

/// Where chunks and their payloads lie.
struct Layout {
    chunks: Vec<Range<usize>>,
    payloads: Vec<Range<usize>>,
}

impl Layout {
    fn new(dense: Dense, count: usize, hosts: usize) -> Layout {
        let chunks = cut(count, dense.grain(), hosts);
        let mut end = 0;
        let payload = |chunk: &Range<usize>| {
            let start = end;
            end += dense.payload_len(chunk.len());
            start..end
        };
        Layout { payloads: chunks.iter().map(payload).collect(), chunks }
    }
}

impl Coding {
    /// Elements that are encoded and decoded at once: whole grains.
    fn tile(&self) -> usize {
        TILE.next_multiple_of(self.dense.grain())
    }

    /// Parts of `count` values, and where the payload of each lies in theirs.
    fn tiles(&self, count: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let (dense, tile) = (self.dense, self.tile());
        (0..count).step_by(tile).map(move |start| {
            let end = count.min(start + tile);
            (start..end, dense.payload_len(start)..dense.payload_len(end))
        })
    }

    /// `position`: of the first value, in the array.
    fn encode(&self, values: &mut [f32], dice: Dice, position: u64, payload: &mut [u8]) {
        match self.keep {
            true => self.dense.encode_rest(values, dice, position, payload),
            false => self.dense.encode(values, dice, position, payload),
        }
    }
}

impl Leg<'_, '_> {
    /// Sums of the hosts' values, as the codec leaves them: `put` is given them piece by piece, and where in the values each begins.
    pub fn in_two_steps(
        &mut self,
        coding: &Coding,
        values: &mut [f32],
        work: &mut Workspace,
        mut put: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), Halt> {
        let (me, hosts) = (self.me(), self.hosts());
        let Layout { chunks, payloads } = Layout::new(coding.dense, values.len(), hosts);
        let Workspace { sent, came, sum, .. } = work;
        sent.resize(payloads[hosts - 1].end, 0);
        came.resize(hosts * payloads[me].len(), 0);
        let dice = self.dice(me as u64);
        for (chunk, payload) in chunks.iter().zip(&payloads) {
            let position = coding.start + chunk.start as u64;
            coding.encode(&mut values[chunk.clone()], dice, position, &mut sent[payload.clone()]);
        }
        self.deal(sent, &payloads, came)?;
        self.add_up(
            coding,
            &mut values[chunks[me].clone()],
            chunks[me].start,
            (came, &mut sent[payloads[me].clone()], sum),
        )?;
        self.gather(sent, &payloads, true)?;
        sum.resize(coding.tile(), 0.0);
        for (host, (chunk, payload)) in chunks.iter().zip(&payloads).enumerate() {
            let payload = &sent[payload.clone()];
            for (tile, bytes) in coding.tiles(chunk.len()) {
                let sum = &mut sum[..tile.len()];
                let decoded = coding.dense.decode(&payload[bytes], sum);
                decoded.map_err(|Malformed(why)| self.garbled(host, why))?;
                put(chunk.start + tile.start, sum);
            }
        }
        Ok(())
    }

    /// Adds up what all hosts say of this host's chunk, and encodes the sums. What the codec leaves of them out is kept with what this
    /// host kept of its own: the sum of what all hosts keep is what counts.
    fn add_up(
        &self,
        coding: &Coding,
        kept: &mut [f32],
        start: usize,
        (came, payload, sum): (&[u8], &mut [u8], &mut Vec<f32>),
    ) -> Result<(), Halt> {
        let (hosts, each) = (self.hosts(), payload.len());
        let dice = self.dice(hosts as u64);
        sum.resize(coding.tile(), 0.0);
        for (tile, bytes) in coding.tiles(kept.len()) {
            let sum = &mut sum[..tile.len()];
            for host in 0..hosts {
                let from = &came[host * each..][bytes.clone()];
                let decoded = match host {
                    0 => coding.dense.decode(from, sum),
                    _ => coding.dense.decode_add(from, sum),
                };
                decoded.map_err(|Malformed(why)| self.garbled(host, why))?;
            }
            let position = coding.start + (start + tile.start) as u64;
            coding.encode(sum, dice, position, &mut payload[bytes]);
            if coding.keep {
                kept[tile].iter_mut().zip(sum).for_each(|(kept, rest)| *kept += *rest);
            }
        }
        Ok(())
    }

    /// Other numbers in each call, and on each host; the same in each run.
    pub fn dice(&self, who: u64) -> Dice {
        Dice::new(&[self.header.sequence, who])
    }
}
