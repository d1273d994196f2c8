//! Codecs that send some values and their places.
//!
//! ```text
//! own places      every host picks; all payloads to all hosts, who add them up in the order of hosts     SparCML's and DGC's way
//! shared places   one host picks, in turn, or a generator that all have does: then only values travel,
//!                 which are added up like any array                                                      ScaleCom's way
//! ```
//! Payloads of all hosts are as long as what they say; where together they are longer than the array itself would be, the picked values
//! travel as an array that is zero elsewhere. The sums are the same.

use std::ops::Range;

use super::leg::Leg;
use super::{Brought, FLOAT, Output, Place, Workspace};
use crate::codec::sparse::{self, Make, Values};
use crate::codec::{Malformed, Pick, Selection};
use crate::engine::Halt;
use crate::kernels::{all_finite, bytes_of};

pub(super) struct Share<'a> {
    pub selection: Selection,
    pub place: &'a Place,
    /// The values become what was not sent of them.
    pub keep: bool,
}

impl Share<'_> {
    /// How many of the part's elements, if so many of the whole array are wanted: all parts together have them all.
    fn count(&self) -> usize {
        let Place { part, whole, .. } = self.place;
        let wanted = self.selection.picks(*whole).unwrap_or(0) as u128;
        let until = |at: usize| (wanted * at as u128 / *whole as u128) as usize;
        until(part.end) - until(part.start)
    }
}

impl Leg<'_, '_> {
    /// Sums of what all hosts picked of the values that are made first. `work.picks` are the places whose values this host has sent.
    pub fn at_picks(
        &mut self,
        share: &Share<'_>,
        (values, made): (&mut [f32], &mut impl Make),
        work: &mut Workspace,
        output: &Output<'_>,
    ) -> Result<(), Halt> {
        if share.selection.shared {
            made.make(0..values.len(), values);
            self.at_shared_picks(share, values, work, output)
        } else {
            self.at_own_picks(share, (values, made), work, output)
        }
    }

    fn at_own_picks(
        &mut self,
        share: &Share<'_>,
        (values, made): (&mut [f32], &mut impl Make),
        work: &mut Workspace,
        output: &Output<'_>,
    ) -> Result<(), Halt> {
        let how = share.selection.values;
        match share.selection.pick {
            Pick::Top(_) => sparse::top_k_of(made, values, share.count(), &mut work.picks),
            _ => {
                made.make(0..values.len(), values);
                pick(share, values, &mut work.picks);
            }
        }
        let mine = encode(share, values, work);
        let lengths = self.numbers(mine as u64)?;
        let longest = sparse::max_len(values.len(), values.len(), how) as u64;
        if let Some(host) = lengths.iter().position(|length| *length > longest) {
            return Err(self.garbled(host, "a length that cannot be"));
        }
        let blocks = one_behind_the_other(&lengths);
        let total = blocks[blocks.len() - 1].end;
        if total * self.hosts() > 2 * FLOAT * (self.hosts() - 1) * values.len() {
            return self.as_an_array(how, values.len(), work, output);
        }
        let Workspace { sum, sent, came, said, .. } = work;
        came.resize(total, 0);
        came[blocks[self.me()].clone()].copy_from_slice(sent);
        self.gather(came, &blocks, false)?;
        said.resize_with(self.hosts(), Said::default);
        for (host, (block, Said { places, values: of_host })) in blocks.iter().zip(&mut *said).enumerate() {
            let decoded = sparse::decode(&came[block.clone()], values.len(), how, places, of_host);
            decoded.map_err(|Malformed(why)| self.garbled(host, why))?;
        }
        output.put_said(said, sum);
        Ok(())
    }

    /// What the payload in `work.sent` says, as an array that is zero elsewhere.
    fn as_an_array(
        &mut self,
        how: Values,
        count: usize,
        work: &mut Workspace,
        output: &Output<'_>,
    ) -> Result<(), Halt> {
        let Workspace { sum, sent, picks, picked, .. } = work;
        sparse::decode(sent, count, how, picks, picked).expect("this rank has encoded it");
        sum.clear();
        sum.resize(count, 0.0);
        sparse::scatter(picks, picked, sum);
        self.sum(sum)?;
        output.put(0, sum);
        Ok(())
    }

