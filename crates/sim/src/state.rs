//! Content of a PG, as plain maps: the contents of a member's stand-in store, and the model on which the recorded
//! history is replayed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{BEHIND_KEY, EPOCH_KEY, INCOMPLETE_KEY};
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT, bits};
use atoll_types::{
    Condition, Epoch, LogEntry, Mutation, ObjectName, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, Seals,
    Transaction, Version, pg_of_object,
};
use bytes::{Bytes, BytesMut};

/// The first PG that a run begins with, mostly the only one of its pool.
pub const PG: PgId = PgId { pool: PoolId(1), index: 0 };
/// The PG that may be split off it, if it is the only one.
pub const SPLIT_PG: PgId = PgId { pool: PoolId(1), index: 1 };
/// Most PGs of a pool, when all are split.
pub const PGS_MAX: usize = 8;

/// The PG of an object when the pool has `pg_num` PGs.
pub fn pg_of(object: &ObjectName, pg_num: u32) -> PgId {
    pg_of_object(PG.pool, object, pg_num)
}

pub fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct Object {
    pub blocks: BTreeMap<u32, Bytes>,
    pub size: u64,
    /// Size of the whole object, if this is a shard of it.
    pub whole_size: Option<u64>,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub version: Version,
    /// Bytes that a seal covers, and the length of a seal.
    pub seal_shape: Option<(u32, u16)>,
    /// Seals by the numbers of their units.
    pub seals: BTreeMap<u32, Bytes>,
}

#[derive(Clone, Default)]
pub struct State {
    pub objects: BTreeMap<ObjectName, Object>,
    /// The log, as far as its ring reaches back.
    pub log: VecDeque<LogEntry>,
    pub head: Version,
    /// The pool's number of PGs by the splits that this copy has applied.
    pub pg_num: Option<u32>,
}

/// All PGs of a member.
#[derive(Clone)]
pub struct Pgs {
    all: BTreeMap<PgId, State>,
    /// PGs that the pool begins with, which may each be split once.
    first: u32,
}

impl Default for Pgs {
    fn default() -> Self {
        Pgs::new(1)
    }
}

const NOTHING: State = State {
    objects: BTreeMap::new(),
    log: VecDeque::new(),
    head: Version { epoch: Epoch(0), sequence: 0 },
    pg_num: None,
};

impl Pgs {
    /// Returns the PGs of a pool that begins with `first` PGs.
    pub fn new(first: u32) -> Self {
        Pgs { all: BTreeMap::new(), first }
    }

    /// PGs that the pool begins with.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// All PGs that there may be.
    pub fn ids(&self) -> impl Iterator<Item = PgId> + use<> {
        (0..2 * self.first).map(|index| PgId { index, ..PG })
    }

    pub fn of(&self, pg: PgId) -> &State {
        static EMPTY: State = NOTHING;
        self.all.get(&pg).unwrap_or(&EMPTY)
    }

    pub fn of_mut(&mut self, pg: PgId) -> &mut State {
        self.all.entry(pg).or_default()
    }

    /// Takes over which pre-images are forgotten, which is not part of the history.
    pub fn take_logs(&mut self, found: &Pgs) {
        for pg in self.ids() {
            if self.of(pg).log != found.of(pg).log {
                self.of_mut(pg).log = found.of(pg).log.clone();
            }
        }
    }

    pub fn find(&self, object: &ObjectName) -> Option<&Object> {
        self.all.values().find_map(|state| state.objects.get(object))
    }

    pub fn objects(&self) -> impl Iterator<Item = (&ObjectName, &Object)> {
        self.all.values().flat_map(|state| &state.objects)
    }

    /// Returns the PG that was split off with its history, if one was.
    pub fn apply(&mut self, transaction: &Transaction, ring_entries: usize) -> Option<PgId> {
        let own = self.of(transaction.pg).objects.get(&name(PG_META_OBJECT));
        let own_version = own.map_or(Version::default(), |own| own.version);
        self.of_mut(transaction.pg).apply(transaction, ring_entries);
        let mut split_off = None;
        for mutation in &transaction.mutations {
            if let Mutation::Split { pg_num, is_whole, .. } = mutation {
                let made = self.split(transaction.pg, *pg_num, *is_whole);
                split_off = split_off.or(made);
                let own = made.and_then(|new| self.of_mut(new).objects.get_mut(&name(PG_META_OBJECT)));
                if let Some(own) = own {
                    // The split is no change of the new PG's own object.
                    own.version = own_version;
                }
            }
        }
        split_off
    }

