//! Byte encoding of messages in a frame's control segment: one byte for the kind, then the fields
//! in the order of their declaration.

use atoll_base::operation::codec::{decode_mutations, encode_mutations};
use atoll_base::{
    CodecError, Condition, Epoch, LogEntry, ObjectName, OsdId, PgId, ReadOutcome, ReadRequest, Reader, Refusal,
    RequestId, Transaction, Version, WriteRequest, Writer, limits,
};
use bytes::Bytes;

use crate::frame::Frame;
use crate::message::Message;
use crate::scrub_finding::ScrubFinding;

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
    ok: impl FnOnce(&mut Reader) -> Result<T, CodecError>,
) -> Result<Result<T, Refusal>, CodecError> {
    match reader.u8("result")? {
        0 => ok(reader).map(Ok),
        1 => Refusal::decode(reader).map(Err),
        value => Err(CodecError::Invalid { what: "result", value: u64::from(value) }),
    }
}

/// In place of a shard's number: none.
const NO_SHARD: u8 = u8::MAX;

fn decode_shard(reader: &mut Reader) -> Result<Option<u8>, CodecError> {
    Ok(Some(reader.u8("shard")?).filter(|shard| *shard != NO_SHARD))
}

impl Message {
    /// The message's payload and whether the client sealed it.
    pub fn payload(&self) -> (Bytes, bool) {
        match self {
            Message::Write { request, .. } => (request.payload.clone(), request.payload_sealed),
            Message::Replicate { transaction, .. }
            | Message::PeerSync { transaction, .. }
            | Message::ObjectPart { transaction, .. } => (transaction.payload.clone(), transaction.payload_sealed),
            Message::ReadReply { result, payload, .. } | Message::CopyReply { result, payload, .. } => {
                let sealed = matches!(result, Ok(ReadOutcome::Data { seals: Some(_), .. }));
                (payload.clone(), sealed)
            }
            _ => (Bytes::new(), false),
        }
    }

    /// The bytes of the control segment.
    pub fn encode(&self) -> Bytes {
        let expected_bytes = match self {
            Message::Replicate { transaction, .. }
            | Message::PeerSync { transaction, .. }
            | Message::ObjectPart { transaction, .. } => transaction.encoded_bytes_expected(),
            _ => 256,
        };
        let mut writer = Writer::with_capacity(expected_bytes);
        self.encode_into(&mut writer);
        writer.finish()
    }

