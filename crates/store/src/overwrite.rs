//! Small overwrites, which are most writes of images: whole blocks of one chunk that have their places and are not
//! shared. They change checks, seals and a version that are in two leaves already, and are patched there, and so
//! is the version alone for writes that a shard has no part in; everything else is prepared beside the tree
//! ([`crate::plan`]). Both lead to the same bytes.

use std::sync::Arc;

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::crc32c;
use atoll_types::{Mutation, ObjectName, PgId, Seals, Transaction, Version};

use crate::allocator::{Run, push_run};
use crate::metadata::tree::Place;
use crate::metadata::{
    CHUNK_BLOCKS, CHUNK_BYTES, ChunkValue, HOLE, Metadata, ObjectInfo, PageError, Unready, keys,
};
use crate::plan::{BLOCK, BlockPlacement, Data, Plan, padded};

/// A write that only overwrites, and where its metadata is.
pub(crate) struct Overwrite {
    header: Place,
    /// Blocks that it overwrites, unless it only sets the object's version.
    blocks: Option<Blocks>,
}

/// Blocks of a chunk, and where its metadata is.
struct Blocks {
    chunk: Place,
    /// The first block and the first unit in the chunk.
    first_block: usize,
    first_unit: usize,
    runs: Vec<Run>,
}

/// The one write of a client's or a member's transaction, with the version that the object gets.
fn only_write(transaction: &Transaction) -> Option<(u64, u32, Option<&Seals>, Version)> {
    let ([Mutation::Write { offset, length, seals }], [entry]) =
        (&transaction.mutations[..], &transaction.log[..])
    else {
        return None;
    };
    let is_whole = *length as usize == transaction.payload.len() && entry.object == transaction.object;
    is_whole.then_some((*offset, *length, seals.as_ref(), entry.version))
}

/// The version that an object gets by a transaction that changes nothing else: a write of an erasure-coded object
/// in which its shard here has no part.
fn only_version(transaction: &Transaction) -> Option<Version> {
    match (&transaction.mutations[..], &transaction.log[..]) {
        ([], [entry]) if transaction.payload.is_empty() && entry.object == transaction.object => {
            Some(entry.version)
        }
        _ => None,
    }
}

/// Returns true if the blocks are whole ones of one chunk, within the object.
fn fits(offset: u64, length: u32, info: &ObjectInfo) -> bool {
    let length = u64::from(length);
    let is_whole = length > 0 && offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
    is_whole
        && offset % CHUNK_BYTES + length <= CHUNK_BYTES
        && offset.checked_add(length).is_some_and(|end| end <= info.size_bytes)
}

/// Returns true if there are seals for all units of the range, of the object's shape.
fn seals_fit(seals: &Seals, offset: u64, length: u32, info: &ObjectInfo) -> bool {
    info.seal_shape() == Some((seals.unit_bytes, seals.seal_bytes))
        && offset.is_multiple_of(u64::from(seals.unit_bytes))
        && seals.bytes.len() == length.div_ceil(seals.unit_bytes) as usize * usize::from(seals.seal_bytes)
}

impl Metadata {
    /// Where a transaction patches metadata, if it only overwrites. Invalid metadata is left to the preparation of
    /// changes, which reports the error.
    pub fn overwrite(&self, transaction: &Transaction) -> Result<Option<Overwrite>, Unready> {
        if only_version(transaction).is_some() {
            return Ok(self.find_version(transaction.pg, &transaction.object)?);
        }
        let Some((offset, length, seals, _)) = only_write(transaction) else { return Ok(None) };
        Ok(self.find_overwrite(transaction.pg, &transaction.object, offset, length, seals)?)
    }

    /// Where the version of an object is.
    fn find_version(&self, pg: PgId, object: &ObjectName) -> Result<Option<Overwrite>, PageError> {
        let mut key = self.parts.object(pg, object);
        keys::push_header(&mut key);
        let Some(header) = self.tree.place(&key)? else { return Ok(None) };
        let is_header = ObjectInfo::decode(self.tree.value_at(header)?).is_ok();
        Ok(is_header.then_some(Overwrite { header, blocks: None }))
    }

