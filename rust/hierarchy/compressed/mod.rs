//! All-reduce with a codec on the way between hosts. Inside a host nothing is encoded: memory is faster than any codec.
//!
//! ```text
//! inside      reduce-scatter into parts, in float32                              as without a codec
//! between     dense:   encode ─► to the owners ─► add, encode ─► to all ─► decode        (`dense`)  each value is rounded twice
//!             sparse:  pick, encode ─► to all ─► decode, add in the order of hosts       (`sparse`) nothing is rounded but the picked
//! inside      all-gather of the parts
//! ```
//! All ranks decode the same payloads in the same order, their own among them, so all end with the same bits.
//!
//! With feedback, what this host was to send and has not sent is kept by the rank that owns the part (`codec::Feedback`).

mod dense;
mod leg;
mod sparse;

use std::ops::Range;

use super::{Session, arithmetic};
use crate::codec::{Codec, Feedback, Of};
use crate::direct::{Pieces, Verdict};
use crate::dtype::{DType, ReduceOp};
use crate::engine::Halt;
use crate::kernels::{Bytes, all_finite, bytes_of, copy, float32_of, of_float32};
use crate::messages::aligned;

use leg::Leg;
pub use leg::Ways;

const FLOAT: usize = size_of::<f32>();

/// What is asked for.
pub struct Squeeze<'a> {
    pub codec: Codec,
    pub shape: &'a [usize],
    pub dtype: DType,
    /// Sum or average.
    pub op: ReduceOp,
    /// For messages of the codec's size.
    pub ways: Ways,
}

/// Memory that is used again in the next call.
#[derive(Debug, Default)]
pub struct Workspace {
    values: Vec<f32>,
    sum: Vec<f32>,
    sent: Vec<u8>,
    came: Vec<u8>,
    picks: Vec<u32>,
    picked: Vec<f32>,
}

