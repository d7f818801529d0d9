//! Expected content of a PG: a plain model. All states of a history are kept, so everything in them is shared
//! between them. Block contents are seeds; only comparing makes bytes of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::limits::PG_LOG_ENTRIES;
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, PreImage, Seals, Touched, Transaction, Version,
};
use bytes::Bytes;

pub const BLOCK: u64 = BLOCK_BYTES as u64;
/// A seed of a block of zeros that is written as such.
pub const ZEROS: u64 = u64::MAX;
pub const SEAL_BYTES: usize = 8;

/// The bytes that a seed stands for.
pub fn content(seed: u64) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    if seed != 0 && seed != ZEROS {
        for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64).to_le_bytes();
        }
    }
    bytes
}

/// A block of an object: its seed (0 for a hole) and how many bytes of it were written.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct ModelBlock {
    pub seed: u64,
    pub length: usize,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct ModelObject {
    pub size_bytes: u64,
    /// Size of the whole object, if this is a shard.
    pub whole_bytes: Option<u64>,
    /// Sequence of the last change.
    pub version: u64,
    pub blocks: Vec<ModelBlock>,
    pub is_sealed: bool,
    /// One for each block, 0 where there is none.
    pub seals: Vec<u64>,
    pub omap: BTreeMap<Bytes, Bytes>,
}

impl ModelObject {
    /// Which blocks hold data.
    pub fn mapped_blocks(&self) -> Vec<bool> {
        self.blocks.iter().map(|block| block.length > 0).collect()
    }

    pub fn data_is(&self, data: &[u8]) -> bool {
        data.len() as u64 == self.size_bytes
            && data.chunks(BLOCK_BYTES).zip(&self.blocks).all(|(bytes, block)| {
                let expected = content(block.seed);
                let (written, rest) = bytes.split_at(block.length.min(bytes.len()));
                *written == expected[..written.len()] && rest.iter().all(|&byte| byte == 0)
            })
    }
}

/// An entry of a PG's log.
#[derive(Clone)]
pub struct ModelEntry {
    pub sequence: u64,
    pub object: ObjectName,
    pub pre_image: Option<PreImage>,
}

/// One state of a PG.
#[derive(Clone, Default)]
pub struct ModelPg {
    pub objects: imbl::OrdMap<ObjectName, Arc<ModelObject>>,
    /// Number of transactions.
    pub head: u64,
    /// Entries that the store remembers of them, oldest first.
    pub log: imbl::Vector<ModelEntry>,
    /// Entries up to here need no pre-image any more.
    pub pre_images_forgotten: u64,
}

pub fn pg_id(index: usize) -> PgId {
    PgId { pool: PoolId(1), index: index as u32 }
}

/// Builds a transaction and the state after it side by side.
pub struct Builder {
    pg: usize,
    object: ObjectName,
    state: ModelPg,
    mutations: Vec<Mutation>,
    payload: Vec<u8>,
    pre_image: Option<PreImage>,
    /// The object that the log entry names.
    logged: ObjectName,
}

impl Builder {
    pub fn new(pg: usize, object: &ObjectName, state: &ModelPg) -> Self {
        let (object, logged) = (object.clone(), object.clone());
        Builder {
            logged,
            pg,
            object,
            state: state.clone(),
            mutations: Vec::new(),
            payload: Vec::new(),
            pre_image: None,
        }
    }

    /// The state after the mutations so far.
    pub fn state(&self) -> &ModelPg {
        &self.state
    }

    /// The object as it is after the mutations so far.
    pub fn object(&self) -> Option<&ModelObject> {
        self.state.objects.get(&self.object).map(|object| &**object)
    }

    /// Returns true if only clones were made so far.
    pub fn is_kept_only(&self) -> bool {
        self.mutations.iter().all(|mutation| matches!(mutation, Mutation::ClonePreImage { .. }))
    }

    fn change(&mut self) -> &mut ModelObject {
        Arc::make_mut(self.state.objects.entry(self.object.clone()).or_default())
    }

    /// Writes blocks from `first` on; the last one is `short` bytes short of a whole block.
    pub fn write(&mut self, first: usize, count: usize, short: usize, seed: u64, is_sealed: bool) {
        let object = self.change();
        let end = (first + count) as u64 * BLOCK;
        // Only the end of the object may be in the middle of a block.
        let short = if end - short as u64 >= object.size_bytes { short } else { 0 };
        let length = count * BLOCK_BYTES - short;
        let seed_of = |index: usize| if seed == ZEROS { ZEROS } else { seed.wrapping_add(index as u64) | 1 };
        object.size_bytes = object.size_bytes.max(end - short as u64);
        object.blocks.resize(object.blocks.len().max(first + count), ModelBlock::default());
        object.seals.resize(object.blocks.len(), 0);
        object.is_sealed |= is_sealed;
        let mut seals = Vec::new();
        for index in 0..count {
            let length = BLOCK_BYTES - if index + 1 == count { short } else { 0 };
            object.blocks[first + index] = ModelBlock { seed: seed_of(index), length };
            if is_sealed {
                object.seals[first + index] = seed_of(index);
                seals.extend(seed_of(index).to_le_bytes());
            }
        }
        let start = self.payload.len();
        (0..count).for_each(|index| self.payload.extend(content(seed_of(index))));
        self.payload.truncate(start + length);
        let seals = is_sealed.then(|| Seals {
            unit_bytes: BLOCK_BYTES as u32,
            seal_bytes: SEAL_BYTES as u16,
            bytes: seals.into(),
        });
        self.mutations.push(Mutation::Write { offset: first as u64 * BLOCK, length: length as u32, seals });
    }