    /// The same for one write of an object: its data goes there.
    pub fn find_overwrite(
        &self,
        pg: PgId,
        object: &ObjectName,
        offset: u64,
        length: u32,
        seals: Option<&Seals>,
    ) -> Result<Option<Overwrite>, PageError> {
        let mut key = self.parts.object(pg, object);
        let object_bytes = key.len();
        keys::push_header(&mut key);
        let Some(header) = self.tree.place(&key)? else { return Ok(None) };
        let Ok(info) = ObjectInfo::decode(self.tree.value_at(header)?) else { return Ok(None) };
        let have_seals = seals.is_none_or(|seals| seals_fit(seals, offset, length, &info));
        if info.may_share || !fits(offset, length, &info) || !have_seals {
            return Ok(None);
        }
        key.truncate(object_bytes);
        keys::push_chunk(&mut key, (offset / CHUNK_BYTES) as usize);
        let Some(chunk) = self.tree.place(&key)? else { return Ok(None) };
        let Some(value) = ChunkValue::parse(self.tree.value_at(chunk)?) else { return Ok(None) };
        let first_block = (offset / BLOCK) as usize % CHUNK_BLOCKS;
        let first_unit = seals.map_or(0, |seals| (offset % CHUNK_BYTES / u64::from(seals.unit_bytes)) as usize);
        if !seals.is_none_or(|seals| value.has_room_for_seals(first_unit, seals)) {
            return Ok(None);
        }
        let runs = self.runs_in_use(&value, first_block, length as usize / BLOCK_BYTES);
        Ok(runs.map(|runs| Overwrite { header, blocks: Some(Blocks { chunk, first_block, first_unit, runs }) }))
    }

    /// The places of blocks of a chunk, if all have one.
    fn runs_in_use(&self, value: &ChunkValue<&[u8]>, first_block: usize, count: usize) -> Option<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        for index in first_block..first_block + count {
            let meta = value.block(index);
            let is_in_use =
                |block| self.bitmap.covers(block) && self.bitmap.is_referenced(&self.tree.pages, block);
            if meta == HOLE || !is_in_use(meta.device_block) {
                return None;
            }
            push_run(&mut runs, (meta.device_block, 1));
        }
        Some(runs)
    }
}

