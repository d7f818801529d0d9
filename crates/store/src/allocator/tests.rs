use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32, Zone),
    Release { skip: usize, count: usize },
    ReleaseRun { skip: usize },
    Claim { offset: u32, count: u32 },
    FinishClaims,
}

fn any_step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![6 => 1u32..40, 2 => 40u32..2_000, 1 => 2_000u32..12_000];
    let zone = prop_oneof![3 => Just(Zone::Data), 1 => Just(Zone::Metadata)];
    prop_oneof![
        5 => (count, zone).prop_map(|(count, zone)| Step::Allocate(count, zone)),
        2 => (0usize..5_000, 1usize..200).prop_map(|(skip, count)| Step::Release { skip, count }),
        2 => (0usize..40).prop_map(|skip| Step::ReleaseRun { skip }),
        1 => (0u32..30_000, 0u32..500).prop_map(|(offset, count)| Step::Claim { offset, count }),
        1 => Just(Step::FinishClaims),
    ]
}

/// Sizes around those of words, groups and zones.
fn any_block_count() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 15, 16, 17, 63, 64, 65, 4_095, 4_096, 4_097, 4_369, 4_370, 8_192, 65_536, 69_906];
    prop_oneof![proptest::sample::select(edges.to_vec()), 1u64..30_000]
}

const FIRST: u32 = 10;

proptest! {
    #[test]
    fn allocation_matches_a_set(
        block_count in any_block_count(),
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let mut allocator = Allocator::new(FIRST.into(), block_count);
        let end = FIRST + block_count as u32;
        let split = end - block_count as u32 / 16;
        let mut used = BTreeSet::new();
        let mut allocated: Vec<Run> = Vec::new();
        let mut has_claimed = false;
        for step in steps {
            let free_count = block_count as u32 - used.len() as u32;
            match step {
                Step::Allocate(count, zone) => {
                    let own = match zone { Zone::Data => FIRST..split, Zone::Metadata => split..end };
                    let own_free = own.len() - used.range(own.clone()).count();
                    let Some(runs) = allocator.allocate(count, zone) else {
                        prop_assert!(count > free_count, "refused with enough free");
                        continue;
                    };
                    let blocks: Vec<u32> = runs.iter().flat_map(|&(b, n)| b..b + n).collect();
                    prop_assert_eq!(blocks.len(), count as usize);
                    let from_own = blocks.iter().filter(|block| own.contains(block)).count();
                    if own_free >= own.len() / 32 {
                        prop_assert_eq!(from_own, own_free.min(count as usize), "spills only when full");
                    }
                    for block in blocks {
                        prop_assert!((FIRST..end).contains(&block));
                        prop_assert!(used.insert(block), "given out twice");
                    }
                    allocated.extend(runs);
                }
                Step::Release { skip, count } => {
                    for block in used.iter().copied().skip(skip).take(count).collect::<Vec<_>>() {
                        used.remove(&block);
                        allocator.release(block);
                    }
                    allocated.retain(|&(first, count)| used.range(first..first + count).count() == count as usize);
                }
                Step::ReleaseRun { skip } => {
                    if skip < allocated.len() {
                        let (first, count) = allocated.swap_remove(skip);
                        (first..first + count).for_each(|block| assert!(used.remove(&block)));
                        allocator.release_run(first, count);
                    }
                }
                Step::FinishClaims => {
                    allocator.finish_claims();
                    has_claimed = false;
                }
                Step::Claim { offset, count } => {
                    let blocks = offset..offset + count;
                    let is_inside = blocks.is_empty() || (blocks.start >= FIRST && blocks.end <= end);
                    let is_free = is_inside && used.range(blocks.clone()).next().is_none();
                    prop_assert_eq!(allocator.claim_run(offset, count), is_free);
                    if is_free {
                        used.extend(blocks);
                        has_claimed = true;
                    }
                }
            }
            prop_assert_eq!(allocator.free_count(), block_count as u32 - used.len() as u32);
            allocator.data.check(has_claimed);
            allocator.metadata.check(has_claimed);
        }
        prop_assert_eq!(allocator.block_count(), block_count as u32);
        for block in FIRST..end {
            prop_assert_eq!(allocator.is_used(block), Some(used.contains(&block)));
        }
        prop_assert_eq!(allocator.is_used(FIRST - 1), None);
        prop_assert_eq!(allocator.is_used(end), None);
    }

    #[test]
    fn the_last_free_blocks_are_found(block_count in any_block_count(), seed in any::<u32>()) {
        let mut allocator = Allocator::new(FIRST.into(), block_count);
        let runs = allocator.allocate(block_count as u32, Zone::Metadata).expect("all are free");
        prop_assert!(runs.len() <= 2, "{runs:?}");
        prop_assert_eq!(allocator.allocate(1, Zone::Data), None);
        if block_count > 0 {
            let block = FIRST + seed % block_count as u32;
            allocator.release(block);
            prop_assert_eq!(allocator.allocate(2, Zone::Data), None);
            prop_assert_eq!(allocator.allocate(1, Zone::Data), Some(vec![(block, 1)]));
        }
    }
}