    fn split(&mut self, pg: PgId, pg_num: u32, is_whole: bool) -> Option<PgId> {
        let before = self.of(pg).pg_num.unwrap_or(pg.first_pg_num(self.first));
        let other = pg.split_off(before.min(pg_num));
        if pg_num > before && !is_whole && self.of(other).pg_num.is_some() {
            return None;
        }
        self.of_mut(pg).pg_num = Some(pg_num);
        if pg_num > before {
            assert_eq!((before, pg_num), (self.first, 2 * self.first), "each PG is split once");
            let moves = |object: &ObjectName| object.as_str() != PG_META_OBJECT && pg_of(object, pg_num) == other;
            let parent = self.of_mut(pg);
            let objects = parent.objects.extract_if(.., |object, _| moves(object)).collect();
            let mut new = State { objects, pg_num: Some(pg_num), ..State::default() };
            if is_whole {
                (new.log, new.head) = (parent.log.clone(), parent.head);
                new.objects.extend(
                    parent.objects.get_key_value(&name(PG_META_OBJECT)).map(|(a, b)| (a.clone(), b.clone())),
                );
            }
            self.all.insert(other, new);
        } else if pg_num < before {
            let mut undone = self.all.remove(&other).unwrap_or_default();
            undone.objects.remove(&name(PG_META_OBJECT));
            self.of_mut(pg).objects.extend(undone.objects);
        }
        (pg_num > before && is_whole).then_some(other)
    }
}

impl State {
    /// Returns true if an object belongs to this PG, by the splits that this copy has applied.
    pub fn holds(&self, pg: PgId, object: &ObjectName) -> bool {
        object.as_str() == PG_META_OBJECT || self.pg_num.is_none_or(|pg_num| pg.holds(object, pg_num))
    }

    /// Returns true if a block has a place that no clone shares. Clones have the same bytes in memory.
    pub fn has_to_itself(&self, object: &ObjectName, block: u32) -> bool {
        let data = |object: &Object| object.blocks.get(&block).map(|data| data.as_ptr());
        let Some(own) = self.objects.get(object).and_then(data) else { return false };
        let mut others = self.objects.iter().filter(|(name, _)| *name != object);
        !others.any(|(_, other)| data(other) == Some(own))
    }

    pub fn apply(&mut self, transaction: &Transaction, ring_entries: usize) {
        let mut payload = transaction.payload.clone();
        for mutation in &transaction.mutations {
            match mutation {
                Mutation::Remove => {
                    self.objects.remove(&transaction.object);
                    continue;
                }
                Mutation::ResetLog { head } => {
                    self.log.retain(|entry| entry.version <= *head);
                    self.head = *head;
                }
                Mutation::Split { .. } => continue,
                Mutation::ClonePreImage { copy } => {
                    match self.objects.get(&transaction.object).cloned() {
                        Some(object) => drop(self.objects.insert(copy.clone(), object)),
                        None => drop(self.objects.remove(copy)),
                    }
                    continue;
                }
                Mutation::RemoveOther { object } => {
                    self.objects.remove(object);
                    continue;
                }
                Mutation::CloneFrom { source } => {
                    let source = self.objects.get(source).cloned().unwrap_or_default();
                    self.objects.insert(transaction.object.clone(), source);
                    continue;
                }
                _ => {}
            }
            self.objects.entry(transaction.object.clone()).or_default().apply(mutation, &mut payload);
        }
        for entry in &transaction.log {
            self.head = entry.version;
            self.log.push_back(entry.clone());
            if entry.object == transaction.object
                && let Some(object) = self.objects.get_mut(&entry.object)
            {
                object.version = entry.version;
            }
        }
        self.trim_log(ring_entries);
    }

    fn trim_log(&mut self, ring_entries: usize) {
        let excess = self.log.len().saturating_sub(ring_entries);
        self.log.drain(..excess);
    }

    pub fn forget_pre_images(&mut self, through: Version) {
        self.log.iter_mut().filter(|entry| entry.version <= through).for_each(|entry| entry.pre_image = None);
    }

