//! Dense codecs on any values and on any bytes: the same bits on every instruction set, errors within their bounds, no panic.

use arx::codec::{Dense, Dice, Malformed};
use arx::kernels::Isa;
use proptest::prelude::*;

const INT8: Dense = Dense::Int8 { block: 256, stochastic: false };
const INT4: Dense = Dense::Int4 { block: 64, stochastic: false };

/// Every codec, with blocks that fill vectors, and such that do not.
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

fn payload_of(dense: Dense, isa: Isa, values: &[f32], start: u64) -> Vec<u8> {
    let mut payload = vec![0x55; dense.payload_len(values.len())];
    dense.encode_with(isa, values, dice(), start, &mut payload);
    payload
}

fn decoded(dense: Dense, isa: Isa, payload: &[u8], count: usize) -> Result<Vec<f32>, Malformed> {
    let mut values = vec![-1.5; count];
    dense.decode_with(isa, payload, &mut values).map(|()| values)
}

fn round_trip(dense: Dense, values: &[f32]) -> Vec<f32> {
    let isa = Isa::detected();
    decoded(dense, isa, &payload_of(dense, isa, values, 0), values.len()).expect("what an encoder wrote")
}

/// As bits, in which -0.0 is no 0.0 and NaN is one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn largest_of(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |top, x| top.max(f64::from(x.abs())))
}

/// Any float32: of the usual size, or of any, and now and then something special.
fn any_value() -> impl Strategy<Value = f32> {
    let special = prop_oneof![
        Just(0.0f32),
        Just(-0.0),
        Just(f32::MAX),
        Just(f32::MIN),
        Just(f32::MIN_POSITIVE),
        Just(1e-40),
        Just(-1e-45),
        Just(f32::INFINITY),
        Just(f32::NEG_INFINITY),
        Just(f32::NAN),
        Just(f32::from_bits(0xff81_2345))
    ];
    prop_oneof![8 => -10.0f32..10.0, 4 => any::<u32>().prop_map(f32::from_bits), 1 => special]
}

/// A finite value, in an array that spans few powers of two or all.
fn finite_values() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![4 => -1.0f32..1.0, 1 => (any::<u32>()).prop_map(|bits| {
        let x = f32::from_bits(bits);
        if x.is_finite() { x } else { f32::from_bits(bits & 0xbfff_ffff) }
    })];
    let power = prop_oneof![Just(0), -149i32..127];
    (prop::collection::vec(value, 1..700), power, any::<bool>()).prop_map(|(values, power, scale)| {
        let scaled = |x: f32| (f64::from(x) * 2f64.powi(power)) as f32;
        let small = values.iter().map(|x| if scale && scaled(*x).is_finite() { scaled(*x) } else { *x });
        small.collect()
    })
}

/// Whether NaN is the canonical one, and finite all that is in blocks without a mark.
fn only_marked_is_special(dense: Dense, payload: &[u8], values: &[f32]) -> bool {
    let sign = match dense {
        Dense::Int8 { .. } => Some(3),
        Dense::Int4 { .. } => Some(1),
        Dense::Float16 | Dense::BFloat16 => None,
    };
    let payloads = payload.chunks(dense.payload_len(dense.grain()));
    values.chunks(dense.grain()).zip(payloads).all(|(values, payload)| {
        let marked = sign.is_none_or(|sign| payload[sign] & 0x80 != 0);
        values.iter().all(|x| x.is_finite() || (marked && (!x.is_nan() || x.to_bits() == f32::NAN.to_bits())))
    })
}