    fn encode_into(&self, writer: &mut Writer) {
        match self {
            Message::Read { id, pg, epoch, object, request } => {
                writer.u8(1);
                id.encode(writer);
                pg.encode(writer);
                writer.u64(epoch.0);
                object.encode(writer);
                request.encode(writer);
            }
            Message::Write { id, answered_below, pg, epoch, request } => {
                writer.u8(2);
                id.encode(writer);
                writer.u64(*answered_below);
                pg.encode(writer);
                writer.u64(epoch.0);
                encode_write_request(request, writer);
            }
            Message::ReadReply { sequence, result, .. } => {
                writer.u8(3);
                writer.u64(*sequence);
                encode_result(result, writer, ReadOutcome::encode);
            }
            Message::WriteReply { sequence, result } => {
                writer.u8(4);
                writer.u64(*sequence);
                encode_result(result, writer, |(), _| {});
            }
            Message::Replicate { epoch, transaction, committed } => {
                writer.u8(5);
                writer.u64(epoch.0);
                transaction.encode(writer);
                committed.encode(writer);
            }
            Message::ReplicateAck { pg, epoch, version, is_full } => {
                encode_head(6, pg, *epoch, writer);
                version.encode(writer);
                writer.u8(u8::from(*is_full));
            }
            Message::PeerQuery { pg, epoch, active_epoch, active_members, wants_log, shard } => {
                encode_head(7, pg, *epoch, writer);
                writer.u64(active_epoch.0);
                writer.u32(active_members.len() as u32);
                active_members.iter().for_each(|osd| writer.u32(osd.0));
                writer.u8(u8::from(*wants_log));
                writer.u8(shard.unwrap_or(NO_SHARD));
            }
            Message::RollBack { pg, epoch, head } => {
                encode_head(24, pg, *epoch, writer);
                head.encode(writer);
            }
            Message::Committed { pg, epoch, version } => {
                encode_head(25, pg, *epoch, writer);
                version.encode(writer);
            }
            Message::PeerInfo { pg, epoch, head, is_complete, log, shard } => {
                encode_head(8, pg, *epoch, writer);
                head.encode(writer);
                writer.u8(u8::from(*is_complete));
                writer.u32(log.len() as u32);
                log.iter().for_each(|entry| entry.encode(writer));
                writer.u8(shard.unwrap_or(NO_SHARD));
            }
            Message::PeerSync { epoch, tag, transaction } => {
                writer.u8(10);
                writer.u64(epoch.0);
                writer.u64(*tag);
                transaction.encode(writer);
            }
            Message::PeerSynced { pg, epoch, tag } => {
                encode_head(11, pg, *epoch, writer);
                writer.u64(*tag);
            }
            Message::CopyRead { pg, epoch, tag, object, offset, length } => {
                encode_head(12, pg, *epoch, writer);
                writer.u64(*tag);
                object.encode(writer);
                writer.u64(*offset);
                writer.u32(*length);
            }
            Message::CopyReply { pg, epoch, tag, result, .. } => {
                encode_head(13, pg, *epoch, writer);
                writer.u64(*tag);
                encode_result(result, writer, ReadOutcome::encode);
            }
            Message::Ping { tag } => {
                writer.u8(14);
                writer.u64(*tag);
            }
            Message::Pong { tag, is_full } => {
                writer.u8(15);
                writer.u64(*tag);
                writer.u8(u8::from(*is_full));
            }
            Message::Fenced { pg, epoch } => encode_head(16, pg, *epoch, writer),
            Message::FencedAck { pg, epoch } => encode_head(17, pg, *epoch, writer),
            Message::ObjectsQuery { pg, epoch, tag, after } => {
                encode_head(18, pg, *epoch, writer);
                writer.u64(*tag);
                writer.u8(u8::from(after.is_some()));
                after.iter().for_each(|name| name.encode(writer));
            }
            Message::ObjectsReply { pg, epoch, tag, objects, more } => {
                encode_head(19, pg, *epoch, writer);
                writer.u64(*tag);
                writer.u32(objects.len() as u32);
                for (name, version) in objects {
                    name.encode(writer);
                    version.encode(writer);
                }
                writer.u8(u8::from(*more));
            }
            Message::ScrubQuery { pg, epoch, tag, object, deep } => {
                encode_head(20, pg, *epoch, writer);
                writer.u64(*tag);
                object.encode(writer);
                writer.u8(u8::from(*deep));
            }
            Message::ScrubReply { pg, epoch, tag, finding } => {
                encode_head(21, pg, *epoch, writer);
                writer.u64(*tag);
                finding.encode(writer);
            }
            Message::ObjectWanted { pg, epoch, tag, object } => {
                encode_head(22, pg, *epoch, writer);
                writer.u64(*tag);
                object.encode(writer);
            }
            Message::ObjectPart { epoch, tag, transaction } => {
                writer.u8(23);
                writer.u64(epoch.0);
                writer.u64(*tag);
                transaction.encode(writer);
            }
        }
    }

    /// Reads a message out of a frame. Everything in it is within the limits afterwards.
    pub fn decode(frame: Frame) -> Result<Self, CodecError> {
        let Frame { control, payload, payload_sealed } = frame;
        let mut reader = Reader::new(control);
        let message = decode_kind(&mut reader, payload, payload_sealed)?;
        reader.finish()?;
        Ok(message)
    }
}

fn encode_head(kind: u8, pg: &PgId, epoch: Epoch, writer: &mut Writer) {
    writer.u8(kind);
    pg.encode(writer);
    writer.u64(epoch.0);
}

fn decode_head(reader: &mut Reader) -> Result<(PgId, Epoch), CodecError> {
    Ok((PgId::decode(reader)?, Epoch(reader.u64("epoch")?)))
}

