//! Which OSDs are marked out, and which are marked in again.

use std::collections::BTreeMap;

use atoll_types::coordination::AutoOutRecord;
use atoll_types::records::ClusterFlag;
use atoll_types::{OsdId, PoolId};

use super::{MINUTE_MS, healthy, stop};
use crate::{MembershipChange, View, membership_changes, track_down};

fn out(id: u32) -> MembershipChange {
    MembershipChange::Out(OsdId(id))
}

/// Down since minute 0.
fn down(osds: u32, ids: &[u32]) -> View {
    let mut view = healthy(osds);
    stop(&mut view, ids);
    view.notes.down_since_unix_ms = track_down(&view.map, &BTreeMap::new(), 0);
    view
}

#[test]
fn the_time_counts_from_when_it_was_first_seen_down() {
    let mut view = healthy(5);
    stop(&mut view, &[1, 2]);
    let known = BTreeMap::from([(OsdId(1), 5), (OsdId(3), 6), (OsdId(9), 7)]);
    let tracked = track_down(&view.map, &known, 10);
    assert_eq!(
        tracked,
        BTreeMap::from([(OsdId(1), 5), (OsdId(2), 10)]),
        "up again and removed ones are forgotten"
    );
    assert_eq!(
        track_down(&view.map, &BTreeMap::from([(OsdId(1), 50)]), 10)[&OsdId(1)],
        10,
        "a clock that is ahead"
    );
}

#[test]
fn an_osd_that_is_down_for_ten_minutes_is_marked_out() {
    let view = down(5, &[1]);
    assert_eq!(membership_changes(&view, 10 * MINUTE_MS - 1), []);
    assert_eq!(membership_changes(&view, 10 * MINUTE_MS), [out(1)]);
}

#[test]
fn the_time_is_a_setting_and_0_is_never() {
    let mut view = down(5, &[1]);
    view.settings.osd_down_out_seconds = 5;
    assert_eq!(membership_changes(&view, 5_000), [out(1)]);
    view.settings.osd_down_out_seconds = 0;
    assert_eq!(membership_changes(&view, u64::MAX), []);
}

#[test]
fn noout_keeps_it_in() {
    let mut view = down(5, &[1]);
    view.map.flags.flags.insert(ClusterFlag::NoOut, 1);
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), []);
}

#[test]
fn what_is_out_or_up_stays_as_it_is() {
    let mut view = down(5, &[1]);
    view.map.osds.get_mut(&OsdId(1)).unwrap().is_out = true;
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), []);
    // It came up since the notes were written.
    let mut view = down(5, &[1]);
    view.map.up.insert(OsdId(1), super::up(1));
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), []);
}

#[test]
fn pools_keep_as_many_failure_domains_as_they_need() {
    // Three hosts, min_size 2: one may go, not two. The longest down goes first.
    let mut view = down(3, &[0, 2]);
    view.notes.down_since_unix_ms.insert(OsdId(2), 0);
    view.notes.down_since_unix_ms.insert(OsdId(0), 5);
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [out(2)]);
    // Two OSDs of one host are one failure domain, which others of that host still make up.
    let mut view = down(4, &[2, 3]);
    view.map.osds.get_mut(&OsdId(3)).unwrap().host = "h2".into();
    view.settings.osds_in_percent_min = 0;
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [out(2), out(3)]);
}

#[test]
fn an_erasure_coded_pool_keeps_as_many_failure_domains_as_its_min_size() {
    let mut view = down(6, &[4, 5]);
    view.map.pools.insert(PoolId(1), super::coded_pool(1, 4, 2));
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [out(4)], "five are wanted");
}

#[test]
fn a_pool_of_another_class_does_not_mind() {
    let mut view = down(4, &[3]);
    view.map.osds.get_mut(&OsdId(3)).unwrap().device_class = "hdd".into();
    let mut disks = super::pool(2, 1, 1);
    disks.device_class = Some("hdd".into());
    view.map.pools.insert(disks.id, disks.clone());
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [], "it is the only disk");
    disks.device_class = Some("ssd".into());
    view.map.pools.insert(disks.id, disks);
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [out(3)]);
}

#[test]
fn half_of_the_osds_stay_in_and_the_last_host_does() {
    let view = down(10, &[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS).len(), 5, "of ten");
    let mut view = down(1, &[0]);
    view.map.pools.clear();
    view.settings.osds_in_percent_min = 0;
    assert_eq!(membership_changes(&view, 20 * MINUTE_MS), [], "the last one");
}

#[test]
fn only_what_the_coordinator_marked_out_comes_in_by_itself() {
    let mut view = healthy(5);
    for id in [1, 2] {
        view.map.osds.get_mut(&OsdId(id)).unwrap().is_out = true;
    }
    view.auto_out.insert(OsdId(1), AutoOutRecord { format: 1, since_unix_ms: 1 });
    view.map.flags.flags.insert(ClusterFlag::NoOut, 1);
    assert_eq!(membership_changes(&view, 1), [MembershipChange::In(OsdId(1))]);
    stop(&mut view, &[1]);
    assert_eq!(membership_changes(&view, 1), [], "it is not back");
}
