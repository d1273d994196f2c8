//! Dense codecs: every value travels, with fewer bits. For links that are slower than the codec.
//!
//! ```text
//! array     ├── grain ──┼── grain ──┼── grain ──┼─ rest ─┤        float32
//!                │           │           │          │            each by itself
//! payload   ├ s│codes ──┼ s│codes ──┼ s│codes ──┼ s│codes ┤       s: what the codes of a grain are scaled by
//! ```
//! A grain is encoded without looking at any other, so payloads of neighbouring parts of an array that is cut between grains are,
//! one after the other, the payload of the whole, and what comes out does not depend on where it was cut.
//!
//! | codec | grain | bits per value | error of one value, at most |
//! |---|---|---|---|
//! | `Float16` | 1024 | 16 + 16/1024 | 2^-11 of the value, or 2^-39 of the largest in the grain where that is more |
//! | `BFloat16` | 256 | 16 | 2^-8 of the value |
//! | `Int8` | block | 8 + 32/block | 1/254 of the largest in the block |
//! | `Int4` | block | 4 + 16/block | 1/14 · (1 + 2^-7) of the largest in the block |
//!
//! With `stochastic`, codes are rounded up or down by chance, so that the mean of many is right; one may be off by twice as much.
//! NaN (as the canonical one) and infinities arrive as they are, beside finite values that lose at most one level by it.
//! For every instruction set the bits are the same, and so are those of `encode` and `decode` in a process that flushes subnormal
//! numbers to zero. (Its sums and rests may lack a subnormal number; neither goes to anybody without being encoded.)
//!
//! Does not know what a payload is part of, nor who gets it.

mod bfloat16;
mod blocks;
mod float16;
mod grains;
mod halves;
mod pieces;
mod reach;
mod width;

#[cfg(test)]
mod tests;

use super::{Dice, Malformed};
use crate::kernels::{self, Isa};
use bfloat16::BFloat16;
use blocks::Blocks;
use float16::Float16;
use grains::{Add, Coding, Decode, Encode, Landing, Rest, Set};
use width::{Int4, Int8};

/// One of the codecs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dense {
    /// float16 with a power of two per grain, which lets any float32 through. Rounds to nearest even.
    Float16,
    /// The upper half of a float32, rounded to nearest even. What lies beyond the largest bfloat16 by half a step or more
    /// (magnitudes from 3.3961775e38) becomes infinite.
    BFloat16,
    /// One byte per value, in units of the largest magnitude of a block of `block` values.
    Int8 { block: u32, stochastic: bool },
    /// The same in four bits.
    Int4 { block: u32, stochastic: bool },
}

/// `$body` with `$coding` standing for the codec behind `$dense`.
macro_rules! with_coding {
    ($dense:expr, $coding:ident => $body:expr) => {
        match $dense {
            Dense::Float16 => {
                let $coding = Float16;
                $body
            }
            Dense::BFloat16 => {
                let $coding = BFloat16;
                $body
            }
            Dense::Int8 { block, stochastic: false } => {
                let $coding = Blocks::<Int8, false>::new(block);
                $body
            }
            Dense::Int8 { block, stochastic: true } => {
                let $coding = Blocks::<Int8, true>::new(block);
                $body
            }
            Dense::Int4 { block, stochastic: false } => {
                let $coding = Blocks::<Int4, false>::new(block);
                $body
            }
            Dense::Int4 { block, stochastic: true } => {
                let $coding = Blocks::<Int4, true>::new(block);
                $body
            }
        }
    };
}

/// All methods panic when a block has no elements.
impl Dense {
    /// How many elements are encoded together: arrays may be cut at multiples of it.
    pub fn grain(self) -> usize {
        with_coding!(self, coding => coding.grain())
    }

    /// Bytes of the payload of `count` elements.
    pub fn payload_len(self, count: usize) -> usize {
        with_coding!(self, coding => {
            let (grains, rest) = (count / coding.grain(), count % coding.grain());
            grains * coding.bytes(coding.grain()) + if rest == 0 { 0 } else { coding.bytes(rest) }
        })
    }

    /// Writes the payload of `values`. `start`: place of the first of them in the array, which `dice` are thrown for.
    ///
    /// # Panics
    /// When `payload` is not as long as `payload_len` says.
    pub fn encode(self, values: &[f32], dice: Dice, start: u64, payload: &mut [u8]) {
        self.encode_with(kernels::current(), values, dice, start, payload);
    }

    /// The same by one instruction set, which this machine must have.
    pub fn encode_with(self, isa: Isa, values: &[f32], dice: Dice, start: u64, payload: &mut [u8]) {
        assert!(payload.len() == self.payload_len(values.len()), "room for a payload of another length");
        with_coding!(self, coding => {
            kernels::vectorised_with(isa, Encode { coding, values, dice, start, payload });
        });
    }

    /// The same; and `values` become what the payload does not say of them: value - decoded, 0 where either is not finite.
    ///
    /// # Panics
    /// As `encode`.
    pub fn encode_rest(self, values: &mut [f32], dice: Dice, start: u64, payload: &mut [u8]) {
        assert!(payload.len() == self.payload_len(values.len()), "room for a payload of another length");
        let isa = kernels::current();
        // In strips that stay in the first cache between encoding and decoding.
        let strip = self.grain() * (STRIP / self.grain()).max(1);
        let payloads = payload.chunks_mut(self.payload_len(strip));
        for (n, (values, payload)) in values.chunks_mut(strip).zip(payloads).enumerate() {
            self.encode_with(isa, values, dice, start + (n * strip) as u64, payload);
            self.decode_into::<Rest>(isa, payload, values).expect("an encoder writes what its decoder reads");
        }
    }

    /// Reads the payload of `values.len()` elements. After an error `values` are partly written.
    pub fn decode(self, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        self.decode_with(kernels::current(), payload, values)
    }

    /// The same by one instruction set, which this machine must have.
    pub fn decode_with(self, isa: Isa, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        self.decode_into::<Set>(isa, payload, values)
    }

    /// The same, added to `values` in float32.
    pub fn decode_add(self, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        self.decode_into::<Add>(kernels::current(), payload, values)
    }

    fn decode_into<L: Landing>(self, isa: Isa, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed> {
        if payload.len() != self.payload_len(values.len()) {
            return Err(Malformed("a payload of another length"));
        }
        // How codes were rounded is nothing to a decoder.
        let settled = match self {
            Dense::Int8 { block, .. } => Dense::Int8 { block, stochastic: false },
            Dense::Int4 { block, .. } => Dense::Int4 { block, stochastic: false },
            half => half,
        };
        with_coding!(settled, coding => kernels::vectorised_with(isa, Decode::<_, L>::new(coding, payload, values)))
    }
}

/// Elements of a strip: 32 KiB, with its payload about a first-level cache.
const STRIP: usize = 8192;