fn decode_kind(reader: &mut Reader, payload: Bytes, payload_sealed: bool) -> Result<Message, CodecError> {
    Ok(match reader.u8("message kind")? {
        1 => Message::Read {
            id: RequestId::decode(reader)?,
            pg: PgId::decode(reader)?,
            epoch: Epoch(reader.u64("epoch")?),
            object: ObjectName::decode(reader)?,
            request: ReadRequest::decode(reader)?,
        },
        2 => Message::Write {
            id: RequestId::decode(reader)?,
            answered_below: reader.u64("answered below")?,
            pg: PgId::decode(reader)?,
            epoch: Epoch(reader.u64("epoch")?),
            request: decode_write_request(reader, payload, payload_sealed)?,
        },
        3 => Message::ReadReply {
            sequence: reader.u64("sequence")?,
            result: decode_result(reader, ReadOutcome::decode)?,
            payload,
        },
        4 => Message::WriteReply { sequence: reader.u64("sequence")?, result: decode_result(reader, |_| Ok(()))? },
        5 => Message::Replicate {
            epoch: Epoch(reader.u64("epoch")?),
            transaction: Transaction::decode(reader, payload)?,
            committed: Version::decode(reader)?,
        },
        6 => {
            let (pg, epoch) = decode_head(reader)?;
            let version = Version::decode(reader)?;
            Message::ReplicateAck { pg, epoch, version, is_full: reader.u8("is full")? != 0 }
        }
        7 => {
            let (pg, epoch) = decode_head(reader)?;
            let active_epoch = Epoch(reader.u64("active epoch")?);
            let count = reader.count(limits::PG_MEMBERS_MAX, "active members")?;
            let member = |_| Ok(OsdId(reader.u32("active member")?));
            let active_members = (0..count).map(member).collect::<Result<_, CodecError>>()?;
            let wants_log = reader.u8("wants log")? != 0;
            let shard = decode_shard(reader)?;
            Message::PeerQuery { pg, epoch, active_epoch, active_members, wants_log, shard }
        }
        8 => {
            let (pg, epoch) = decode_head(reader)?;
            let head = Version::decode(reader)?;
            let is_complete = reader.u8("is complete")? != 0;
            let count = reader.count(limits::PG_LOG_ENTRIES, "log entries")?;
            let log = (0..count).map(|_| LogEntry::decode(reader)).collect::<Result<_, _>>()?;
            Message::PeerInfo { pg, epoch, head, is_complete, log, shard: decode_shard(reader)? }
        }
        10 => Message::PeerSync {
            epoch: Epoch(reader.u64("epoch")?),
            tag: reader.u64("tag")?,
            transaction: Transaction::decode(reader, payload)?,
        },
        11 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::PeerSynced { pg, epoch, tag: reader.u64("tag")? }
        }
        12 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::CopyRead {
                pg,
                epoch,
                tag: reader.u64("tag")?,
                object: ObjectName::decode(reader)?,
                offset: reader.u64("offset")?,
                length: reader.u32("length")?,
            }
        }
        13 => {
            let (pg, epoch) = decode_head(reader)?;
            let tag = reader.u64("tag")?;
            let result = decode_result(reader, ReadOutcome::decode)?;
            Message::CopyReply { pg, epoch, tag, result, payload }
        }
        14 => Message::Ping { tag: reader.u64("tag")? },
        15 => Message::Pong { tag: reader.u64("tag")?, is_full: reader.u8("is full")? != 0 },
        16 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::Fenced { pg, epoch }
        }
        17 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::FencedAck { pg, epoch }
        }
        18 => {
            let (pg, epoch) = decode_head(reader)?;
            let tag = reader.u64("tag")?;
            let after = (reader.u8("after")? != 0).then(|| ObjectName::decode(reader)).transpose()?;
            Message::ObjectsQuery { pg, epoch, tag, after }
        }
        19 => {
            let (pg, epoch) = decode_head(reader)?;
            let tag = reader.u64("tag")?;
            let count = reader.count(limits::OBJECTS_LISTED_MAX, "objects")?;
            let entry = |_| Ok((ObjectName::decode(reader)?, Version::decode(reader)?));
            let objects = (0..count).map(entry).collect::<Result<_, CodecError>>()?;
            Message::ObjectsReply { pg, epoch, tag, objects, more: reader.u8("more")? != 0 }
        }
        20 => {
            let (pg, epoch) = decode_head(reader)?;
            let (tag, object) = (reader.u64("tag")?, ObjectName::decode(reader)?);
            Message::ScrubQuery { pg, epoch, tag, object, deep: reader.u8("deep")? != 0 }
        }
        21 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::ScrubReply { pg, epoch, tag: reader.u64("tag")?, finding: ScrubFinding::decode(reader)? }
        }
        22 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::ObjectWanted { pg, epoch, tag: reader.u64("tag")?, object: ObjectName::decode(reader)? }
        }
        23 => Message::ObjectPart {
            epoch: Epoch(reader.u64("epoch")?),
            tag: reader.u64("tag")?,
            transaction: Transaction::decode(reader, payload)?,
        },
        24 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::RollBack { pg, epoch, head: Version::decode(reader)? }
        }
        25 => {
            let (pg, epoch) = decode_head(reader)?;
            Message::Committed { pg, epoch, version: Version::decode(reader)? }
        }
        value => return Err(CodecError::Invalid { what: "message kind", value: u64::from(value) }),
    })
}

