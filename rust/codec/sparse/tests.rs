//! Payloads as a whole: what comes back, what is refused, what is added.

use proptest::prelude::*;

use super::*;

fn coded(picks: &[u32], values: &[f32], count: usize, how: Values) -> Vec<u8> {
    let mut payload = vec![];
    encode(picks, values, count, how, &mut payload);
    payload
}

type Decoded = Result<(Vec<u32>, Vec<f32>), Malformed>;

fn decoded(payload: &[u8], count: usize, how: Values) -> Decoded {
    let (mut picks, mut values) = (vec![1; 3], vec![1.0; 3]);
    decode(payload, count, how, &mut picks, &mut values).map(|()| (picks, values))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn float32_values_travel_as_they_are() {
    let (picks, values) = ([1, 4, 900], [1.5, f32::from_bits(0xffc0_0007), -0.0]);
    let payload = coded(&picks, &values, 1000, Values::Float32);
    let expected = [&[0, 3, 0, 0, 0, 1, 2, 0xff, 0x06][..], &[0, 0, 0xc0, 0x3f], &[7, 0, 0xc0, 0xff], &[0, 0, 0, 0x80]];
    assert_eq!(payload, expected.concat());
    let (same_picks, same_values) = decoded(&payload, 1000, Values::Float32).expect("as encoded");
    assert_eq!((same_picks, bits(&same_values)), (picks.to_vec(), bits(&values)));
}

#[test]
fn a_payload_goes_behind_what_is_there() {
    let mut payload = vec![8, 9];
    encode(&[2], &[0.5], 10, Values::Float32, &mut payload);
    assert_eq!(payload, [&[8, 9][..], &coded(&[2], &[0.5], 10, Values::Float32)].concat());
}

#[test]
fn values_that_are_too_few_or_too_many_are_refused() {
    let payload = coded(&[2, 5], &[0.5, 0.25], 10, Values::Float32);
    let refused = Err(Malformed("another number of values than of picks"));
    assert_eq!(decoded(&payload[..payload.len() - 1], 10, Values::Float32), refused);
    assert_eq!(decoded(&[&payload[..], &[0]].concat(), 10, Values::Float32), refused);
}

#[test]
fn elements_are_taken_put_and_added() {
    let (picks, mut values, mut array) = ([0, 2, 3], vec![], [1.0, 2.0, 3.0, 4.0]);
    gather(&picks, &array, &mut values);
    assert_eq!(values, [1.0, 3.0, 4.0]);
    add(&picks, &[10.0, 20.0, 30.0], &mut array);
    assert_eq!(array, [11.0, 2.0, 23.0, 34.0]);
    scatter(&picks, &values, &mut array);
    assert_eq!(array, [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn the_largest_of_each_add_up() {
    let mut sum = [0.0; 4];
    for array in [[9.0, 0.0, 0.0, 1.0], [0.0, 8.0, 0.0, 1.0]] {
        let (mut picks, mut values) = (vec![], vec![]);
        top_k(&array, 1, &mut picks);
        gather(&picks, &array, &mut values);
        let (picks, values) =
            decoded(&coded(&picks, &values, 4, Values::Float32), 4, Values::Float32).expect("as encoded");
        add(&picks, &values, &mut sum);
    }
    assert_eq!(sum, [9.0, 8.0, 0.0, 0.0]);
}

#[test]
fn rounded_values_are_those_of_the_dense_codec_and_the_rest_is_known() {
    let picks: Vec<u32> = (0..700).map(|i| i * i / 3 + i).collect();
    let mut values: Vec<f32> = (0..700).map(|i| (i as f32 - 350.0) * 0.37 + 0.01).collect();
    (values[5], values[300]) = (f32::NAN, f32::NEG_INFINITY);
    for (how, dense) in
        [(Values::Float16, Dense::Float16), (Values::Int8, Dense::Int8 { block: 256, stochastic: false })]
    {
        let payload = coded(&picks, &values, 1 << 20, how);
        let mut expected = vec![0; dense.payload_len(700)];
        dense.encode(&values, Dice::new(&[3]), 0, &mut expected);
        assert_eq!(payload[payload.len() - expected.len()..], expected, "{how:?}");
        let (same_picks, arrived) = decoded(&payload, 1 << 20, how).expect("as encoded");
        let mut rounded = vec![0.0; 700];
        dense.decode(&expected, &mut rounded).expect("as encoded");
        assert_eq!((same_picks, bits(&arrived)), (picks.clone(), bits(&rounded)), "{how:?}");

        let (mut rest, mut same) = (values.clone(), vec![]);
        encode_rest(&picks, &mut rest, 1 << 20, how, &mut same);
        assert_eq!(same, payload, "{how:?}");
        let left = values.iter().zip(&arrived).map(|(x, there)| if x.is_finite() { x - there } else { 0.0 });
        assert_eq!(rest, left.collect::<Vec<_>>(), "{how:?}");
        assert!(rest.iter().any(|x| *x != 0.0), "{how:?}");
    }
    let (mut rest, mut same) = (values.clone(), vec![]);
    encode_rest(&picks, &mut rest, 1 << 20, Values::Float32, &mut same);
    assert_eq!((same, rest), (coded(&picks, &values, 1 << 20, Values::Float32), vec![0.0; 700]));
}

const HOWS: [Values; 3] = [Values::Float32, Values::Float16, Values::Int8];

/// Places of any density, and a value for each.
fn supports() -> impl Strategy<Value = (Vec<u32>, Vec<f32>, usize)> {
    (1_usize..3000, any::<u64>(), 0.0..=1.0).prop_map(|(count, seed, share)| {
        let mut picks = vec![];
        random_k(count, (count as f64 * share) as usize, crate::codec::Dice::new(&[seed]), &mut picks);
        let values = picks.iter().map(|pick| *pick as f32 - 0.25 * count as f32).collect();
        (picks, values, count)
    })
}

proptest! {
    #[test]
    fn a_payload_comes_back_and_is_no_longer_than_promised((picks, values, count) in supports()) {
        for how in HOWS {
            let payload = coded(&picks, &values, count, how);
            prop_assert!(payload.len() <= max_len(count, picks.len(), how));
            let (same_picks, arrived) = decoded(&payload, count, how).expect("as encoded");
            prop_assert_eq!(&same_picks, &picks);
            if how == Values::Float32 {
                prop_assert_eq!(&arrived, &values);
            }
            prop_assert_eq!(arrived.len(), values.len());
        }
    }

    #[test]
    fn damaged_payloads_decode_or_are_refused(
        (picks, values, count) in supports(),
        how in prop::sample::select(&HOWS[..]),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut payload = coded(&picks, &values, count, how);
        prop_assert!(decoded(&payload[..cut.index(payload.len())], count, how).is_err());
        let place = at.index(payload.len());
        payload[place] = byte;
        if let Ok((picks, values)) = decoded(&payload, count, how) {
            prop_assert_eq!(picks.len(), values.len());
            prop_assert!(ascends_below(&picks, count));
            if how == Values::Float32 {
                prop_assert_eq!(coded(&picks, &values, count, how), payload);
            }
        }
    }

    /// Small numbers of picks, so that many lengths fit.
    #[test]
    fn any_bytes_decode_or_are_refused(
        how in prop::sample::select(&HOWS[..]),
        claimed in 0_u8..4,
        body in prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..24),
        count in 0_usize..5000,
    ) {
        let payload = [&[0, claimed, 0, 0, 0][..], &body].concat();
        if let Ok((picks, values)) = decoded(&payload, count, how) {
            prop_assert_eq!((picks.len(), values.len()), (claimed.into(), claimed.into()));
            prop_assert!(ascends_below(&picks, count));
        }
    }
}

fn ascends_below(picks: &[u32], count: usize) -> bool {
    picks.windows(2).all(|pair| pair[0] < pair[1]) && picks.last().is_none_or(|last| (*last as usize) < count)
}
