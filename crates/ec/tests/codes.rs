//! Guarantees of a code: any k shards restore the others, and parity can be brought up to date.

use atoll_ec::{Code, CodeError, xor_into};
use proptest::prelude::*;

fn encode(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xaa; data[0].len()]; code.parity_shards()];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut outputs);
    parity
}

fn all_shards(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    [data.to_vec(), encode(code, data)].concat()
}

fn reconstruct(code: &Code, available: &[(usize, &[u8])], wanted: &[usize]) -> Result<Vec<Vec<u8>>, CodeError> {
    let mut output = vec![vec![0x55; available[0].1.len()]; wanted.len()];
    let mut outputs: Vec<&mut [u8]> = output.iter_mut().map(Vec::as_mut_slice).collect();
    code.reconstruct(available, wanted, &mut outputs)?;
    Ok(output)
}

fn some_data(data_shards: usize, length: usize) -> Vec<Vec<u8>> {
    (0..data_shards)
        .map(|shard| (0..length).map(|at| (((at + 1) * (shard * 7 + 3)) >> 1) as u8).collect())
        .collect()
}

/// Every shard that is not available must come back from those that are.
fn assert_reconstructs(code: &Code, shards: &[Vec<u8>], lost: impl Fn(usize) -> bool) {
    let available: Vec<(usize, &[u8])> =
        shards.iter().map(Vec::as_slice).enumerate().filter(|(index, _)| !lost(*index)).collect();
    let wanted: Vec<usize> = (0..shards.len()).filter(|index| lost(*index)).collect();
    let output = reconstruct(code, &available, &wanted).expect("enough is left");
    for (index, bytes) in wanted.iter().zip(output) {
        assert!(bytes == shards[*index], "shard {index} of {code:?} without {wanted:?}");
    }
}

fn every_code() -> impl Iterator<Item = Code> {
    (2..=16).flat_map(|k| (1..=4).map(move |m| Code::new(k, m).expect("a code that exists")))
}

#[test]
fn every_loss_that_a_code_allows_is_made_good() {
    for code in every_code() {
        let shards = all_shards(&code, &some_data(code.data_shards(), 133));
        for lost in 0..1_u32 << code.shards() {
            if lost.count_ones() as usize <= code.parity_shards() {
                assert_reconstructs(&code, &shards, |index| lost >> index & 1 == 1);
            }
        }
    }
}

#[test]
fn one_parity_shard_is_the_xor_of_the_data() {
    let data = some_data(5, 1000);
    let mut sum = vec![0; 1000];
    data.iter().for_each(|shard| xor_into(&mut sum, shard));
    assert_eq!(encode(&Code::new(5, 1).unwrap(), &data), [sum]);
}

#[test]
fn a_shard_that_is_there_may_be_wanted_and_one_may_be_brought_twice() {
    let code = Code::new(3, 2).unwrap();
    let shards = all_shards(&code, &some_data(3, 100));
    let available: Vec<(usize, &[u8])> = [4, 1, 4, 3].map(|index| (index, shards[index].as_slice())).to_vec();
    let output = reconstruct(&code, &available, &[1, 0, 4, 0]).unwrap();
    assert_eq!(output, [1, 0, 4, 0].map(|index| shards[index].clone()));
    assert_eq!(reconstruct(&code, &available, &[]), Ok(vec![]));
}

#[test]
fn empty_shards_have_empty_parity() {
    for code in every_code() {
        let shards = all_shards(&code, &some_data(code.data_shards(), 0));
        assert!(shards.iter().all(Vec::is_empty));
        assert_reconstructs(&code, &shards, |index| index < code.parity_shards());
        code.update(0, &[], 0, &mut []);
    }
}

#[test]
fn numbers_that_no_code_has_are_refused() {
    for k in [0, 1, 17, usize::MAX] {
        assert_eq!(Code::new(k, 2).unwrap_err(), CodeError::DataShards(k));
    }
    for m in [0, 5, usize::MAX] {
        assert_eq!(Code::new(4, m).unwrap_err(), CodeError::ParityShards(m));
    }
    let shards = Code::new(16, 4).map(|code| (code.data_shards(), code.parity_shards(), code.shards()));
    assert_eq!(shards, Ok((16, 4, 20)));
}

#[test]
fn impossible_reconstructions_are_refused() {
    let code = Code::new(2, 2).unwrap();
    let shard = [1, 2, 3].as_slice();
    let too_few = CodeError::TooFewShards { available: 1, needed: 2 };
    assert_eq!(reconstruct(&code, &[(3, shard), (3, shard)], &[0]), Err(too_few));
    let no_such = CodeError::NoSuchShard { index: 4, shards: 4 };
    assert_eq!(reconstruct(&code, &[(0, shard), (1, shard), (4, shard)], &[2]), Err(no_such.clone()));
    assert_eq!(reconstruct(&code, &[(0, shard), (1, shard)], &[4]), Err(no_such));
}

/// A code, its data, and a change of one data shard.
fn change() -> impl Strategy<Value = (Code, Vec<Vec<u8>>, usize, Vec<u8>)> {
    let length = prop_oneof![1..300_usize, 1..10_000_usize];
    (2..=16_usize, 1..=4_usize, length).prop_flat_map(|(k, m, length)| {
        let shard = || proptest::collection::vec(any::<u8>(), length);
        let data = proptest::collection::vec(shard(), k);
        (Just(Code::new(k, m).expect("a code that exists")), data, 0..k, shard())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shards_of_any_length_come_back((code, data, _, _) in change(), order in any::<u64>()) {
        let shards = all_shards(&code, &data);
        // Any m shards: those that come first in an order that `order` decides.
        let mut ranked: Vec<usize> = (0..shards.len()).collect();
        ranked.sort_by_key(|index| (order ^ (*index as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert_reconstructs(&code, &shards, |index| ranked[..code.parity_shards()].contains(&index));
    }

    #[test]
    fn an_update_equals_a_full_encoding((code, mut data, changed, new) in change()) {
        let mut parity = encode(&code, &data);
        let mut delta = new.clone();
        xor_into(&mut delta, &data[changed]);
        for (index, parity) in parity.iter_mut().enumerate() {
            code.update(changed, &delta, index, parity);
        }
        data[changed] = new;
        prop_assert!(parity == encode(&code, &data));
    }
}
