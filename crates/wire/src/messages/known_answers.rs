//! The encoding of every message, pinned: a changed byte is a changed protocol.

use super::*;
use atoll_types::{Condition, ListedObject, LogEntry, Mutation, PoolId, PreImage, Room, Seals, Touched};

pub(super) fn every_kind() -> Vec<Message> {
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
        Mutation::ClonePreImage { copy: object.clone() },
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
        Condition::OtherExists { object: object.clone() },
    ];
    let entry = LogEntry {
        version,
        request: Some(id),
        object: object.clone(),
        touched: Touched { whole: true, block_ranges: vec![(1, 2)], omap_keys: vec![key.clone()] },
        committed_sequence: 6,
        pre_image: Some(PreImage { mutations: vec![Mutation::Remove], payload: Bytes::from_static(b"old") }),
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
    let data = ReadOutcome::Data { object_bytes: 5, version, seals: Some(seals) };
    let extents = ReadRequest::Extents { offset: 4096, length: 8192 };
    let objects = ReadRequest::ObjectList {
        prefix: key.clone(),
        after: Some(object.clone()),
        counts_blocks: true,
        pg_num: Some(32),
    };
    let bits = ReadOutcome::Extents { object_bytes: 5, version, blocks: value.clone() };
    let one =
        ListedObject { name: object.clone(), object_bytes: 5, version, block_count: 7, shared_block_count: 3 };
    let listed = ReadOutcome::ObjectPage { objects: vec![one], next: Some(object.clone()) };
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
        Refusal::OutcomeUnknown,
        Refusal::Undecided,
    ];
    let mut all = vec![
        Message::Read { id, pg, epoch, object: object.clone(), request: list },
        Message::Write { id, answered_below: 4, known: version, pg, epoch, request: write },
        Message::ReadReply { sequence: 6, opens_seals: false, result: Ok(page), payload: Bytes::new() },
        Message::ReadReply { sequence: 6, opens_seals: false, result: Ok(data.clone()), payload: payload.clone() },
        Message::ReadReply { sequence: 6, opens_seals: true, result: Ok(data.clone()), payload: payload.clone() },
        Message::Read { id, pg, epoch, object: object.clone(), request: extents },
        Message::Read { id, pg, epoch, object: object.clone(), request: objects },
        Message::ReadReply { sequence: 6, opens_seals: false, result: Ok(bits), payload: Bytes::new() },
        Message::ReadReply { sequence: 6, opens_seals: false, result: Ok(listed), payload: Bytes::new() },
        Message::WriteReply { sequence: 6, pg, committed: version, result: Ok(()) },
        Message::Replicate {
            epoch,
            transaction: transaction.clone().into(),
            committed: version,
            answered_below: 4,
        },
        Message::ReplicateAck { pg, epoch, version, room: Room::Overwrites },
        Message::PeerQuery {
            pg,
            epoch,
            active_epoch: epoch,
            active_members: vec![OsdId(4)],
            wants_log: true,
            shard: Some(3),
            accepted_epoch: epoch,
            accepted_head: version,
            elsewhere_epoch: epoch,
        },
        Message::PeerInfo {
            pg,
            epoch,
            head: version,
            committed_sequence: 6,
            since_epoch: epoch,
            is_complete: true,
            log: transaction.log.clone(),
            shard: None,
            unreadable: Some(object.clone()),
            elsewhere_epoch: epoch,
        },
        Message::Overwrite {
            epoch,
            transaction: transaction.clone().into(),
            committed: version,
            answered_below: 4,
            offset: 4096,
            length: 8192,
            tag: 3,
            is_difference: true,
        },
        Message::RollBack { pg, epoch, head: version },
        Message::Committed { pg, epoch, version },
        Message::Undecided { pg, epoch },
        Message::Fenced { pg, epoch },
        Message::FencedAck { pg, epoch },
        Message::ObjectsQuery { pg, epoch, tag: 2, after: Some(object.clone()) },
        Message::ObjectsReply { pg, epoch, tag: 2, objects: vec![(object.clone(), version)], more: true },
        Message::ObjectPart { epoch, tag: 1, transaction: transaction.clone() },
        Message::PeerPush { epoch, tag: 1, transaction },
        Message::PeerPushed { pg, epoch, tag: 1 },
        Message::ScrubQuery { pg, epoch, tag: 1, object: object.clone(), deep: true },
        Message::ObjectWanted { pg, epoch, tag: 1, object: object.clone() },
        Message::CopyRead {
            pg,
            epoch,
            tag: 1,
            object,
            offset: 4096,
            length: 8192,
            asks_in_place: true,
            keeps: true,
        },
        Message::CopyReply { pg, epoch, tag: 1, result: Ok(data), in_place: 5, payload },
        Message::Traced { span: TraceContext { trace_id: [0x4b; 16], span_id: [0xf0; 8] } },
        Message::Ping { tag: 9 },
        Message::Pong { tag: 9, room: Room::Overwrites },
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
    all.extend(refusals.map(|refusal| Message::WriteReply {
        sequence: 1,
        pg,
        committed: version,
        result: Err(refusal),
    }));
    all
}

fn line_of(message: &Message) -> String {
    let (payload, seal) = message.payload();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let text = format!("{message:?}");
    let name = text.split([' ', '{']).next().unwrap_or_default();
    format!("{name} {} payload={} seal={seal:?}", hex(&encode(message)), hex(&payload))
}

#[test]
fn no_byte_of_any_message_has_changed() {
    let known: Vec<&str> = include_str!("known_answers.txt").lines().collect();
    let now: Vec<String> = every_kind().iter().map(line_of).collect();
    if std::env::var_os("ATOLL_PRINT_KNOWN_ANSWERS").is_some() {
        now.iter().for_each(|line| println!("{line}"));
    }
    assert_eq!(now, known);
}
