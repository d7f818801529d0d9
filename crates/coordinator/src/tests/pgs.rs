//! How PGs stand, by their records.

use atoll_types::records::{PgRecord, PgTargetRecord, PoolRecord, Redundancy};
use atoll_types::{Epoch, OsdId, PoolId};

use super::{healthy, pg, record, stop};
use crate::{PgAvailability, View, is_settled, missing_pgs, pgs_by_osd, statuses};

#[test]
fn a_healthy_cluster_is_settled() {
    let view = healthy(5);
    assert!(is_settled(&view.map));
    assert!(missing_pgs(&view.map).is_empty());
    let counts = pgs_by_osd(&view.map);
    assert_eq!(counts.values().map(|(members, _)| members).sum::<usize>(), 24);
    assert_eq!(counts.values().map(|(_, primaries)| primaries).sum::<usize>(), 8);
}

#[test]
fn states_follow_records_and_presence() {
    let mut view = healthy(4);
    let mut peering = record(&[0, 1, 2]);
    peering.epoch = Epoch(2);
    view.map.pgs.insert(pg(0), (peering, 1));
    view.map.pgs.insert(pg(1), (record(&[0, 1]), 1));
    view.map.pgs.insert(pg(2), (record(&[0, 3, 1]), 1));
    view.map.pgs.insert(pg(3), (record(&[3, 0, 1]), 1));
    stop(&mut view, &[3]);
    let all = statuses(&view.map);
    assert_eq!(all[0].state, PgAvailability::Peering);
    assert!(all[1].state == PgAvailability::Active && all[1].is_undersized && all[1].is_degraded);
    assert!(all[2].state == PgAvailability::Active && !all[2].is_undersized && all[2].is_degraded);
    assert_eq!(all[2].members_down, [OsdId(3)]);
    assert_eq!(all[3].state, PgAvailability::Inactive, "the primary is down");
    assert!(!is_settled(&view.map));
    stop(&mut view, &[1]);
    assert_eq!(statuses(&view.map)[2].state, PgAvailability::Inactive, "one of three is up, two are needed");
}

#[test]
fn a_pg_is_misplaced_until_it_has_the_members_it_should_have() {
    let mut view = healthy(5);
    let (present, _) = view.map.pgs[&pg(0)].clone();
    let mut reordered = present.members.clone();
    reordered.rotate_left(1);
    view.map.pg_targets.insert(pg(0), PgTargetRecord { format: 1, members: reordered });
    assert!(!statuses(&view.map)[0].is_misplaced, "only the primary differs");
    let other = (0..5).map(OsdId).find(|osd| !present.members.contains(osd)).unwrap();
    let members = vec![other, present.members[1], present.members[2]];
    view.map.pg_targets.insert(pg(0), PgTargetRecord { format: 1, members });
    assert!(statuses(&view.map)[0].is_misplaced);
    assert!(!is_settled(&view.map));
}

#[test]
fn groups_without_record_are_made_where_there_are_osds() {
    let mut view = healthy(2);
    view.map.pools.insert(PoolId(2), super::pool(2, 3, 2));
    let missing = missing_pgs(&view.map);
    assert_eq!(missing.len(), 8);
    assert!(missing.iter().all(|(_, record)| record.members.len() == 2 && record.epoch == Epoch(1)));
    view.map.osds.values_mut().for_each(|osd| osd.is_out = true);
    assert!(missing_pgs(&view.map).is_empty());
}

#[test]
fn what_counts_in_an_erasure_coded_pg_is_shards() {
    let mut view = healthy(7);
    view.map.pools.insert(PoolId(1), super::coded_pool(1, 4, 2));
    let status = |view: &View| statuses(&view.map)[0].clone();
    let coded = |members: &[u32], shards: &[u8]| PgRecord { shards: shards.to_vec(), ..record(members) };
    view.map.pgs.insert(pg(0), (coded(&[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 4, 5]), 1));
    assert!(status(&view).state == PgAvailability::Active && !status(&view).is_degraded);
    assert_eq!(status(&view).shards, [0, 1, 2, 3, 4, 5]);
    stop(&mut view, &[5]);
    assert!(status(&view).state == PgAvailability::Active && status(&view).is_degraded);
    assert!(!status(&view).has_none_to_spare, "five of six, four are needed");
    // Shard 4 moves, so two members have it: they are one shard, whichever of them is down.
    view.map.pgs.insert(pg(0), (coded(&[0, 1, 2, 3, 4, 6], &[0, 1, 2, 3, 4, 4]), 1));
    assert!(status(&view).is_undersized && status(&view).state == PgAvailability::Active);
    stop(&mut view, &[4]);
    assert_eq!(status(&view).state, PgAvailability::Active, "osd.6 has shard 4, too");
    stop(&mut view, &[3]);
    assert_eq!(status(&view).state, PgAvailability::Inactive, "four shards are up, five are wanted");
    assert!(status(&view).has_none_to_spare);
    view.map.pools.insert(PoolId(1), {
        let redundancy = Redundancy::erasure(4, 2, None, Some(4));
        PoolRecord { redundancy, ..super::coded_pool(1, 4, 2) }
    });
    assert!(status(&view).state == PgAvailability::Active && status(&view).has_none_to_spare);
    stop(&mut view, &[2]);
    assert_eq!(status(&view).state, PgAvailability::Inactive, "three shards give nothing back");
}

#[test]
fn erasure_coded_pgs_are_made_when_they_could_serve() {
    let mut view = healthy(4);
    view.map.pools = [(PoolId(2), super::coded_pool(2, 4, 2))].into();
    assert!(missing_pgs(&view.map).is_empty(), "four shards hold data, but five are wanted");
    view.map.osds.insert(OsdId(4), super::osd(4));
    let missing = missing_pgs(&view.map);
    assert_eq!(missing.len(), 8);
    assert!(missing.iter().all(|(_, record)| record.shards == [0, 1, 2, 3, 4]));
    // Two OSDs of one host are one failure domain.
    view.map.osds.get_mut(&OsdId(4)).unwrap().host = "h0".into();
    assert!(missing_pgs(&view.map).is_empty());
}
