use atoll_types::records::{FailureDomain, PgTargetRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_types::{Epoch, OsdId, PoolId};
use atoll_wire::KeyPair;

use super::*;
use crate::client::Proposer;
use crate::map::MapChange;

const MINE: PgId = PgId { pool: PoolId(1), index: 0 };
/// Holders of keys that are no OSDs.
const CLIENT: u8 = 100;
const GATEWAY: u8 = 101;
const NOBODY: u8 = 102;

fn pair(holder: u8) -> KeyPair {
    KeyPair::from_private([holder + 1; 32])
}

fn authorized(holder: u8) -> AuthorizedKeyRecord {
    let (role, osd, name) = match holder {
        CLIENT => (PeerRole::Client, None, "client@h9".into()),
        GATEWAY => (PeerRole::Gateway, None, "gateway@h9".into()),
        osd => (PeerRole::Osd, Some(OsdId(osd.into())), format!("osd.{osd}")),
    };
    AuthorizedKeyRecord { format: RECORD_FORMAT, role, osd, name }
}

fn record(epoch: u64, members: &[u32]) -> PgRecord {
    let members: Vec<OsdId> = members.iter().copied().map(OsdId).collect();
    PgRecord {
        format: RECORD_FORMAT,
        epoch: Epoch(epoch),
        primary: members[0],
        activated_epoch: Epoch(epoch),
        last_active_members: members.clone(),
        members,
        pg_num: 0,
        shards: Vec::new(),
        last_active_shards: Vec::new(),
        accepted: None,
    }
}

fn signed(holder: u8, key: &str, replaced: i64, record: &impl serde::Serialize) -> Vec<u8> {
    Proposer::from(pair(holder)).sign(key, replaced, serde_json::to_vec(record).unwrap())
}

/// A pool that was made with two PGs and is to have four. The first PG is on OSDs 0
/// and 1 of four.
fn world() -> ClusterMap {
    let mut map = ClusterMap::default();
    map.settings.pg_signatures_required = true;
    let pool = PoolRecord {
        format: RECORD_FORMAT,
        id: MINE.pool,
        name: "images".into(),
        redundancy: Redundancy::replicated(2, None),
        pg_num: 4,
        pg_num_first: 2,
        failure_domain: FailureDomain::Osd,
        device_class: None,
    };
    map.apply(MapChange::Pool(MINE.pool, Some(pool)));
    for holder in [0, 1, 2, 3, CLIENT, GATEWAY] {
        let key = hex::encode(pair(holder).public());
        map.apply(MapChange::AuthorizedKey(key, Some(authorized(holder))));
    }
    map.apply(MapChange::Pg(MINE, Some((record(3, &[0, 1]), 7))));
    map
}

fn judge(map: &ClusterMap, subject: Subject, value: &[u8]) -> Result<(), String> {
    PgChanges::default().judge(map, subject, Some(value), 8)
}

fn by(holder: u8, next: &PgRecord) -> Result<(), String> {
    judge(&world(), Subject::Record(MINE), &signed(holder, &keys::pg(MINE), 7, next))
}

#[test]
fn members_and_hosts_that_decide_change_a_pg() {
    for holder in [0, 1, CLIENT] {
        assert_eq!(by(holder, &record(4, &[1, 2])), Ok(()), "{holder}");
    }
    // Who was a member when it was last active resumes it.
    let mut map = world();
    map.pgs.get_mut(&MINE).unwrap().0.members = vec![OsdId(1)];
    let next = signed(0, &keys::pg(MINE), 7, &record(4, &[0, 1]));
    assert_eq!(judge(&map, Subject::Record(MINE), &next), Ok(()));
}

#[test]
fn nobody_else_does() {
    let cause = by(2, &record(4, &[2])).unwrap_err();
    assert!(cause.contains("osd.2 has signed it, which is no member"), "{cause}");
    for holder in [3, GATEWAY, NOBODY] {
        assert!(by(holder, &record(4, &[0, 1, 3])).is_err(), "{holder}");
    }
    let unsigned = serde_json::to_vec(&record(4, &[0, 1])).unwrap();
    assert!(judge(&world(), Subject::Record(MINE), &unsigned).is_err());
    let of_another = signed(0, "/atoll/pgs/1.1", 7, &record(4, &[0, 1]));
    assert!(judge(&world(), Subject::Record(MINE), &of_another).is_err());
}

#[test]
fn no_older_record_is_put_back() {
    assert!(by(0, &record(2, &[0, 1])).unwrap_err().contains("goes back from epoch e3"));
    let of_before = signed(0, &keys::pg(MINE), 5, &record(3, &[0, 1]));
    assert!(judge(&world(), Subject::Record(MINE), &of_before).unwrap_err().contains("put back"));
}

#[test]
fn a_record_goes_with_its_pool_only() {
    let (mut map, mut changes) = (world(), PgChanges::default());
    assert!(changes.judge(&map, Subject::Record(MINE), None, 8).is_err());
    // The member that puts it back makes the key.
    let again = signed(0, &keys::pg(MINE), 0, &record(3, &[0, 1]));
    assert_eq!(changes.judge(&map, Subject::Record(MINE), Some(&again), 9), Ok(()));
    assert!(changes.judge(&map, Subject::Record(MINE), None, 10).is_err());
    map.apply(MapChange::Pool(MINE.pool, None));
    assert_eq!(changes.counting_now(&map), [(keys::pg(MINE), None)]);
}

/// The next change replaces the refused one, which is stored.
#[test]
fn a_member_puts_its_record_back_over_a_refused_one() {
    let (map, mut changes) = (world(), PgChanges::default());
    let strangers = signed(2, &keys::pg(MINE), 7, &record(9, &[2]));
    assert!(changes.judge(&map, Subject::Record(MINE), Some(&strangers), 8).is_err());
    let late = signed(0, &keys::pg(MINE), 7, &record(4, &[0]));
    assert!(changes.judge(&map, Subject::Record(MINE), Some(&late), 9).is_err(), "that revision is gone");
    let again = signed(0, &keys::pg(MINE), 9, &record(3, &[0, 1]));
    assert_eq!(changes.judge(&map, Subject::Record(MINE), Some(&again), 10), Ok(()));
    assert_eq!(changes.next_adoption(), None);
}

#[test]
fn new_pgs_are_made_by_who_decides_or_splits() {
    let made = |holder: u8, index: u32| {
        let pg = PgId { index, ..MINE };
        judge(&world(), Subject::Record(pg), &signed(holder, &keys::pg(pg), 0, &record(1, &[0, 1])))
    };
    // The second of the pool's first PGs is no part of the first one; the third is split off from it.
    assert_eq!(made(CLIENT, 1), Ok(()));
    assert!(made(0, 1).is_err() && made(2, 1).is_err());
    assert_eq!((made(0, 2), made(CLIENT, 2)), (Ok(()), Ok(())));
    assert!(made(2, 2).is_err() && made(0, 3).is_err());
}

#[test]
fn targets_are_set_by_members_and_who_decides() {
    let set = |holder: u8| {
        let target = PgTargetRecord { format: RECORD_FORMAT, members: vec![OsdId(2), OsdId(3)] };
        let key = keys::pg_target(MINE);
        judge(&world(), Subject::Target(MINE), &signed(holder, &key, 0, &target))
    };
    assert_eq!((set(CLIENT), set(0)), (Ok(()), Ok(())));
    assert!(set(2).is_err() && set(NOBODY).is_err());
}

/// Keys and PGs come by watches of their own.
#[test]
fn a_change_counts_when_its_key_comes_to_be_known() {
    let (mut map, mut changes) = (world(), PgChanges::default());
    let key = hex::encode(pair(0).public());
    map.apply(MapChange::AuthorizedKey(key.clone(), None));
    let next = signed(0, &keys::pg(MINE), 7, &record(4, &[0, 1]));
    assert!(changes.judge(&map, Subject::Record(MINE), Some(&next), 8).is_err());
    assert!(changes.counting_now(&map).is_empty());
    map.apply(MapChange::AuthorizedKey(key, Some(authorized(0))));
    assert_eq!(changes.counting_now(&map), [(keys::pg(MINE), Some((next, 8)))]);
    assert_eq!(changes.next_adoption(), None);
}

#[test]
fn what_nobody_puts_right_counts_in_the_end() {
    let (map, mut changes) = (world(), PgChanges::default());
    let strangers = signed(2, &keys::pg(MINE), 7, &record(9, &[2]));
    assert!(changes.judge(&map, Subject::Record(MINE), Some(&strangers), 8).is_err());
    let at = changes.next_adoption().unwrap();
    assert!(changes.adopted(at - Duration::from_secs(1)).is_empty());
    assert_eq!(changes.adopted(at), [(keys::pg(MINE), Some((strangers, 8)))]);
}

#[test]
fn without_the_setting_all_changes_count() {
    let mut map = world();
    map.settings.pg_signatures_required = false;
    let unsigned = serde_json::to_vec(&record(1, &[4])).unwrap();
    assert_eq!(judge(&map, Subject::Record(MINE), &unsigned), Ok(()));
    assert_eq!(PgChanges::default().judge(&map, Subject::Record(MINE), None, 8), Ok(()));
}
