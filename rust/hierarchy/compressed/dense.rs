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
use super::{Brought, FLOAT, Workspace, cut};
use crate::codec::{Dense, Dice, Malformed};
use crate::engine::Halt;
use crate::kernels::{bytes_of, copy};

/// Elements that are worked on at once, in the nearest cache.
const TILE: usize = 4 << 10;

pub(super) struct Coding {
    pub dense: Dense,
    /// Of the first value, in the whole array.
    pub start: u64,
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

    /// One chunk of what the host brings, tile by tile.
    fn encode(
        &self,
        brought: &mut Brought<'_>,
        chunk: &Range<usize>,
        dice: Dice,
        (payload, tile): (&mut [u8], &mut [f32]),
    ) {
        for (values, bytes) in self.tiles(chunk.len()) {
            let values = chunk.start + values.start..chunk.start + values.end;
            let (position, payload) = (self.start + values.start as u64, &mut payload[bytes]);
            match brought {
                Brought::Kept(all) => self.dense.encode_rest(&mut all[values], dice, position, payload),
                Brought::Read(array) => {
                    let tile = &mut tile[..values.len()];
                    copy(bytes_of(tile), &array[values.start * FLOAT..values.end * FLOAT]);
                    self.dense.encode(tile, dice, position, payload);
                }
            }
        }
    }
}

impl Leg<'_, '_> {
    /// Sums of the hosts' values, as the codec leaves them: `put` is given them piece by piece, and where in the values each begins.
    pub fn in_two_steps(
        &mut self,
        coding: &Coding,
        mut brought: Brought<'_>,
        work: &mut Workspace,
        mut put: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), Halt> {
        let (me, hosts) = (self.me(), self.hosts());
        let Layout { chunks, payloads } = Layout::new(coding.dense, brought.len(), hosts);
        let Workspace { sent, came, sum, .. } = work;
        sent.resize(payloads[hosts - 1].end, 0);
        came.resize(hosts * payloads[me].len(), 0);
        sum.resize(sum.len().max(coding.tile()), 0.0);
        let dice = self.dice(me as u64);
        for (chunk, payload) in chunks.iter().zip(&payloads) {
            coding.encode(&mut brought, chunk, dice, (&mut sent[payload.clone()], sum));
        }
        self.deal(sent, &payloads, came)?;
        self.add_up(coding, &mut brought, &chunks[me], (came, &mut sent[payloads[me].clone()], sum))?;
        self.gather(sent, &payloads, true)?;
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
        brought: &mut Brought<'_>,
        chunk: &Range<usize>,
        (came, payload, sum): (&[u8], &mut [u8], &mut [f32]),
    ) -> Result<(), Halt> {
        let (hosts, each) = (self.hosts(), payload.len());
        let dice = self.dice(hosts as u64);
        for (tile, bytes) in coding.tiles(chunk.len()) {
            let sum = &mut sum[..tile.len()];
            for host in 0..hosts {
                let from = &came[host * each..][bytes.clone()];
                let decoded = match host {
                    0 => coding.dense.decode(from, sum),
                    _ => coding.dense.decode_add(from, sum),
                };
                decoded.map_err(|Malformed(why)| self.garbled(host, why))?;
            }
            let at = chunk.start + tile.start;
            let (position, payload) = (coding.start + at as u64, &mut payload[bytes]);
            match brought {
                Brought::Read(_) => coding.dense.encode(sum, dice, position, payload),
                Brought::Kept(all) => {
                    coding.dense.encode_rest(sum, dice, position, payload);
                    all[at..].iter_mut().zip(sum).for_each(|(kept, rest)| *kept += *rest);
                }
            }
        }
        Ok(())
    }

    /// Other numbers in each call, and on each host; the same in each run.
    pub fn dice(&self, who: u64) -> Dice {
        Dice::new(&[self.header.sequence, who])
    }
}
