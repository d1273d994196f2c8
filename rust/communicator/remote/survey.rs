//! How the network is: measured when the group forms, or told, and the same for all ranks.

use std::cell::Cell;
use std::time::Duration;

use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Result};
use crate::hierarchy::Way;
use crate::kernels::Bytes;
use crate::messages::aligned;
use crate::schedule;
use crate::schedule::cost::Model;
use crate::wait::Host;

use super::super::call::Call;
use super::super::compression::Rates;
use super::super::config::STREAMS;
use super::super::local::Outcome;
use super::super::network::{self, Network};
use super::super::probe::{Found, Probe};
use super::super::tried::MOST;
use super::Remote;

/// What rank 0 decides for all.
pub(super) struct Terms {
    /// Connections that a link is made of.
    pub streams: u16,
    /// How the network is, if that is known already.
    pub known: Option<Model>,
    /// Whether somebody has said so.
    pub told: bool,
}

/// How all ranks learn the largest of their numbers.
const LARGEST: Way = Way::Hierarchical(schedule::Algorithm::Doubling);

/// Beside the number of connections: `Terms::told`.
const TOLD: u64 = 1 << 32;

impl Terms {
    pub fn encode(&self) -> Vec<u64> {
        let numbers = self.known.iter().flat_map(network::words).map(f64::to_bits);
        let first = u64::from(self.streams) | if self.told { TOLD } else { 0 };
        std::iter::once(first).chain(numbers).collect()
    }

    pub fn decode(words: &[u64]) -> Result<Terms> {
        let wrong = || Error::Init("rank 0 sent settings that cannot be; does it run another arx?".into());
        let (first, numbers) = words.split_first().ok_or_else(wrong)?;
        let streams =
            u16::try_from(first & !TOLD).ok().filter(|streams| STREAMS.contains(streams)).ok_or_else(wrong)?;
        let known = match numbers {
            [] => None,
            numbers => {
                let numbers: [u64; 5] = numbers.try_into().map_err(|_| wrong())?;
                Some(network::of_words(numbers.map(f64::from_bits)))
            }
        };
        Ok(Terms { streams, known, told: first & TOLD != 0 })
    }
}

impl Remote {
    /// Finds out how the network is, unless that is `known`, and sees to it that all ranks know the same of it.
    pub fn survey(&mut self, sequence: u64, known: Option<Model>, rounds: usize, host: &mut dyn Host) -> Result<()> {
        let mut memory = Vec::new();
        let words = aligned(&mut memory, 8 * size_of::<f64>());
        let Rates([half, int8]) = Rates::measure();
        let (partner, team) = (self.hosts.partner(), self.hosts.first_ranks());
        let call = Call::barrier(None);
        let outcome = self.session(sequence, &call, host, |session| {
            let found = match known {
                Some(model) => Found { model, by_one: None },
                None => Probe { messages: session.messages, partner, team, rounds, wait: session.wait }.run()?,
            };
            let [alpha, overhead, beta, gamma, rooted] = network::words(&found.model);
            let by_one = found.by_one.unwrap_or(0.0);
            write(words, [alpha, overhead, beta, gamma, rooted, by_one, half, int8]);
            session.all_reduce(LARGEST, (DType::Float64, ReduceOp::Max), words, words)
        });
        outcome.map_err(|trouble| self.explain(trouble, sequence, &call, host))?;
        let [alpha, overhead, beta, gamma, rooted, by_one, half, int8] = read(words);
        let found = Found {
            model: network::of_words([alpha, overhead, beta, gamma, rooted]),
            by_one: Some(by_one).filter(|seconds| *seconds > 0.0),
        };
        let model = found.among(self.hosts.count() as u32);
        self.network = Network::new(model, Rates([half, int8]), &self.hosts, self.network.is_told());
        Ok(())
    }

    /// After the last call in which ways were tried: the times of the slowest ranks decide.
    pub fn agree(&mut self, sequence: u64, timeout: Option<Duration>, host: &mut dyn Host) -> Outcome {
        self.undecided = false;
        let mut memory = Vec::new();
        let words = aligned(&mut memory, MOST * size_of::<f64>());
        write(words, self.network.tried().map_or([0.0; MOST], |tried| tried.usual()));
        let call = Call { name: Some("to agree on the fastest way"), ..Call::barrier(timeout) };
        self.run(sequence, &call, host, |session| {
            session.all_reduce(LARGEST, (DType::Float64, ReduceOp::Max), words, words)
        })?;
        if let Some(tried) = self.network.tried() {
            tried.agree(read(words));
        }
        Ok(())
    }
}

fn write<const N: usize>(words: Bytes<'_>, numbers: [f64; N]) {
    let bytes = numbers.map(f64::to_ne_bytes);
    words.iter().zip(bytes.as_flattened()).for_each(|(cell, byte)| cell.set(*byte));
}

fn read<const N: usize>(words: Bytes<'_>) -> [f64; N] {
    let bytes: Vec<u8> = words.iter().map(Cell::get).collect();
    std::array::from_fn(|k| f64::from_ne_bytes(bytes[8 * k..][..8].try_into().expect("eight bytes")))
}
