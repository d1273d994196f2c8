//! One collective call as its caller made it: what ranks must agree on, and how to name it in an error.

use std::fmt::Write as _;
use std::time::Duration;

use crate::blocks::Blocks;
use crate::codec::Codec;
use crate::dtype::{DType, ReduceOp};

use super::algorithm::Algorithm;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce(ReduceOp),
    Broadcast {
        root: u32,
    },
    Barrier,
    Reduce {
        op: ReduceOp,
        root: u32,
    },
    /// Blocks may differ in their first length. `axis` is where the caller's arrays have that axis.
    AllGather {
        axis: usize,
    },
    Gather {
        root: u32,
        axis: usize,
    },
    Scatter {
        root: u32,
    },
    ReduceScatter(ReduceOp),
    /// With a count per pair of ranks, or all blocks of the same length.
    AllToAll {
        counts: bool,
    },
    Scan(ReduceOp),
    Exscan(ReduceOp),
}

impl Collective {
    /// What is combined, if anything.
    pub fn op(self) -> Option<ReduceOp> {
        match self {
            Collective::AllReduce(op)
            | Collective::Reduce { op, .. }
            | Collective::ReduceScatter(op)
            | Collective::Scan(op)
            | Collective::Exscan(op) => Some(op),
            _ => None,
        }
    }

    /// Name, a number for its kind, and the rank that differs from the others.
    fn words(self) -> (&'static str, u64, Option<u32>) {
        match self {
            Collective::AllReduce(_) => ("all_reduce", 1, None),
            Collective::Broadcast { root } => ("broadcast", 2, Some(root)),
            Collective::Barrier => ("barrier", 3, None),
            Collective::Reduce { root, .. } => ("reduce", 4, Some(root)),
            Collective::AllGather { .. } => ("all_gather", 5, None),
            Collective::Gather { root, .. } => ("gather", 6, Some(root)),
            Collective::Scatter { root } => ("scatter", 7, Some(root)),
            Collective::ReduceScatter(_) => ("reduce_scatter", 8, None),
            Collective::AllToAll { counts: false } => ("all_to_all", 9, None),
            Collective::AllToAll { counts: true } => ("all_to_all", 10, None),
            Collective::Scan(_) => ("scan", 11, None),
            Collective::Exscan(_) => ("exscan", 12, None),
        }
    }

    /// Whether ranks may come with different first lengths.
    fn is_loose(self) -> bool {
        let gathers = self.axis().is_some();
        gathers || self == Collective::AllToAll { counts: true }
    }

    /// Of who gathers.
    fn axis(self) -> Option<usize> {
        match self {
            Collective::AllGather { axis } | Collective::Gather { axis, .. } => Some(axis),
            _ => None,
        }
    }
}

/// Which blocks of a call's arrays are whose.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// Of what this rank brings: a block for each rank, or one for all of them.
    pub give: Blocks<'a>,
    /// Of what it gets: a block from each rank, or one.
    pub take: Blocks<'a>,
    /// Of who gathers: this rank has no room for blocks that are all as long as its own, so that none may come unasked.
    pub ask: bool,
}

impl<'a> Cut<'a> {
    pub fn new(give: Blocks<'a>, take: Blocks<'a>) -> Cut<'a> {
        Cut { give, take, ask: false }
    }
}

