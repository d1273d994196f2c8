//! Exact cases of the dense codecs. What holds for any values and bytes is in tests/codec_dense.rs.

use super::*;

const INT8: Dense = Dense::Int8 { block: 256, stochastic: false };
const INT4: Dense = Dense::Int4 { block: 64, stochastic: false };

/// Every codec, with blocks that fill pieces, and such that do not.
fn all() -> Vec<Dense> {
    let mut all = vec![Dense::Float16, Dense::BFloat16];
    for stochastic in [false, true] {
        for block in [1, 3, 32, 64, 101, 256] {
            all.push(Dense::Int8 { block, stochastic });
            all.push(Dense::Int4 { block, stochastic });
        }
    }
    all
}

fn dice() -> Dice {
    Dice::new(&[5, 7])
}

fn payload_of(dense: Dense, values: &[f32]) -> Vec<u8> {
    let mut payload = vec![0xaa; dense.payload_len(values.len())];
    dense.encode(values, dice(), 0, &mut payload);
    payload
}

fn decoded(dense: Dense, payload: &[u8], count: usize) -> Result<Vec<f32>, Malformed> {
    let mut values = vec![-1.5; count];
    dense.decode(payload, &mut values).map(|()| values)
}

fn round_trip(dense: Dense, values: &[f32]) -> Vec<f32> {
    decoded(dense, &payload_of(dense, values), values.len()).expect("what an encoder wrote")
}

/// As bits, in which -0.0 is no 0.0 and NaN is one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// `count` different values of both signs up to about `size`.
fn ramp(count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.618_034).fract() * 2.0 * size - size).collect()
}

fn largest_of(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |top, x| top.max(f64::from(x.abs())))
}

#[test]
fn sizes_are_exact() {
    for (dense, count, len) in [
        (Dense::Float16, 0, 0),
        (Dense::Float16, 1, 4),
        (Dense::Float16, 1025, 2054),
        (Dense::BFloat16, 7, 14),
        (INT8, 256, 260),
        (INT8, 257, 265),
        (INT4, 64, 34),
        (INT4, 65, 37),
        (INT4, 67, 38),
        (Dense::Int4 { block: 3, stochastic: true }, 7, 11),
    ] {
        assert_eq!(dense.payload_len(count), len, "{dense:?} of {count}");
    }
    for dense in all() {
        assert!((0..2100).all(|n| dense.payload_len(n) <= dense.payload_len(n + 1)), "{dense:?}");
    }
}

#[test]
fn payloads_are_what_the_documentation_says() {
    assert_eq!(payload_of(Dense::Float16, &[40_000.0, -1.0]), [0xff, 0xff, 0xe2, 0x74, 0x00, 0xb8]);
    assert_eq!(payload_of(Dense::BFloat16, &[1.0, -2.0]), [0x80, 0x3f, 0x00, 0xc0]);
    assert_eq!(payload_of(INT8, &[254.0, -127.0, 1.0, 3.0]), [0, 0, 0, 0x40, 127, 0xc0, 0, 2]);
    assert_eq!(payload_of(INT4, &[14.0, -14.0, 6.0, 2.0, -2.0]), [0, 0x40, 0x17, 0xf9, 0x03]);
    assert_eq!(payload_of(INT8, &[126.0, f32::NAN, f32::INFINITY]), [0, 0, 0x80, 0xbf, 126, 0x80, 127]);
    assert_eq!(payload_of(INT4, &[-6.0, f32::NEG_INFINITY]), [0x80, 0xbf, 0x9a]);
}

#[test]
fn halves_of_a_piece_share_bytes() {
    let dense = Dense::Int4 { block: 101, stochastic: false };
    let code = |i: usize| (i * 7 % 15) as i32 - 7;
    let values: Vec<f32> = (0..101).map(|i| code(i) as f32).collect();
    let pair = |low: usize, high: usize| (code(low) & 15 | code(high) << 4) as u8;
    let mut right = vec![0x80, 0x3f];
    right.extend((0..32).map(|j| pair(j, j + 32)));
    right.extend((64..80).map(|j| pair(j, j + 16)));
    right.extend([pair(96, 99), pair(97, 100), code(98) as u8 & 15]);
    assert_eq!(payload_of(dense, &values), right);
    assert_eq!(round_trip(dense, &values), values);
}

#[test]
fn what_a_plain_cast_to_float16_loses_survives() {
    for values in [vec![40_000.0, 160_000.0, 70_000.0], vec![1e-7], vec![1e-40, 1e-45], vec![f32::MAX, 1.0, f32::MIN]] {
        for (x, y) in values.iter().zip(round_trip(Dense::Float16, &values)) {
            let error = (f64::from(y) - f64::from(*x)).abs();
            let limit = (f64::from(x.abs()) * 2f64.powi(-11)).max(largest_of(&values) * 2f64.powi(-39));
            assert!(error <= limit, "{x:e} came back as {y:e}");
        }
    }
    assert_eq!(round_trip(Dense::Float16, &[40_000.0; 5]), [40_000.0; 5]);
    // Four times as much fits as well.
    assert_eq!(round_trip(Dense::Float16, &[160_000.0; 5]), [160_000.0; 5]);
}

