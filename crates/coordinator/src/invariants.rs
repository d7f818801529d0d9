//! Invariants of the coordinator's decisions, a sentence and a check each. The content of records is never
//! asserted: operators and other processes write them. docs/internals/invariants-osd.md lists them.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::ClusterMap;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, OsdId, PgId};

use crate::MembershipChange;

/// The record of a PG that exists belongs to its primary: the coordinator writes only first records.
pub(crate) fn pg_has_no_record(map: &ClusterMap, pg: PgId) {
    assert!(!map.pgs.contains_key(&pg), "a first record is to be written for PG {pg}, which has one");
}

/// A first record is of epoch 1, not activated yet, and of distinct members with the primary among them; in an
/// erasure-coded pool each has a shard of its own.
pub(crate) fn first_record_is_fresh(record: &PgRecord) {
    let members: BTreeSet<OsdId> = record.members.iter().copied().collect();
    let shards: BTreeSet<u8> = record.shards.iter().copied().collect();
    assert!(record.epoch == Epoch(1) && record.activated_epoch == Epoch(0), "a first record of {}", record.epoch);
    assert!(members.len() == record.members.len(), "a first record names a member twice");
    assert!(members.contains(&record.primary), "{} leads a PG that it is no member of", record.primary);
    let has_shards = record.shards.len() == record.members.len() && shards.len() == record.shards.len();
    assert!(record.shards.is_empty() || has_shards, "shards {:?} of {:?}", record.shards, record.members);
}

/// An OSD is marked out only while it is down and in, and marked in only while it is up, out, and was marked out
/// by a coordinator; and one round changes each OSD at most once.
pub(crate) fn changes_follow_from_the_map(
    map: &ClusterMap,
    is_auto_out: impl Fn(OsdId) -> bool,
    changes: &[MembershipChange],
) {
    let mut changed = BTreeSet::new();
    for change in changes {
        let (id, is_right) = match *change {
            MembershipChange::Out(id) => (id, !map.up.contains_key(&id)),
            MembershipChange::In(id) => (id, map.up.contains_key(&id) && is_auto_out(id)),
        };
        let is_out = map.osds.get(&id).is_some_and(|osd| osd.is_out);
        let was_out = matches!(change, MembershipChange::In(_));
        assert!(is_right && is_out == was_out, "{change:?} does not follow from the map");
        assert!(changed.insert(id), "{id} is changed twice in one round");
    }
}

/// OSDs that are noted as down are those that are, and no note is of the future.
pub(crate) fn notes_are_of_the_past(map: &ClusterMap, down_since: &BTreeMap<OsdId, u64>, now_unix_ms: u64) {
    for (osd, since_unix_ms) in down_since {
        assert!(!map.up.contains_key(osd), "{osd} is up and noted as down");
        assert!(
            *since_unix_ms <= now_unix_ms,
            "{osd} is noted as down since {since_unix_ms}, it is {now_unix_ms}"
        );
    }
}

/// A transaction has no more changes than cluster state takes at once.
pub(crate) fn batch_is_bounded(changes: usize, batch_max: usize) {
    assert!(changes <= batch_max, "{changes} changes in one transaction, {batch_max} may be");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{healthy, pg, record, stop};

    fn first() -> PgRecord {
        PgRecord { activated_epoch: Epoch(0), ..record(&[0, 1, 2]) }
    }

    #[test]
    fn what_holds_passes() {
        let mut view = healthy(4);
        stop(&mut view, &[3]);
        pg_has_no_record(&view.map, pg(99));
        first_record_is_fresh(&first());
        changes_follow_from_the_map(&view.map, |_| false, &[MembershipChange::Out(OsdId(3))]);
        notes_are_of_the_past(&view.map, &[(OsdId(3), 5)].into(), 5);
        batch_is_bounded(32, 32);
    }

    #[test]
    #[should_panic(expected = "which has one")]
    fn writing_the_record_of_a_pg_that_exists_is_noticed() {
        pg_has_no_record(&healthy(4).map, pg(0));
    }

    #[test]
    #[should_panic(expected = "a first record of e2")]
    fn a_first_record_of_a_higher_epoch_is_noticed() {
        first_record_is_fresh(&PgRecord { epoch: Epoch(2), ..first() });
    }

    #[test]
    #[should_panic(expected = "names a member twice")]
    fn a_member_that_is_named_twice_is_noticed() {
        first_record_is_fresh(&PgRecord { members: vec![OsdId(0), OsdId(0)], ..first() });
    }

    #[test]
    #[should_panic(expected = "is no member of")]
    fn a_primary_from_outside_is_noticed() {
        first_record_is_fresh(&PgRecord { primary: OsdId(9), ..first() });
    }

    #[test]
    #[should_panic(expected = "shards [0, 0, 1]")]
    fn a_shard_that_two_members_have_is_noticed() {
        first_record_is_fresh(&PgRecord { shards: vec![0, 0, 1], ..first() });
    }

    #[test]
    #[should_panic(expected = "does not follow from the map")]
    fn marking_a_running_osd_out_is_noticed() {
        changes_follow_from_the_map(&healthy(4).map, |_| false, &[MembershipChange::Out(OsdId(0))]);
    }

    #[test]
    #[should_panic(expected = "changed twice")]
    fn changing_an_osd_twice_is_noticed() {
        let mut view = healthy(4);
        stop(&mut view, &[3]);
        changes_follow_from_the_map(&view.map, |_| false, &[MembershipChange::Out(OsdId(3)); 2]);
    }

    #[test]
    #[should_panic(expected = "is up and noted as down")]
    fn a_note_of_a_running_osd_is_noticed() {
        notes_are_of_the_past(&healthy(4).map, &[(OsdId(0), 5)].into(), 9);
    }

    #[test]
    #[should_panic(expected = "since 10, it is 9")]
    fn a_note_of_the_future_is_noticed() {
        let mut view = healthy(4);
        stop(&mut view, &[3]);
        notes_are_of_the_past(&view.map, &[(OsdId(3), 10)].into(), 9);
    }

    #[test]
    #[should_panic(expected = "33 changes")]
    fn too_large_a_transaction_is_noticed() {
        batch_is_bounded(33, 32);
    }
}
