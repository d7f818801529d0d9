//! The PG's own object, in which each OSD keeps the durable state of its copy.

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, Mutation, ObjectName, PgId, Transaction};
use bytes::Bytes;

/// The key under which an OSD keeps its promise to accept no lower epochs.
pub const EPOCH_KEY: &[u8] = b"epoch";
/// The key that marks a copy as incomplete: objects are missing or older than the history says.
pub const INCOMPLETE_KEY: &[u8] = b"incomplete";
/// The key that marks a copy as incomplete although its objects match its history: the history lacks acknowledged
/// writes.
pub const BEHIND_KEY: &[u8] = b"behind";
/// The key under which an OSD keeps the number of the shard that it holds.
pub const SHARD_KEY: &[u8] = b"shard";
/// The key under which an OSD that has deleted its stray copy keeps the epoch in which the PG was active elsewhere.
pub const DELETED_KEY: &[u8] = b"deleted";
/// The key under which an OSD notes the staged objects of a copy that catches up.
pub const STAGED_KEY: &[u8] = b"staged";
/// The key under which an OSD keeps, in an erasure-coded PG, the version of a write that all members have.
pub(crate) const COMMITTED_KEY: &[u8] = b"committed";
/// The key under which an OSD keeps the epoch that it had promised before cluster state was put back.
pub(crate) const BEFORE_KEY: &[u8] = b"before";
/// The key under which an OSD notes the pool's number of PGs as of the PG's last split, once cluster state has that.
pub(crate) const PG_NUM_KEY: &[u8] = b"pg_num";
/// The keys that a PG looks at when it begins: its shell has loaded them.
pub const KEYS_AT_START: [&[u8]; 9] = [
    EPOCH_KEY,
    INCOMPLETE_KEY,
    BEHIND_KEY,
    SHARD_KEY,
    DELETED_KEY,
    BEFORE_KEY,
    STAGED_KEY,
    COMMITTED_KEY,
    PG_NUM_KEY,
];
/// The key under which a split writes the pool's new number of PGs.
pub const SPLIT_KEY: &[u8] = b"split";

/// In place of a shard's number while a backfill replaces one shard by another: objects of both are
/// here.
pub(crate) const MIXED_SHARDS: u8 = 254;

pub(crate) fn own_object() -> ObjectName {
    ObjectName::new(PG_META_OBJECT).expect("the name is short")
}

/// A change of the PG's own object.
pub(crate) fn own_change(pg: PgId, mutations: Vec<Mutation>) -> Transaction {
    change(pg, own_object(), mutations)
}

/// A change of an object outside the history: it has no log entry.
pub(crate) fn change(pg: PgId, object: ObjectName, mutations: Vec<Mutation>) -> Transaction {
    Transaction { pg, object, mutations, payload: Bytes::new(), payload_sealed: false, log: Vec::new() }
}

/// Notes which shard this OSD holds.
pub(crate) fn set_shard(shard: u8) -> Mutation {
    Mutation::OmapSet { key: Bytes::from_static(SHARD_KEY), value: Bytes::copy_from_slice(&[shard]) }
}

/// Notes in an OSD's copy of a PG that it is incomplete: it is backfilled before it counts.
pub fn mark_incomplete(pg: PgId, why: Incompleteness) -> Transaction {
    own_change(pg, vec![mark_of(why)])
}

/// The mark that says why a copy is incomplete. One that is torn stays so whatever else is said of it.
pub(crate) fn mark_of(why: Incompleteness) -> Mutation {
    let code = match why {
        Incompleteness::Torn => return set_incomplete(),
        Incompleteness::OldDevice => b"1",
        Incompleteness::LacksPromise => b"2",
        Incompleteness::LacksCommitted => b"3",
        Incompleteness::CannotRollBack => b"4",
        Incompleteness::Deleted => b"5",
        Incompleteness::Outdated => b"6",
    };
    Mutation::OmapSet { key: Bytes::from_static(BEHIND_KEY), value: Bytes::from_static(code) }
}

/// Returns the reason in the mark of a copy that is behind.
pub(crate) fn behind_because(value: &[u8]) -> Incompleteness {
    match value {
        b"1" => Incompleteness::OldDevice,
        b"3" => Incompleteness::LacksCommitted,
        b"4" => Incompleteness::CannotRollBack,
        b"5" => Incompleteness::Deleted,
        b"6" => Incompleteness::Outdated,
        _ => Incompleteness::LacksPromise,
    }
}

/// Removes the mark that the copy lacks writes.
pub(crate) fn set_not_behind() -> Mutation {
    Mutation::OmapRemove { key: Bytes::from_static(BEHIND_KEY) }
}

/// Marks the copy as incomplete.
pub(crate) fn set_incomplete() -> Mutation {
    Mutation::OmapSet { key: Bytes::from_static(INCOMPLETE_KEY), value: Bytes::from_static(b"1") }
}

/// Removes the mark that the copy is incomplete.
pub(crate) fn set_complete() -> Mutation {
    Mutation::OmapRemove { key: Bytes::from_static(INCOMPLETE_KEY) }
}

/// Notes which epoch was promised.
pub(crate) fn set_epoch(epoch: Epoch) -> Mutation {
    set_to_epoch(EPOCH_KEY, epoch)
}

/// Notes in which epoch the PG was active elsewhere when this copy was deleted.
pub(crate) fn set_deleted(epoch: Epoch) -> Mutation {
    set_to_epoch(DELETED_KEY, epoch)
}

/// Notes which epoch was promised before cluster state was put back.
pub(crate) fn set_before(epoch: Epoch) -> Mutation {
    set_to_epoch(BEFORE_KEY, epoch)
}

fn set_to_epoch(key: &'static [u8], epoch: Epoch) -> Mutation {
    Mutation::OmapSet { key: Bytes::from_static(key), value: Bytes::copy_from_slice(&epoch.0.to_be_bytes()) }
}