fn encode_write_request(request: &WriteRequest, writer: &mut Writer) {
    request.object.encode(writer);
    writer.u32(request.conditions.len() as u32);
    request.conditions.iter().for_each(|condition| condition.encode(writer));
    encode_mutations(&request.mutations, writer);
}

fn decode_write_request(
    reader: &mut Reader,
    payload: Bytes,
    payload_sealed: bool,
) -> Result<WriteRequest, CodecError> {
    let object = ObjectName::decode(reader)?;
    let count = reader.count(limits::OPERATIONS_MAX, "conditions")?;
    let conditions = (0..count).map(|_| Condition::decode(reader)).collect::<Result<_, _>>()?;
    let mutations = decode_mutations(reader)?;
    Ok(WriteRequest { object, conditions, mutations, payload, payload_sealed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::{Mutation, PoolId, Seals, Touched, Undo};
    use proptest::prelude::*;

    fn every_kind() -> Vec<Message> {
        let pg = PgId { pool: PoolId(1), index: 9 };
        let (epoch, id) = (Epoch(3), RequestId { session: 5, sequence: 6 });
        let version = Version { epoch, sequence: 77 };
        let object = ObjectName::new("object").unwrap();
        let key = Bytes::from_static(b"key");
        let value = Bytes::from_static(b"value");
        let seals = Seals { unit_bytes: 4096, seal_bytes: 28, bytes: Bytes::from(vec![1; 28]) };
        let mutations = vec![
            Mutation::Write { offset: 4096, length: 5, seals: Some(seals.clone()) },
            Mutation::Zero { offset: 0, length: 4096 },
            Mutation::Create,
            Mutation::Remove,
            Mutation::OmapSet { key: key.clone(), value: value.clone() },
            Mutation::OmapRemove { key: key.clone() },
            Mutation::OmapReplace { key: key.clone(), value: None, displaced_to: value.clone() },
            Mutation::SetVersion { version },
            Mutation::ResetLog { head: version },
            Mutation::Split { pg_num_before: 16, pg_num: 64, is_whole: true },
            Mutation::KeepAs { copy: object.clone() },
            Mutation::RemoveOther { object: object.clone() },
            Mutation::SetShardOf { object_bytes: 5, shard_bytes: 4096, seal_unit_bytes: 4096, seal_bytes: 28 },
        ];
        let conditions = vec![
            Condition::ObjectExists,
            Condition::ObjectAbsent,
            Condition::OmapExists { key: key.clone() },
            Condition::OmapAbsent { key: key.clone() },
            Condition::OmapEquals { key: key.clone(), value: value.clone() },
            Condition::NotFenced { name: key.clone(), generation: 8 },
            Condition::PgNum { pg_num: 32 },
        ];
        let entry = LogEntry {
            version,
            request: Some(id),
            object: object.clone(),
            touched: Touched { whole: true, block_ranges: vec![(1, 2)], omap_keys: vec![key.clone()] },
            undo: Some(Undo { mutations: vec![Mutation::Remove], payload: Bytes::from_static(b"old") }),
        };
        let payload = Bytes::from_static(b"12345");
        let transaction = Transaction {
            pg,
            object: object.clone(),
            mutations: mutations.clone(),
            payload: payload.clone(),
            payload_sealed: true,
            log: vec![entry],
        };
        let write = WriteRequest {
            object: object.clone(),
            conditions,
            mutations,
            payload: payload.clone(),
            payload_sealed: true,
        };
        let list = ReadRequest::OmapList { prefix: key.clone(), from: key.clone(), limit: 10 };
        let page = ReadOutcome::OmapPage { entries: vec![(key.clone(), value.clone())], more: true };
        let data = ReadOutcome::Data { object_bytes: 5, seals: Some(seals) };
        let refusals = [
            Refusal::NoSuchObject,
            Refusal::ConditionFailed { index: 3 },
            Refusal::Fenced { generation: 4 },
            Refusal::NoSpace { osd: OsdId(2) },
            Refusal::Corrupt { detail: "block 3".into() },
            Refusal::Invalid { detail: "size".into() },
            Refusal::NotPrimary,
            Refusal::Inactive { detail: "osd.1".into() },
            Refusal::Busy,
        ];
        let mut all = vec![
            Message::Read { id, pg, epoch, object: object.clone(), request: list },
            Message::Write { id, answered_below: 4, pg, epoch, request: write },
            Message::ReadReply { sequence: 6, result: Ok(page), payload: Bytes::new() },
            Message::ReadReply { sequence: 6, result: Ok(data.clone()), payload: payload.clone() },
            Message::WriteReply { sequence: 6, result: Ok(()) },
            Message::Replicate { epoch, transaction: transaction.clone(), committed: version },
            Message::ReplicateAck { pg, epoch, version, is_full: true },
            Message::PeerQuery {
                pg,
                epoch,
                active_epoch: epoch,
                active_members: vec![OsdId(4)],
                wants_log: true,
                shard: Some(3),
            },
            Message::PeerInfo {
                pg,
                epoch,
                head: version,
                is_complete: true,
                log: transaction.log.clone(),
                shard: None,
            },
            Message::RollBack { pg, epoch, head: version },
            Message::Committed { pg, epoch, version },
            Message::Fenced { pg, epoch },
            Message::FencedAck { pg, epoch },
            Message::ObjectsQuery { pg, epoch, tag: 2, after: Some(object.clone()) },
            Message::ObjectsReply { pg, epoch, tag: 2, objects: vec![(object.clone(), version)], more: true },
            Message::ObjectPart { epoch, tag: 1, transaction: transaction.clone() },
            Message::PeerSync { epoch, tag: 1, transaction },
            Message::PeerSynced { pg, epoch, tag: 1 },
            Message::ScrubQuery { pg, epoch, tag: 1, object: object.clone(), deep: true },
            Message::ObjectWanted { pg, epoch, tag: 1, object: object.clone() },
            Message::CopyRead { pg, epoch, tag: 1, object, offset: 4096, length: 8192 },
            Message::CopyReply { pg, epoch, tag: 1, result: Ok(data), payload },
            Message::Ping { tag: 9 },
            Message::Pong { tag: 9, is_full: true },
        ];
        let found = ScrubFinding::Present {
            version,
            size_bytes: 5,
            digest: 6,
            bad_block_count: 7,
            shard_of: Some(crate::ShardOf { object_bytes: 5, seal_unit_bytes: 4096, seal_bytes: 28 }),
        };
        let findings = [ScrubFinding::Absent, found, ScrubFinding::Unreadable, ScrubFinding::Busy];
        all.extend(findings.map(|finding| Message::ScrubReply { pg, epoch, tag: 1, finding }));
        all.extend(refusals.map(|refusal| Message::WriteReply { sequence: 1, result: Err(refusal) }));
        all
    }

    fn frame_of(message: &Message) -> Frame {
        let (payload, payload_sealed) = message.payload();
        Frame { control: message.encode(), payload, payload_sealed }
    }

    #[test]
    fn every_kind_round_trips_and_no_truncation_passes() {
        for message in every_kind() {
            let frame = frame_of(&message);
            for length in 0..frame.control.len() {
                let cut = Frame { control: frame.control.slice(..length), ..frame.clone() };
                assert!(Message::decode(cut).is_err(), "{message:?} cut to {length}");
            }
            assert_eq!(Message::decode(frame).unwrap(), message);
        }
    }

    proptest! {
        #[test]
        fn random_and_damaged_control_segments_never_panic(
            noise: Vec<u8>, choice: prop::sample::Index, position: prop::sample::Index, byte: u8,
        ) {
            let _ = Message::decode(Frame { control: noise.into(), payload: Bytes::new(), payload_sealed: false });
            let messages = every_kind();
            let mut frame = frame_of(&messages[choice.index(messages.len())]);
            let mut control = frame.control.to_vec();
            let at = position.index(control.len());
            control[at] = byte;
            frame.control = control.into();
            let _ = Message::decode(frame);
        }
    }
}