#[test]
fn small_requests_fill_holes_and_leave_long_runs_alone() {
    let mut allocator = Allocator::new(0, 16 * 4096);
    let everything = allocator.allocate(15 * 4096, Zone::Data).expect("all are free");
    assert_eq!(everything, [(0, 15 * 4096)]);
    allocator.release_run(4096 + 100, 1024);
    allocator.release_run(3 * 4096 + 7, 3);
    allocator.release_run(9 * 4096 + 7, 1);
    assert_eq!(allocator.allocate(1, Zone::Data), Some(vec![(9 * 4096 + 7, 1)]));
    assert_eq!(allocator.allocate(2, Zone::Data), Some(vec![(3 * 4096 + 7, 2)]));
    assert_eq!(allocator.allocate(1024, Zone::Data), Some(vec![(4096 + 100, 1024)]));
}

#[test]
fn a_request_that_fits_nowhere_takes_the_longest_runs() {
    let mut allocator = Allocator::new(0, 16 * 4096);
    allocator.allocate(15 * 4096, Zone::Data).expect("all are free");
    for first in [10, 5_000, 9_000] {
        (0..200).for_each(|index| allocator.release(first + 2 * index));
        allocator.release_run(first + 1_000, 512);
    }
    let runs = allocator.allocate(1_300, Zone::Data).expect("enough are free");
    assert_eq!(runs, [(1_010, 512), (6_000, 512), (10_000, 276)]);
}

#[test]
fn a_nearly_full_part_is_spared_when_it_has_only_holes() {
    let mut allocator = Allocator::new(0, 16 * 4096);
    allocator.allocate(15 * 4096, Zone::Data).expect("all are free");
    (0..100).for_each(|index| allocator.release(7 * index));
    assert_eq!(allocator.allocate(1, Zone::Data), Some(vec![(0, 1)]));
    assert_eq!(allocator.allocate(64, Zone::Data), Some(vec![(15 * 4096, 64)]));
    assert_eq!(allocator.allocate(4096 - 64, Zone::Metadata), Some(vec![(15 * 4096 + 64, 4096 - 64)]));
    assert_eq!(allocator.allocate(3, Zone::Data), Some(vec![(7, 1), (14, 1), (21, 1)]));
    assert_eq!(allocator.allocate(1, Zone::Metadata), Some(vec![(28, 1)]));
}

#[test]
#[should_panic(expected = "released twice")]
fn a_double_release_is_noticed() {
    let mut allocator = Allocator::new(0, 100);
    assert!(allocator.claim_run(10, 2));
    allocator.release(10);
    allocator.release_run(10, 2);
}

#[test]
#[should_panic(expected = "only allocated blocks")]
fn a_release_outside_is_noticed() {
    Allocator::new(1, 100).release(101);
}

/// The end of a region is a number of 32 bits, too.
#[test]
fn the_largest_block_numbers_are_usable() {
    let mut allocator = Allocator::new(u64::from(u32::MAX) - 1000, 1000);
    assert_eq!(allocator.allocate(1000, Zone::Data), Some(vec![(u32::MAX - 1000, 1000)]));
    assert_eq!(allocator.is_used(u32::MAX), None);
    allocator.release(u32::MAX - 1);
    assert!(!allocator.claim_run(u32::MAX - 1, 2));
    assert!(!allocator.claim_run(u32::MAX - 1, u32::MAX));
    assert!(allocator.claim(u32::MAX - 1));
}
