//! How the fields are encoded that only messages have.

use atoll_codec::{CodecError, Reader, Writer};
use atoll_types::operation::codec::{decode_mutations, encode_mutations};
use atoll_types::operation::table::Shape;
use atoll_types::{
    Condition, LogEntry, ObjectName, OsdId, ReadOutcome, Refusal, TraceContext, Version, WriteRequest, limits,
};
use bytes::Bytes;

use crate::scrub_finding::ScrubFinding;

/// Bytes that are not in the control segment: the frame's payload, put in afterwards.
pub(super) struct Payload;

impl Shape for Payload {
    type Value = Bytes;
    const WORDS: &'static str = "";

    fn encode(_value: &Bytes, _writer: &mut Writer) {}

    fn decode(_reader: &mut Reader, _what: &'static str) -> Result<Bytes, CodecError> {
        Ok(Bytes::new())
    }
}

fn encode_result<T>(result: &Result<T, Refusal>, writer: &mut Writer, ok: impl FnOnce(&T, &mut Writer)) {
    match result {
        Ok(value) => {
            writer.u8(0);
            ok(value, writer);
        }
        Err(refusal) => {
            writer.u8(1);
            refusal.encode(writer);
        }
    }
}

fn decode_result<T>(
    reader: &mut Reader,
    what: &'static str,
    ok: impl FnOnce(&mut Reader) -> Result<T, CodecError>,
) -> Result<Result<T, Refusal>, CodecError> {
    match reader.u8(what)? {
        0 => ok(reader).map(Ok),
        1 => Refusal::decode(reader).map(Err),
        value => Err(CodecError::Invalid { what, value: u64::from(value) }),
    }
}

/// The result of a read.
pub(super) struct ReadResult;

impl Shape for ReadResult {
    type Value = Result<ReadOutcome, Refusal>;
    const WORDS: &'static str = "(result of a read outcome)";

    fn encode(value: &Self::Value, writer: &mut Writer) {
        encode_result(value, writer, ReadOutcome::encode);
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Self::Value, CodecError> {
        decode_result(reader, what, ReadOutcome::decode)
    }
}

/// The result of a write.
pub(super) struct WriteResult;

impl Shape for WriteResult {
    type Value = Result<(), Refusal>;
    const WORDS: &'static str = "(result of nothing)";

    fn encode(value: &Self::Value, writer: &mut Writer) {
        encode_result(value, writer, |(), _| {});
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Self::Value, CodecError> {
        decode_result(reader, what, |_| Ok(()))
    }
}

/// A client's write without its payload.
pub(super) struct Write;

impl Shape for Write {
    type Value = WriteRequest;
    const WORDS: &'static str = "(object name, list of conditions, list of mutations)";

    fn encode(value: &WriteRequest, writer: &mut Writer) {
        value.object.encode(writer);
        writer.u32(value.conditions.len() as u32);
        value.conditions.iter().for_each(|condition| condition.encode(writer));
        encode_mutations(&value.mutations, writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<WriteRequest, CodecError> {
        let object = ObjectName::decode(reader)?;
        let count = reader.count(limits::OPERATIONS_MAX, "conditions")?;
        let conditions = (0..count).map(|_| Condition::decode(reader)).collect::<Result<_, _>>()?;
        let mutations = decode_mutations(reader)?;
        Ok(WriteRequest { object, conditions, mutations, payload: Bytes::new(), payload_sealed: false })
    }
}

/// The number of a shard, or none.
pub(super) struct ShardNumber;

/// In place of a shard's number: none.
const NO_SHARD: u8 = u8::MAX;

impl Shape for ShardNumber {
    type Value = Option<u8>;
    const WORDS: &'static str = "`u8` (255: none)";

    fn encode(value: &Option<u8>, writer: &mut Writer) {
        writer.u8(value.unwrap_or(NO_SHARD));
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Option<u8>, CodecError> {
        Ok(Some(reader.u8(what)?).filter(|shard| *shard != NO_SHARD))
    }
}

/// The ids of a span.
pub(super) struct SpanIds;

impl Shape for SpanIds {
    type Value = TraceContext;
    const WORDS: &'static str = "(trace id, 16 bytes; span id, 8 bytes)";

    fn encode(value: &TraceContext, writer: &mut Writer) {
        writer.raw(&value.trace_id);
        writer.raw(&value.span_id);
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<TraceContext, CodecError> {
        let mut span = TraceContext { trace_id: [0; 16], span_id: [0; 8] };
        for id in [&mut span.trace_id[..], &mut span.span_id] {
            let bytes = reader.raw(id.len(), what)?;
            id.copy_from_slice(&bytes);
        }
        Ok(span)
    }
}

/// Members of a PG.
pub(super) struct Members;

impl Shape for Members {
    type Value = Vec<OsdId>;
    const WORDS: &'static str = "(list of `u32`)";

    fn encode(value: &Vec<OsdId>, writer: &mut Writer) {
        writer.u32(value.len() as u32);
        value.iter().for_each(|osd| writer.u32(osd.0));
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Vec<OsdId>, CodecError> {
        let count = reader.count(limits::PG_MEMBERS_MAX, what)?;
        (0..count).map(|_| reader.u32(what).map(OsdId)).collect()
    }
}

/// Entries of a PG's log.
pub(super) struct Log;

impl Shape for Log {
    type Value = Vec<LogEntry>;
    const WORDS: &'static str = "(list of log entries)";

    fn encode(value: &Vec<LogEntry>, writer: &mut Writer) {
        writer.u32(value.len() as u32);
        value.iter().for_each(|entry| entry.encode(writer));
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Vec<LogEntry>, CodecError> {
        let count = reader.count(limits::PG_LOG_ENTRIES, what)?;
        (0..count).map(|_| LogEntry::decode(reader)).collect()
    }
}

/// An object's name, or none.
pub(super) struct OptionalName;

impl Shape for OptionalName {
    type Value = Option<ObjectName>;
    const WORDS: &'static str = "(optional object name)";

    fn encode(value: &Option<ObjectName>, writer: &mut Writer) {
        bool::encode(&value.is_some(), writer);
        value.iter().for_each(|name| name.encode(writer));
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Option<ObjectName>, CodecError> {
        bool::decode(reader, what)?.then(|| ObjectName::decode(reader)).transpose()
    }
}

/// Objects with the versions of their last changes.
pub(super) struct ObjectList;

impl Shape for ObjectList {
    type Value = Vec<(ObjectName, Version)>;
    const WORDS: &'static str = "(list of object name and version)";

    fn encode(value: &Self::Value, writer: &mut Writer) {
        writer.u32(value.len() as u32);
        for (name, version) in value {
            name.encode(writer);
            version.encode(writer);
        }
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Self::Value, CodecError> {
        let count = reader.count(limits::OBJECTS_LISTED_MAX, what)?;
        (0..count).map(|_| Ok((ObjectName::decode(reader)?, Version::decode(reader)?))).collect()
    }
}

impl Shape for ScrubFinding {
    type Value = ScrubFinding;
    const WORDS: &'static str = "";

    fn encode(value: &ScrubFinding, writer: &mut Writer) {
        value.encode(writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<ScrubFinding, CodecError> {
        ScrubFinding::decode(reader)
    }
}
