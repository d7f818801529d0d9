//! Healthy stores are clean, and every kind of damage is found. Damage to metadata is done in an
//! open store, whose last checkpoint then writes it with good checksums.

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, Touched, Transaction, Version};
use bytes::Bytes;

use super::{CheckOptions, CheckReport, Problem, check};
use crate::disk::{Device, Disk, DiskOperation, DiskResult};
use crate::layout::{DEVICE_BYTES_MIN, FormatOptions};
use crate::metadata::{ObjectKey, PoolCount, keys};
use crate::store::Store;

/// A device in memory; blocks that were never written read as zeros.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk {
    blocks: BTreeMap<u64, Vec<u8>>,
    is_read_only: bool,
}

impl MemoryDisk {
    fn flip(&mut self, block: u64, byte: usize) {
        self.blocks.get_mut(&block).expect("a block that was written")[byte] ^= 0x10;
    }
}

impl Disk for MemoryDisk {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        (device == Device::Data).then_some(DEVICE_BYTES_MIN)
    }

    fn execute(&mut self, _: Device, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Read { offset, block_count } => {
                let mut buffer = BlockBuffer::zeroed(block_count);
                let first = offset / BLOCK_BYTES as u64;
                for (block, output) in (first..).zip(buffer.as_mut_slice().chunks_exact_mut(BLOCK_BYTES)) {
                    if let Some(bytes) = self.blocks.get(&block) {
                        output.copy_from_slice(bytes);
                    }
                }
                Ok(Some(buffer))
            }
            operation @ (DiskOperation::Write { .. } | DiskOperation::WriteBytes { .. }) => {
                assert!(!self.is_read_only, "a check changes nothing");
                let (offset, bytes) = operation.written().expect("it writes");
                let bytes = bytes.concat();
                for (block, bytes) in (offset / BLOCK_BYTES as u64..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    self.blocks.insert(block, bytes.to_vec());
                }
                Ok(None)
            }
            DiskOperation::Sync | DiskOperation::Discard { .. } => Ok(None),
        }
    }
}

const PG: PgId = PgId { pool: PoolId(1), index: 7 };

fn key(name: &str) -> ObjectKey {
    ObjectKey { pg: PG, name: ObjectName::new(name).unwrap() }
}

fn object_keys(name: &str) -> Vec<u8> {
    keys::object(PG, &ObjectName::new(name).unwrap())
}

pub(crate) struct Fixture {
    disk: MemoryDisk,
    pub store: Store,
    sequence: u64,
}

impl Fixture {
    pub fn new() -> Self {
        let mut disk = MemoryDisk::default();
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
        Store::format(&mut disk, options).unwrap();
        let store = Store::open(&mut disk, 1).unwrap();
        Fixture { disk, store, sequence: 0 }
    }

    /// A store with objects of all kinds: written at once and in pieces, cloned, with a long omap.
    fn filled() -> Self {
        let mut fixture = Fixture::new();
        fixture.write("large", 0, 40);
        fixture.write("small", 3, 2);
        fixture.write("small", 20, 1);
        fixture.submit("clone", vec![Mutation::CloneFrom { source: key("small").name }], 0);
        for index in 0..300 {
            let value = Bytes::from(vec![index as u8; if index % 50 == 0 { 5000 } else { 300 }]);
            let key = Bytes::from(format!("key{index:04}"));
            fixture.submit("omap", vec![Mutation::OmapSet { key, value }], 0);
        }
        fixture
    }

    /// A store with a record in flight, two transactions in the log's queue, and one that waits for its data.
    pub fn busy() -> Self {
        let mut fixture = Fixture::filled();
        fixture.accept_write("small", 3, 1);
        fixture.store.flush();
        fixture.accept_write("small", 4, 1);
        fixture.accept_write("small", 20, 1);
        fixture.accept_write("large", 0, 40);
        fixture
    }

