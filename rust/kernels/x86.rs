//! The loop compiled for AVX2 and AVX-512, and the three things that the compiler does not find: float16 conversion, comparison
//! into bits, and stores that go past the caches.
//!
//! A shell is a function with `#[target_feature]` into which `generic::reduce` is inlined; nobody gets hold of one without
//! `has_avx2` or `has_avx512`.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::cell::Cell;
use std::mem::transmute;

use super::Bytes;
use super::copy::copy;
use super::generic::{Fold, Machine, reduce};
use super::half;
use super::isa::{self, Isa};
use super::table::{Kernel, Shell};
use super::vector::Loop;

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// AVX2 with F16C. As a value: the proof that the machine has them, since only the shell makes one.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Shell for Avx2 {
    fn kernel<F: Fold>() -> Kernel {
        #[target_feature(enable = "avx2,f16c")]
        fn shell<F: Fold>(dst: Bytes<'_>, srcs: &[Bytes<'_>], count: usize) {
            reduce::<Avx2, F>(Avx2(()), dst, srcs, count);
        }
        assert!(has_avx2(), "kernels for AVX2 on a machine without it");
        // SAFETY: the line above checked the instructions that `shell` is compiled for.
        |dst, srcs, count| unsafe { shell::<F>(dst, srcs, count) }
    }
}

pub(super) fn run_avx2<L: Loop>(job: L) -> L::Output {
    #[target_feature(enable = "avx2,f16c")]
    fn shell<L: Loop>(job: L) -> L::Output {
        job.run(Avx2(()))
    }
    assert!(has_avx2(), "kernels for AVX2 on a machine without it");
    // SAFETY: the line above checked the instructions that `shell` is compiled for.
    unsafe { shell(job) }
}

impl Machine for Avx2 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, x: [u16; N]) -> [f32; N] {
        let mut y = [0.0; N];
        let ((x, x_rest), (y_blocks, y_rest)) = (x.as_chunks::<8>(), y.as_chunks_mut::<8>());
        for (x, y) in x.iter().zip(y_blocks) {
            // SAFETY: `self` proves F16C; arrays and vectors of the same size, in which every bit pattern is valid.
            *y = unsafe { transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(transmute::<[u16; 8], __m128i>(*x))) };
        }
        for (x, y) in x_rest.iter().zip(y_rest) {
            *y = half::widen_f16(*x);
        }
        y
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, x: [f32; N]) -> [u16; N] {
        let mut y = [0; N];
        let ((x, x_rest), (y_blocks, y_rest)) = (x.as_chunks::<8>(), y.as_chunks_mut::<8>());
        for (x, y) in x.iter().zip(y_blocks) {
            // SAFETY: as in `widen_f16`.
            *y = unsafe {
                transmute::<__m128i, [u16; 8]>(_mm256_cvtps_ph::<NEAREST>(transmute::<[f32; 8], __m256>(*x)))
            };
        }
        for (x, y) in x_rest.iter().zip(y_rest) {
            *y = half::narrow_f16(*x);
        }
        y
    }

    #[inline(always)]
    fn above(self, x: &[i32; 64], bound: i32) -> u64 {
        let mut mask = 0;
        for (i, x) in x.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: `self` proves AVX2; array and vector of the same size, in which every bit pattern is valid.
            let larger = unsafe {
                let x = transmute::<[i32; 8], __m256i>(*x);
                _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(x, _mm256_set1_epi32(bound))))
            };
            mask |= u64::from(larger as u8) << (8 * i);
        }
        mask
    }

    #[inline(always)]
    fn fetch<T>(self, block: &[Cell<T>]) {
        fetch(block);
    }
}

/// AVX-512 with what every server part since 2017 has of it. As a value: the proof, as with `Avx2`.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Shell for Avx512 {
    fn kernel<F: Fold>() -> Kernel {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
        fn shell<F: Fold>(dst: Bytes<'_>, srcs: &[Bytes<'_>], count: usize) {
            reduce::<Avx512, F>(Avx512(()), dst, srcs, count);
        }
        assert!(has_avx512(), "kernels for AVX-512 on a machine without it");
        // SAFETY: the line above checked the instructions that `shell` is compiled for.
        |dst, srcs, count| unsafe { shell::<F>(dst, srcs, count) }
    }
}

pub(super) fn run_avx512<L: Loop>(job: L) -> L::Output {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
    fn shell<L: Loop>(job: L) -> L::Output {
        job.run(Avx512(()))
    }
    assert!(has_avx512(), "kernels for AVX-512 on a machine without it");
    // SAFETY: the line above checked the instructions that `shell` is compiled for.
    unsafe { shell(job) }
}

