//! Bytes that are known, all that comes back, and all that does not decode.

use proptest::prelude::*;

use super::*;

fn coded(picks: &[u32], count: usize) -> Vec<u8> {
    let mut payload = vec![];
    encode_picks(picks, count, &mut payload);
    payload
}

fn decoded(payload: &[u8], count: usize) -> Result<Vec<u32>, Malformed> {
    let mut picks = vec![3; 5];
    decode_picks(payload, count, &mut picks).map(|()| picks)
}

#[test]
fn the_bytes_are_these() {
    assert_eq!(coded(&[], 1000), [0, 0, 0, 0, 0]);
    assert_eq!(coded(&[5], 1000), [0, 1, 0, 0, 0, 5]);
    // Skips 127, 128 and 16383 elements, then 16384.
    let picks = [127, 256, 16_640, 33_025];
    let gaps = [127, 0x80, 0x01, 0xff, 0x7f, 0x80, 0x80, 0x01];
    assert_eq!(coded(&picks, 40_000), [&[0, 4, 0, 0, 0][..], &gaps].concat());
    // The bitmap of 12 elements takes two bytes, and gaps as long are preferred.
    assert_eq!(coded(&[0, 11], 12), [0, 2, 0, 0, 0, 0, 10]);
    assert_eq!(coded(&[0, 3, 11], 12), [1, 3, 0, 0, 0, 0b1001, 0b1000]);
    assert_eq!(coded(&[u32::MAX - 1], u32::MAX as usize), [0, 1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0x0f]);
}

#[test]
fn what_no_encoder_writes_is_refused() {
    let head = |coding, picks: u32, body: &[u8]| [&[coding][..], &picks.to_le_bytes(), body].concat();
    for (payload, count, why) in [
        (vec![], 10, "a sparse payload shorter than its header"),
        (vec![0, 0, 0, 0], 10, "a sparse payload shorter than its header"),
        (head(2, 0, &[]), 10, "an unknown coding of places"),
        (head(0, 11, &[0; 11]), 10, "more picks than elements"),
        (head(0, u32::MAX, &[]), u32::MAX as usize, "places end early"),
        (head(0, 2, &[1, 0x80]), 1000, "places end early"),
        (head(0, 1, &[10]), 10, "a pick beyond the array"),
        (head(0, 2, &[4, 0xff, 0xff, 0xff, 0xff, 0x0f]), 1000, "a pick beyond the array"),
        (head(0, 1, &[0x85, 0x00]), 1000, "a gap in more bytes than it needs"),
        (head(0, 4, &[0x85, 0x00, 1, 1, 1, 1, 1, 1]), 1000, "a gap in more bytes than it needs"),
        (head(0, 1, &[0xff, 0xff, 0xff, 0xff, 0x10]), 1000, "a gap of more than 32 bits"),
        (head(0, 1, &[0xff, 0xff, 0xff, 0xff, 0x8f, 1]), 1000, "a gap of more than 32 bits"),
        (head(0, 1, &[1, 1]), 1000, "bytes follow the places of a sparse payload"),
        (head(0, 2, &[0, 0]), 8, "places in the longer coding"),
        (head(1, 1, &[1, 0]), 16, "places in the longer coding"),
        (head(1, 3, &[7]), 16, "places end early"),
        (head(1, 4, &[7, 0]), 16, "another number of picks than a sparse payload claims"),
        (head(1, 3, &[3, 0x80]), 15, "a pick beyond the array"),
        (head(1, 3, &[7, 0, 0]), 16, "bytes follow the places of a sparse payload"),
    ] {
        assert_eq!(decoded(&payload, count), Err(Malformed(why)), "{payload:?} of {count}");
    }
}

/// Ascending picks with gaps of every length, in an array that ends anywhere behind them.
fn supports() -> impl Strategy<Value = (Vec<u32>, usize)> {
    let gap = (0_u32..26).prop_flat_map(|bits| 0..1_u32 << bits);
    (prop::collection::vec(gap, 0..60), 0_usize..1 << 20).prop_map(|(gaps, behind)| {
        let mut next = 0;
        let mut pick = |gap: &u32| {
            next += gap + 1;
            next - 1
        };
        let picks: Vec<u32> = gaps.iter().map(&mut pick).collect();
        (picks, next as usize + behind)
    })
}

proptest! {
    #[test]
    fn picks_come_back_in_no_more_bytes_than_promised((picks, count) in supports()) {
        let payload = coded(&picks, count);
        prop_assert!(payload.len() <= max_places_len(count, picks.len()));
        prop_assert_eq!(decoded(&payload, count), Ok(picks));
    }

    #[test]
    fn a_cut_payload_is_refused((picks, count) in supports(), cut in any::<prop::sample::Index>()) {
        let payload = coded(&picks, count);
        prop_assert!(decoded(&payload[..cut.index(payload.len())], count).is_err());
    }

    /// Small numbers, so that many decode.
    #[test]
    fn bytes_that_decode_are_what_encodes(
        coding in 0_u8..3,
        claimed in 0_u32..12,
        body in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..12),
        count in 0_usize..100,
    ) {
        let payload = [&[coding][..], &claimed.to_le_bytes(), &body].concat();
        if let Ok(picks) = decoded(&payload, count) {
            prop_assert_eq!(coded(&picks, count), payload);
        }
    }

    #[test]
    fn any_bytes_decode_or_are_refused(payload in prop::collection::vec(any::<u8>(), 0..64), count in any::<u32>()) {
        if let Ok(picks) = decoded(&payload, count as usize) {
            prop_assert_eq!(coded(&picks, count as usize), payload);
        }
    }
}
