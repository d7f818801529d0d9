//! A log's summary of a write is bounded, and covers the whole write.

use bytes::Bytes;

use super::{Mutation, Touched};
use crate::limits::{LOG_ENTRY_KEYS_BYTES_MAX, OBJECT_BYTES_MAX};

fn set(key: String) -> Mutation {
    Mutation::OmapSet { key: key.into(), value: Bytes::new() }
}

#[test]
fn ranges_that_meet_are_one() {
    let ranges = vec![(8, 2), (1, 3), (4, 1), (9, 4), (20, 1), (0, 1), (11, 1)];
    let touched = Touched { block_ranges: ranges, ..Touched::default() }.for_log();
    assert_eq!(touched.block_ranges, [(0, 5), (8, 5), (20, 1)]);
}

#[test]
fn a_write_of_any_number_of_pieces_takes_few_bytes() {
    let blocks = OBJECT_BYTES_MAX / 4096;
    let zero = |number: u64| Mutation::Zero { offset: number * 2 % blocks * 4096, length: 4096 };
    let touched = Touched::by(&(0..16_384).map(zero).collect::<Vec<_>>()).for_log();
    assert_eq!(touched.block_ranges.len() as u64, blocks / 2);
    assert!(!touched.whole && touched.memory_bytes() <= 4 << 10);

    let few = Touched::by(&(0..20).map(|number| set(format!("key{number}"))).collect::<Vec<_>>());
    assert_eq!(few.clone().for_log(), few);
    let many = Touched::by(&(0..2_000).map(|number| set(format!("key{number}"))).collect::<Vec<_>>());
    assert!(many.memory_bytes() > LOG_ENTRY_KEYS_BYTES_MAX);
    assert_eq!(many.for_log(), Touched { whole: true, ..Touched::default() });
}
