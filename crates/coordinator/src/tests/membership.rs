//! Which OSDs are marked out, and which are marked in again.

use std::collections::BTreeMap;

use atoll_types::coordination::AutoOutRecord;
use atoll_types::records::ClusterFlag;
use atoll_types::{OsdId, PoolId};

use super::{MINUTE_MS, healthy, stop};
use crate::presence::track_failures;
use crate::{MembershipChange, Presence, View, membership_changes, track_down};

fn out(id: u32) -> MembershipChange {
    MembershipChange::Out(OsdId(id))
}

/// These OSDs are down.
fn down(osds: u32, ids: &[u32]) -> View {
    let mut view = healthy(osds);
    stop(&mut view, ids);
    view
}

/// A coordinator looks every second, for this time.
fn look_for(presence: &mut Presence, view: &View, from_ms: u64, ms: u64) {
    for at_ms in (0..=ms).step_by(1_000) {
        presence.look(&view.map, from_ms + at_ms);
    }
}

/// Returns the changes after a coordinator has seen this for some time.
fn changes_after(view: &View, ms: u64) -> Vec<MembershipChange> {
    let mut presence = Presence::default();
    look_for(&mut presence, view, 7_000, ms);
    membership_changes(view, &presence)
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
    assert_eq!(changes_after(&view, 10 * MINUTE_MS - 1_000), []);
    assert_eq!(changes_after(&view, 10 * MINUTE_MS), [out(1)]);
}

#[test]
fn the_time_is_a_setting_and_0_is_never() {
    let mut view = down(5, &[1]);
    view.settings.osd_down_out_seconds = 5;
    assert_eq!(changes_after(&view, 5_000), [out(1)]);
    view.settings.osd_down_out_seconds = 0;
    assert_eq!(changes_after(&view, 60 * MINUTE_MS), []);
}

#[test]
fn noout_keeps_it_in() {
    let mut view = down(5, &[1]);
    view.map.flags.flags.insert(ClusterFlag::NoOut, 1);
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), []);
}

#[test]
fn what_is_out_or_up_stays_as_it_is() {
    let mut view = down(5, &[1]);
    view.map.osds.get_mut(&OsdId(1)).unwrap().is_out = true;
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), []);
    // It came up since the coordinator has looked.
    let mut view = down(5, &[1]);
    let mut presence = Presence::default();
    look_for(&mut presence, &view, 0, 20 * MINUTE_MS);
    view.map.up.insert(OsdId(1), super::up(1));
    assert_eq!(membership_changes(&view, &presence), []);
}

#[test]
fn pools_keep_as_many_failure_domains_as_they_need() {
    // Five hosts, min_size 4: one may go, not two. The longest down goes first.
    let mut view = down(5, &[2]);
    view.map.pools.insert(PoolId(1), super::pool(1, 5, 4));
    let mut presence = Presence::default();
    look_for(&mut presence, &view, 0, 1_000);
    stop(&mut view, &[0]);
    look_for(&mut presence, &view, 2_000, 20 * MINUTE_MS);
    assert_eq!(membership_changes(&view, &presence), [out(2)]);
    // Two OSDs of one host are one failure domain, which others of that host still make up.
    let mut view = down(4, &[2, 3]);
    view.map.osds.get_mut(&OsdId(3)).unwrap().host = "h2".into();
    view.settings.osds_in_percent_min = 0;
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [out(2), out(3)]);
}

#[test]
fn an_erasure_coded_pool_keeps_as_many_failure_domains_as_its_min_size() {
    let mut view = down(6, &[4, 5]);
    view.map.pools.insert(PoolId(1), super::coded_pool(1, 4, 2));
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [out(4)], "five are wanted");
}

#[test]
fn a_pool_of_another_class_does_not_mind() {
    let mut view = down(4, &[3]);
    view.map.osds.get_mut(&OsdId(3)).unwrap().device_class = "hdd".into();
    let mut disks = super::pool(2, 1, 1);
    disks.device_class = Some("hdd".into());
    view.map.pools.insert(disks.id, disks.clone());
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [], "it is the only disk");
    disks.device_class = Some("ssd".into());
    view.map.pools.insert(disks.id, disks);
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [out(3)]);
}

