//! What `algo=` and `ARX_ALGO` name: a way to do a collective, instead of the one that arx would choose.

use std::fmt;

use crate::direct::{self, PAYLOAD};
use crate::hierarchy::Hosts;
use crate::schedule;

/// How a call is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// As is best for the size, the memory and the network.
    #[default]
    Auto,
    /// One of the ways by shared memory; all ranks must be on one host.
    Direct(direct::Algorithm),
    /// By shared memory within hosts, by messages between them, with the algorithm that is best or with this one.
    Hierarchical(Option<schedule::Algorithm>),
    /// By messages among all ranks, wherever they are.
    Flat(schedule::Algorithm),
}

const HIERARCHICAL: &str = "hierarchical";

impl Algorithm {
    pub fn parse(name: &str) -> Option<Algorithm> {
        let by_messages = |name: &str| name.parse::<schedule::Algorithm>().ok();
        match direct::Algorithm::parse(name) {
            Some(direct::Algorithm::Auto) => return Some(Algorithm::Auto),
            Some(way) => return Some(Algorithm::Direct(way)),
            None => {}
        }
        match name.strip_prefix(HIERARCHICAL) {
            Some("") => Some(Algorithm::Hierarchical(None)),
            Some(rest) => by_messages(rest.strip_prefix('+')?).map(|a| Algorithm::Hierarchical(Some(a))),
            None => by_messages(name).map(Algorithm::Flat),
        }
    }

    /// What `parse` understands.
    pub fn names() -> String {
        let direct = direct::Algorithm::ALL.iter().map(|a| a.name());
        let flat = schedule::Algorithm::NAMES;
        let between = ["hierarchical", "hierarchical+NAME (NAME: one of the following)"];
        direct.chain(between).chain(flat).collect::<Vec<_>>().join(", ")
    }

    /// Whether it leaves no choice.
    pub fn is_one(self) -> bool {
        !matches!(self, Algorithm::Auto | Algorithm::Hierarchical(None))
    }

    /// Whether ranks on `hosts` can do a collective of `len` bytes in this way; if not, why.
    pub fn check(self, hosts: &Hosts, len: usize) -> Result<(), String> {
        match self {
            Algorithm::Direct(direct::Algorithm::Lines) if len > PAYLOAD => {
                Err(format!("algo 'lines' carries {PAYLOAD} bytes at most, not {len}"))
            }
            Algorithm::Direct(way) if hosts.count() > 1 => Err(format!(
                "algo '{}' is for ranks that share memory; the {} ranks of this group are on {} hosts",
                way.name(),
                hosts.all().iter().map(Vec::len).sum::<usize>(),
                hosts.count()
            )),
            _ => Ok(()),
        }
    }

    /// The way by shared memory that it asks for.
    #[inline]
    pub fn direct(self) -> direct::Algorithm {
        match self {
            Algorithm::Direct(way) => way,
            _ => direct::Algorithm::Auto,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Auto => f.write_str("auto"),
            Algorithm::Direct(way) => f.write_str(way.name()),
            Algorithm::Hierarchical(None) => f.write_str(HIERARCHICAL),
            Algorithm::Hierarchical(Some(algorithm)) => write!(f, "{HIERARCHICAL}+{algorithm}"),
            Algorithm::Flat(algorithm) => algorithm.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let names =
            ["auto", "lines", "staged", "symmetric", "hierarchical", "hierarchical+ring", "ring", "double_tree:8"];
        for name in names {
            let algorithm = Algorithm::parse(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(algorithm.to_string(), name);
        }
        for name in ["", "Ring", "hierarchical+", "hierarchical+staged", "hierarchicalring", "ring:2", "+ring"] {
            assert_eq!(Algorithm::parse(name), None, "{name}");
        }
    }
}
