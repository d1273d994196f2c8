//! The loops over grains, compiled once per instruction set, and what becomes of a decoded value.

use std::marker::PhantomData;

use super::super::{Dice, Malformed};
use crate::kernels::{Loop, Machine};

/// Elements that go through the registers together: four of the widest. A loop of constant length is vectorised in full.
pub(super) const PIECE: usize = 64;

/// How one grain becomes bytes.
pub(super) trait Coding: Copy {
    /// Elements encoded together.
    fn grain(self) -> usize;
    /// Bytes of a grain, or of what is left at the end of an array: 1 to `grain` elements.
    fn bytes(self, count: usize) -> usize;
    /// `payload` is as long as `bytes` says; `start` is the place of the first value.
    fn encode<M: Machine>(self, machine: M, values: &[f32], dice: Dice, start: u64, payload: &mut [u8]);
    fn decode<M: Machine, L: Landing>(self, machine: M, payload: &[u8], values: &mut [f32]) -> Result<(), Malformed>;
}

/// What becomes of a decoded value.
pub(super) trait Landing {
    fn land(value: &mut f32, decoded: f32);
}

/// It replaces the value.
pub(super) struct Set;
/// It is added.
pub(super) struct Add;
/// It is taken away, and nothing remains of what is not finite.
pub(super) struct Rest;

impl Landing for Set {
    #[inline(always)]
    fn land(value: &mut f32, decoded: f32) {
        *value = decoded;
    }
}

impl Landing for Add {
    #[inline(always)]
    fn land(value: &mut f32, decoded: f32) {
        *value += decoded;
    }
}

impl Landing for Rest {
    #[inline(always)]
    fn land(value: &mut f32, decoded: f32) {
        let rest = *value - decoded;
        *value = if rest.is_finite() { rest } else { 0.0 };
    }
}

pub(super) struct Encode<'a, C> {
    pub coding: C,
    pub values: &'a [f32],
    pub dice: Dice,
    pub start: u64,
    pub payload: &'a mut [u8],
}

impl<C: Coding> Loop for Encode<'_, C> {
    type Output = ();
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) {
        let grain = self.coding.grain();
        let mut start = self.start;
        let payloads = self.payload.chunks_mut(self.coding.bytes(grain));
        for (values, payload) in self.values.chunks(grain).zip(payloads) {
            self.coding.encode(machine, values, self.dice, start, payload);
            start += values.len() as u64;
        }
    }
}

pub(super) struct Decode<'a, C, L> {
    coding: C,
    payload: &'a [u8],
    values: &'a mut [f32],
    landing: PhantomData<L>,
}

impl<'a, C, L> Decode<'a, C, L> {
    pub(super) fn new(coding: C, payload: &'a [u8], values: &'a mut [f32]) -> Decode<'a, C, L> {
        Decode { coding, payload, values, landing: PhantomData }
    }
}

impl<C: Coding, L: Landing> Loop for Decode<'_, C, L> {
    type Output = Result<(), Malformed>;
    #[inline(always)]
    fn run<M: Machine>(self, machine: M) -> Result<(), Malformed> {
        let grain = self.coding.grain();
        let payloads = self.payload.chunks(self.coding.bytes(grain));
        for (values, payload) in self.values.chunks_mut(grain).zip(payloads) {
            self.coding.decode::<M, L>(machine, payload, values)?;
        }
        Ok(())
    }
}

/// Up to `N` elements, filled up with zeros.
#[inline(always)]
pub(super) fn padded<T: Copy + Default, const N: usize>(rest: &[T]) -> [T; N] {
    let mut piece = [T::default(); N];
    for (to, from) in piece.iter_mut().zip(rest) {
        *to = *from;
    }
    piece
}

/// Every decoded value of a piece to its place; `values` may be fewer.
#[inline(always)]
pub(super) fn land<L: Landing>(values: &mut [f32], decoded: &[f32]) {
    for (value, decoded) in values.iter_mut().zip(decoded) {
        L::land(value, *decoded);
    }
}
