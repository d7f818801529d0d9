//! Samples of the fields of messages, for property tests. The kinds of mutations have tests of their own in
//! `atoll-types`; here a few stand for all.

use atoll_types::limits::{EPOCH_MAX, SEQUENCE_MAX};
use atoll_types::operation::table::Shape;
use atoll_types::{
    Condition, Epoch, ListedObject, LogEntry, Mutation, ObjectName, OsdId, PgId, PoolId, PreImage, ReadOutcome,
    ReadRequest, Refusal, RequestId, Room, Seals, SharedTransaction, Touched, TraceContext, Transaction, Version,
    WriteRequest,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::shapes::{
    Log, Members, ObjectList, OptionalName, Payload, ReadResult, ShardNumber, SpanIds, Write, WriteResult,
};
use crate::ShardOf;
use crate::scrub_finding::ScrubFinding;

/// A shape whose values can be drawn.
pub(super) trait Sample: Shape {
    fn sample() -> BoxedStrategy<Self::Value>;
}

macro_rules! samples {
    ($($shape:ty => $strategy:expr;)+) => {$(
        impl Sample for $shape {
            fn sample() -> BoxedStrategy<Self::Value> {
                $strategy.boxed()
            }
        }
    )+};
}

samples! {
    bool => any::<bool>();
    Room => prop::sample::select(&[Room::Enough, Room::Overwrites, Room::Deletes][..]);
    u32 => any::<u32>();
    u64 => any::<u64>();
    Epoch => (0..=EPOCH_MAX).prop_map(Epoch);
    Version => version();
    PgId => pg();
    RequestId => request_id();
    ObjectName => name();
    OptionalName => option::of(name());
    Payload => payload();
    ShardNumber => option::of(0..u8::MAX);
    SpanIds => (any::<[u8; 16]>(), any::<[u8; 8]>()).prop_map(|(trace_id, span_id)| TraceContext { trace_id, span_id });
    Members => vec(any::<u32>().prop_map(OsdId), 0..6);
    Log => vec(log_entry(), 0..4);
    ObjectList => vec((name(), version()), 0..6);
    ReadRequest => read_request();
    ReadResult => prop_oneof![read_outcome().prop_map(Ok), refusal().prop_map(Err)];
    WriteResult => prop_oneof![Just(Ok(())), refusal().prop_map(Err)];
    Write => write_request();
    Transaction => transaction();
    SharedTransaction => <Transaction as Sample>::sample().prop_map(SharedTransaction::from);
    ScrubFinding => finding();
}

fn short() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..24).prop_map(Bytes::from)
}

/// Never empty, so that a message that loses its payload is not itself again.
fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 1..24).prop_map(Bytes::from)
}

fn name() -> impl Strategy<Value = ObjectName> {
    "[a-z@/é]{1,24}".prop_map(|name| ObjectName::new(&name).expect("it is short"))
}

fn version() -> impl Strategy<Value = Version> {
    (0..=EPOCH_MAX, 0..=SEQUENCE_MAX).prop_map(|(epoch, sequence)| Version { epoch: Epoch(epoch), sequence })
}

fn pg() -> impl Strategy<Value = PgId> {
    any::<(u32, u32)>().prop_map(|(pool, index)| PgId { pool: PoolId(pool), index })
}

fn request_id() -> impl Strategy<Value = RequestId> {
    any::<(u64, u64)>().prop_map(|(session, sequence)| RequestId { session, sequence })
}

fn seals() -> impl Strategy<Value = Seals> {
    let bytes = vec(any::<u8>(), 28);
    bytes.prop_map(|bytes| Seals { unit_bytes: 4096, seal_bytes: 28, bytes: bytes.into() })
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let write = (any::<u64>(), any::<u32>(), option::of(seals()));
    let write = write.prop_map(|(offset, length, seals)| Mutation::Write { offset, length, seals });
    let set = (short(), short()).prop_map(|(key, value)| Mutation::OmapSet { key, value });
    vec(prop_oneof![write, set, Just(Mutation::Create)], 0..4)
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    let equals = (short(), short()).prop_map(|(key, value)| Condition::OmapEquals { key, value });
    let fence = (short(), any::<u64>()).prop_map(|(name, generation)| Condition::NotFenced { name, generation });
    let plain = prop_oneof![Just(Condition::ObjectExists), Just(Condition::ObjectAbsent)];
    let keys = prop_oneof![
        short().prop_map(|key| Condition::OmapExists { key }),
        short().prop_map(|key| Condition::OmapAbsent { key }),
    ];
    let pg_num = any::<u32>().prop_map(|pg_num| Condition::PgNum { pg_num });
    let other = name().prop_map(|object| Condition::OtherExists { object });
    vec(prop_oneof![equals, fence, plain, keys, pg_num, other], 0..4)
}

