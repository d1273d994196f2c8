//! The loop that all kernels are, written once, without a machine in mind.
//!
//! The idea, for a block of a few vectors at a time:
//!
//! ```text
//! for each block of dst:
//!     acc = load(srcs[0][block])
//!     for each further source:  acc = join(acc, load(source[block]))
//!     dst[block] = finish(acc, count)
//! ```
//!
//! Reasons for what looks odd:
//!
//! * *Blocks.* The destination may be one of the sources, so a loop over elements could not be vectorised: the compiler has to
//!   assume that a store changes the next load. Here all loads of a block come before its first store, into local arrays that
//!   nothing can alias; the loops over them have a constant length, vectorise, unroll, and the arrays end up in registers.
//!   One code path serves every aliasing, which is also what makes it impossible for the result to depend on it.
//! * *`#[inline(always)]` everywhere.* A shell (`x86.rs`, `aarch64.rs`) turns instructions on for one function; only what is
//!   inlined into it is compiled for them.
//! * *Two sources are special.* Two ranks on a host is the case where a reduction is nothing but memory traffic; the number of
//!   sources, and the count that `finish` divides by, are constants there.
//! * *64 elements at least.* The loop over a shorter block would be unrolled before it can be vectorised, and then is not.
//! * *`Machine`.* What the compiler does not find by itself: conversion of float16 in one instruction.
//! * *Prefetching, far ahead.* The next lines usually lie in the cache of the core that wrote them. On Zen 5 an all-reduce of 64 KiB by
//!   two ranks took 6.0 us without, 4.7 with 2 KiB, 4.4 with 5 KiB ahead, and 16 MiB 7 % less; on a Sapphire Rapids server, where
//!   hardware finds them, 512 and 1,024 bytes made no difference. Never beyond the end: the peer may be writing there. More sources
//!   come in tiles that are shorter than the way ahead: 4 ranks lost 5 to 10 %.
//!
//! Known cost: what is left at the end of a call is copied into a block filled up with zeros, or, if less than `PADDED`
//! elements, goes one by one; either is some 20 ns. With few or short registers a block of 64 doubles spills to the stack.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Bytes;
use super::cast::{Plain, typed};
use super::half;

/// One reduction, element by element: what a dtype and an operation come down to.
pub(super) trait Elementwise {
    /// What lies in memory.
    type Elem: Plain;
    /// What is carried from source to source.
    type Acc: Copy + Default;
    /// Whether `finish` looks at the count.
    const COUNTS: bool = false;

    fn load(x: Self::Elem) -> Self::Acc;
    fn join(acc: Self::Acc, next: Self::Acc) -> Self::Acc;
    /// `count`: how many contributions there are.
    fn finish(acc: Self::Acc, count: usize) -> Self::Elem;
}

/// What the loop calls: the same for a block, so that a conversion can use an instruction of the machine for many elements.
pub(super) trait Fold {
    type Elem: Plain;
    type Acc: Copy + Default;
    const COUNTS: bool;

    fn load<M: Machine, const N: usize>(machine: M, x: [Self::Elem; N]) -> [Self::Acc; N];
    fn join(acc: Self::Acc, next: Self::Acc) -> Self::Acc;
    fn finish<M: Machine, const N: usize>(machine: M, acc: [Self::Acc; N], count: usize) -> [Self::Elem; N];
}

impl<F: Elementwise> Fold for F {
    type Elem = F::Elem;
    type Acc = F::Acc;
    const COUNTS: bool = F::COUNTS;
    #[inline(always)]
    fn load<M: Machine, const N: usize>(_machine: M, x: [F::Elem; N]) -> [F::Acc; N] {
        each(x, F::load)
    }
    #[inline(always)]
    fn join(acc: F::Acc, next: F::Acc) -> F::Acc {
        F::join(acc, next)
    }
    #[inline(always)]
    fn finish<M: Machine, const N: usize>(_machine: M, acc: [F::Acc; N], count: usize) -> [F::Elem; N] {
        each(acc, |acc| F::finish(acc, count))
    }
}

