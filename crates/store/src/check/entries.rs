//! Checks the entries of the tree in key order: each by itself, and against the ones before it.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_codec::{CodecError, Reader};
use atoll_types::limits::PG_LOG_ENTRIES;
use atoll_types::{LogEntry, PgId, PoolId, Version};
use bytes::Bytes;

use super::problem::Problem;
use crate::metadata::keys::{self, ObjectPart, PART_BYTES};
use crate::metadata::{
    CHUNK_BLOCKS, CHUNK_BYTES, Chunk, HOLE, OBJECT_BLOCKS_MAX, ObjectInfo, ObjectKey, PoolCount,
};
use crate::pgs::decode_header;

/// A value in parts, as far as they have come.
#[derive(Default)]
struct PartsSoFar {
    /// Prefix of the keys before the number of the part.
    entry: Vec<u8>,
    count: usize,
    last_bytes: usize,
}

impl PartsSoFar {
    /// Takes the next part. False if it does not follow the part before.
    fn take(&mut self, key: &[u8], value: &[u8]) -> bool {
        let Some((entry, index)) = key.split_last_chunk::<2>() else { return false };
        let index = usize::from(u16::from_be_bytes(*index));
        let follows = match self.count > 0 && self.entry == entry {
            true => index == self.count && self.last_bytes == PART_BYTES,
            false => index == 0,
        };
        *self = PartsSoFar { entry: entry.to_vec(), count: index + 1, last_bytes: value.len() };
        follows
    }
}

struct PgEntries {
    pg: PgId,
    head: Version,
    /// The last entry of the log so far.
    last_sequence: u64,
    segment: Vec<u8>,
    segment_first: u64,
}

/// A block that an object refers to.
pub(super) struct Reference<'a> {
    pub object: &'a ObjectKey,
    pub index: usize,
    pub device_block: u32,
    pub crc: u32,
}

/// Result for an entry.
pub(super) enum Found<'a> {
    Reference(Reference<'a>),
    Problem(Problem),
}

/// The state of reading entries in order.
#[derive(Default)]
pub(super) struct Entries {
    object: Option<(ObjectKey, ObjectInfo)>,
    entries_of_pg: Option<PgEntries>,
    parts: PartsSoFar,
    pub object_count: u64,
    /// Objects by pool; their blocks are counted elsewhere.
    pub pools: BTreeMap<PoolId, u64>,
    pub omap_count: u64,
    pub pg_count: u64,
}

impl Entries {
    /// Looks at the next entry.
    pub fn take(&mut self, key: &[u8], value: &[u8], found: &mut dyn FnMut(Found)) {
        if !key.starts_with(&keys::PGS) {
            self.end_pg(found);
        }
        if key.starts_with(&keys::PGS) {
            self.pg_entry(key, value, found);
        } else if key.starts_with(&keys::OBJECTS) {
            self.object_entry(key, value, found);
        } else if key.starts_with(&keys::SHARED_BLOCKS) {
            if shared_counts(key, value).is_none() {
                found(Found::Problem(Problem::Entry {
                    detail: format!("the counts of shared blocks under {}", hex::encode(key)),
                }));
            }
        } else if key.starts_with(&keys::POOLS) {
            let makes_sense = match keys::parse_pool(key) {
                Some(None) => value.is_empty(),
                Some(Some(_)) => PoolCount::decode(value).is_ok(),
                None => false,
            };
            if !makes_sense {
                found(Found::Problem(Problem::Entry { detail: format!("the counts under {}", hex::encode(key)) }));
            }
        } else {
            found(Found::Problem(Problem::Entry {
                detail: format!("no entry has a key such as {}", hex::encode(key)),
            }));
        }
    }

    /// All entries have been taken.
    pub fn end(&mut self, found: &mut dyn FnMut(Found)) {
        self.end_pg(found);
    }

    // ---- objects ----------------------------------------------------------------------------

    fn object_entry(&mut self, key: &[u8], value: &[u8], found: &mut dyn FnMut(Found)) {
        let Some((object, part)) = keys::parse_object(key) else {
            return found(Found::Problem(Problem::Entry {
                detail: format!("the key {} of an object", hex::encode(key)),
            }));
        };
        if part == ObjectPart::Header {
            let info = ObjectInfo::decode(value);
            if let Err(error) = &info {
                found(Found::Problem(Problem::Object {
                    object: object.clone(),
                    detail: format!("its header: {error}"),
                }));
            }
            *self.pools.entry(object.pg.pool).or_default() += 1;
            self.object = Some((object, info.unwrap_or(ANY_INFO)));
            self.object_count += 1;
            return;
        }
        if self.object.as_ref().is_none_or(|(current, _)| *current != object) {
            found(Found::Problem(Problem::MissingHeader { object: object.clone() }));
            // Reported once; the rest of the object is still checked.
            self.object = Some((object, ANY_INFO));
        }
        match part {
            ObjectPart::Chunk(index) => self.chunk(index, value, found),
            _ => self.omap_part(key, value, found),
        }
    }

