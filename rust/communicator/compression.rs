//! Compressed all-reduce: which codec pays, and the codec that is made of ordinary calls.
//!
//! ```text
//! without     T = the fastest algorithm, n bytes
//! codec       T = coding, n bytes at the measured rate  +  all-to-all and all-gather of its payloads
//! ```
//! "auto" takes what is fastest by the model of the network (`schedule::cost`), out of the codecs that need no feedback. All ranks
//! have the same numbers: the rates of the slowest of them, measured when the group forms. With short messages the model is often
//! wrong, since queues and token buckets let some bytes pass faster than the link's rate says; there it is tried (`tried`).

use std::hint::black_box;
use std::time::Instant;

use crate::codec::low_rank::Shape;
use crate::codec::{Codec, Dense, Dice, Feedback, Of};
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::hierarchy::{Hosts, Ways};
use crate::kernels::{Bytes, all_finite, bytes_of, float32_of, of_float32};
use crate::messages::aligned;
use crate::schedule::cost::Model;
use crate::schedule::{Algorithm, Collective};
use crate::select::{self, Order};
use crate::wait::Host;

use super::call::{self, Call, Compression, Element};
use super::{Communicator, Reach};

/// Codecs that "auto" takes: their error is small enough to need no feedback.
pub(super) const SAFE: [Dense; 2] = [Dense::Float16, Dense::INT8];

/// Seconds for each byte of float32 that is encoded and decoded once, by each of the `SAFE` codecs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates(pub [f64; 2]);

impl Rates {
    /// Of this core.
    pub fn measure() -> Rates {
        const COUNT: usize = 16 << 10;
        let values: Vec<f32> = (0..COUNT).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut back = vec![0.0; COUNT];
        Rates(SAFE.map(|codec| {
            let mut payload = vec![0; codec.payload_len(COUNT)];
            let mut once = || {
                let from = Instant::now();
                codec.encode(black_box(&values), Dice::new(&[]), 0, &mut payload);
                codec.decode(&payload, black_box(&mut back)).expect("it was encoded above");
                from.elapsed().as_secs_f64()
            };
            (0..3).map(|_| once()).fold(f64::INFINITY, f64::min) / size_of_val(values.as_slice()) as f64
        }))
    }
}

/// A way to all-reduce, with one of the `SAFE` codecs or none, and what it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weighed {
    pub codec: Option<Dense>,
    pub seconds: f64,
    /// Of these, what encoding and decoding take.
    pub coding: f64,
}

/// What comes into question for `count` elements of float32, the best first.
pub(super) fn weigh(model: &Model, rates: Rates, hosts: &Hosts, count: usize) -> Vec<Weighed> {
    let world = hosts.count() as u32;
    let best = |collective, bytes, order| {
        select::choices(model, collective, world, bytes, order).first().map_or(f64::INFINITY, |choice| choice.seconds)
    };
    let bytes = count * size_of::<f32>();
    let plain = best(Collective::AllReduce, bytes, Order::Fixed);
    let mut all = vec![Weighed { codec: None, seconds: plain, coding: 0.0 }];
    for (codec, rate) in SAFE.into_iter().zip(rates.0) {
        let payload = codec.payload_len(count);
        let moved =
            best(Collective::AllToAll, payload, Order::Free) + best(Collective::AllGather, payload, Order::Free);
        // Each host encodes what it brings and its share of the sums, and decodes as much as it brings twice.
        let times = 1.5 + 0.5 / f64::from(world);
        let coding = times * rate * (bytes / hosts.shards(bytes).count) as f64;
        all.push(Weighed { codec: Some(codec), seconds: coding + moved, coding });
    }
    // Ties keep the order: no codec without a reason.
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    all
}

/// Algorithms for the messages of `codec` on `count` elements.
pub(super) fn ways(model: &Model, codec: Codec, hosts: &Hosts, count: usize) -> Ways {
    let world = hosts.count() as u32;
    let best = |collective, bytes, order| select::choices(model, collective, world, bytes, order)[0].algorithm;
    let (payload, values) = match codec {
        Codec::Dense(dense) => (dense.payload_len(count), count),
        Codec::Sparse(selection) => {
            let picks = selection.picks(count).unwrap_or(count / 16);
            (world as usize * picks * 6, picks)
        }
        Codec::LowRank(_) => (0, 0),
    };
    Ways {
        all_gather: best(Collective::AllGather, payload, Order::Free),
        all_reduce: best(Collective::AllReduce, values * size_of::<f32>(), Order::Fixed),
        broadcast: match best(Collective::Broadcast(0), payload, Order::Free) {
            // Its pieces would be cut anew for each length.
            Algorithm::DoubleTree { .. } => Algorithm::Tree,
            other => other,
        },
    }
}

