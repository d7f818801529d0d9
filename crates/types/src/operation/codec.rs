//! Byte encodings of operations, as docs/reference/formats.md describes them. The same bytes travel in
//! control segments and are stored in WAL records.

use super::table::Shape;
use super::{
    Condition, ListedObject, LogEntry, Mutation, PreImage, ReadOutcome, ReadRequest, Refusal, Seals, Touched,
    Transaction,
};
use crate::ids::{Epoch, ObjectName, OsdId, PgId, PoolId, RequestId, Version};
use crate::limits;
use atoll_codec::{CodecError, Reader, Writer};

impl Version {
    /// Appends the version.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u64(self.epoch.0);
        writer.u64(self.sequence);
    }

    /// Reads a version.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let (epoch, sequence) = (<Epoch as Shape>::decode(reader, "epoch")?, reader.u64("sequence")?);
        if sequence > limits::SEQUENCE_MAX {
            return Err(CodecError::Invalid { what: "sequence", value: sequence });
        }
        Ok(Version { epoch, sequence })
    }
}

impl PgId {
    /// Appends the id.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.pool.0);
        writer.u32(self.index);
    }

    /// Reads an id.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(PgId { pool: PoolId(reader.u32("pool")?), index: reader.u32("PG")? })
    }
}

impl RequestId {
    /// Appends the id.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u64(self.session);
        writer.u64(self.sequence);
    }

    /// Reads an id.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(RequestId { session: reader.u64("session")?, sequence: reader.u64("request sequence")? })
    }
}

impl ObjectName {
    /// Appends the name.
    pub fn encode(&self, writer: &mut Writer) {
        writer.bytes(self.as_str().as_bytes());
    }

    /// Reads a name.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        object_name(&reader.bytes(limits::OBJECT_NAME_BYTES_MAX, "object name")?)
    }
}

fn encode_optional_name(name: Option<&ObjectName>, writer: &mut Writer) {
    writer.optional_bytes(name.map(|name| name.as_str().as_bytes()));
}

fn decode_optional_name(reader: &mut Reader) -> Result<Option<ObjectName>, CodecError> {
    let bytes = reader.optional_bytes(limits::OBJECT_NAME_BYTES_MAX, "object name")?;
    bytes.map(|bytes| object_name(&bytes)).transpose()
}

fn object_name(bytes: &[u8]) -> Result<ObjectName, CodecError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CodecError::NotText { what: "object name" })?;
    ObjectName::new(text).ok_or(CodecError::Invalid { what: "object name length", value: 0 })
}

impl Seals {
    /// Appends the seals.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(self.unit_bytes);
        writer.u16(self.seal_bytes);
        writer.bytes(&self.bytes);
    }

    /// Reads seals and checks that their sizes make sense.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let unit_bytes = reader.u32("seal unit")?;
        let unit_fits = unit_bytes.is_multiple_of(atoll_buffers::BLOCK_BYTES as u32)
            && (1..=limits::SEAL_UNIT_BYTES_MAX).contains(&unit_bytes);
        if !unit_fits {
            return Err(CodecError::Invalid { what: "seal unit", value: u64::from(unit_bytes) });
        }
        let seal_bytes = reader.u16("seal length")?;
        if !(1..=limits::SEAL_BYTES_MAX).contains(&usize::from(seal_bytes)) {
            return Err(CodecError::Invalid { what: "seal length", value: u64::from(seal_bytes) });
        }
        let bytes = reader.bytes(limits::CONTROL_BYTES_MAX, "seals")?;
        if !bytes.len().is_multiple_of(usize::from(seal_bytes)) {
            return Err(CodecError::Invalid { what: "seals", value: bytes.len() as u64 });
        }
        Ok(Seals { unit_bytes, seal_bytes, bytes })
    }

    pub(super) fn encode_optional(seals: Option<&Seals>, writer: &mut Writer) {
        writer.u8(u8::from(seals.is_some()));
        if let Some(seals) = seals {
            seals.encode(writer);
        }
    }

    pub(super) fn decode_optional(reader: &mut Reader) -> Result<Option<Seals>, CodecError> {
        match reader.u8("seals present")? {
            0 => Ok(None),
            1 => Seals::decode(reader).map(Some),
            value => Err(CodecError::Invalid { what: "seals present", value: u64::from(value) }),
        }
    }
}

fn omap_key(reader: &mut Reader) -> Result<bytes::Bytes, CodecError> {
    reader.bytes(limits::OMAP_KEY_BYTES_MAX, "omap key")
}

fn omap_value(reader: &mut Reader) -> Result<bytes::Bytes, CodecError> {
    reader.bytes(limits::OMAP_VALUE_BYTES_MAX, "omap value")
}