#[test]
fn values_that_are_not_finite_arrive_beside_others() {
    let values = [f32::INFINITY, 6.0, f32::from_bits(0xff80_0001), -3.0, f32::NEG_INFINITY, 0.0, f32::NAN];
    let right = [f32::INFINITY, 6.0, f32::NAN, -3.0, f32::NEG_INFINITY, 0.0, f32::NAN];
    for dense in [Dense::Float16, Dense::BFloat16, INT4] {
        assert_eq!(bits(&round_trip(dense, &values)), bits(&right), "{dense:?}");
    }
    for count in [1, 5, 64, 300] {
        for dense in all() {
            for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert_eq!(bits(&round_trip(dense, &vec![x; count])), vec![x.to_bits(); count], "{dense:?}");
            }
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for dense in all() {
        for zero in [0.0, -0.0] {
            assert!(round_trip(dense, &[zero; 300]).iter().all(|x| *x == 0.0), "{dense:?}");
        }
        // One block of zeros beside others.
        let mut values = ramp(600, 3.0);
        let grain = dense.grain().min(256);
        values[grain..2 * grain].fill(0.0);
        let back = round_trip(dense, &values);
        assert!(back[grain..2 * grain].iter().all(|x| *x == 0.0), "{dense:?}");
        assert!(back[2 * grain..].iter().any(|x| *x != 0.0), "{dense:?}");
    }
    for half in [Dense::Float16, Dense::BFloat16] {
        assert_eq!(bits(&round_trip(half, &[-0.0, 1.0, 0.0])), bits(&[-0.0, 1.0, 0.0]));
    }
}

#[test]
fn blocks_at_the_lower_end_are_zeros_or_within_a_step() {
    for dense in all() {
        for x in [1e-40, 1e-45, f32::MIN_POSITIVE, 1e-36, 3e-36, -2e-35] {
            for y in round_trip(dense, &[x; 70]) {
                let step = f64::from(x.abs()) / 7.0;
                let near = (f64::from(y) - f64::from(x)).abs() <= step;
                assert!(near || (y == 0.0 && x.abs() < 1.6e-36), "{dense:?}: {x:e} came back as {y:e}");
            }
        }
    }
}

#[test]
fn bfloat16_rounds_to_infinity_only_behind_its_largest() {
    let largest = f32::from_bits(0x7f7f_0000);
    let cases = [(0x7f7f_7fff, largest), (0x7f7f_8000, f32::INFINITY), (0x3f80_8000, 1.0), (0x3f81_8000, 1.015_625)];
    for (from, to) in cases {
        assert_eq!(round_trip(Dense::BFloat16, &[f32::from_bits(from)]), [to]);
    }
    let mut values = [f32::MAX];
    Dense::BFloat16.encode_rest(&mut values, dice(), 0, &mut [0; 2]);
    assert_eq!(values, [0.0]);
}

#[test]
fn stochastic_rounding_is_right_on_average() {
    const COUNT: usize = 1 << 16;
    for (dense, top) in
        [(Dense::Int8 { block: 256, stochastic: true }, 127.0), (Dense::Int4 { block: 64, stochastic: true }, 7.0)]
    {
        for x in [0.3f32, -0.77, 0.031, 0.999] {
            let values: Vec<f32> = (0..COUNT).map(|i| if i % 64 == 0 { 1.0 } else { x }).collect();
            let back = round_trip(dense, &values);
            let thrown = back.iter().enumerate().filter(|(i, _)| i % 64 != 0).map(|(_, y)| f64::from(*y));
            let (sum, count) = thrown.fold((0.0, 0.0), |(sum, count), y| (sum + y, count + 1.0));
            // Steps of at most 1.008/top; a deviation of half of one at most, and of 2^-16 of one for rounding in float32.
            let step = 1.008 / top;
            let limit = step * (6.0 * 0.5 / f64::sqrt(count) + 2f64.powi(-16));
            assert!((sum / count - f64::from(x)).abs() <= limit, "{dense:?}: {x} is {} on average", sum / count);
            assert!(back.iter().all(|y| f64::from(*y - x).abs() <= step * 1.001 || *y > 0.85), "{dense:?}: {x}");
        }
    }
}

#[test]
fn dice_are_thrown_for_places_in_the_array() {
    let dense = Dense::Int4 { block: 64, stochastic: true };
    let values = ramp(640, 2.0);
    let whole = payload_of(dense, &values);
    let (first, second) = values.split_at(192);
    let mut parts = payload_of(dense, first);
    let mut rest = vec![0; dense.payload_len(second.len())];
    dense.encode(second, dice(), 192, &mut rest);
    parts.extend(&rest);
    assert!(whole == parts);
    let mut other = vec![0; rest.len()];
    dense.encode(second, dice(), 0, &mut other);
    assert!(other != rest);
}

#[test]
fn payloads_of_neighbours_are_the_payload_of_both() {
    let values = ramp(5000, 1e4);
    for dense in all() {
        let whole = payload_of(dense, &values);
        let mut parts = Vec::new();
        let cut = dense.grain() * 2;
        for (n, part) in values.chunks(cut).enumerate() {
            let mut payload = vec![0; dense.payload_len(part.len())];
            dense.encode(part, dice(), (n * cut) as u64, &mut payload);
            parts.extend(payload);
        }
        assert!(whole == parts, "{dense:?}");
    }
}

#[test]
fn the_rest_is_what_the_payload_does_not_say() {
    let mut values = ramp(20_000, 5.0);
    values[77] = f32::INFINITY;
    values[19_999] = f32::NAN;
    for dense in all() {
        let payload = payload_of(dense, &values);
        let back = decoded(dense, &payload, values.len()).expect("what an encoder wrote");
        let mut rest = values.clone();
        let mut same = vec![0; payload.len()];
        dense.encode_rest(&mut rest, dice(), 0, &mut same);
        assert!(payload == same, "{dense:?}");
        for i in 0..values.len() {
            let right = if values[i].is_finite() { values[i] - back[i] } else { 0.0 };
            assert_eq!(rest[i].to_bits(), right.to_bits(), "{dense:?}: element {i}");
        }
    }
}

#[test]
fn decoding_adds_where_it_is_asked_to() {
    let values = ramp(1500, 9.0);
    for dense in all() {
        let payload = payload_of(dense, &values);
        let back = decoded(dense, &payload, values.len()).expect("what an encoder wrote");
        let mut sums = ramp(1500, 1.0);
        let right: Vec<f32> = sums.iter().zip(&back).map(|(sum, y)| sum + y).collect();
        dense.decode_add(&payload, &mut sums).expect("what an encoder wrote");
        assert_eq!(bits(&sums), bits(&right), "{dense:?}");
    }
}

#[test]
fn what_no_encoder_writes_is_refused() {
    let refused = |dense: Dense, payload: &[u8], count: usize, why: &str| {
        assert!(decoded(dense, payload, count).is_err(), "{dense:?}: {why}");
    };
    refused(Dense::Float16, &[0, 0, 0, 0x74, 0], 1, "a byte too many");
    refused(Dense::Float16, &[0xa4, 0, 0, 0x74], 1, "exponent 164");
    refused(Dense::Float16, &[0x8e, 0xff, 0, 0x74], 1, "exponent -114");
    refused(Dense::Float16, &[0x8f, 0xff, 0, 0x78], 1, "2^128");
    refused(Dense::Float16, &[0, 0, 0xff, 0x73], 1, "below 2^14");
    refused(Dense::Float16, &[0, 0, 1, 0x78], 1, "above 2^15");
    refused(Dense::Float16, &[1, 0, 0, 0], 1, "zeros with an exponent");
    refused(Dense::Float16, &[0, 0, 1, 0x7e, 0, 0x74], 2, "another NaN");
    refused(Dense::Float16, &[0, 0, 0, 0xfe, 0, 0x74], 2, "a negative NaN");
    refused(Dense::BFloat16, &[0xc1, 0x7f], 1, "another NaN");
    refused(Dense::BFloat16, &[0xc0, 0xff], 1, "a negative NaN");
    refused(INT8, &[0, 0, 0x80, 0x3f, 0x80], 1, "a NaN in a block of finite values");
    refused(INT8, &[0, 0, 0x80, 0x7f, 1], 1, "an infinite scale");
    refused(INT8, &[0, 0, 0x80, 0xff, 127], 1, "an infinite scale, marked");
    refused(INT8, &[1, 0, 0xc0, 0x7f, 1], 1, "a scale of NaN");
    refused(INT8, &[0, 0, 0x80, 0x7e, 1], 1, "a scale that overflows");
    refused(INT8, &[0, 0, 0x40, 0, 1], 1, "a subnormal scale");
    refused(INT8, &[0, 0, 0, 0, 1], 1, "zeros with a code");
    refused(INT8, &[0, 0, 0, 0x80, 127, 1], 2, "zeros with a code, marked");
    refused(INT8, &[0, 0, 0x80, 0xbf, 126], 1, "a mark for nothing");
    refused(INT4, &[0x80, 0x3f, 0x08], 1, "a NaN in a block of finite values");
    refused(INT4, &[0x80, 0x3f, 0x80], 2, "a NaN in a block of finite values");
    refused(INT4, &[0x80, 0x3f, 0x17], 1, "a code behind the end");
    refused(INT4, &[0x80, 0xbf, 0x16], 2, "a mark for nothing");
}
