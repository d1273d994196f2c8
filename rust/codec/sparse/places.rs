//! Places of picks as bytes.
//!
//! ```text
//! [coding: 0 gaps, 1 bitmap] [picks: u32] then
//! gaps     per pick the number of elements skipped since the last one, 7 bits a byte, lowest first, bit 7 = more follows
//! bitmap   bit p of the array's elements, lowest first; the last byte is filled up with zeros
//! ```
//! All integers are little-endian. At 1 % a gap costs 1.3 bytes; from about 12 % on the bitmap is smaller.
//!
//! Short gaps are the common case and their lengths are random, so branches on them are mispredicted: both directions
//! do gaps below 2^14 without a branch, and look at whole groups for the others.

use crate::codec::Malformed;

const GAPS: u8 = 0;
const BITMAP: u8 = 1;
/// Coding and number of picks.
const HEADER: usize = 5;
/// Gaps from here on need three bytes and more.
const LONG: u32 = 1 << 14;

/// Appends the coded `picks`, places in an array of `count` elements.
///
/// # Panics
/// Unless picks ascend and lie below `count`, and `count` is at most `u32::MAX`.
pub fn encode_picks(picks: &[u32], count: usize, payload: &mut Vec<u8>) {
    assert!(count <= u32::MAX as usize, "an array of {count} elements is too long for sparse payloads");
    assert!(ascends(picks), "picks do not ascend");
    assert!(picks.last().is_none_or(|last| (*last as usize) < count), "a pick beyond {count} elements");
    let (gaps, bitmap) = (gaps_len(picks), bitmap_len(count));
    payload.push(if gaps <= bitmap { GAPS } else { BITMAP });
    payload.extend_from_slice(&(picks.len() as u32).to_le_bytes());
    if gaps <= bitmap { write_gaps(picks, gaps, payload) } else { write_bitmap(picks, bitmap, payload) }
}

/// The most bytes that `k` picks of `count` elements take.
pub(super) fn max_places_len(count: usize, k: usize) -> usize {
    // Gaps add up to `count - k` at most, so no more than `(count - k) >> 7` of them reach 2^7, and so on.
    let spare = count.saturating_sub(k);
    let gaps = k + (1..5).map(|more| k.min(spare >> (7 * more))).sum::<usize>();
    HEADER + gaps.min(bitmap_len(count))
}

/// Decodes all of `payload`, as `encode_picks` wrote it for an array of `count` elements; `picks` is cleared before.
pub fn decode_picks(payload: &[u8], count: usize, picks: &mut Vec<u32>) -> Result<(), Malformed> {
    match read_picks(payload, count, picks)? {
        [] => Ok(()),
        _ => Err(Malformed("bytes follow the places of a sparse payload")),
    }
}

/// Decodes places from the beginning of `payload` and returns the rest of it.
pub(super) fn read_picks<'a>(payload: &'a [u8], count: usize, picks: &mut Vec<u32>) -> Result<&'a [u8], Malformed> {
    picks.clear();
    let Some((header, body)) = payload.split_first_chunk::<HEADER>() else {
        return Err(Malformed("a sparse payload shorter than its header"));
    };
    let [coding, claimed @ ..] = *header;
    let claimed = u32::from_le_bytes(claimed) as usize;
    if claimed > count || count > u32::MAX as usize {
        return Err(Malformed("more picks than elements"));
    }
    let read = match coding {
        GAPS => read_gaps(body, claimed, picks)?,
        BITMAP => read_bitmap(body, claimed, count, picks)?,
        _ => return Err(Malformed("an unknown coding of places")),
    };
    if picks.last().is_some_and(|last| *last as usize >= count) {
        return Err(Malformed("a pick beyond the array"));
    }
    let gaps = if coding == GAPS { read } else { gaps_len(picks) };
    if (gaps <= bitmap_len(count)) != (coding == GAPS) {
        return Err(Malformed("places in the longer coding"));
    }
    Ok(&body[read..])
}

fn ascends(picks: &[u32]) -> bool {
    picks.windows(2).fold(true, |so_far, pair| so_far & (pair[0] < pair[1]))
}

fn bitmap_len(count: usize) -> usize {
    count.div_ceil(8)
}

fn gap_len(gap: u32) -> u32 {
    1 + u32::from(gap >= 1 << 7) + u32::from(gap >= LONG) + u32::from(gap >= 1 << 21) + u32::from(gap >= 1 << 28)
}

/// Bytes of all gaps of ascending `picks`.
fn gaps_len(picks: &[u32]) -> usize {
    let Some(first) = picks.first() else { return 0 };
    let (befores, afters) = (&picks[..picks.len() - 1], &picks[1..]);
    // In parts whose sums fit 32 bits, which vectorise.
    let parts = befores.chunks(1 << 12).zip(afters.chunks(1 << 12));
    let part = |(befores, afters): (&[u32], &[u32])| {
        befores.iter().zip(afters).map(|(before, after)| gap_len(after - before - 1)).sum::<u32>() as usize
    };
    gap_len(*first) as usize + parts.map(part).sum::<usize>()
}