impl Condition {
    /// Appends the condition.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Condition::ObjectExists => writer.u8(1),
            Condition::ObjectAbsent => writer.u8(2),
            Condition::OmapExists { key } => {
                writer.u8(3);
                writer.bytes(key);
            }
            Condition::OmapAbsent { key } => {
                writer.u8(4);
                writer.bytes(key);
            }
            Condition::OmapEquals { key, value } => {
                writer.u8(5);
                writer.bytes(key);
                writer.bytes(value);
            }
            Condition::NotFenced { name, generation } => {
                writer.u8(6);
                writer.bytes(name);
                writer.u64(*generation);
            }
            Condition::PgNum { pg_num } => {
                writer.u8(7);
                writer.u32(*pg_num);
            }
            Condition::OtherExists { object } => {
                writer.u8(8);
                object.encode(writer);
            }
        }
    }

    /// Reads a condition.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(match reader.u8("condition")? {
            1 => Condition::ObjectExists,
            2 => Condition::ObjectAbsent,
            3 => Condition::OmapExists { key: omap_key(reader)? },
            4 => Condition::OmapAbsent { key: omap_key(reader)? },
            5 => Condition::OmapEquals { key: omap_key(reader)?, value: omap_value(reader)? },
            6 => Condition::NotFenced { name: omap_key(reader)?, generation: reader.u64("generation")? },
            7 => Condition::PgNum { pg_num: reader.u32("number of PGs")? },
            8 => Condition::OtherExists { object: ObjectName::decode(reader)? },
            value => return Err(CodecError::Invalid { what: "condition", value: u64::from(value) }),
        })
    }
}

impl ReadRequest {
    /// Appends the request.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            ReadRequest::Data { offset, length, opens_seals } => {
                writer.u8(1);
                writer.u64(*offset);
                writer.u32(*length);
                writer.u8(u8::from(*opens_seals));
            }
            ReadRequest::Stat => writer.u8(2),
            ReadRequest::OmapGet { key } => {
                writer.u8(3);
                writer.bytes(key);
            }
            ReadRequest::OmapList { prefix, from, limit } => {
                writer.u8(4);
                writer.bytes(prefix);
                writer.bytes(from);
                writer.u32(*limit);
            }
            ReadRequest::Extents { offset, length } => {
                writer.u8(5);
                writer.u64(*offset);
                writer.u32(*length);
            }
            ReadRequest::ObjectList { prefix, after, counts_blocks, pg_num } => {
                writer.u8(6);
                writer.bytes(prefix);
                encode_optional_name(after.as_ref(), writer);
                writer.u8(u8::from(*counts_blocks));
                // No PG is one of none.
                writer.u32(pg_num.unwrap_or(0));
            }
        }
    }

    /// Reads a request.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(match reader.u8("read request")? {
            1 => ReadRequest::Data {
                offset: reader.u64("offset")?,
                length: reader.u32("length")?,
                opens_seals: reader.u8("opens seals")? != 0,
            },
            2 => ReadRequest::Stat,
            3 => ReadRequest::OmapGet { key: omap_key(reader)? },
            4 => ReadRequest::OmapList {
                prefix: omap_key(reader)?,
                from: omap_key(reader)?,
                limit: reader.u32("limit")?,
            },
            5 => ReadRequest::Extents { offset: reader.u64("offset")?, length: reader.u32("length")? },
            6 => ReadRequest::ObjectList {
                prefix: reader.bytes(limits::OBJECT_NAME_BYTES_MAX, "object name")?,
                after: decode_optional_name(reader)?,
                counts_blocks: reader.u8("counts blocks")? != 0,
                pg_num: Some(reader.u32("number of PGs")?).filter(|pg_num| *pg_num != 0),
            },
            value => return Err(CodecError::Invalid { what: "read request", value: u64::from(value) }),
        })
    }
}