/// What a set of instructions adds to the portable code. The results are the same bits; only the time differs.
pub trait Machine: Copy {
    fn widen_f16<const N: usize>(self, x: [u16; N]) -> [f32; N];
    fn narrow_f16<const N: usize>(self, x: [f32; N]) -> [u16; N];
    /// Bit i says whether element i is larger than `bound`.
    fn above(self, x: &[i32; 64], bound: i32) -> u64;
    /// Has a block fetched into the cache that will be read soon.
    fn fetch<T>(self, _block: &[Cell<T>]) {}
}

/// `f` of every element. A plain loop: `array::map` does not reliably vectorise at this length.
#[inline(always)]
pub(super) fn each<A: Copy, B: Copy + Default, const N: usize>(x: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    let mut y = [B::default(); N];
    for i in 0..N {
        y[i] = f(x[i]);
    }
    y
}

/// The operands of one call as elements: all of one length.
trait Operands {
    type Elem: Plain;
    /// Whether what will be read soon is fetched.
    const FETCHES: bool;
    fn len(&self) -> usize;
    /// What `finish` is told.
    fn count(&self) -> usize;
    fn get(&self, k: usize) -> &[Cell<Self::Elem>];
}

/// Two operands, cast once.
struct Two<'a, T>([&'a [Cell<T>]; 2]);

impl<T: Plain> Operands for Two<'_, T> {
    type Elem = T;
    const FETCHES: bool = true;
    #[inline(always)]
    fn len(&self) -> usize {
        2
    }
    #[inline(always)]
    fn count(&self) -> usize {
        2
    }
    #[inline(always)]
    fn get(&self, k: usize) -> &[Cell<T>] {
        self.0[k]
    }
}

/// Any number of operands; there is no place to keep their casts, so a block casts what it needs.
struct Many<'a, T> {
    srcs: &'a [Bytes<'a>],
    count: usize,
    elem: PhantomData<T>,
}

impl<T: Plain> Operands for Many<'_, T> {
    type Elem = T;
    const FETCHES: bool = false;
    #[inline(always)]
    fn len(&self) -> usize {
        self.srcs.len()
    }
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    fn get(&self, k: usize) -> &[Cell<T>] {
        typed(self.srcs[k])
    }
}

/// `dst[i] = finish(srcs[0][i] (+) srcs[1][i] (+) ..., count)`, in that order.
#[inline(always)]
pub(super) fn reduce<M: Machine, F: Fold>(machine: M, dst: Bytes<'_>, srcs: &[Bytes<'_>], count: usize) {
    let dst = typed::<F::Elem>(dst);
    if let [a, b] = *srcs
        && (count == 2 || !F::COUNTS)
    {
        // The same length again, for the compiler, which then drops the checks in the loop.
        let operands = Two([&typed(a)[..dst.len()], &typed(b)[..dst.len()]]);
        reduce_operands::<M, F, _>(machine, dst, &operands);
    } else {
        reduce_operands::<M, F, _>(machine, dst, &Many { srcs, count, elem: PhantomData });
    }
}

/// Elements of a block: 256 bytes, four of the widest registers, but never less than 64.
#[inline(always)]
fn reduce_operands<M: Machine, F: Fold, O: Operands<Elem = F::Elem>>(machine: M, dst: &[Cell<F::Elem>], operands: &O) {
    // Constants for the compiler, which keeps one arm.
    match size_of::<F::Elem>() {
        1 => reduce_blocks::<M, F, O, 256>(machine, dst, operands),
        2 => reduce_blocks::<M, F, O, 128>(machine, dst, operands),
        _ => reduce_blocks::<M, F, O, 64>(machine, dst, operands),
    }
}