/// Appends `len` bytes of gaps.
fn write_gaps(picks: &[u32], len: usize, payload: &mut Vec<u8>) {
    let start = payload.len();
    payload.resize(start + len + 1, 0); // short gaps are written as two bytes, of which the second may not count
    let bytes = &mut payload[start..];
    let (mut at, mut next) = (0, 0);
    for pick in picks {
        let gap = pick - next;
        next = pick + 1;
        if gap < LONG {
            let long = u32::from(gap >= 1 << 7);
            let pair = gap & 0x7f | long << 7 | gap >> 7 << 8;
            bytes[at..at + 2].copy_from_slice(&(pair as u16).to_le_bytes());
            at += 1 + long as usize;
        } else {
            at = write_long(gap, bytes, at);
        }
    }
    payload.truncate(start + len);
}

fn write_long(mut gap: u32, bytes: &mut [u8], mut at: usize) -> usize {
    while gap >= 1 << 7 {
        bytes[at] = gap as u8 | 0x80;
        at += 1;
        gap >>= 7;
    }
    bytes[at] = gap as u8;
    at + 1
}

/// Reads `claimed` gaps and returns how many bytes they took. Picks ascend, but the caller has to look at the last one:
/// where it lies in the array, they all do; where one did not fit 32 bits, this is an error.
fn read_gaps(bytes: &[u8], claimed: usize, picks: &mut Vec<u32>) -> Result<usize, Malformed> {
    if claimed > bytes.len() {
        return Err(Malformed("places end early")); // before anything is allocated for them
    }
    picks.resize(claimed, 0);
    let (mut at, mut next) = (0, 0_u64);
    let (groups, rest) = picks.as_chunks_mut::<GROUP>();
    for group in groups {
        (at, next) = match read_short(bytes, at, next, group) {
            Some(after) => after,
            None => read_any(bytes, at, next, group)?,
        };
    }
    (at, next) = read_any(bytes, at, next, rest)?;
    if next > 1 << 32 {
        return Err(Malformed("a pick beyond the array"));
    }
    Ok(at)
}

/// As many gaps below `LONG` as surely lie in 8 bytes.
const GROUP: usize = 4;

/// Reads gaps of one or two bytes from place `at` of `bytes`, where `next` is the first place that can come. Returns
/// the two after them; None where the bytes end or are anything else.
#[inline(always)]
fn read_short(bytes: &[u8], at: usize, next: u64, picks: &mut [u32; GROUP]) -> Option<(usize, u64)> {
    let mut window = u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
    let (mut other, mut len, mut place) = (0, 0, next);
    for pick in picks {
        let long = window >> 7 & 1;
        let second = window >> 8 & 0xff & long.wrapping_neg();
        // Neither a third byte nor a second one of zero.
        other |= second >> 7 | (long & u64::from(second == 0));
        place += (window & 0x7f) + (second << 7);
        *pick = place as u32;
        place += 1;
        len += 1 + long as usize;
        window = if long == 0 { window >> 8 } else { window >> 16 };
    }
    (other == 0).then_some((at + len, place))
}

/// As `read_short`, gaps of any length.
#[inline(never)]
fn read_any(bytes: &[u8], mut at: usize, mut next: u64, picks: &mut [u32]) -> Result<(usize, u64), Malformed> {
    for pick in picks {
        let mut gap = 0_u64;
        for shift in (0..).step_by(7) {
            let Some(byte) = bytes.get(at) else { return Err(Malformed("places end early")) };
            at += 1;
            gap |= u64::from(byte & 0x7f) << shift;
            if shift == 28 && *byte > 0x0f {
                return Err(Malformed("a gap of more than 32 bits"));
            }
            if *byte == 0 && shift > 0 {
                return Err(Malformed("a gap in more bytes than it needs"));
            }
            if byte & 0x80 == 0 {
                break;
            }
        }
        *pick = (next + gap) as u32;
        next += gap + 1;
    }
    Ok((at, next))
}

fn write_bitmap(picks: &[u32], len: usize, payload: &mut Vec<u8>) {
    let start = payload.len();
    payload.resize(start + len, 0);
    let bytes = &mut payload[start..];
    for pick in picks {
        bytes[(pick >> 3) as usize] |= 1 << (pick & 7);
    }
}

fn read_bitmap(bytes: &[u8], claimed: usize, count: usize, picks: &mut Vec<u32>) -> Result<usize, Malformed> {
    let len = bitmap_len(count);
    let Some(bytes) = bytes.get(..len) else { return Err(Malformed("places end early")) };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = || words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    if words().map(|word| word.count_ones() as usize).sum::<usize>() != claimed {
        return Err(Malformed("another number of picks than a sparse payload claims"));
    }
    picks.reserve(claimed);
    for (w, mut word) in words().enumerate() {
        while word != 0 {
            // Fits: of fewer than 2^32 elements, filled up to a multiple of 8, which the caller checks.
            picks.push((64 * w as u64) as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests;