impl ReadOutcome {
    /// Appends the outcome.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            ReadOutcome::Data { object_bytes, version, seals } => {
                writer.u8(1);
                writer.u64(*object_bytes);
                version.encode(writer);
                Seals::encode_optional(seals.as_ref(), writer);
            }
            ReadOutcome::Stat { object_bytes, version } => {
                writer.u8(2);
                writer.u64(*object_bytes);
                version.encode(writer);
            }
            ReadOutcome::OmapValue(value) => {
                writer.u8(3);
                writer.optional_bytes(value.as_deref());
            }
            ReadOutcome::OmapPage { entries, more } => {
                writer.u8(4);
                writer.u32(entries.len() as u32);
                for (key, value) in entries {
                    writer.bytes(key);
                    writer.bytes(value);
                }
                writer.u8(u8::from(*more));
            }
            ReadOutcome::Extents { object_bytes, version, blocks } => {
                writer.u8(5);
                writer.u64(*object_bytes);
                version.encode(writer);
                writer.bytes(blocks);
            }
            ReadOutcome::ObjectPage { objects, next } => {
                writer.u8(6);
                writer.u32(objects.len() as u32);
                for object in objects {
                    object.name.encode(writer);
                    writer.u64(object.object_bytes);
                    object.version.encode(writer);
                    writer.u32(object.block_count);
                    writer.u32(object.shared_block_count);
                }
                encode_optional_name(next.as_ref(), writer);
            }
        }
    }

    /// Reads an outcome.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(match reader.u8("read outcome")? {
            1 => ReadOutcome::Data {
                object_bytes: reader.u64("object size")?,
                version: Version::decode(reader)?,
                seals: Seals::decode_optional(reader)?,
            },
            2 => ReadOutcome::Stat { object_bytes: reader.u64("object size")?, version: Version::decode(reader)? },
            3 => ReadOutcome::OmapValue(reader.optional_bytes(limits::OMAP_VALUE_BYTES_MAX, "omap value")?),
            4 => {
                let count = reader.count(limits::OMAP_LIST_MAX as usize, "omap entries")?;
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    entries.push((omap_key(reader)?, omap_value(reader)?));
                }
                ReadOutcome::OmapPage { entries, more: reader.u8("more")? != 0 }
            }
            5 => ReadOutcome::Extents {
                object_bytes: reader.u64("object size")?,
                version: Version::decode(reader)?,
                blocks: reader.bytes(EXTENTS_BYTES_MAX, "extents")?,
            },
            6 => {
                let count = reader.count(limits::OBJECTS_LISTED_MAX, "listed objects")?;
                let objects = (0..count).map(|_| ListedObject::decode(reader)).collect::<Result<_, _>>()?;
                ReadOutcome::ObjectPage { objects, next: decode_optional_name(reader)? }
            }
            value => return Err(CodecError::Invalid { what: "read outcome", value: u64::from(value) }),
        })
    }
}

/// Bytes of the bits of all blocks of an object.
const EXTENTS_BYTES_MAX: usize = limits::OBJECT_BYTES_MAX as usize / atoll_buffers::BLOCK_BYTES / 8;

impl ListedObject {
    fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(ListedObject {
            name: ObjectName::decode(reader)?,
            object_bytes: reader.u64("object size")?,
            version: Version::decode(reader)?,
            block_count: reader.u32("blocks")?,
            shared_block_count: reader.u32("shared blocks")?,
        })
    }
}

const DETAIL_BYTES_MAX: usize = 4096;

impl Refusal {
    /// Appends the refusal.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Refusal::NoSuchObject => writer.u8(1),
            Refusal::ConditionFailed { index } => {
                writer.u8(2);
                writer.u16(*index);
            }
            Refusal::Fenced { generation } => {
                writer.u8(3);
                writer.u64(*generation);
            }
            Refusal::NoSpace { osd } => {
                writer.u8(4);
                writer.u32(osd.0);
            }
            Refusal::Corrupt { detail } => {
                writer.u8(5);
                encode_detail(detail, writer);
            }
            Refusal::Invalid { detail } => {
                writer.u8(6);
                encode_detail(detail, writer);
            }
            Refusal::NotPrimary => writer.u8(7),
            Refusal::Inactive { detail } => {
                writer.u8(8);
                encode_detail(detail, writer);
            }
            Refusal::Busy => writer.u8(9),
            Refusal::OutcomeUnknown => writer.u8(10),
            Refusal::Undecided => writer.u8(11),
        }
    }

    /// Reads a refusal.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        Ok(match reader.u8("refusal")? {
            1 => Refusal::NoSuchObject,
            2 => Refusal::ConditionFailed { index: reader.u16("condition")? },
            3 => Refusal::Fenced { generation: reader.u64("generation")? },
            4 => Refusal::NoSpace { osd: OsdId(reader.u32("osd")?) },
            5 => Refusal::Corrupt { detail: reader.text(DETAIL_BYTES_MAX, "detail")? },
            6 => Refusal::Invalid { detail: reader.text(DETAIL_BYTES_MAX, "detail")? },
            7 => Refusal::NotPrimary,
            8 => Refusal::Inactive { detail: reader.text(DETAIL_BYTES_MAX, "detail")? },
            9 => Refusal::Busy,
            10 => Refusal::OutcomeUnknown,
            11 => Refusal::Undecided,
            value => return Err(CodecError::Invalid { what: "refusal", value: u64::from(value) }),
        })
    }
}

fn encode_detail(detail: &str, writer: &mut Writer) {
    let end = detail.floor_char_boundary(DETAIL_BYTES_MAX);
    writer.bytes(&detail.as_bytes()[..end]);
}

