//! Which codec a call uses, as users name it.

use std::fmt;

use super::dense::Dense;
use super::sparse::Values;

/// What becomes of a call's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codec {
    Dense(Dense),
    Sparse(Selection),
    /// A matrix as a product of two thin ones, with so many columns and rows (PowerSGD).
    LowRank(u32),
}

impl Codec {
    /// Elements that belong together: arrays are dealt out in whole ones.
    pub fn grain(self) -> usize {
        match self {
            Codec::Dense(dense) => dense.grain(),
            // Of a cache line.
            Codec::Sparse(_) | Codec::LowRank(_) => 16,
        }
    }
}

impl From<Dense> for Codec {
    fn from(dense: Dense) -> Codec {
        Codec::Dense(dense)
    }
}

impl Dense {
    /// As users get it if they do not say more.
    pub const INT8: Dense = Dense::Int8 { block: 256, stochastic: false };
}

/// A few of the values, with their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    pub pick: Pick,
    pub values: Values,
    /// All hosts send the values at the same places: one of them, each in turn, says which.
    pub shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// Those of largest magnitude.
    Top(Share),
    /// Any; all hosts the same ones.
    Random(Share),
    /// Those whose magnitude is not less.
    AtLeast(f32),
}

/// So many, or so large a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    Count(usize),
    Ratio(f64),
}

impl Share {
    /// Of `count` elements; at least one, unless there are none.
    pub fn of(self, count: usize) -> usize {
        match self {
            Share::Count(k) => k.min(count),
            Share::Ratio(ratio) => ((count as f64 * ratio) as usize).clamp(1.min(count), count),
        }
    }
}

impl Selection {
    /// How many of `count` elements, if that is known before their values are.
    pub fn picks(&self, count: usize) -> Option<usize> {
        match self.pick {
            Pick::Top(share) | Pick::Random(share) => Some(share.of(count)),
            Pick::AtLeast(_) => None,
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Count(k) => k.fmt(f),
            Share::Ratio(ratio) => write!(f, "{ratio:?}"),
        }
    }
}

impl fmt::Display for Dense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, block, stochastic) = match self {
            Dense::Float16 => return f.write_str("fp16"),
            Dense::BFloat16 => return f.write_str("bf16"),
            Dense::Int8 { block, stochastic } => ("int8", block, stochastic),
            Dense::Int4 { block, stochastic } => ("int4", block, stochastic),
        };
        write!(f, "{name}:{block}{}", if *stochastic { ":stochastic" } else { "" })
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Dense(dense) => dense.fmt(f),
            Codec::LowRank(rank) => write!(f, "powersgd:{rank}"),
            Codec::Sparse(Selection { pick, values, shared }) => {
                match pick {
                    Pick::Top(share) => write!(f, "topk:{share}")?,
                    Pick::Random(share) => write!(f, "randomk:{share}")?,
                    Pick::AtLeast(threshold) => write!(f, "threshold:{threshold:?}")?,
                }
                if *shared && !matches!(pick, Pick::Random(_)) {
                    f.write_str(":shared")?;
                }
                f.write_str(match values {
                    Values::Float32 => "",
                    Values::Float16 => "+fp16",
                    Values::Int8 => "+int8",
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_at_least_one_and_at_most_all() {
        assert_eq!([0, 1, 7, 1000].map(|count| Share::Ratio(0.01).of(count)), [0, 1, 1, 10]);
        assert_eq!([0, 1, 7, 1000].map(|count| Share::Count(9).of(count)), [0, 1, 7, 9]);
        assert_eq!(Share::Ratio(1.0).of(12345), 12345);
    }

    #[test]
    fn codecs_are_called_what_users_call_them() {
        let top = |share, values, shared| Codec::Sparse(Selection { pick: Pick::Top(share), values, shared });
        let names = [
            (top(Share::Ratio(0.01), Values::Int8, false), "topk:0.01+int8"),
            (top(Share::Ratio(1.0), Values::Float32, true), "topk:1.0:shared"),
            (top(Share::Count(1), Values::Float16, false), "topk:1+fp16"),
            (Codec::LowRank(2), "powersgd:2"),
            (Dense::INT8.into(), "int8:256"),
            (Dense::Int4 { block: 64, stochastic: true }.into(), "int4:64:stochastic"),
            (Dense::BFloat16.into(), "bf16"),
        ];
        for (codec, name) in names {
            assert_eq!(codec.to_string(), name);
        }
    }
}