    pub fn omap_value(&self, object: &ObjectName, key: &[u8]) -> Option<Bytes> {
        self.objects.get(object)?.omap.get(key).cloned()
    }

    /// The epoch that this copy's OSD has promised; 0 before the first promise.
    pub fn promised(&self) -> Epoch {
        let value = self.omap_value(&name(PG_META_OBJECT), EPOCH_KEY);
        Epoch(value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap())))
    }

    /// Returns true if this copy is marked as incomplete.
    pub fn is_incomplete(&self) -> bool {
        [INCOMPLETE_KEY, BEHIND_KEY].iter().any(|key| self.omap_value(&name(PG_META_OBJECT), key).is_some())
    }
}

impl Object {
    pub fn apply(&mut self, mutation: &Mutation, payload: &mut Bytes) {
        match mutation {
            Mutation::Write { offset, length, seals } => {
                if let Some(seals) = seals {
                    self.set_seals(*offset, seals);
                }
                let data = payload.split_to(*length as usize);
                for (index, block) in data.chunks(BLOCK_BYTES).enumerate() {
                    let first = (offset / BLOCK_BYTES as u64) as u32;
                    self.blocks.insert(first + index as u32, data.slice_ref(block));
                }
                self.size = self.size.max(offset + u64::from(*length));
            }
            Mutation::Zero { offset, length } => {
                let first = (offset / BLOCK_BYTES as u64) as u32;
                let end = ((offset + length) / BLOCK_BYTES as u64) as u32;
                self.blocks.retain(|block, _| !(first..end).contains(block));
                let units = self.units(*offset, *length);
                self.seals.retain(|unit, _| !units.contains(unit));
            }
            Mutation::Truncate { size_bytes } => {
                let end = (size_bytes / BLOCK_BYTES as u64) as u32;
                self.blocks.retain(|block, _| *block < end);
                let units = self.units(0, *size_bytes);
                self.seals.retain(|unit, _| units.contains(unit));
                self.size = *size_bytes;
            }
            Mutation::SetVersion { version } => self.version = *version,
            Mutation::Create
            | Mutation::Remove
            | Mutation::CloneFrom { .. }
            | Mutation::ClonePreImage { .. }
            | Mutation::RemoveOther { .. }
            | Mutation::ResetLog { .. }
            | Mutation::Split { .. } => {}
            Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes } => {
                self.whole_size = Some(*object_bytes);
                self.size = *shard_bytes;
                self.seal_shape = (*seal_unit_bytes > 0).then_some((*seal_unit_bytes, *seal_bytes));
            }
            Mutation::OmapSet { key, value } => drop(self.omap.insert(key.clone(), value.clone())),
            Mutation::OmapRemove { key } => drop(self.omap.remove(key)),
            Mutation::OmapReplace { key, value, displaced_to } => {
                let old = match value {
                    Some(value) => self.omap.insert(key.clone(), value.clone()),
                    None => self.omap.remove(key),
                };
                if let Some(old) = old {
                    self.omap.insert(displaced_to.clone(), old);
                }
            }
        }
    }

    fn set_seals(&mut self, offset: u64, seals: &Seals) {
        assert_eq!(offset % u64::from(seals.unit_bytes), 0, "seals of whole units");
        self.seal_shape = Some((seals.unit_bytes, seals.seal_bytes));
        let first = (offset / u64::from(seals.unit_bytes)) as u32;
        let each = seals.bytes.chunks(seals.seal_bytes.into());
        self.seals.extend((first..).zip(each.map(Bytes::copy_from_slice)));
    }

    /// The units that a range overlaps.
    fn units(&self, offset: u64, length: u64) -> Range<u32> {
        let unit_bytes = self.seal_shape.map_or(BLOCK_BYTES as u64, |(unit_bytes, _)| unit_bytes.into());
        (offset / unit_bytes) as u32..(offset + length).div_ceil(unit_bytes) as u32
    }

    /// The seals of a range; zeros where there is none.
    pub fn seals(&self, offset: u64, length: u64) -> Option<Seals> {
        let (unit_bytes, seal_bytes) = self.seal_shape?;
        let none = Bytes::from(vec![0; seal_bytes.into()]);
        let seal = |unit: u32| self.seals.get(&unit).unwrap_or(&none).to_vec();
        let bytes: Vec<u8> = self.units(offset, length).flat_map(seal).collect();
        Some(Seals { unit_bytes, seal_bytes, bytes: bytes.into() })
    }

    /// Returns true if a block was written, even with zeros.
    pub fn is_sealed(&self, block: u32) -> bool {
        let units = self.units(u64::from(block) * BLOCK_BYTES as u64, BLOCK_BYTES as u64);
        self.seals.range(units).any(|(_, seal)| seal.iter().any(|byte| *byte != 0))
    }

    /// The data of a range as far as the object reaches.
    pub fn data(&self, offset: u64, length: u64) -> Bytes {
        let end = self.size.min(offset + length);
        let mut data = BytesMut::zeroed(end.saturating_sub(offset) as usize);
        for (index, chunk) in data.chunks_mut(BLOCK_BYTES).enumerate() {
            if let Some(block) = self.blocks.get(&((offset / BLOCK_BYTES as u64) as u32 + index as u32)) {
                chunk.copy_from_slice(block);
            }
        }
        data.freeze()
    }
}

