//! What a placement group holds, as plain maps: the contents of a member's stand-in store, and the
//! model that the recorded history is replayed on.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::operation::FENCE_KEY_PREFIX;
use atoll_base::{
    BLOCK_BYTES, Condition, LogEntry, Mutation, ObjectName, PgId, PoolId, ReadOutcome, ReadRequest, Refusal,
    Transaction, Version,
};
use bytes::{Bytes, BytesMut};

pub const PG: PgId = PgId { pool: PoolId(1), index: 0 };

pub fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct Object {
    pub blocks: BTreeMap<u32, Bytes>,
    pub size: u64,
    pub omap: BTreeMap<Bytes, Bytes>,
    pub version: Version,
}

#[derive(Clone, Default)]
pub struct State {
    pub objects: BTreeMap<ObjectName, Object>,
    /// The ring that the group sees.
    pub log: VecDeque<LogEntry>,
    pub head: Version,
}

impl State {
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
        let excess = self.log.len().saturating_sub(ring_entries);
        self.log.drain(..excess);
    }

    pub fn omap_value(&self, object: &ObjectName, key: &[u8]) -> Option<Bytes> {
        self.objects.get(object)?.omap.get(key).cloned()
    }
}

impl Object {
    pub fn apply(&mut self, mutation: &Mutation, payload: &mut Bytes) {
        match mutation {
            Mutation::Write { offset, length, .. } => {
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
            }
            Mutation::Truncate { size_bytes } => {
                let end = (size_bytes / BLOCK_BYTES as u64) as u32;
                self.blocks.retain(|block, _| *block < end);
                self.size = *size_bytes;
            }
            Mutation::SetVersion { version } => self.version = *version,
            Mutation::Create | Mutation::Remove | Mutation::CloneFrom { .. } | Mutation::ResetLog { .. } => {}
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
        ReadRequest::Data { offset, length } => {
            let data = object.data(*offset, u64::from(*length));
            return Ok((ReadOutcome::Data { object_bytes: object.size, seals: None }, data));
        }
        ReadRequest::Stat => ReadOutcome::Stat { object_bytes: object.size, version: object.version },
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

/// The first condition that does not hold, for the object and the group's own object.
pub fn failed_condition(
    conditions: &[Condition],
    object: Option<&Object>,
    meta: Option<&Object>,
) -> Option<Refusal> {
    let value = |key: &Bytes| object.and_then(|object| object.omap.get(key));
    for (index, condition) in conditions.iter().enumerate() {
        let holds = match condition {
            Condition::ObjectExists => object.is_some(),
            Condition::ObjectAbsent => object.is_none(),
            Condition::OmapExists { key } => value(key).is_some(),
            Condition::OmapAbsent { key } => value(key).is_none(),
            Condition::OmapEquals { key, value: expected } => value(key) == Some(expected),
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