impl Overwrite {
    /// Overwrites: changes the metadata, and returns the data with its places.
    pub fn apply(self, transaction: &Transaction, metadata: &mut Metadata) -> Plan {
        let version = transaction.log[0].version;
        ObjectInfo::patch_version(metadata.tree.value_at_mut(self.header), version);
        let Some(blocks) = self.blocks else {
            return Plan { data: Data::Inline(Arc::default()), placements: Vec::new() };
        };
        let (_, length, seals, _) = only_write(transaction).expect("it is one, or there would be no places");
        let data = padded(transaction, length as usize / BLOCK_BYTES);
        let crcs: Vec<u32> = data.as_slice().chunks_exact(BLOCK_BYTES).map(crc32c).collect();
        let mut chunk =
            ChunkValue::parse(metadata.tree.value_at_mut(blocks.chunk)).expect("it was looked at before");
        chunk.set_crcs(blocks.first_block, &crcs);
        if let Some(seals) = seals {
            chunk.set_seals(blocks.first_unit, seals);
        }
        let placements = vec![BlockPlacement::in_place(blocks.runs, crcs)];
        Plan { data: Data::Inline(Arc::new(data)), placements }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::{Epoch, LogEntry, PoolId, SharedTransaction, Touched};
    use bytes::Bytes;
    use proptest::prelude::*;

    use crate::check::tests::Fixture;
    use crate::{Store, StoreError, TransactionId};

    const PG: PgId = PgId { pool: PoolId(1), index: 7 };
    const BLOCKS: u64 = 40;

    /// Effect of one transaction on one of two objects.
    #[derive(Clone, Debug)]
    enum Step {
        Write {
            first: u64,
            count: u64,
            /// Bytes that the last block lacks.
            short_bytes: u64,
            /// Blocks of a unit; the bytes of a seal are all of this value.
            seals: Option<(u64, u8)>,
        },
        Zero {
            first: u64,
            count: u64,
        },
        CloneFromOther,
        /// A log entry alone.
        Entry,
        Checkpoint,
    }

    fn step() -> impl Strategy<Value = (bool, Step)> {
        let seals = proptest::option::weighted(0.8, (prop_oneof![9 => Just(1u64), 1 => Just(2u64)], 0u8..3));
        let short_bytes = prop_oneof![9 => Just(0u64), 1 => 1u64..4096];
        let write = (0..BLOCKS, 1u64..5, short_bytes, seals)
            .prop_map(|(first, count, short_bytes, seals)| Step::Write { first, count, short_bytes, seals });
        let zero = (0..BLOCKS, 1u64..5).prop_map(|(first, count)| Step::Zero { first, count });
        let others = prop_oneof![Just(Step::CloneFromOther), Just(Step::Checkpoint)];
        (any::<bool>(), prop_oneof![30 => write, 2 => zero, 2 => others, 6 => Just(Step::Entry)])
    }

    fn name(is_other: bool) -> ObjectName {
        ObjectName::new(if is_other { "other" } else { "object" }).unwrap()
    }

    /// `None` for a checkpoint.
    fn mutations(is_other: bool, step: &Step) -> Option<Vec<Mutation>> {
        Some(vec![match *step {
            Step::Write { first, count, short_bytes, seals } => {
                let length = (count * BLOCK - short_bytes) as u32;
                let seals = seals.map(|(unit_blocks, value)| {
                    let bytes = Bytes::from(vec![value; count.div_ceil(unit_blocks) as usize * 3]);
                    Seals { unit_bytes: (unit_blocks * BLOCK) as u32, seal_bytes: 3, bytes }
                });
                Mutation::Write { offset: first * BLOCK, length, seals }
            }
            Step::Zero { first, count } => Mutation::Zero { offset: first * BLOCK, length: count * BLOCK },
            Step::CloneFromOther => Mutation::CloneFrom { source: name(!is_other) },
            Step::Entry => return Some(Vec::new()),
            Step::Checkpoint => return None,
        }])
    }

    fn transaction(sequence: u64, is_other: bool, mutations: Vec<Mutation>) -> Transaction {
        let length = if let [Mutation::Write { length, .. }] = &mutations[..] { *length as usize } else { 0 };
        let entry = LogEntry {
            version: Version { epoch: Epoch(1), sequence },
            request: None,
            object: name(is_other),
            touched: Touched::by(&mutations),
            committed_sequence: 0,
            pre_image: None,
        };
        let payload = Bytes::from(vec![sequence as u8; length]);
        let (object, log) = (name(is_other), vec![entry]);
        Transaction { pg: PG, object, mutations, payload, payload_sealed: true, log }
    }

    fn prepared(store: &mut Store, transaction: &Transaction) -> Result<TransactionId, StoreError> {
        let (plan, freed) = store.change(transaction)?;
        let encoded = SharedTransaction::from(transaction.clone()).encoded().clone();
        Ok(store.accept(transaction, encoded, plan, &freed))
    }

    fn pages(store: &Store) -> Vec<Option<&[u8; BLOCK_BYTES]>> {
        let pages = &store.metadata.tree.pages;
        (0..pages.count()).map(|number| pages.get(number).ok().map(crate::metadata::page::Page::bytes)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// A store that patches has the same pages as one that prepares every change.
        #[test]
        fn pages_are_the_same_whether_patched_or_prepared(steps in proptest::collection::vec(step(), 1..60)) {
            let (mut patching, mut preparing) = (Fixture::new(), Fixture::new());
            let mut sequence = 1;
            for (is_other, step) in &steps {
                let Some(mutations) = mutations(*is_other, step) else {
                    [&mut patching, &mut preparing].into_iter().for_each(|fixture| {
                        fixture.store.start_checkpoint();
                        fixture.run();
                    });
                    continue;
                };
                let transaction = transaction(sequence, *is_other, mutations);
                let results =
                    (patching.store.submit(&transaction), prepared(&mut preparing.store, &transaction));
                match results {
                    (Ok(_), Ok(_)) => sequence += 1,
                    (Err(one), Err(other)) => prop_assert_eq!(one.to_string(), other.to_string()),
                    results => prop_assert!(false, "{:?}", results),
                }
                prop_assert!(pages(&patching.store) == pages(&preparing.store), "pages differ after {:?}", step);
                patching.run();
                preparing.run();
            }
        }
    }

    /// Otherwise the test above would compare preparing with itself.
    #[test]
    fn small_overwrites_are_patched_and_nothing_else_is() {
        let mut fixture = Fixture::new();
        let write = |first, count, value| Step::Write { first, count, short_bytes: 0, seals: Some((1, value)) };
        let mut sequence = 0;
        let mut is_patched = |step: Step| {
            sequence += 1;
            let transaction = transaction(sequence, false, mutations(false, &step).unwrap());
            let found = fixture.store.metadata.overwrite(&transaction).unwrap().is_some();
            fixture.store.submit(&transaction).unwrap();
            fixture.run();
            found
        };
        assert!(!is_patched(Step::Entry), "there is no object");
        assert!(!is_patched(write(0, 4, 1)), "the object is made");
        assert!(is_patched(Step::Entry));
        assert!(is_patched(write(1, 2, 2)));
        assert!(is_patched(write(3, 1, 2)), "the last seal of the chunk");
        assert!(!is_patched(write(3, 1, 0)), "the chunk's value becomes shorter");
        assert!(!is_patched(write(3, 2, 1)), "the object grows");
        assert!(is_patched(write(3, 2, 1)));
        assert!(!is_patched(Step::Zero { first: 1, count: 1 }));
        assert!(!is_patched(write(1, 1, 1)), "a hole needs a place");
    }
}