#[inline(always)]
fn reduce_blocks<M: Machine, F: Fold, O: Operands<Elem = F::Elem>, const N: usize>(
    machine: M,
    dst: &[Cell<F::Elem>],
    operands: &O,
) {
    let (blocks, rest) = dst.as_chunks::<N>();
    let ahead = AHEAD / (N * size_of::<F::Elem>());
    for (b, block) in blocks.iter().enumerate() {
        if O::FETCHES && b + ahead < blocks.len() {
            for k in 0..operands.len() {
                machine.fetch(&operands.get(k).as_chunks::<N>().0[b + ahead]);
            }
        }
        let mut acc = F::load(machine, read(&operands.get(0).as_chunks::<N>().0[b]));
        for k in 1..operands.len() {
            acc = join::<F, N>(acc, F::load(machine, read(&operands.get(k).as_chunks::<N>().0[b])));
        }
        write(block, F::finish(machine, acc, operands.count()));
    }
    let done = dst.len() - rest.len();
    if rest.len() >= PADDED {
        reduce_padded::<M, F, N>(machine, rest, done, operands);
    } else {
        reduce_singly::<M, F>(machine, rest, done, operands);
    }
}

/// The `rest` of the destination, `done` elements from its start, as one block filled up with zeros.
#[inline(always)]
fn reduce_padded<M: Machine, F: Fold, const N: usize>(
    machine: M,
    rest: &[Cell<F::Elem>],
    done: usize,
    operands: &impl Operands<Elem = F::Elem>,
) {
    let mut acc = F::load(machine, read_padded::<_, N>(&operands.get(0)[done..]));
    for k in 1..operands.len() {
        acc = join::<F, N>(acc, F::load(machine, read_padded::<_, N>(&operands.get(k)[done..])));
    }
    write_padded(rest, F::finish(machine, acc, operands.count()));
}

/// The same, element by element.
#[inline(always)]
fn reduce_singly<M: Machine, F: Fold>(
    machine: M,
    rest: &[Cell<F::Elem>],
    done: usize,
    operands: &impl Operands<Elem = F::Elem>,
) {
    for (i, cell) in rest.iter().enumerate() {
        let mut acc = F::load(machine, [operands.get(0)[done + i].get()]);
        for k in 1..operands.len() {
            acc = join::<F, 1>(acc, F::load(machine, [operands.get(k)[done + i].get()]));
        }
        let [x] = F::finish(machine, acc, operands.count());
        cell.set(x);
    }
}

/// Bytes between what is read and what is fetched.
const AHEAD: usize = 5 << 10;

/// From here on a block that is filled up with zeros is faster than single elements.
const PADDED: usize = 16;

#[inline(always)]
fn join<F: Fold, const N: usize>(mut acc: [F::Acc; N], next: [F::Acc; N]) -> [F::Acc; N] {
    for i in 0..N {
        acc[i] = F::join(acc[i], next[i]);
    }
    acc
}

#[inline(always)]
fn read<T: Plain, const N: usize>(block: &[Cell<T>; N]) -> [T; N] {
    let mut x = [T::default(); N];
    for i in 0..N {
        x[i] = block[i].get();
    }
    x
}

#[inline(always)]
fn read_padded<T: Plain, const N: usize>(rest: &[Cell<T>]) -> [T; N] {
    let mut x = [T::default(); N];
    for (x, cell) in x.iter_mut().zip(rest) {
        *x = cell.get();
    }
    x
}

#[inline(always)]
fn write<T: Plain, const N: usize>(block: &[Cell<T>; N], x: [T; N]) {
    for i in 0..N {
        block[i].set(x[i]);
    }
}

#[inline(always)]
fn write_padded<T: Plain, const N: usize>(rest: &[Cell<T>], x: [T; N]) {
    for (cell, x) in rest.iter().zip(x) {
        cell.set(x);
    }
}

/// No more than the language itself: what the compiler makes of the loop for the oldest machine of the target.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Machine for Portable {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, x: [u16; N]) -> [f32; N] {
        each(x, half::widen_f16)
    }
    #[inline(always)]
    fn narrow_f16<const N: usize>(self, x: [f32; N]) -> [u16; N] {
        each(x, half::narrow_f16)
    }
    #[inline(always)]
    fn above(self, x: &[i32; 64], bound: i32) -> u64 {
        x.iter().enumerate().fold(0, |mask, (i, x)| mask | u64::from(*x > bound) << i)
    }
}