    /// A write that the device does not know yet.
    pub fn accept_write(&mut self, object: &str, first: u64, blocks: u32) {
        let length = blocks * BLOCK_BYTES as u32;
        let write = Mutation::Write { offset: first * BLOCK_BYTES as u64, length, seals: None };
        self.accept(object, vec![write], length as usize);
    }

    fn write(&mut self, object: &str, first: u64, blocks: u32) {
        self.accept_write(object, first, blocks);
        self.run();
    }

    fn submit(&mut self, object: &str, mutations: Vec<Mutation>, payload_bytes: usize) {
        self.accept(object, mutations, payload_bytes);
        self.run();
    }

    fn accept(&mut self, object: &str, mutations: Vec<Mutation>, payload_bytes: usize) {
        self.sequence += 1;
        let object = key(object).name;
        let version = Version { epoch: Epoch(1), sequence: self.sequence };
        let log = vec![LogEntry {
            version,
            request: None,
            object: object.clone(),
            touched: Touched::by(&mutations),
            committed_sequence: 0,
            pre_image: None,
        }];
        let payload = vec![self.sequence as u8; payload_bytes].into();
        let transaction = Transaction { pg: PG, object, mutations, payload, payload_sealed: true, log };
        self.store.submit(&transaction).unwrap();
    }

    pub fn run(&mut self) {
        self.store.flush();
        while let Some(request) = self.store.next_request() {
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
        }
        while self.store.next_event().is_some() {}
    }

    fn close(mut self) -> MemoryDisk {
        self.store.close(&mut self.disk).unwrap();
        self.disk
    }

    pub fn device_block(&self, object: &str, index: usize) -> u32 {
        self.store.metadata.blocks(&object_keys(object), index, 1).unwrap()[0].device_block
    }
}

fn report(disk: &mut MemoryDisk) -> CheckReport {
    disk.is_read_only = true;
    check(disk, CheckOptions { data: true }, &mut |_, done, all| assert!(done <= all)).unwrap()
}

/// The only problem of the store.
fn the_problem(disk: &mut MemoryDisk) -> Problem {
    let report = report(disk);
    assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
    assert_eq!(report.problem_count, 1);
    report.problems[0].problem.clone()
}

#[test]
fn a_healthy_store_is_clean_with_and_without_a_log_to_replay() {
    let fixture = Fixture::filled();
    let crashed = report(&mut fixture.disk.clone());
    assert_eq!(crashed.problems, []);
    assert!(crashed.log_records > 0);
    let closed = report(&mut fixture.close());
    assert_eq!(closed.problems, []);
    assert_eq!((closed.log_records, closed.superblock_copies), (0, 2));
    for report in [crashed, closed] {
        assert_eq!((report.objects, report.omap_entries, report.pgs), (4, 300, 1), "{report:?}");
        assert_eq!(report.data_bytes, (40 + 3) * BLOCK_BYTES as u64);
        assert_eq!(report.shared_bytes, 3 * BLOCK_BYTES as u64);
        assert!(report.is_replayed && report.is_data_checked && report.depth > 0);
    }
    assert_eq!(report(&mut Fixture::new().close()).problems, []);
}

#[test]
fn a_bit_of_the_bitmap_that_is_missing_is_found() {
    let mut fixture = Fixture::filled();
    let block = fixture.device_block("large", 5);
    let metadata = &mut fixture.store.metadata;
    metadata.bitmap.set(&mut metadata.tree.pages, block, false);
    let problem = the_problem(&mut fixture.close());
    assert_eq!(problem, Problem::UnmarkedBlocks { first: block, count: 1 });
}

#[test]
fn lost_blocks_are_found() {
    let mut fixture = Fixture::filled();
    let first = fixture.device_block("large", 39) + 5000;
    let metadata = &mut fixture.store.metadata;
    (first..first + 3).for_each(|block| metadata.bitmap.set(&mut metadata.tree.pages, block, true));
    assert_eq!(the_problem(&mut fixture.close()), Problem::LeakedBlocks { first, count: 3 });
}