impl Communicator {
    /// `dst` = sum or average of everybody's `src`, with the call's codec between hosts. On one host, where there is nothing to gain,
    /// it is an ordinary all-reduce. What the codec leaves out goes to `feedback`, if there is any, and comes with the next call.
    pub fn all_reduce_compressed(
        &mut self,
        call: &Call<'_>,
        feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Result<()> {
        let over_hosts = matches!(self.reach, Reach::Hosts(_));
        match call.compression.filter(|_| over_hosts) {
            Some(Compression::With(Codec::LowRank(rank))) => {
                if let Some(shape) = matrix(call.shape, rank as usize) {
                    return self.low_rank(call, shape, feedback, (dst, src), host);
                }
            }
            Some(_) => return self.between_hosts(call, feedback, (dst, src), host),
            None => {}
        }
        match feedback.filter(|feedback| feedback.has_momentum()) {
            Some(feedback) => self.all_at_once(call, feedback, (dst, src), host),
            None => self.all_reduce(call, dst, src, host),
        }
    }

    fn between_hosts(
        &mut self,
        call: &Call<'_>,
        feedback: Option<&mut Feedback>,
        arrays: (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Result<()> {
        self.ensure_open()?;
        self.sequence += 1;
        let Reach::Hosts(remote) = &mut self.reach else { unreachable!("asked by the caller") };
        let outcome = remote.compressed(self.sequence, call, feedback, arrays, host);
        let outcome = self.agreed(outcome, call, host);
        self.end(call, outcome)
    }

    /// Nothing is left out, so that only momentum is left of the feedback.
    fn all_at_once(
        &mut self,
        call: &Call<'_>,
        feedback: &mut Feedback,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Result<()> {
        let mut values = bring(call, feedback, src);
        let mut memory = Vec::new();
        let velocity = aligned(&mut memory, src.len());
        of_float32(call.reduction().0, velocity, bytes_of(&mut values));
        self.all_reduce(call, dst, velocity, host)?;
        let finite = is_finite(call, dst, &mut values);
        values.fill(0.0);
        feedback.keep(values);
        if finite {
            feedback.commit();
        }
        Ok(())
    }

    /// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): the sum M of all ranks' matrices is about P·Qᵀ, where P = M·Q for the
    /// Q of the step before, made orthogonal, and Q = Mᵀ·P. Both are sums over ranks, so they are all-reduced like any array.
    fn low_rank(
        &mut self,
        call: &Call<'_>,
        shape: Shape,
        mut feedback: Option<&mut Feedback>,
        (dst, src): (Bytes<'_>, Bytes<'_>),
        host: &mut dyn Host,
    ) -> Result<()> {
        let (dtype, op) = call.reduction();
        let mut values = match &mut feedback {
            Some(feedback) => bring(call, feedback, src),
            None => floats(dtype, src),
        };
        let (mut p, mut q) = (vec![0.0; shape.rows * shape.r], vec![0.0; shape.cols * shape.r]);
        if let Some(basis) = feedback.as_ref().map(|feedback| feedback.basis()).filter(|basis| basis.len() == q.len()) {
            q.copy_from_slice(basis);
        }
        shape.refill(Dice::new(&[shape.rows as u64, shape.cols as u64]), &mut q);
        // Ranks that do not come from the same step have different Q.
        let steps = feedback.as_ref().map_or(0, |feedback| feedback.steps());
        let name = format!("{}step {steps}", call.name.map_or(String::new(), |name| format!("{name}, ")));
        shape.times(&values, &q, &mut p);
        self.sum(call, &name, &[shape.rows, shape.r], &mut p, host)?;
        shape.orthogonalise(&mut p);
        shape.transposed_times(&values, &p, &mut q);
        let mut sum = q.clone();
        self.sum(call, &name, &[shape.cols, shape.r], &mut sum, host)?;
        if let Some(feedback) = &mut feedback {
            shape.subtract_outer(&p, &q, &mut values);
            feedback.keep(std::mem::take(&mut values));
            feedback.set_basis(sum.clone());
        }
        if op == ReduceOp::Avg {
            let size = self.world as f32;
            sum.iter_mut().for_each(|x| *x /= size);
        }
        values.resize(shape.rows * shape.cols, 0.0);
        shape.outer(&p, &sum, &mut values);
        of_float32(dtype, dst, bytes_of(&mut values));
        if let Some(feedback) = feedback.filter(|_| is_finite(call, dst, &mut values)) {
            feedback.commit();
        }
        Ok(())
    }

    /// Of a factor, over all ranks.
    fn sum(
        &mut self,
        call: &Call<'_>,
        name: &str,
        shape: &[usize],
        factor: &mut [f32],
        host: &mut dyn Host,
    ) -> Result<()> {
        let (collective, element) = (call::Collective::AllReduce(ReduceOp::Sum), Element::Number(DType::Float32));
        let bytes = bytes_of(factor);
        self.all_reduce(&Call { collective, element, shape, name: Some(name), ..*call }, bytes, bytes, host)
    }
}

/// An array as a matrix, if its factors are smaller than itself.
fn matrix(shape: &[usize], rank: usize) -> Option<Shape> {
    let (rows, rest) = shape.split_first()?;
    let cols = rest.iter().product::<usize>();
    (!rest.is_empty() && rank * (rows + cols) < rows * cols).then_some(Shape { rows: *rows, cols, r: rank })
}

/// Whether all of a result is; if not, the program will skip the step. `floats` is spoilt.
fn is_finite(call: &Call<'_>, result: Bytes<'_>, floats: &mut [f32]) -> bool {
    let (dtype, _) = call.reduction();
    float32_of(dtype, bytes_of(floats), result);
    all_finite(bytes_of(floats))
}

/// What this rank brings, with what the feedback has kept of it.
fn bring(call: &Call<'_>, feedback: &mut Feedback, src: Bytes<'_>) -> Vec<f32> {
    let (dtype, _) = call.reduction();
    let part = 0..src.len() / dtype.size();
    feedback.begin(Of { shape: call.shape.into(), dtype, part });
    feedback.bring(bytes_of(&mut floats(dtype, src)))
}

fn floats(dtype: DType, src: Bytes<'_>) -> Vec<f32> {
    let mut values = vec![0.0; src.len() / dtype.size()];
    float32_of(dtype, bytes_of(&mut values), src);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u32) -> Hosts {
        Hosts::new((0..count).map(|rank| vec![rank]).collect(), 0)
    }

    fn model(gigabits: f64) -> Model {
        Model { alpha: 2e-5, overhead: 5e-6, beta: 8e-9 / gigabits, gamma: 1e-10, segment: 32768.0, rooted: 1.0 }
    }

    /// Coding at 3 GB/s pays for large arrays on slow links.
    #[test]
    fn a_codec_is_taken_where_it_saves_more_than_it_costs() {
        let rates = Rates([0.15e-9, 0.3e-9]);
        let best = |gigabits, count| weigh(&model(gigabits), rates, &hosts(4), count)[0].codec;
        assert_eq!(best(0.2, 4 << 20), Some(Dense::INT8));
        assert_eq!(best(0.2, 2), None, "two messages instead of one");
        assert_eq!(best(100.0, 4 << 20), None, "the link is faster than the codec");
        let slow = Rates([0.15e-9, 30e-9]);
        assert_eq!(weigh(&model(0.5), slow, &hosts(4), 4 << 20)[0].codec, Some(Dense::Float16));
    }

    #[test]
    fn rates_are_those_of_a_machine() {
        let Rates(rates) = Rates::measure();
        assert!(rates.iter().all(|rate| *rate > 0.0 && *rate < 1e-6), "{rates:?}");
    }

    #[test]
    fn only_what_becomes_smaller_is_a_matrix() {
        let shape = |dims: &[usize], rank| matrix(dims, rank).map(|shape| (shape.rows, shape.cols));
        assert_eq!(shape(&[64, 3, 3, 8], 2), Some((64, 72)));
        assert_eq!(
            [shape(&[], 1), shape(&[100], 1), shape(&[2, 2], 1), shape(&[100, 1], 1), shape(&[0, 5], 1)],
            [None; 5]
        );
        assert_eq!((shape(&[10, 10], 4), shape(&[10, 10], 5)), (Some((10, 10)), None));
    }
}
