//! Codes of eight and of four bits in bytes.
//!
//! ```text
//! Int8    byte i                      code i                   -127 ... 127
//! Int4    byte j of a piece of n      code j │ code j + n/2    -7 ... 7     low │ high four bits
//! ```
//! Codes half a piece apart share a byte, so that neighbours in a vector stay neighbours. What an odd n leaves is 0.

pub(super) trait Width: Copy {
    /// The largest code.
    const TOP: i32;
    /// Bytes of a scale: the upper ones of a float32.
    const SCALE: usize;

    /// Bytes of `count` codes.
    fn bytes(count: usize) -> usize;
    /// Where code `i` of a piece of `count` stands in a full one of `full` that has the same bytes.
    fn place(i: usize, count: usize, full: usize) -> usize;
    /// Writes the codes of a piece, an even number, in `bytes(N)` bytes.
    fn pack<const N: usize>(codes: &[i32; N], bytes: &mut [u8]);
    fn unpack<const N: usize>(bytes: &[u8]) -> [i32; N];
    /// Whether some code is -TOP - 1.
    fn holds_nan(bytes: &[u8]) -> bool;
    /// Whether the bytes of `count` codes hold nothing else.
    fn ends_clean(bytes: &[u8], count: usize) -> bool;
}

#[derive(Clone, Copy)]
pub(super) struct Int8;

impl Width for Int8 {
    const TOP: i32 = 127;
    const SCALE: usize = 4;

    #[inline(always)]
    fn bytes(count: usize) -> usize {
        count
    }

    #[inline(always)]
    fn place(i: usize, _count: usize, _full: usize) -> usize {
        i
    }

    #[inline(always)]
    fn pack<const N: usize>(codes: &[i32; N], bytes: &mut [u8]) {
        let bytes = bytes.first_chunk_mut::<N>().expect("a byte for each");
        for i in 0..N {
            bytes[i] = codes[i] as u8;
        }
    }

    #[inline(always)]
    fn unpack<const N: usize>(bytes: &[u8]) -> [i32; N] {
        let bytes = bytes.first_chunk::<N>().expect("a byte for each");
        let mut codes = [0; N];
        for i in 0..N {
            codes[i] = i32::from(bytes[i] as i8);
        }
        codes
    }

    #[inline(always)]
    fn holds_nan(bytes: &[u8]) -> bool {
        bytes.iter().fold(false, |found, byte| found | (*byte == 0x80))
    }

    #[inline(always)]
    fn ends_clean(_bytes: &[u8], _count: usize) -> bool {
        true
    }
}

#[derive(Clone, Copy)]
pub(super) struct Int4;

impl Width for Int4 {
    const TOP: i32 = 7;
    const SCALE: usize = 2;

    #[inline(always)]
    fn bytes(count: usize) -> usize {
        count.div_ceil(2)
    }

    #[inline(always)]
    fn place(i: usize, count: usize, full: usize) -> usize {
        let half = count.div_ceil(2);
        if i < half { i } else { i - half + full / 2 }
    }

    #[inline(always)]
    fn pack<const N: usize>(codes: &[i32; N], bytes: &mut [u8]) {
        // Once, so that the compiler drops the checks in the loop.
        let bytes = &mut bytes[..N / 2];
        for j in 0..N / 2 {
            bytes[j] = (codes[j] & 15 | codes[N / 2 + j] << 4) as u8;
        }
    }

    #[inline(always)]
    fn unpack<const N: usize>(bytes: &[u8]) -> [i32; N] {
        let bytes = &bytes[..N / 2];
        let mut codes = [0; N];
        for j in 0..N / 2 {
            let pair = i32::from(bytes[j] as i8);
            codes[j] = pair << 28 >> 28;
            codes[N / 2 + j] = pair >> 4;
        }
        codes
    }

    #[inline(always)]
    fn holds_nan(bytes: &[u8]) -> bool {
        bytes.iter().fold(false, |found, byte| found | (byte & 0x0f == 0x08) | (byte & 0xf0 == 0x80))
    }

    #[inline(always)]
    fn ends_clean(bytes: &[u8], count: usize) -> bool {
        count.is_multiple_of(2) || bytes.last().is_some_and(|byte| byte >> 4 == 0)
    }
}
