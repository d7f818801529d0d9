//! The tree against a `BTreeMap`, with freezes, writes, evictions and cold reads mixed in.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::crc32c;
use atoll_types::{ObjectName, PgId, PoolId};
use proptest::prelude::*;

use super::page::{Page, PageKind};
use super::pages::{Cold, Location, PageError, Pages};
use super::tree::Tree;
use super::{Bitmap, BlockMeta, Changes, Chunk, Metadata, ObjectInfo, Unready, keys};

/// A tree whose pages are written to and loaded from a map.
struct Harness {
    tree: Tree,
    device: BTreeMap<u32, BlockBuffer>,
    next_block: u32,
    frozen: Vec<u32>,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
    frozen_model: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Harness {
    fn new() -> Self {
        let mut pages = Pages::new();
        pages.add(super::pages::Location::default());
        pages.create_as(0, PageKind::Leaf);
        Harness {
            tree: Tree::new(pages, 0),
            device: BTreeMap::new(),
            next_block: 1,
            frozen: Vec::new(),
            model: BTreeMap::new(),
            frozen_model: BTreeMap::new(),
        }
    }

    /// Repeats an operation until all pages that it needs are loaded.
    fn warm<T>(&mut self, mut operation: impl FnMut(&mut Tree) -> Result<T, PageError>) -> T {
        loop {
            match operation(&mut self.tree) {
                Ok(value) => return value,
                Err(PageError::Contradiction { page }) => panic!("page {page} is sound"),
                Err(PageError::Cold(Cold(pages))) => {
                    for number in pages {
                        assert!(self.tree.pages.start_loading(number));
                        let block = self.device[&self.tree.pages.location(number).block].clone();
                        assert!(self.tree.pages.loaded(number, block));
                    }
                }
            }
        }
    }

    /// Returns the state after pages had been written with other content, under checksums that fit.
    fn reopened_with(mut self, change: impl Fn(u32, &mut Page)) -> Harness {
        self.freeze();
        self.write_all();
        let mut pages = Pages::new();
        for number in 0..self.tree.pages.count() {
            let location = self.tree.pages.location(number);
            let mut page = Page::from_block(self.device[&location.block].clone(), number).unwrap();
            change(number, &mut page);
            let block = BlockBuffer::from_bytes(page.bytes());
            pages.add(Location { crc: crc32c(block.as_slice()), ..location });
            self.device.insert(location.block, block);
        }
        Harness { tree: Tree::new(pages, 0), device: self.device, ..Harness::new() }
    }

    fn load(&mut self, number: u32) {
        let block = self.device[&self.tree.pages.location(number).block].clone();
        assert!(self.tree.pages.loaded(number, block), "page {number} is sound by itself");
    }

    fn freeze(&mut self) {
        self.write_all();
        let (frozen, given_up) = self.tree.pages.freeze();
        self.frozen = frozen;
        self.frozen_model = self.model.clone();
        for (_, location) in given_up {
            self.device.remove(&location.block).unwrap();
        }
    }

    fn write_one(&mut self) -> bool {
        let Some(number) = self.frozen.pop() else { return false };
        if self.tree.pages.is_to_be_written(number) {
            let mut block = BlockBuffer::zeroed(1);
            let old = self.tree.pages.write_frozen(number, self.next_block, block.as_mut_slice());
            if old.block != 0 {
                self.device.remove(&old.block).unwrap();
            }
            self.device.insert(self.next_block, block);
            self.next_block += 1;
            self.tree.pages.written(number);
        }
        true
    }

    fn write_all(&mut self) {
        while self.write_one() {}
    }

    /// Checks the frozen state, as a reader of the device alone would find it.
    fn check_device(&mut self) {
        self.write_all();
        let mut pages = Pages::new();
        for number in 0..self.tree.pages.count() {
            pages.add(self.tree.pages.location(number));
        }
        let tree = Tree::new(pages, 0);
        let mut reopened = Harness { tree, ..Harness::new() };
        reopened.device = self.device.clone();
        if reopened.tree.pages.is_live(0) {
            assert_eq!(reopened.all(), self.frozen_model);
        }
    }

    fn all(&mut self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.warm(|tree| {
            let mut found = BTreeMap::new();
            tree.scan(b"", &[0xff; 40], |key, value| {
                found.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, usize, bool),
    Remove(u16),
    RemoveRange(u16, u16),
    Get(u16),
    Freeze,
    WriteSome(u8),
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0u16..400, 0usize..1024, any::<bool>()).prop_map(|(k, n, long)| Step::Put(k, n, long)),
        6 => (0u16..400).prop_map(Step::Remove),
        1 => (0u16..400, 0u16..300).prop_map(|(k, n)| Step::RemoveRange(k, n)),
        3 => (0u16..400).prop_map(Step::Get),
        1 => Just(Step::Freeze),
        2 => any::<u8>().prop_map(Step::WriteSome),
        1 => Just(Step::Evict),
    ]
}

fn key(number: u16, is_long: bool) -> Vec<u8> {
    let mut key = format!("object/{:03}", number).into_bytes();
    if is_long && number.is_multiple_of(7) {
        key.extend(vec![b'x'; 1_800]);
    }
    key
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn the_tree_is_an_ordered_map(steps in proptest::collection::vec(step(), 1..600)) {
        let mut harness = Harness::new();
        for step in steps {
            match step {
                Step::Put(number, length, is_long) => {
                    let (key, value) = (key(number, is_long), vec![number as u8; length]);
                    harness.warm(|tree| tree.put(&key, &value));
                    harness.model.insert(key, value);
                }
                Step::Remove(number) => {
                    let key = key(number, number % 2 == 0);
                    let was_there = harness.warm(|tree| tree.remove(&key));
                    prop_assert_eq!(was_there, harness.model.remove(&key).is_some());
                }
                Step::RemoveRange(first, count) => {
                    let range = key(first, false)..key(first.saturating_add(count), false);
                    let keys: Vec<Vec<u8>> = harness.model.range(range).map(|(key, _)| key.clone()).collect();
                    for key in keys {
                        prop_assert!(harness.warm(|tree| tree.remove(&key)));
                        harness.model.remove(&key);
                    }
                }
                Step::Get(number) => {
                    let key = key(number, true);
                    let found = harness.warm(|tree| Ok(tree.get(&key)?.map(<[u8]>::to_vec)));
                    prop_assert_eq!(found.as_ref(), harness.model.get(&key));
                }
                Step::Freeze => harness.freeze(),
                Step::WriteSome(count) => {
                    for _ in 0..count % 8 {
                        harness.write_one();
                    }
                }
                Step::Evict => harness.tree.pages.evict(8 * BLOCK_BYTES as u64, None),
            }
        }
        let all = harness.all();
        prop_assert_eq!(&all, &harness.model);
        harness.check_device();
        harness.freeze();
        harness.check_device();
    }
}

/// The first child of a branch went, its second became the first and kept its lower bound; smaller
/// keys then made siblings behind it with lower bounds below its own, and copying the branch, whose
/// first and last key were taken for the smallest and the largest, garbled them.
#[test]
fn a_branch_copes_with_a_first_key_above_the_second() {
    let long = |letter: u8, number: u16| [&[letter; 600][..], &number.to_be_bytes()].concat();
    let mut harness = Harness::new();
    let put = |harness: &mut Harness, key: Vec<u8>| {
        harness.tree.put(&key, &[1; 900]).unwrap();
        harness.model.insert(key, vec![1; 900]);
    };
    (0..40).for_each(|number| put(&mut harness, long(b'm', number)));
    for number in 0..20 {
        assert!(harness.tree.remove(&long(b'm', number)).unwrap());
        harness.model.remove(&long(b'm', number));
    }
    (0..40).for_each(|number| put(&mut harness, long(b'b', number)));
    let all = harness.all();
    assert!(all == harness.model, "{} of {} keys are there", all.len(), harness.model.len());
    for key in harness.model.keys() {
        assert!(harness.tree.get(key).unwrap().is_some());
    }
}

/// Two branches that are sound one by one and refer to each other.
#[test]
fn branches_that_lead_in_circles_are_damage() {
    let mut harness = Harness::new();
    // Each leaf has one entry, and lower bounds of half of them are long, so that there are three levels.
    for number in 0..80u8 {
        let key = [&[number / 2; 900][..], &[number]].concat();
        harness.tree.put(&key, &[7; 1_200]).unwrap();
    }
    let root = harness.tree.pages.get(0).unwrap();
    let (one, other) = (root.child(0), root.child(1));
    let mut harness = harness.reopened_with(|number, page| {
        let target = if number == one { other } else { one };
        if number == one || number == other {
            (0..page.count()).for_each(|index| assert!(page.replace(index, &target.to_le_bytes())));
        }
    });
    [0, one, other].into_iter().for_each(|number| harness.load(number));
    let key = vec![0];
    let damaged = PageError::Contradiction { page: 0 };
    assert_eq!(harness.tree.get(&key), Err(damaged.clone()));
    assert_eq!(harness.tree.touch(&key), Err(damaged.clone()));
    assert_eq!(harness.tree.put(&key, b""), Err(damaged.clone()));
    assert_eq!(harness.tree.remove(&key), Err(damaged.clone()));
    assert_eq!(harness.tree.scan(&key, &[0xff; 4], |_, _| ControlFlow::Continue(())), Err(damaged));
}

/// A leaf with a key that belongs to another leaf: a key between them is looked up in the one and changed
/// in the other, which is not loaded.
#[test]
fn a_leaf_that_claims_keys_of_another_is_damage_when_changes_are_applied() {
    let mut harness = Harness::new();
    for number in 0..100u8 {
        harness.tree.put(&[1, number, 0], &[7; 300]).unwrap();
    }
    let leaf = harness.tree.pages.get(0).unwrap().child(0);
    let mut harness = harness.reopened_with(|number, page| {
        if number == leaf {
            assert!(page.insert(page.count(), &[1, 99, 1], b"claimed"));
        }
    });
    harness.load(0);
    harness.load(leaf);
    let (bitmap, parts) = (Bitmap::new(100, 1000), super::parts::Parts::default());
    let mut metadata = Metadata { tree: harness.tree, bitmap, object_count: 0, pool_counts: None, parts };
    let mut changes = Changes::new(&metadata);
    changes.set_value(vec![1, 0, 0], vec![8]).unwrap();
    changes.set_value(vec![1, 50, 50], vec![8]).unwrap();
    let prepared = changes.finish().unwrap();
    let applied = metadata.apply(&prepared);
    assert!(matches!(applied, Err(Unready::Damaged(_))), "{applied:?}");
}

#[test]
fn what_becomes_free_or_is_taken_must_fit_the_bitmap() {
    let mut pages = Pages::new();
    pages.add(Location::default());
    pages.add(Location::default());
    let bitmap = Bitmap::new(100, 1000);
    bitmap.create_missing(&mut pages);
    pages.create_as(1, PageKind::Leaf);
    let tree = Tree::new(pages, 1);
    let mut metadata =
        Metadata { tree, bitmap, object_count: 0, pool_counts: None, parts: super::parts::Parts::default() };
    metadata.bitmap.set(&mut metadata.tree.pages, 107, true);
    let outcome = |freed: &[u32], referenced: &[u32]| {
        let mut changes = Changes::new(&metadata);
        (changes.freed, changes.referenced) = (freed.to_vec(), referenced.to_vec());
        changes.finish().is_ok()
    };
    assert!(outcome(&[107], &[108]));
    assert!(outcome(&[107, 108], &[108]), "what is taken may become free at once");
    assert!(!outcome(&[109], &[]), "nobody has it");
    assert!(!outcome(&[107, 107], &[]), "it becomes free twice");
    assert!(!outcome(&[], &[107]), "somebody has it");
}

/// Such an entry has a good checksum only if a bug wrote it; it must not become a panic.
#[test]
fn chunks_that_refer_to_blocks_outside_the_data_are_damage() {
    let (first, count) = (100, 1000);
    let object = keys::object(PgId { pool: PoolId(1), index: 0 }, &ObjectName::new("object").unwrap());
    for (device_block, is_sound) in [(99, false), (100, true), (1099, true), (1100, false), (u32::MAX, false)] {
        let mut chunk = Chunk::default();
        chunk.blocks[3] = BlockMeta { device_block, crc: 7 };
        let mut tree = Harness::new().tree;
        tree.put(&keys::header(&object), &ObjectInfo::default().encode()).unwrap();
        tree.put(&keys::chunk(&object, 0), &chunk.encode()).unwrap();
        let metadata = Metadata {
            tree,
            bitmap: Bitmap::new(first, count),
            object_count: 1,
            pool_counts: None,
            parts: super::parts::Parts::default(),
        };
        let removed = Changes::new(&metadata).remove_object(&object);
        assert_eq!(removed.is_ok(), is_sound, "block {device_block}: {removed:?}");
        assert!(is_sound || matches!(removed, Err(Unready::Damaged(_))), "block {device_block}: {removed:?}");
    }
}

/// Objects that are written as a whole, one after the other in each of many PGs.
#[test]
fn keys_that_come_in_order_leave_full_pages_behind() {
    let mut harness = Harness::new();
    let mut bytes = 0;
    for number in 0_u64..512 {
        let mut object = vec![2, (number % 64) as u8];
        object.extend(format!("image.00000000000000000000000000000001.{number:016x}").bytes());
        for chunk in 0..=64_u8 {
            let value = vec![7; if chunk == 0 { 31 } else { 577 }];
            bytes += value.len();
            harness.tree.put(&[&object[..], &[chunk]].concat(), &value).unwrap();
        }
    }
    let share = bytes as f64 / (harness.tree.pages.count() as usize * BLOCK_BYTES) as f64;
    assert!(share > 0.7, "{:.0}% of the pages' bytes are values", share * 100.0);
}