pub fn read(object: Option<&Object>, request: &ReadRequest) -> Result<(ReadOutcome, Bytes), Refusal> {
    let object = object.ok_or(Refusal::NoSuchObject)?;
    let outcome = match request {
        ReadRequest::Data { offset, length, .. } => {
            let data = object.data(*offset, u64::from(*length));
            let (object_bytes, version) = (object.size, object.version);
            let seals = object.seals(*offset, data.len() as u64);
            return Ok((ReadOutcome::Data { object_bytes, version, seals }, data));
        }
        ReadRequest::Extents { offset, length } => {
            let length = object.size.saturating_sub(*offset).min(u64::from(*length));
            let data = object.data(*offset, length);
            let blocks = data.chunks(BLOCK_BYTES).zip((offset / BLOCK_BYTES as u64) as u32..);
            let held: Vec<bool> = blocks
                .map(|(data, block)| data.iter().any(|&byte| byte != 0) || object.is_sealed(block))
                .collect();
            ReadOutcome::Extents { object_bytes: object.size, version: object.version, blocks: bits(&held) }
        }
        ReadRequest::ObjectList { .. } => unreachable!("it is not about an object"),
        ReadRequest::Stat => {
            ReadOutcome::Stat { object_bytes: object.whole_size.unwrap_or(object.size), version: object.version }
        }
        ReadRequest::OmapGet { key } => ReadOutcome::OmapValue(object.omap.get(key).cloned()),
        ReadRequest::OmapList { prefix, from, limit } => {
            let found = object.omap.range(from.clone()..).filter(|(key, _)| key.starts_with(prefix));
            let mut entries: Vec<_> = found.map(|(key, value)| (key.clone(), value.clone())).collect();
            let more = entries.len() > *limit as usize;
            entries.truncate(*limit as usize);
            ReadOutcome::OmapPage { entries, more }
        }
    };
    Ok((outcome, Bytes::new()))
}

/// The first condition that does not hold, for the object, the PG's own object, and whether others exist.
pub fn failed_condition(
    conditions: &[Condition],
    object: Option<&Object>,
    meta: Option<&Object>,
    exists: impl Fn(&ObjectName) -> bool,
    pg_num_now: u32,
) -> Option<Refusal> {
    let value = |key: &Bytes| object.and_then(|object| object.omap.get(key));
    for (index, condition) in conditions.iter().enumerate() {
        let holds = match condition {
            Condition::ObjectExists => object.is_some(),
            Condition::ObjectAbsent => object.is_none(),
            Condition::OmapExists { key } => value(key).is_some(),
            Condition::OmapAbsent { key } => value(key).is_none(),
            Condition::OmapEquals { key, value: expected } => value(key) == Some(expected),
            Condition::PgNum { pg_num } => *pg_num == pg_num_now,
            Condition::OtherExists { object } => exists(object),
            Condition::NotFenced { name, generation } => {
                let fence = meta.and_then(|meta| meta.omap.get(&[FENCE_KEY_PREFIX, name].concat()[..]));
                let fence = fence.map_or(0, |fence| u64::from_be_bytes(fence[..].try_into().unwrap()));
                if fence > *generation {
                    return Some(Refusal::Fenced { generation: fence });
                }
                true
            }
        };
        if !holds {
            return Some(Refusal::ConditionFailed { index: index as u16 });
        }
    }
    None
}