/// Flags of a log entry beside "request present" (1).
const HAS_PRE_IMAGE: u8 = 2;
const HAS_COMMITTED: u8 = 4;

impl LogEntry {
    /// Appends the entry.
    pub fn encode(&self, writer: &mut Writer) {
        self.version.encode(writer);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let has_committed = self.committed_sequence != 0;
        let flags = flag(self.pre_image.is_some(), HAS_PRE_IMAGE) | flag(has_committed, HAS_COMMITTED);
        writer.u8(u8::from(self.request.is_some()) | flags);
        if let Some(request) = &self.request {
            request.encode(writer);
        }
        if has_committed {
            writer.u64(self.committed_sequence);
        }
        self.object.encode(writer);
        writer.u8(u8::from(self.touched.whole));
        writer.u32(self.touched.block_ranges.len() as u32);
        for (first, count) in &self.touched.block_ranges {
            writer.u32(*first);
            writer.u32(*count);
        }
        writer.u32(self.touched.omap_keys.len() as u32);
        for key in &self.touched.omap_keys {
            writer.bytes(key);
        }
        if let Some(pre_image) = &self.pre_image {
            encode_mutations(&pre_image.mutations, writer);
            writer.bytes(&pre_image.payload);
        }
    }

    /// Reads an entry.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let version = Version::decode(reader)?;
        let flags = reader.u8("request present")?;
        let request = if flags & 1 != 0 { Some(RequestId::decode(reader)?) } else { None };
        let committed_sequence = if flags & HAS_COMMITTED != 0 { reader.u64("committed sequence")? } else { 0 };
        let object = ObjectName::decode(reader)?;
        let mut touched = Touched { whole: reader.u8("touched")? != 0, ..Touched::default() };
        for _ in 0..reader.count(limits::OPERATIONS_MAX, "touched ranges")? {
            touched.block_ranges.push((reader.u32("first block")?, reader.u32("block count")?));
        }
        for _ in 0..reader.count(2 * limits::OPERATIONS_MAX, "touched keys")? {
            touched.omap_keys.push(omap_key(reader)?);
        }
        let pre_image = match flags & HAS_PRE_IMAGE {
            0 => None,
            _ => Some(PreImage {
                mutations: decode_mutations(reader)?,
                payload: reader.bytes(limits::CONTROL_BYTES_MAX, "pre-image")?,
            }),
        };
        Ok(LogEntry { version, request, object, touched, committed_sequence, pre_image })
    }
}

/// Appends a list of mutations.
pub fn encode_mutations(mutations: &[Mutation], writer: &mut Writer) {
    writer.u32(mutations.len() as u32);
    for mutation in mutations {
        mutation.encode(writer);
    }
}

/// Reads a list of mutations.
pub fn decode_mutations(reader: &mut Reader) -> Result<Vec<Mutation>, CodecError> {
    let count = reader.count(limits::OPERATIONS_MAX, "mutations")?;
    (0..count).map(|_| Mutation::decode(reader)).collect()
}

impl Transaction {
    /// Returns the likely length of the encoding, in bytes: long parts are counted, the rest estimated.
    pub fn encoded_bytes_expected(&self) -> usize {
        let pre_image_bytes =
            |entry: &LogEntry| 256 + entry.pre_image.as_ref().map_or(0, |pre_image| pre_image.payload.len());
        let value_bytes = |mutation: &Mutation| match mutation {
            Mutation::Write { seals, .. } => seals.as_ref().map_or(0, |seals| seals.bytes.len()),
            Mutation::OmapSet { value, .. } => value.len(),
            _ => 0,
        };
        256 + self.log.iter().map(pre_image_bytes).sum::<usize>()
            + self.mutations.iter().map(value_bytes).sum::<usize>()
    }

    /// Appends everything but the payload.
    pub fn encode(&self, writer: &mut Writer) {
        self.pg.encode(writer);
        self.object.encode(writer);
        encode_mutations(&self.mutations, writer);
        writer.u8(u8::from(self.payload_sealed));
        writer.u32(self.log.len() as u32);
        for entry in &self.log {
            entry.encode(writer);
        }
    }

    /// Reads a transaction whose payload came beside it.
    pub fn decode(reader: &mut Reader, payload: bytes::Bytes) -> Result<Self, CodecError> {
        let pg = PgId::decode(reader)?;
        let object = ObjectName::decode(reader)?;
        let mutations = decode_mutations(reader)?;
        let payload_sealed = reader.u8("payload sealed")? != 0;
        let count = reader.count(limits::PG_LOG_ENTRIES, "log entries")?;
        let log = (0..count).map(|_| LogEntry::decode(reader)).collect::<Result<_, _>>()?;
        Ok(Transaction { pg, object, mutations, payload, payload_sealed, log })
    }
}