    fn at_shared_picks(
        &mut self,
        share: &Share<'_>,
        values: &mut [f32],
        work: &mut Workspace,
        output: &Output<'_>,
    ) -> Result<(), Halt> {
        self.agree_on_picks(share, values, work)?;
        let picks = std::mem::take(&mut work.picks);
        let mut picked = Vec::new();
        sparse::gather(&picks, values, &mut picked);
        if !all_finite(bytes_of(values)) {
            picked.fill(f32::NAN); // wherever it stands, all must see that something is wrong
        }
        match share.selection.values.dense() {
            None => {
                picks.iter().for_each(|pick| values[*pick as usize] = 0.0);
                self.sum(&mut picked)?;
            }
            Some(dense) => {
                let mut sums = vec![0.0; picked.len()];
                let coding = super::dense::Coding { dense, start: 0 };
                self.in_two_steps(&coding, Brought::Kept(&mut picked), work, |at, said| {
                    sums[at..at + said.len()].copy_from_slice(said);
                })?;
                sparse::scatter(&picks, &picked, values);
                picked = sums;
            }
        }
        let said = [Said { places: picks, values: picked }];
        output.put_said(&said, &mut work.sum);
        let [Said { places, .. }] = said;
        work.picks = places;
        Ok(())
    }

    /// `work.picks` = the places that all hosts send.
    fn agree_on_picks(&mut self, share: &Share<'_>, values: &[f32], work: &mut Workspace) -> Result<(), Halt> {
        let Workspace { sent, picks, .. } = work;
        if let Pick::Random(_) = share.selection.pick {
            let dice = self.dice(share.place.part.start as u64);
            sparse::random_k(values.len(), share.count(), dice, picks);
            return Ok(());
        }
        let leader = (self.header.sequence % self.hosts() as u64) as usize;
        sent.clear();
        if self.me() == leader {
            pick(share, values, picks);
            sparse::encode_picks(picks, values.len(), sent);
        }
        let length = self.numbers(sent.len() as u64)?[leader];
        if length > sparse::max_len(values.len(), values.len(), Values::Float32) as u64 {
            return Err(self.garbled(leader, "a length that cannot be"));
        }
        sent.resize(length as usize, 0);
        self.broadcast(leader, sent)?;
        sparse::decode_picks(sent, values.len(), picks).map_err(|Malformed(why)| self.garbled(leader, why))
    }
}

/// Some values, and their places.
#[derive(Debug, Default)]
pub(super) struct Said {
    places: Vec<u32>,
    values: Vec<f32>,
}

impl Output<'_> {
    /// The sums of what is said, one after the other, at each place. A piece at a time, in the nearest cache: places are many, and
    /// far apart.
    fn put_said(&self, said: &[Said], tile: &mut Vec<f32>) {
        const TILE: usize = 4 << 10;
        tile.resize(tile.len().max(TILE), 0.0);
        let mut next = vec![0; said.len()];
        for start in (0..self.count()).step_by(TILE) {
            let tile = &mut tile[..TILE.min(self.count() - start)];
            tile.fill(0.0);
            for (Said { places, values }, next) in said.iter().zip(&mut next) {
                let end = start + tile.len();
                let here = places[*next..].iter().zip(&values[*next..]);
                for (place, value) in here.take_while(|(place, _)| (**place as usize) < end) {
                    let sum = &mut tile[*place as usize - start];
                    // A sum that is complete stays what it is, a zero with a sign too.
                    *sum = if said.len() == 1 { *value } else { *sum + value };
                    *next += 1;
                }
            }
            self.put(start, tile);
        }
    }
}

fn pick(share: &Share<'_>, values: &[f32], picks: &mut Vec<u32>) {
    match share.selection.pick {
        Pick::Top(_) => sparse::top_k(values, share.count(), picks),
        Pick::AtLeast(threshold) => sparse::at_least(values, threshold, picks),
        Pick::Random(_) => unreachable!("random places are shared"),
    }
}

/// Encodes what was picked into `work.sent`; the values become what the payload leaves out of them, if that is kept. Its length.
fn encode(share: &Share<'_>, values: &mut [f32], work: &mut Workspace) -> usize {
    let Workspace { sent, picks, picked, .. } = work;
    let how = share.selection.values;
    sparse::gather(picks, values, picked);
    sent.clear();
    if share.keep {
        sparse::encode_rest(picks, picked, values.len(), how, sent);
        sparse::scatter(picks, picked, values);
    } else {
        sparse::encode(picks, picked, values.len(), how, sent);
    }
    sent.len()
}

/// Where payloads of such lengths lie.
fn one_behind_the_other(lengths: &[u64]) -> Vec<Range<usize>> {
    let mut end = 0;
    let next = |length: &u64| {
        let start = end;
        end += *length as usize;
        start..end
    };
    lengths.iter().map(next).collect()
}