/// How values travel between hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    With(Codec),
    /// With a codec that needs no feedback, where that is predicted to be faster.
    Auto,
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Compression::With(codec) => codec.fmt(f),
            Compression::Auto => f.write_str("auto"),
        }
    }
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
    /// Lengths of all ranks' blocks, if the call names them: elements along the axis that is cut.
    pub counts: &'a [usize],
    pub algorithm: Algorithm,
    pub compression: Option<Compression>,
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
            counts: &[],
            algorithm: Algorithm::Auto,
            compression: None,
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
        match (self.element, self.collective.op()) {
            (Element::Number(dtype), Some(op)) => (dtype, op),
            _ => panic!("{} combines nothing", self.describe()),
        }
    }

    /// Equal for equal calls on every rank; the time-out is each rank's own affair.
    pub fn fingerprint(&self) -> u64 {
        let (_, kind, root) = self.collective.words();
        let detail = root.map_or(0, u64::from) | self.collective.op().map_or(0, |op| 1 + op as u64) << 32;
        let mut hash = mix(kind, mix(detail, self.collective.axis().unwrap_or(0) as u64));
        if self.algorithm != Algorithm::Auto {
            hash = text_hash(hash, &self.algorithm.to_string());
        }
        if let Some(compression) = self.compression {
            hash = text_hash(mix(hash, 2), &compression.to_string());
        }
        hash = match self.element {
            Element::Number(dtype) => mix(hash, dtype as u64),
            Element::Opaque(text) => text_hash(mix(hash, 0), text),
        };
        hash = mix(hash, self.shape.len() as u64);
        let fixed = usize::from(self.collective.is_loose()).min(self.shape.len());
        hash = self.shape[fixed..].iter().fold(hash, |h, n| mix(h, *n as u64));
        if !self.counts.is_empty() {
            hash = self.counts.iter().fold(mix(hash, self.counts.len() as u64), |h, n| mix(h, *n as u64));
        }
        self.name.map_or(hash, |name| text_hash(mix(hash, 1), name))
    }

    /// As a reader would write it: `all_reduce(op=sum, dtype=float32, shape=(2, 3))`.
    pub fn describe(&self) -> String {
        let (name, _, root) = self.collective.words();
        if self.collective == Collective::Barrier {
            return "barrier()".into();
        }
        let mut text = format!("{name}(");
        // Writing to a String cannot fail.
        if let Some(op) = self.collective.op() {
            let _ = write!(text, "op={op}, ");
        }
        if let Some(root) = root {
            let _ = write!(text, "root={root}, ");
        }
        if let Some(axis) = self.collective.axis().filter(|axis| *axis != 0) {
            let _ = write!(text, "axis={axis}, ");
        }
        let element = match self.element {
            Element::Number(dtype) => dtype.name(),
            Element::Opaque(text) => text,
        };
        let _ = write!(text, "dtype={element}, shape={}", tuple(self.shape));
        if !self.counts.is_empty() {
            let _ = write!(text, ", counts={}", tuple(self.counts));
        }
        if self.algorithm != Algorithm::Auto {
            let _ = write!(text, ", algo={}", self.algorithm);
        }
        if let Some(compression) = self.compression {
            let _ = write!(text, ", compression={compression}");
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
pub(super) fn mix(hash: u64, word: u64) -> u64 {
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
            counts: &[],
            algorithm: Algorithm::Auto,
            compression: None,
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
            Call { collective: Collective::Reduce { op: ReduceOp::Sum, root: 0 }, ..base() },
            Call { collective: Collective::Reduce { op: ReduceOp::Sum, root: 1 }, ..base() },
            Call { collective: Collective::Reduce { op: ReduceOp::Prod, root: 0 }, ..base() },
            Call { collective: Collective::AllGather { axis: 0 }, ..base() },
            Call { collective: Collective::AllGather { axis: 1 }, ..base() },
            Call { collective: Collective::AllGather { axis: 0 }, counts: &[2, 3], ..base() },
            Call { collective: Collective::Gather { root: 0, axis: 0 }, ..base() },
            Call { collective: Collective::Scatter { root: 0 }, ..base() },
            Call { collective: Collective::ReduceScatter(ReduceOp::Sum), ..base() },
            Call { collective: Collective::ReduceScatter(ReduceOp::Sum), counts: &[1, 1], ..base() },
            Call { collective: Collective::AllToAll { counts: false }, ..base() },
            Call { collective: Collective::AllToAll { counts: true }, ..base() },
            Call { collective: Collective::Scan(ReduceOp::Sum), ..base() },
            Call { collective: Collective::Exscan(ReduceOp::Sum), ..base() },
            Call { element: Element::Number(DType::Int32), ..base() },
            Call { element: Element::Opaque("float32"), ..base() },
            Call { shape: &[3, 2], ..base() },
            Call { shape: &[6], ..base() },
            Call { shape: &[2, 3, 1], ..base() },
            Call { algorithm: Algorithm::Direct(Way::Staged), ..base() },
            Call { name: Some("w"), ..base() },
            Call { name: Some("b"), ..base() },
            Call { compression: Some(Compression::Auto), ..base() },
            Call { compression: Some(Compression::With(Codec::LowRank(1))), ..base() },
            Call { compression: Some(Compression::With(Codec::LowRank(2))), ..base() },
            Call::barrier(None),
        ];
        let mut prints: Vec<u64> = calls.iter().map(Call::fingerprint).collect();
        assert_eq!(prints[0], Call { timeout: Some(Duration::from_secs(1)), ..base() }.fingerprint());
        let gather =
            |rows: &'static [usize]| Call { collective: Collective::AllGather { axis: 0 }, shape: rows, ..base() };
        assert_eq!(gather(&[2, 3]).fingerprint(), gather(&[5, 3]).fingerprint(), "blocks may differ in length");
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), calls.len());
    }

    #[test]
    fn calls_read_as_they_are_written() {
        assert_eq!(base().describe(), "all_reduce(op=sum, dtype=float32, shape=(2, 3))");
        let named = Call { shape: &[7], name: Some("w"), algorithm: Algorithm::Direct(Way::Staged), ..base() };
        assert_eq!(named.describe(), "all_reduce(op=sum, dtype=float32, shape=(7,), algo=staged, name='w')");
        let reduce = Call { collective: Collective::Reduce { op: ReduceOp::Max, root: 2 }, ..base() };
        assert_eq!(reduce.describe(), "reduce(op=max, root=2, dtype=float32, shape=(2, 3))");
        let scatter = Call { collective: Collective::ReduceScatter(ReduceOp::Sum), counts: &[2, 0], ..base() };
        assert_eq!(scatter.describe(), "reduce_scatter(op=sum, dtype=float32, shape=(2, 3), counts=(2, 0))");
    }
}