#[test]
fn a_wrong_count_of_references_is_found() {
    let mut fixture = Fixture::filled();
    let block = fixture.device_block("clone", 3);
    let tree = &mut fixture.store.metadata.tree;
    let mut value = tree.get(&keys::shared(block)).unwrap().unwrap().to_vec();
    value[2 * (block % 16) as usize] = 5;
    tree.put(&keys::shared(block), &value).unwrap();
    let expected = Problem::ReferenceCount { block, found: 2, recorded: 6 };
    assert_eq!(the_problem(&mut fixture.close()), expected);
}

#[test]
fn missing_counts_are_found() {
    let mut fixture = Fixture::filled();
    let first = fixture.device_block("clone", 3);
    fixture.store.metadata.tree.remove(&keys::shared(first)).unwrap();
    let found = report(&mut fixture.close()).problems;
    assert!(matches!(found[0].problem, Problem::BlocksReferredToTwice { first: found, .. } if found == first));
}

#[test]
fn an_object_that_does_not_know_that_it_shares_is_found() {
    let mut fixture = Fixture::filled();
    let header = keys::header(&object_keys("clone"));
    let info = fixture.store.object(&key("clone")).unwrap().unwrap();
    let info = crate::ObjectInfo { may_share: false, ..info };
    fixture.store.metadata.tree.put(&header, &info.encode()).unwrap();
    let found = report(&mut fixture.close()).problems;
    assert!(!found.is_empty());
    for finding in found {
        assert!(matches!(&finding.problem, Problem::NotMarkedShared { object, .. } if *object == key("clone")));
    }
}

#[test]
fn a_missing_header_and_a_wrong_count_of_objects_are_found() {
    let mut fixture = Fixture::filled();
    fixture.store.metadata.tree.remove(&keys::header(&object_keys("large"))).unwrap();
    fixture.store.metadata.object_count -= 1;
    assert_eq!(the_problem(&mut fixture.close()), Problem::MissingHeader { object: key("large") });
    let mut fixture = Fixture::filled();
    fixture.store.metadata.object_count += 1;
    assert_eq!(the_problem(&mut fixture.close()), Problem::ObjectCount { found: 4, recorded: 5 });
}

#[test]
fn wrong_counts_of_a_pool_are_found() {
    let mut fixture = Fixture::filled();
    let counts = fixture.store.metadata.pool_counts.as_mut().unwrap();
    let (pool, right) = counts.iter().next().unwrap();
    counts.set(pool, PoolCount { blocks: right.blocks + 1, ..right });
    let expected = Problem::PoolCount {
        pool: pool.0,
        objects: right.objects,
        blocks: right.blocks,
        recorded_objects: right.objects,
        recorded_blocks: right.blocks + 1,
    };
    assert_eq!(the_problem(&mut fixture.close()), expected);
}

#[test]
fn missing_parts_of_a_value_are_found() {
    let mut fixture = Fixture::filled();
    let entry = keys::omap_entry(&object_keys("omap"), b"key0050");
    assert!(fixture.store.metadata.tree.remove(&keys::part(&entry, 2)).unwrap());
    let problem = the_problem(&mut fixture.close());
    assert!(problem.to_string().contains("parts are missing"), "{problem}");
}

#[test]
fn entries_that_make_no_sense_are_found() {
    let mut fixture = Fixture::filled();
    let large = object_keys("large");
    fixture.store.metadata.tree.put(&keys::chunk(&large, 1), &[200]).unwrap();
    fixture.store.metadata.tree.put(&[9, 9], &[]).unwrap();
    let found = report(&mut fixture.close()).problems;
    assert!(found.iter().any(|finding| matches!(finding.problem, Problem::Object { .. })), "{found:?}");
    assert!(found.iter().any(|finding| matches!(finding.problem, Problem::Entry { .. })));
    assert!(found.iter().any(|finding| matches!(finding.problem, Problem::LeakedBlocks { count: 16, .. })));
}