proptest! {
    #[test]
    fn every_instruction_set_writes_and_reads_the_same(
        values in prop::collection::vec(any_value(), 0..1400), start in any::<u64>()
    ) {
        let start = start >> 1;
        for dense in all() {
            let payload = payload_of(dense, Isa::Scalar, &values, start);
            let back = decoded(dense, Isa::Scalar, &payload, values.len()).expect("what an encoder wrote");
            for isa in Isa::available() {
                prop_assert!(payload_of(dense, isa, &values, start) == payload, "{:?} on {}", dense, isa);
                let read = decoded(dense, isa, &payload, values.len()).expect("what an encoder wrote");
                prop_assert!(bits(&read) == bits(&back), "{:?} on {}", dense, isa);
            }
            for (x, y) in values.iter().zip(&back).filter(|(x, _)| !x.is_finite()) {
                prop_assert_eq!(y.to_bits(), if x.is_nan() { f32::NAN } else { *x }.to_bits());
            }
        }
    }

    /// Against float64: half a step, and the rounding of the scale, its inverse and the product to float32.
    #[test]
    fn quantised_values_are_within_half_a_step(values in finite_values()) {
        for (dense, top, above) in [(INT8, 127.0, 0.0), (INT4, 7.0, 2f64.powi(-7))] {
            let back = round_trip(dense, &values);
            for (values, back) in values.chunks(dense.grain()).zip(back.chunks(dense.grain())) {
                let largest = largest_of(values);
                let step = largest / top * (1.0 + above) * (1.0 + 2f64.powi(-23));
                let lost = largest < top * 2f64.powi(-126) * 1.000_001;
                for (x, y) in values.iter().zip(back) {
                    let error = (f64::from(*x) - f64::from(*y)).abs();
                    let limit = step * (0.5 + top * 2f64.powi(-22));
                    prop_assert!(error <= limit || (lost && *y == 0.0), "{:?}: {:e} as {:e}", dense, x, y);
                }
            }
        }
    }

    #[test]
    fn halves_are_within_half_a_step(values in finite_values()) {
        let largest = largest_of(&values);
        for (x, y) in values.iter().zip(round_trip(Dense::Float16, &values)) {
            let limit = f64::max(f64::from(x.abs()) * 2f64.powi(-11), largest * 2f64.powi(-39));
            prop_assert!((f64::from(*x) - f64::from(y)).abs() <= limit, "{:e} came back as {:e}", x, y);
        }
    }

    /// Bytes that are almost a payload, and such that are not at all.
    #[test]
    fn any_bytes_decode_or_are_refused(
        values in prop::collection::vec(any_value(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        noise in prop::collection::vec(any::<u8>(), 700),
        short in 0usize..700,
    ) {
        for dense in all() {
            let mut payload = payload_of(dense, Isa::detected(), &values, 0);
            for (at, byte) in changes.iter().filter(|_| !values.is_empty()) {
                let at = at.index(payload.len());
                payload[at] = *byte;
            }
            for count in [0, 1, values.len(), values.len() + 1] {
                let len = dense.payload_len(count);
                for bytes in [&payload[..], &noise[..len.min(700)], &noise[..short]] {
                    let read = decoded(dense, Isa::detected(), bytes, count);
                    let scalar = decoded(dense, Isa::Scalar, bytes, count);
                    prop_assert_eq!(read.as_deref().map(bits), scalar.as_deref().map(bits));
                    prop_assert!(bytes.len() == len || read.is_err());
                    prop_assert!(read.map_or(true, |read| only_marked_is_special(dense, bytes, &read)), "{:?}", dense);
                }
            }
        }
    }
}

/// Some libraries make the whole process do so.
#[cfg(target_arch = "x86_64")]
mod flushing {
    use std::arch::asm;
    use std::hint::black_box;

    use super::*;

    /// Control and status of vector arithmetic: results and operands that are subnormal become zero.
    const FLUSH: u32 = 0x8040;

    fn set_control(clear: u32, set: u32) {
        let mut control = 0u32;
        // SAFETY: reads and writes a register of this thread by way of a local; the caller puts it back as it was.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &mut control);
            control = (control & !clear) | set;
            asm!("ldmxcsr [{}]", in(reg) &control);
        }
    }

    fn flushing<T>(job: impl FnOnce() -> T) -> T {
        set_control(0, FLUSH);
        let result = job();
        set_control(FLUSH, 0);
        result
    }

    #[test]
    fn payloads_and_values_are_the_same_where_subnormal_numbers_are_flushed() {
        assert_eq!(flushing(|| black_box(black_box(1e-40f32) * black_box(1.0))), 0.0);
        for power in (-149..128).chain([-126, -62]) {
            let sized = |i: u32| f64::from(i * 97 % 1000) / 1000.0 * 2f64.powi(power);
            let mut values: Vec<f32> = (0..700).map(|i| if i % 2 == 0 { sized(i) } else { -sized(i) } as f32).collect();
            values[100..110].copy_from_slice(&[1e-40, -1e-45, 1.2e-38, -0.0, 0.0, 1e-39, -1e-42, 2e-38, 3e-44, -1e-38]);
            for (dense, isa) in
                all().into_iter().flat_map(|dense| Isa::available().into_iter().map(move |isa| (dense, isa)))
            {
                let payload = payload_of(dense, isa, &values, 0);
                let flushed = flushing(|| payload_of(dense, isa, &values, 0));
                assert!(flushed == payload, "{dense:?} on {isa} at 2^{power}");
                let back = decoded(dense, isa, &payload, values.len()).expect("what an encoder wrote");
                let flushed = flushing(|| decoded(dense, isa, &payload, values.len())).expect("what an encoder wrote");
                assert!(bits(&flushed) == bits(&back), "{dense:?} on {isa} at 2^{power}");
            }
        }
    }
}