impl Machine for Avx512 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, x: [u16; N]) -> [f32; N] {
        let mut y = [0.0; N];
        let ((x, x_rest), (y_blocks, y_rest)) = (x.as_chunks::<16>(), y.as_chunks_mut::<16>());
        for (x, y) in x.iter().zip(y_blocks) {
            // SAFETY: `self` proves AVX-512 F; arrays and vectors of the same size, in which every bit pattern is valid.
            *y = unsafe { transmute::<__m512, [f32; 16]>(_mm512_cvtph_ps(transmute::<[u16; 16], __m256i>(*x))) };
        }
        for (x, y) in x_rest.iter().zip(y_rest) {
            *y = half::widen_f16(*x);
        }
        y
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, x: [f32; N]) -> [u16; N] {
        let mut y = [0; N];
        let ((x, x_rest), (y_blocks, y_rest)) = (x.as_chunks::<16>(), y.as_chunks_mut::<16>());
        for (x, y) in x.iter().zip(y_blocks) {
            // SAFETY: as in `widen_f16`.
            *y = unsafe {
                transmute::<__m256i, [u16; 16]>(_mm512_cvtps_ph::<NEAREST>(transmute::<[f32; 16], __m512>(*x)))
            };
        }
        for (x, y) in x_rest.iter().zip(y_rest) {
            *y = half::narrow_f16(*x);
        }
        y
    }

    #[inline(always)]
    fn above(self, x: &[i32; 64], bound: i32) -> u64 {
        let mut mask = 0;
        for (i, x) in x.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: `self` proves AVX-512 F; array and vector of the same size, in which every bit pattern is valid.
            let larger =
                unsafe { _mm512_cmpgt_epi32_mask(transmute::<[i32; 16], __m512i>(*x), _mm512_set1_epi32(bound)) };
            mask |= u64::from(larger) << (16 * i);
        }
        mask
    }

    #[inline(always)]
    fn fetch<T>(self, block: &[Cell<T>]) {
        fetch(block);
    }
}

#[inline(always)]
fn fetch<T>(block: &[Cell<T>]) {
    for line in (0..size_of_val(block)).step_by(LINE) {
        // SAFETY: a hint, which reads nothing as far as the program can tell; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(block.as_ptr().cast::<i8>().wrapping_add(line)) };
    }
}

/// Round to nearest even, whatever the rounding mode of the process.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Copies with stores that go past the caches; `dst` and `src` have the same length.
pub(super) fn stream(dst: Bytes<'_>, src: Bytes<'_>) {
    assert!(dst.len() == src.len(), "copy between different lengths");
    let head = dst.as_ptr().align_offset(LINE).min(dst.len());
    copy(&dst[..head], &src[..head]);
    let (lines, tail) = dst[head..].as_chunks::<LINE>();
    let from = src[head..].as_chunks::<LINE>().0;
    if isa::current() == Isa::Avx512 {
        // SAFETY: the current set is available; `lines` starts at a multiple of LINE.
        unsafe { stream_lines_avx512(lines, from) };
    } else {
        stream_lines(lines, from);
    }
    copy(tail, &src[src.len() - tail.len()..]);
    // Non-temporal stores are ordered by nothing else, not even by the release that tells a peer that the data is there.
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// A cache line; the unit that non-temporal stores should fill.
const LINE: usize = 64;

#[target_feature(enable = "avx512f")]
fn stream_lines_avx512(dst: &[[Cell<u8>; LINE]], src: &[[Cell<u8>; LINE]]) {
    for (dst, src) in dst.iter().zip(src) {
        // SAFETY: both are LINE bytes that the caller lent; `stream` aligned `dst`.
        unsafe { _mm512_stream_si512(dst.as_ptr() as *mut __m512i, _mm512_loadu_si512(src.as_ptr().cast())) };
    }
}

fn stream_lines(dst: &[[Cell<u8>; LINE]], src: &[[Cell<u8>; LINE]]) {
    for (dst, src) in dst.iter().zip(src) {
        let (dst, src) = (dst.as_ptr() as *mut __m128i, src.as_ptr().cast::<__m128i>());
        for part in 0..LINE / 16 {
            // SAFETY: both are LINE bytes that the caller lent; `stream` aligned `dst`; SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(dst.add(part), _mm_loadu_si128(src.add(part))) };
        }
    }
}