    pub fn zero(&mut self, first: usize, count: usize) {
        let object = self.change();
        let end = (first + count).min(object.blocks.len());
        for index in first..end {
            object.blocks[index] = ModelBlock::default();
            object.seals[index] = 0;
        }
        self.mutations.push(Mutation::Zero { offset: first as u64 * BLOCK, length: count as u64 * BLOCK });
    }

    pub fn truncate(&mut self, blocks: usize) {
        let object = self.change();
        object.size_bytes = object.size_bytes.min(blocks as u64 * BLOCK);
        object.blocks.truncate(blocks);
        object.seals.truncate(blocks);
        let size_bytes = object.size_bytes;
        self.mutations.push(Mutation::Truncate { size_bytes });
    }

    pub fn create(&mut self) {
        self.change();
        self.mutations.push(Mutation::Create);
    }

    pub fn remove(&mut self) {
        self.state.objects.remove(&self.object);
        self.mutations.push(Mutation::Remove);
    }

    /// The only mutation of its transaction; the source exists and is another object.
    pub fn clone_from(&mut self, source: &ObjectName) {
        let copy = Arc::clone(&self.state.objects[source]);
        self.state.objects.insert(self.object.clone(), copy);
        self.mutations.push(Mutation::CloneFrom { source: source.clone() });
    }

    /// At least the blocks that the object has; a seal covers one of them, if there are seals.
    pub fn shard_of(&mut self, blocks: usize, whole_bytes: u64, is_sealed: bool) {
        let object = self.change();
        let blocks = blocks.max(object.blocks.len());
        object.size_bytes = blocks as u64 * BLOCK;
        object.whole_bytes = Some(whole_bytes);
        object.blocks.resize(blocks, ModelBlock::default());
        object.seals.resize(blocks, 0);
        // Seals of another shape mean nothing any more.
        if object.is_sealed != is_sealed {
            object.seals.fill(0);
        }
        object.is_sealed = is_sealed;
        let (seal_unit_bytes, seal_bytes) = if is_sealed { (BLOCK as u32, SEAL_BYTES as u16) } else { (0, 0) };
        let (object_bytes, shard_bytes) = (whole_bytes, blocks as u64 * BLOCK);
        self.mutations.push(Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes });
    }

    /// The copy has another name than the object.
    pub fn clone_pre_image(&mut self, copy: &ObjectName) {
        match self.state.objects.get(&self.object).cloned() {
            Some(object) => drop(self.state.objects.insert(copy.clone(), object)),
            None => drop(self.state.objects.remove(copy)),
        }
        self.mutations.push(Mutation::ClonePreImage { copy: copy.clone() });
    }

    /// The other object has another name.
    pub fn remove_other(&mut self, object: &ObjectName) {
        self.state.objects.remove(object);
        self.mutations.push(Mutation::RemoveOther { object: object.clone() });
    }

    /// Forgets entries newer than `head`. The transaction's own entry follows nevertheless as if they
    /// were there: states are found by their number. It names another object, as the entries of a
    /// backfill do; those need not follow.
    pub fn reset_log(&mut self, head: u64) {
        self.change();
        while self.state.log.back().is_some_and(|entry| entry.sequence > head) {
            self.state.log.pop_back();
        }
        self.logged = ObjectName::new("elsewhere").expect("the name is short");
        self.mutations.push(Mutation::ResetLog { head: Version { epoch: Epoch(1), sequence: head } });
    }

    /// Sets the transaction's pre-image; the store does not look at it.
    pub fn pre_image(&mut self, mutations: Vec<Mutation>, payload: Bytes) {
        self.pre_image = Some(PreImage { mutations, payload });
    }

    pub fn omap_set(&mut self, key: Bytes, value: Bytes) {
        self.change().omap.insert(key.clone(), value.clone());
        self.mutations.push(Mutation::OmapSet { key, value });
    }

    pub fn omap_remove(&mut self, key: Bytes) {
        self.change().omap.remove(&key);
        self.mutations.push(Mutation::OmapRemove { key });
    }

    pub fn omap_replace(&mut self, key: Bytes, value: Option<Bytes>, displaced_to: Bytes) {
        let omap = &mut self.change().omap;
        let old = match &value {
            Some(value) => omap.insert(key.clone(), value.clone()),
            None => omap.remove(&key),
        };
        if let Some(old) = old {
            omap.insert(displaced_to.clone(), old);
        }
        self.mutations.push(Mutation::OmapReplace { key, value, displaced_to });
    }

    pub fn finish(mut self) -> (Transaction, ModelPg) {
        self.state.head += 1;
        let sequence = self.state.head;
        let entry = ModelEntry { sequence, object: self.logged.clone(), pre_image: self.pre_image.clone() };
        self.state.log.push_back(entry);
        if self.state.log.len() > PG_LOG_ENTRIES {
            self.state.log.pop_front();
        }
        if let Some(object) = self.state.objects.get_mut(&self.logged).filter(|_| self.logged == self.object) {
            Arc::make_mut(object).version = sequence;
        }
        let version = Version { epoch: Epoch(1), sequence };
        let touched = Touched::by(&self.mutations);
        let log = vec![LogEntry {
            version,
            request: None,
            object: self.logged,
            touched,
            committed_sequence: 0,
            pre_image: self.pre_image,
        }];
        let transaction = Transaction {
            pg: pg_id(self.pg),
            object: self.object,
            mutations: self.mutations,
            payload: self.payload.into(),
            payload_sealed: true,
            log,
        };
        (transaction, self.state)
    }
}