impl Session<'_, '_> {
    /// `dst` = sum or average of everybody's `src`, as the codec leaves it.
    pub fn compressed(
        &mut self,
        squeeze: &Squeeze<'_>,
        work: &mut Workspace,
        mut feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<Verdict, Halt> {
        let dtype = squeeze.dtype;
        if dtype == DType::Float32 {
            let verdict = self.compressed_floats(squeeze, work, feedback.as_deref_mut(), (dst, src))?;
            commit(feedback, verdict, dst);
            return Ok(verdict);
        }
        let mut memory = std::mem::take(self.wide);
        let wide = aligned(&mut memory, src.len() / dtype.size() * FLOAT);
        float32_of(dtype, wide, src);
        let verdict = self.compressed_floats(squeeze, work, feedback.as_deref_mut(), (wide, wide));
        if verdict == Ok(Verdict::Agreed) {
            of_float32(dtype, dst, wide);
            if feedback.is_some() {
                float32_of(dtype, wide, dst); // a half may be infinite where the float32 was not
            }
            commit(feedback, Verdict::Agreed, wide);
        }
        *self.wide = memory;
        verdict
    }

    fn compressed_floats(
        &mut self,
        squeeze: &Squeeze<'_>,
        work: &mut Workspace,
        mut feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
    ) -> Result<Verdict, Halt> {
        let world = self.hosts.everybody().size() as usize;
        let parts = self.parts(src.len() / FLOAT, squeeze.codec.grain());
        let pieces = Pieces(parts.iter().map(|part| vec![part.start * FLOAT..part.end * FLOAT]).collect());
        let code = arithmetic(DType::Float32, squeeze.op, world);
        // Who is alone on its host reads its own array.
        let brought = if self.is_alone() { src } else { dst };
        if !self.is_alone() && self.combine_here(&code, dst, src, &pieces)? == Verdict::Differs {
            return Ok(Verdict::Differs);
        }
        let part = parts.get(self.hosts.place()).cloned().unwrap_or(0..0);
        let bytes = part.start * FLOAT..part.end * FLOAT;
        if let Some(feedback) = feedback.as_deref_mut() {
            feedback.begin(Of { shape: squeeze.shape.into(), dtype: squeeze.dtype, part: part.clone() });
        }
        if !part.is_empty() {
            let place = Place { part, whole: src.len() / FLOAT, world };
            self.part(squeeze, &place, work, feedback, (&dst[bytes.clone()], &brought[bytes]))?;
        }
        self.share(dst, &pieces)?;
        Ok(Verdict::Agreed)
    }

    /// What each rank of a host owns of `count` elements: whole grains.
    fn parts(&self, count: usize, grain: usize) -> Vec<Range<usize>> {
        cut(count, grain, self.hosts.shards(count * FLOAT).count)
    }

    /// The part of this rank, with those who own the same part on other hosts.
    fn part(
        &mut self,
        squeeze: &Squeeze<'_>,
        place: &Place,
        work: &mut Workspace,
        mut feedback: Option<&mut Feedback>,
        (dst, brought): (Bytes<'_>, Bytes<'_>),
    ) -> Result<(), Halt> {
        let team = self.hosts.team(self.hosts.place()).expect("who owns a part is in a team").clone();
        let Session { messages, header, wait, .. } = self;
        let mut leg = Leg { messages, team, header: *header, wait, ways: squeeze.ways };
        let mut values = feedback.as_deref_mut().map_or_else(|| std::mem::take(&mut work.values), Feedback::take);
        values.resize(place.part.len(), 0.0);
        copy(bytes_of(&mut values), brought);
        if let Some(feedback) = &mut feedback {
            feedback.accumulate(&mut values);
        }
        let output = Output { dst, count: if squeeze.op == ReduceOp::Avg { place.world } else { 1 } };
        let keep = feedback.is_some();
        match squeeze.codec {
            Codec::Dense(dense) => {
                let coding = dense::Coding { dense, start: place.part.start as u64, keep };
                leg.in_two_steps(&coding, &mut values, work, |at, sum| output.put(at, sum))?;
            }
            Codec::Sparse(selection) => {
                leg.at_picks(&sparse::Share { selection, place, keep }, &mut values, work, &output)?;
                if let Some(feedback) = &mut feedback {
                    feedback.mask(&work.picks);
                }
            }
            Codec::LowRank(_) => unreachable!("it is made of ordinary calls"),
        }
        match feedback {
            Some(feedback) => feedback.keep(values),
            None => work.values = values,
        }
        Ok(())
    }
}

/// Ends the step. Where the sum overflowed the program will skip it: so does the feedback, on all ranks alike.
fn commit(feedback: Option<&mut Feedback>, verdict: Verdict, written: Bytes<'_>) {
    if let Some(feedback) = feedback.filter(|_| verdict == Verdict::Agreed && all_finite(written)) {
        feedback.commit();
    }
}

/// What this rank has to do with.
struct Place {
    /// Of the elements.
    part: Range<usize>,
    /// All of them.
    whole: usize,
    /// Ranks of the group.
    world: usize,
}

/// Where sums go: elements of a part, divided by `count`.
struct Output<'a> {
    dst: Bytes<'a>,
    count: usize,
}

impl Output<'_> {
    /// Those from element `at` on; `sums` is spoilt.
    fn put(&self, at: usize, sums: &mut [f32]) {
        let dst = &self.dst[at * FLOAT..(at + sums.len()) * FLOAT];
        let sums = bytes_of(sums);
        match self.count {
            1 => copy(dst, sums),
            count => arithmetic(DType::Float32, ReduceOp::Avg, count).last.run_counted(dst, &[sums], count),
        }
    }
}

/// `count` elements in `parts` parts of whole grains, as equal as possible; the last grain may be shorter.
fn cut(count: usize, grain: usize, parts: usize) -> Vec<Range<usize>> {
    let grains = count.div_ceil(grain);
    let edge = |k: usize| count.min(grains * k / parts * grain);
    (0..parts).map(|k| edge(k)..edge(k + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_grains_and_together_all() {
        for (count, grain, parts) in
            [(0, 64, 3), (1, 64, 3), (1000, 64, 3), (1000, 1, 7), (4096, 1024, 4), (129, 64, 9)]
        {
            let cut = cut(count, grain, parts);
            assert_eq!((cut.len(), cut[0].start, cut[parts - 1].end), (parts, 0, count));
            assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(cut[..parts - 1].iter().all(|part| part.end % grain == 0 || part.end == count));
            let lengths = cut.iter().map(|part| part.len().div_ceil(grain));
            assert!(lengths.clone().max().expect("parts") - lengths.min().expect("parts") <= 1);
        }
    }
}