fn log_entry() -> impl Strategy<Value = LogEntry> {
    let touched = (any::<bool>(), vec(any::<(u32, u32)>(), 0..3), vec(short(), 0..3));
    let touched = touched.prop_map(|(whole, block_ranges, omap_keys)| Touched { whole, block_ranges, omap_keys });
    let pre_image = (mutations(), short()).prop_map(|(mutations, payload)| PreImage { mutations, payload });
    (version(), option::of(request_id()), name(), touched, any::<u64>(), option::of(pre_image)).prop_map(
        |(version, request, object, touched, committed_sequence, pre_image)| LogEntry {
            version,
            request,
            object,
            touched,
            committed_sequence,
            pre_image,
        },
    )
}

fn transaction() -> impl Strategy<Value = Transaction> {
    (pg(), name(), mutations(), payload(), any::<bool>(), vec(log_entry(), 0..3)).prop_map(
        |(pg, object, mutations, payload, payload_sealed, log)| Transaction {
            pg,
            object,
            mutations,
            payload,
            payload_sealed,
            log,
        },
    )
}

fn write_request() -> impl Strategy<Value = WriteRequest> {
    (name(), conditions(), mutations(), payload(), any::<bool>()).prop_map(
        |(object, conditions, mutations, payload, payload_sealed)| WriteRequest {
            object,
            conditions,
            mutations,
            payload,
            payload_sealed,
        },
    )
}

fn read_request() -> impl Strategy<Value = ReadRequest> {
    prop_oneof![
        any::<(u64, u32, bool)>().prop_map(|(offset, length, opens_seals)| ReadRequest::Data {
            offset,
            length,
            opens_seals
        }),
        Just(ReadRequest::Stat),
        short().prop_map(|key| ReadRequest::OmapGet { key }),
        (short(), short(), any::<u32>()).prop_map(|(prefix, from, limit)| ReadRequest::OmapList {
            prefix,
            from,
            limit
        }),
        any::<(u64, u32)>().prop_map(|(offset, length)| ReadRequest::Extents { offset, length }),
        (short(), option::of(name()), any::<bool>(), option::of(1..9_u32)).prop_map(
            |(prefix, after, counts_blocks, pg_num)| ReadRequest::ObjectList {
                prefix,
                after,
                counts_blocks,
                pg_num
            }
        ),
    ]
}

fn read_outcome() -> impl Strategy<Value = ReadOutcome> {
    prop_oneof![
        (any::<u64>(), version(), option::of(seals()))
            .prop_map(|(object_bytes, version, seals)| ReadOutcome::Data { object_bytes, version, seals }),
        (any::<u64>(), version()).prop_map(|(object_bytes, version)| ReadOutcome::Stat { object_bytes, version }),
        option::of(short()).prop_map(ReadOutcome::OmapValue),
        (vec((short(), short()), 0..4), any::<bool>())
            .prop_map(|(entries, more)| ReadOutcome::OmapPage { entries, more }),
        (any::<u64>(), version(), short()).prop_map(|(object_bytes, version, blocks)| ReadOutcome::Extents {
            object_bytes,
            version,
            blocks
        }),
        (vec(listed_object(), 0..4), option::of(name()))
            .prop_map(|(objects, next)| ReadOutcome::ObjectPage { objects, next }),
    ]
}

fn listed_object() -> impl Strategy<Value = ListedObject> {
    (name(), any::<u64>(), version(), any::<u32>(), any::<u32>()).prop_map(
        |(name, object_bytes, version, block_count, shared_block_count)| ListedObject {
            name,
            object_bytes,
            version,
            block_count,
            shared_block_count,
        },
    )
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let detail = "[ -~]{0,24}";
    prop_oneof![
        Just(Refusal::NoSuchObject),
        any::<u16>().prop_map(|index| Refusal::ConditionFailed { index }),
        any::<u64>().prop_map(|generation| Refusal::Fenced { generation }),
        any::<u32>().prop_map(|osd| Refusal::NoSpace { osd: OsdId(osd) }),
        detail.prop_map(|detail| Refusal::Corrupt { detail }),
        detail.prop_map(|detail| Refusal::Invalid { detail }),
        Just(Refusal::NotPrimary),
        detail.prop_map(|detail| Refusal::Inactive { detail }),
        prop_oneof![Just(Refusal::Busy), Just(Refusal::OutcomeUnknown), Just(Refusal::Undecided)],
    ]
}

fn finding() -> impl Strategy<Value = ScrubFinding> {
    let shard = any::<(u64, u32, u16)>().prop_map(|(object_bytes, seal_unit_bytes, seal_bytes)| ShardOf {
        object_bytes,
        seal_unit_bytes,
        seal_bytes,
    });
    let present = (version(), any::<u64>(), any::<u64>(), any::<u32>(), option::of(shard));
    let present = present.prop_map(|(version, size_bytes, digest, bad_block_count, shard_of)| {
        ScrubFinding::Present { version, size_bytes, digest, bad_block_count, shard_of }
    });
    let plain = prop_oneof![Just(ScrubFinding::Absent), Just(ScrubFinding::Unreadable), Just(ScrubFinding::Busy)];
    prop_oneof![present, plain]
}