#[test]
fn half_of_the_osds_stay_in_and_the_last_host_does() {
    let mut view = down(10, &[0, 1, 2, 3]);
    view.settings.osds_in_percent_min = 70;
    assert_eq!(changes_after(&view, 20 * MINUTE_MS).len(), 3, "of ten");
    let mut view = down(1, &[0]);
    view.map.pools.clear();
    view.settings.osds_in_percent_min = 0;
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [], "the last one");
}

#[test]
fn only_what_the_coordinator_marked_out_comes_in_by_itself() {
    let mut view = healthy(5);
    for id in [1, 2] {
        view.map.osds.get_mut(&OsdId(id)).unwrap().is_out = true;
    }
    view.auto_out.insert(OsdId(1), AutoOutRecord { format: 1, since_unix_ms: 1 });
    view.map.flags.flags.insert(ClusterFlag::NoOut, 1);
    assert_eq!(changes_after(&view, MINUTE_MS), [MembershipChange::In(OsdId(1))]);
    stop(&mut view, &[1]);
    assert_eq!(changes_after(&view, MINUTE_MS), [], "it is not back");
}

#[test]
fn a_coordinator_counts_only_what_it_has_seen() {
    // The whole cluster was off, or a clock was stepped: the notes say that it has been down for long.
    let mut view = down(5, &[1]);
    view.notes.down_since_unix_ms.insert(OsdId(1), 1);
    assert_eq!(changes_after(&view, 0), [], "it is about to start");
    // Nor does the time count in which the process stood still.
    let mut presence = Presence::default();
    look_for(&mut presence, &view, 0, 1_000);
    presence.look(&view.map, 60 * MINUTE_MS);
    assert_eq!(membership_changes(&view, &presence), []);
}

#[test]
fn half_of_the_hosts_at_once_are_a_network() {
    assert_eq!(changes_after(&down(6, &[3, 4, 5]), 20 * MINUTE_MS), []);
    assert_eq!(changes_after(&down(6, &[4, 5]), 20 * MINUTE_MS), [out(4), out(5)]);
    // Those that were marked out before are no part of it.
    let mut view = down(6, &[0, 1, 5]);
    [0, 1].iter().for_each(|id| view.map.osds.get_mut(&OsdId(*id)).unwrap().is_out = true);
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [out(5)]);
}

#[test]
fn what_it_holds_must_have_room_on_the_others() {
    let mut view = down(5, &[1]);
    view.usage.values_mut().for_each(|usage| usage.used_bytes = 700);
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [], "3500 bytes on four OSDs that are near full with 3400");
    // It has not reported since it is down.
    view.usage.remove(&OsdId(1));
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), []);
    view.usage.values_mut().for_each(|usage| usage.used_bytes = 600);
    assert_eq!(changes_after(&view, 20 * MINUTE_MS), [out(1)]);
}

#[test]
fn an_osd_that_comes_and_goes_is_marked_in_ever_later() {
    let mut view = healthy(5);
    view.map.osds.get_mut(&OsdId(1)).unwrap().is_out = true;
    view.auto_out.insert(OsdId(1), AutoOutRecord { format: 1, since_unix_ms: 1 });
    let back = [MembershipChange::In(OsdId(1))];
    for (failures, seconds) in [(0, 30), (1, 30), (2, 60), (5, 480), (16, 3_600)] {
        view.notes.failures_unix_ms.insert(OsdId(1), vec![1; failures]);
        assert_eq!(changes_after(&view, seconds * 1_000 - 1_000), [], "{failures} failures");
        assert_eq!(changes_after(&view, seconds * 1_000), back, "{failures} failures");
    }
}

#[test]
fn failures_are_what_a_coordinator_has_seen_fail() {
    let mut view = down(5, &[1]);
    let mut presence = Presence::default();
    assert!(presence.look(&view.map, 0).is_empty(), "it was down before");
    view.map.up.insert(OsdId(1), super::up(1));
    assert!(presence.look(&view.map, 1).is_empty());
    stop(&mut view, &[1]);
    let failed = presence.look(&view.map, 2);
    assert_eq!(failed, [OsdId(1)].into());
    let known = BTreeMap::from([(OsdId(1), vec![1, 50 * MINUTE_MS]), (OsdId(9), vec![5])]);
    let now = 61 * MINUTE_MS;
    assert_eq!(
        track_failures(&view.map, &known, &failed, now),
        [(OsdId(1), vec![50 * MINUTE_MS, now])].into(),
        "those of more than an hour ago and of OSDs that are gone are forgotten"
    );
}