    fn chunk(&mut self, index: usize, value: &[u8], found: &mut dyn FnMut(Found)) {
        let (object, info) = self.object.as_ref().expect("the caller has set it");
        let wrong = |detail: String| Found::Problem(Problem::Object { object: object.clone(), detail });
        let chunk = match Chunk::decode(value) {
            Ok(chunk) if index < OBJECT_BLOCKS_MAX / CHUNK_BLOCKS => chunk,
            Ok(_) => return found(wrong(format!("its chunk {index} is beyond the longest object"))),
            Err(error) => return found(wrong(format!("its chunk {index}: {error}"))),
        };
        let units = info.seal_shape().map_or(0, |(unit_bytes, _)| (CHUNK_BYTES / u64::from(unit_bytes)) as usize);
        if chunk.seals.len() > units * usize::from(info.seal_bytes) && info.size_bytes != u64::MAX {
            found(wrong(format!("its chunk {index} has more seals than its header allows")));
        }
        let end = info.size_bytes.div_ceil(BLOCK_BYTES as u64);
        for (block, meta) in (index * CHUNK_BLOCKS..).zip(&chunk.blocks).filter(|(_, meta)| **meta != HOLE) {
            if block as u64 >= end {
                found(wrong(format!("its block {block} is behind its end")));
            }
            found(Found::Reference(Reference {
                object,
                index: block,
                device_block: meta.device_block,
                crc: meta.crc,
            }));
        }
    }

    fn omap_part(&mut self, key: &[u8], value: &[u8], found: &mut dyn FnMut(Found)) {
        let (object, _) = self.object.as_ref().expect("the caller has set it");
        let omap = keys::omap(&keys::object(object.pg, &object.name));
        let parsed = keys::parse_omap(&omap, key).filter(|(_, part)| part.len() == 2);
        let Some((omap_key, _)) = parsed else {
            let detail = format!("the omap key {}", hex::encode(key));
            return found(Found::Problem(Problem::Object { object: object.clone(), detail }));
        };
        if !self.parts.take(key, value) {
            let detail = format!("parts are missing in the value of the omap key {}", hex::encode(&omap_key));
            found(Found::Problem(Problem::Object { object: object.clone(), detail }));
        }
        self.omap_count += u64::from(self.parts.count == 1);
    }

    // ---- PGs -----------------------------------------------------------------------------

    fn pg_entry(&mut self, key: &[u8], value: &[u8], found: &mut dyn FnMut(Found)) {
        match keys::parse_pg(key) {
            Some((pg, None)) => {
                self.end_pg(found);
                self.pg_count += 1;
                let head = decode_header(pg, value).map(|(state, _)| state.head);
                if let Err(error) = &head {
                    found(Found::Problem(Problem::Pg { pg, detail: format!("its header: {error}") }));
                }
                let head = head.unwrap_or(Version { sequence: u64::MAX, ..Version::default() });
                self.entries_of_pg =
                    Some(PgEntries { pg, head, last_sequence: 0, segment: Vec::new(), segment_first: 0 });
            }
            Some((pg, Some(first))) => {
                let Some(entries) = self.entries_of_pg.as_mut().filter(|entries| entries.pg == pg) else {
                    return found(Found::Problem(Problem::Pg {
                        pg,
                        detail: "there is no header before its log".into(),
                    }));
                };
                if entries.segment_first != first {
                    entries.end_segment(found);
                }
                entries.segment_first = first;
                entries.segment.extend_from_slice(value);
                if !self.parts.take(key, value) {
                    found(Found::Problem(Problem::Pg {
                        pg,
                        detail: format!("parts are missing in its log from {first} on"),
                    }));
                }
            }
            None => {
                found(Found::Problem(Problem::Entry { detail: format!("the key {} of a PG", hex::encode(key)) }))
            }
        }
    }

    fn end_pg(&mut self, found: &mut dyn FnMut(Found)) {
        if let Some(mut entries) = self.entries_of_pg.take() {
            entries.end_segment(found);
        }
    }
}

/// Stands in for a header that is missing or makes no sense; it allows everything.
const ANY_INFO: ObjectInfo = ObjectInfo {
    size_bytes: u64::MAX,
    whole_bytes: None,
    version: Version { epoch: atoll_types::Epoch(0), sequence: 0 },
    seal_unit_bytes: 0,
    seal_bytes: 0,
    may_share: true,
};

impl PgEntries {
    /// All parts of a piece of the PG's log are there.
    fn end_segment(&mut self, found: &mut dyn FnMut(Found)) {
        if self.segment.is_empty() {
            return;
        }
        let first = self.segment_first;
        let mut wrong = |detail: String| found(Found::Problem(Problem::Pg { pg: self.pg, detail }));
        match decode_segment(std::mem::take(&mut self.segment)) {
            Err(error) => wrong(format!("its log from {first} on: {error}")),
            Ok(sequences) => {
                if sequences.first() != Some(&first) {
                    wrong(format!("its log from {first} on begins elsewhere"));
                }
                for sequence in sequences {
                    if sequence <= self.last_sequence || sequence > self.head.sequence {
                        wrong(format!("entry {sequence} of its log is not between the one before and its head"));
                    }
                    self.last_sequence = sequence;
                }
            }
        }
    }
}

fn decode_segment(segment: Vec<u8>) -> Result<Vec<u64>, CodecError> {
    let mut reader = Reader::new(Bytes::from(segment));
    let count = reader.count(PG_LOG_ENTRIES, "log entries")?;
    let sequences = (0..count).map(|_| LogEntry::decode(&mut reader).map(|entry| entry.version.sequence));
    let sequences = sequences.collect::<Result<_, _>>()?;
    reader.finish()?;
    Ok(sequences)
}

/// The shared blocks of an entry, with their further references. `None` if it makes no sense.
pub(super) fn shared_counts(key: &[u8], value: &[u8]) -> Option<Vec<(u32, u16)>> {
    let first = keys::parse_shared(key)?;
    let (counts, []) = value.as_chunks::<2>() else { return None };
    if counts.len() != keys::SHARED_BLOCKS_PER_ENTRY as usize {
        return None;
    }
    let counts = (first..).zip(counts).map(|(block, count)| (block, u16::from_le_bytes(*count)));
    let shared: Vec<(u32, u16)> = counts.filter(|(_, count)| *count > 0).collect();
    (!shared.is_empty()).then_some(shared)
}
