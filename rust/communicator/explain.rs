//! Which way a call would take, and why, in words for people and numbers for programs.

use std::fmt::Write as _;

use crate::codec::Codec;
use crate::direct::{Direct, PAYLOAD};
use crate::hierarchy::Hosts;
use crate::kernels::Bytes;
use crate::schedule::cost::Model;

use super::algorithm::Algorithm;
use super::call::{Call, Compression};
use super::compression::Weighed;
use super::network::{self, Network, Route};

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// As `algo=` names it.
    pub algorithm: String,
    pub why: String,
    /// Predicted, where there is a model: between hosts.
    pub seconds: Option<f64>,
    /// What else came into question, and its predicted time; the fastest first.
    pub others: Vec<(String, f64)>,
}

impl Explanation {
    pub(super) fn alone() -> Explanation {
        let why = "there is one rank, so nothing is done".into();
        Explanation { algorithm: "auto".into(), why, seconds: Some(0.0), others: Vec::new() }
    }

    /// All ranks are on this host.
    pub(super) fn on_one_host(direct: &Direct, call: &Call<'_>, array: Bytes<'_>) -> Explanation {
        let (name, why) = match call.algorithm {
            Algorithm::Auto | Algorithm::Hierarchical(_) => direct_way(direct, array),
            other => (other.to_string(), "it was asked for".into()),
        };
        let why = match call.compression {
            Some(_) => format!("nothing is compressed inside a host; {why}"),
            None => why,
        };
        Explanation { algorithm: name, why, seconds: None, others: Vec::new() }
    }

    /// With a codec between hosts, for an array of `count` elements.
    fn compressed(
        network: &Network,
        hosts: &Hosts,
        (call, compression): (&Call<'_>, Compression),
        bytes: usize,
    ) -> Explanation {
        let count = bytes / call.reduction().0.size();
        let all = network.weigh(hosts, count);
        let plain = all.iter().find(|way| way.codec.is_none()).map_or(0.0, |way| way.seconds);
        let name = |way: &Weighed| way.codec.map_or("uncompressed".to_owned(), |codec| codec.to_string());
        let by = |wanted: Option<Codec>| all.iter().find(|way| way.codec.map(Codec::from) == wanted);
        let found = network.found(call, bytes, hosts, true).filter(|_| !call.algorithm.is_one());
        let (chosen, asked) = match (compression, found) {
            (Compression::With(codec), _) => (by(Some(codec)), "it was asked for".to_owned()),
            (Compression::Auto, Some((route, of))) => {
                (by(route.codec()), format!("it was the fastest of {of} that were tried"))
            }
            (Compression::Auto, None) => (all.first(), "it is predicted to be the fastest".to_owned()),
        };
        let sums: Vec<String> =
            all.iter().filter(|way| way.codec.is_some()).map(|way| inequality(way, plain)).collect();
        let numbers = numbers(network.model());
        let why = format!("{asked}; {}; {}; {numbers}", sums.join(", "), placement(hosts, count * size_of::<f32>()));
        let others = all.iter().map(|way| (name(way), way.seconds)).collect();
        let algorithm = chosen.map_or_else(|| compression.to_string(), name);
        Explanation { algorithm, why, seconds: chosen.map(|way| way.seconds), others }
    }

    pub(super) fn over_hosts(network: &Network, hosts: &Hosts, call: &Call<'_>, bytes: usize) -> Explanation {
        if let Some(compression) = call.compression {
            return Explanation::compressed(network, hosts, (call, compression), bytes);
        }
        let goal = network::goal(call.collective);
        let name = |algorithm| match network::is_flat(goal) {
            true => format!("{algorithm}"),
            false => format!("hierarchical+{algorithm}"),
        };
        let choices = network.choices(call, bytes, hosts);
        let predicted = |wanted| choices.iter().find(|c| c.algorithm == wanted).map(|c| c.seconds);
        let others: Vec<(String, f64)> = choices.iter().map(|c| (name(c.algorithm), c.seconds)).collect();
        let (chosen, why) = match call.algorithm {
            Algorithm::Flat(algorithm) if algorithm.serves(goal) => {
                let why = "it was asked for: all ranks by messages, wherever they are".into();
                return Explanation { algorithm: algorithm.to_string(), why, seconds: None, others };
            }
            Algorithm::Hierarchical(Some(algorithm)) if algorithm.serves(goal) => {
                (algorithm, "it was asked for".to_owned())
            }
            _ => match network.found(call, bytes, hosts, false) {
                Some((Route::Plain(algorithm), of)) => {
                    (algorithm, format!("it was the fastest of {of} that were tried"))
                }
                _ => (choices[0].algorithm, format!("it is predicted to be the fastest of {}", choices.len())),
            },
        };
        let why = format!("{why}; {}; {}", placement(hosts, bytes), numbers(network.model()));
        Explanation { algorithm: name(chosen), why, seconds: predicted(chosen), others }
    }
}

/// What a codec costs and saves.
fn inequality(way: &Weighed, plain: f64) -> String {
    let (coding, wire) = (way.coding, way.seconds - way.coding);
    let (codec, than) = (way.codec.expect("asked of codecs"), if way.seconds < plain { "<" } else { "≥" });
    format!("{codec}: {} coding + {} on the wire {than} {} uncompressed", span(coding), span(wire), span(plain))
}

/// "12.3 us", "4.56 ms".
pub fn span(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn direct_way(direct: &Direct, array: Bytes<'_>) -> (String, String) {
    let symmetric = direct.boards().offset_of(array).is_some();
    let (way, why) = match (array.len() <= PAYLOAD, symmetric) {
        (true, _) if direct.is_crowd() => ("lines", "more ranks than cores: the last to arrive combines for all"),
        (true, _) => ("lines", "up to 1 KiB travel with the arrival itself"),
        (false, true) => {
            ("symmetric", "the array lies in shared memory; from a measured size on it is combined in place")
        }
        (false, false) => ("staged", "private arrays pass through the ranks' staging rings"),
    };
    (way.into(), format!("all ranks share this host's memory; {why}"))
}

fn placement(hosts: &Hosts, bytes: usize) -> String {
    let ranks: Vec<usize> = hosts.all().iter().map(Vec::len).collect();
    match hosts.is_flat() {
        true => format!("{} hosts with a rank each", ranks.len()),
        false => {
            let (most, least) = (ranks.iter().max().expect("hosts"), ranks.iter().min().expect("hosts"));
            let mut text = format!("{} hosts with ", ranks.len());
            let _ = match most == least {
                true => write!(text, "{most} ranks each"),
                false => write!(text, "{least} to {most} ranks"),
            };
            let shards = hosts.shards(bytes).count;
            let _ = write!(text, ", {shards} {} between them", if shards == 1 { "stream" } else { "streams" });
            text
        }
    }
}

fn numbers(model: &Model) -> String {
    let rate = if model.beta > 0.0 { 8e-9 / model.beta } else { f64::INFINITY };
    format!(
        "measured: latency {:.1} us and {:.1} us a message, {rate:.2} Gb/s, combining {:.1} GB/s",
        model.alpha * 1e6,
        model.overhead * 1e6,
        1e-9 / model.gamma
    )
}