#[test]
fn keys_and_children_at_wrong_places_are_found() {
    let mut fixture = Fixture::filled();
    let tree = &mut fixture.store.metadata.tree;
    let root = tree.root;
    let (first, last) = (tree.pages.get(root).unwrap().child(0), tree.pages.get(root).unwrap().count() - 1);
    let page = tree.pages.get_mut(root);
    assert!(page.replace(last, &first.to_le_bytes()));
    let found = report(&mut fixture.close());
    assert!(!found.is_replayed);
    let has = |wanted: fn(&Problem) -> bool| found.problems.iter().any(|finding| wanted(&finding.problem));
    assert!(has(|problem| matches!(problem, Problem::PageReachedTwice { .. })));
    assert!(has(|problem| matches!(problem, Problem::UnreachablePages { .. })));

    let mut fixture = Fixture::filled();
    let tree = &mut fixture.store.metadata.tree;
    let first = tree.pages.get(root).unwrap().child(0);
    let page = tree.pages.get_mut(first);
    let count = page.count();
    assert!(page.insert(count, &[0xee], &[]));
    let found = report(&mut fixture.close()).problems;
    assert!(found.iter().any(|finding| matches!(finding.problem, Problem::MisplacedKeys { .. })), "{found:?}");
}

#[test]
fn damaged_pages_are_found() {
    let mut fixture = Fixture::filled();
    fixture.store.start_checkpoint();
    fixture.run();
    let pages = &fixture.store.metadata.tree.pages;
    let root = fixture.store.metadata.tree.root;
    let leaf = pages.get(root).unwrap().child(1);
    let (leaf_block, bitmap_block) = (pages.location(leaf).block, pages.location(0).block);
    let tables: Vec<u32> = fixture.store.page_table.blocks().collect();
    let mut healthy = fixture.disk;
    assert_eq!(report(&mut healthy.clone()).problems, []);
    for (page, block) in [(leaf, leaf_block), (0, bitmap_block)] {
        let mut disk = healthy.clone();
        disk.flip(block.into(), 1000);
        let found = report(&mut disk).problems;
        let is_it = |problem: &Problem| matches!(problem, Problem::DamagedPage { page: p, .. } if *p == page);
        assert!(found.iter().any(|finding| is_it(&finding.problem)), "{found:?}");
    }
    for block in tables {
        let mut disk = healthy.clone();
        disk.flip(block.into(), 1000);
        assert!(matches!(the_problem(&mut disk), Problem::PageTable { .. }));
    }
    healthy.flip(0, 50);
    let one_copy = report(&mut healthy);
    assert_eq!(one_copy.superblock_copies, 1, "as after a power cut");
}

#[test]
fn rotten_data_is_found_at_its_place_and_in_the_log() {
    let fixture = Fixture::filled();
    let large = fixture.device_block("large", 5);
    let mut disk = fixture.disk.clone();
    disk.flip(large.into(), 17);
    let problem = the_problem(&mut disk);
    assert!(
        matches!(&problem, Problem::RottenBlock { object, index: 5, .. } if *object == key("large")),
        "{problem}"
    );
    let report = check(&mut disk, CheckOptions { data: false }, &mut |_, _, _| {}).unwrap();
    assert_eq!((report.problems.len(), report.is_data_checked), (0, false));

    // The data of the clone is the small object's, so both have it.
    let small = fixture.device_block("small", 3);
    let mut closed = fixture.close();
    closed.flip(small.into(), 17);
    assert_eq!(self::report(&mut closed).problem_count, 2);
}

#[test]
fn damage_in_the_middle_of_the_log_is_found() {
    let mut fixture = Fixture::new();
    for index in 0..5 {
        fixture.write("small", index, 1);
    }
    let mut disk = fixture.disk;
    // The second record of the ring: each has a block of text and one of data.
    disk.flip(2 + 2, 100);
    assert!(matches!(the_problem(&mut disk), Problem::Log { .. }));
}
