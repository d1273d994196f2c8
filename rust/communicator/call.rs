//! One collective call as its caller made it: what ranks must agree on, and how to name it in an error.

use std::fmt::Write as _;
use std::time::Duration;

use crate::dtype::{DType, ReduceOp};

use super::algorithm::Algorithm;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce(ReduceOp),
    Broadcast { root: u32 },
    Barrier,
}

/// The type of an array's elements: one that can be reduced, or any other, which can only be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    Number(DType),
    Opaque(&'a str),
}

#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub collective: Collective,
    pub element: Element<'a>,
    pub shape: &'a [usize],
    pub algorithm: Algorithm,
    pub name: Option<&'a str>,
    /// Instead of the group's.
    pub timeout: Option<Duration>,
}

impl Call<'_> {
    pub fn barrier(timeout: Option<Duration>) -> Call<'static> {
        Call {
            collective: Collective::Barrier,
            element: Element::Opaque(""),
            shape: &[],
            algorithm: Algorithm::Auto,
            name: None,
            timeout,
        }
    }

    /// Of a reduction: what is combined, and how.
    ///
    /// # Panics
    /// When it is none.
    #[inline]
    pub(super) fn reduction(&self) -> (DType, ReduceOp) {
        match (self.element, self.collective) {
            (Element::Number(dtype), Collective::AllReduce(op)) => (dtype, op),
            _ => panic!("{} combines nothing", self.describe()),
        }
    }

    /// Equal for equal calls on every rank; the time-out is each rank's own affair.
    pub fn fingerprint(&self) -> u64 {
        let (kind, detail) = match self.collective {
            Collective::AllReduce(op) => (1, op as u64),
            Collective::Broadcast { root } => (2, u64::from(root)),
            Collective::Barrier => (3, 0),
        };
        let mut hash = mix(kind << 32 | detail, 0);
        if self.algorithm != Algorithm::Auto {
            hash = text_hash(hash, &self.algorithm.to_string());
        }
        hash = match self.element {
            Element::Number(dtype) => mix(hash, dtype as u64),
            Element::Opaque(text) => text_hash(mix(hash, 0), text),
        };
        hash = mix(hash, self.shape.len() as u64);
        hash = self.shape.iter().fold(hash, |h, n| mix(h, *n as u64));
        self.name.map_or(hash, |name| text_hash(mix(hash, 1), name))
    }

    /// As a reader would write it: `all_reduce(op=sum, dtype=float32, shape=(2, 3))`.
    pub fn describe(&self) -> String {
        let mut text = match self.collective {
            Collective::AllReduce(op) => format!("all_reduce(op={op}"),
            Collective::Broadcast { root } => format!("broadcast(root={root}"),
            Collective::Barrier => return "barrier()".into(),
        };
        let element = match self.element {
            Element::Number(dtype) => dtype.name(),
            Element::Opaque(text) => text,
        };
        // Writing to a String cannot fail.
        let _ = write!(text, ", dtype={element}, shape={}", tuple(self.shape));
        if self.algorithm != Algorithm::Auto {
            let _ = write!(text, ", algo={}", self.algorithm);
        }
        if let Some(name) = self.name {
            let _ = write!(text, ", name='{name}'");
        }
        text.push(')');
        text
    }
}

/// A shape as Python writes it: `(2, 3)`, `(7,)`, `()`.
pub fn tuple<T: ToString>(values: &[T]) -> String {
    let words: Vec<String> = values.iter().map(T::to_string).collect();
    let comma = if words.len() == 1 { "," } else { "" };
    format!("({}{comma})", words.join(", "))
}

/// One step of a 64-bit hash (splitmix64's finaliser): the same on every rank and machine.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn text_hash(hash: u64, text: &str) -> u64 {
    text.bytes().fold(mix(hash, text.len() as u64), |h, b| mix(h, u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::Algorithm as Way;

    fn base() -> Call<'static> {
        Call {
            collective: Collective::AllReduce(ReduceOp::Sum),
            element: Element::Number(DType::Float32),
            shape: &[2, 3],
            algorithm: Algorithm::Auto,
            name: None,
            timeout: None,
        }
    }

    #[test]
    fn every_field_that_matters_changes_the_fingerprint() {
        let calls = [
            base(),
            Call { collective: Collective::AllReduce(ReduceOp::Max), ..base() },
            Call { collective: Collective::Broadcast { root: 0 }, ..base() },
            Call { collective: Collective::Broadcast { root: 1 }, ..base() },
            Call { element: Element::Number(DType::Int32), ..base() },
            Call { element: Element::Opaque("float32"), ..base() },
            Call { shape: &[3, 2], ..base() },
            Call { shape: &[6], ..base() },
            Call { shape: &[2, 3, 1], ..base() },
            Call { algorithm: Algorithm::Direct(Way::Staged), ..base() },
            Call { name: Some("w"), ..base() },
            Call { name: Some("b"), ..base() },
            Call::barrier(None),
        ];
        let mut prints: Vec<u64> = calls.iter().map(Call::fingerprint).collect();
        assert_eq!(prints[0], Call { timeout: Some(Duration::from_secs(1)), ..base() }.fingerprint());
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), calls.len());
    }

    #[test]
    fn calls_read_as_they_are_written() {
        assert_eq!(base().describe(), "all_reduce(op=sum, dtype=float32, shape=(2, 3))");
        let named = Call { shape: &[7], name: Some("w"), algorithm: Algorithm::Direct(Way::Staged), ..base() };
        assert_eq!(named.describe(), "all_reduce(op=sum, dtype=float32, shape=(7,), algo=staged, name='w')");
    }
}
