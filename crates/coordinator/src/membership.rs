//! Which OSDs are taken for lost.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::ClusterMap;
use atoll_placement::{Tree, is_usable};
use atoll_types::OsdId;
use atoll_types::records::{ClusterFlag, OsdRecord, PoolRecord};

use crate::presence::Presence;
use crate::{View, invariants};

/// Shortest time for which an OSD that was marked out must be up before it is marked in.
const TRIAL_MS: u64 = 30_000;
/// The same for one that has failed often.
const TRIAL_MS_MAX: u64 = 3_600_000;

/// A change of an OSD's place in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// The OSD was down for too long.
    Out(OsdId),
    /// It was marked out by the coordinator, and is back.
    In(OsdId),
}

/// Since when each OSD is down: as known, or since now. A time in the future, by another host's
/// clock, counts as now.
pub fn track_down(map: &ClusterMap, known: &BTreeMap<OsdId, u64>, now_unix_ms: u64) -> BTreeMap<OsdId, u64> {
    let down = map.osds.keys().filter(|osd| !map.up.contains_key(osd));
    let since = |osd| known.get(osd).map_or(now_unix_ms, |since: &u64| (*since).min(now_unix_ms));
    let down_since = down.map(|osd| (*osd, since(osd))).collect();
    invariants::notes_are_of_the_past(map, &down_since, now_unix_ms);
    down_since
}

/// Returns the changes to make now, after the coordinator's observations of OSDs.
pub fn membership_changes(view: &View, presence: &Presence) -> Vec<MembershipChange> {
    let changes = decide(view, presence);
    invariants::changes_follow_from_the_map(&view.map, |osd| view.auto_out.contains_key(&osd), &changes);
    changes
}

fn decide(view: &View, presence: &Presence) -> Vec<MembershipChange> {
    let map = &view.map;
    let is_back = |osd: &&OsdId| {
        let is_out = map.osds.get(osd).is_some_and(|osd| osd.is_out);
        map.up.contains_key(osd) && is_out && presence.up_ms(**osd) >= trial_ms(view, **osd)
    };
    let mut changes: Vec<_> = view.auto_out.keys().filter(is_back).copied().map(MembershipChange::In).collect();
    let limit_ms = view.settings.osd_down_out_seconds.saturating_mul(1000);
    if limit_ms == 0 || map.flags.flags.contains_key(&ClusterFlag::NoOut) || is_network(view) {
        return changes;
    }
    let down = map.osds.keys().map(|osd| (presence.down_ms(*osd), *osd));
    let mut late: Vec<(u64, OsdId)> =
        down.filter(|(down_ms, osd)| !map.up.contains_key(osd) && *down_ms >= limit_ms).collect();
    late.sort_unstable_by_key(|(down_ms, osd)| (std::cmp::Reverse(*down_ms), *osd));
    let mut osds = map.osds.clone();
    for (_, id) in late {
        if osds.get(&id).is_some_and(|osd| !osd.is_out) && can_do_without(view, &osds, id) {
            osds.entry(id).and_modify(|osd| osd.is_out = true);
            changes.push(MembershipChange::Out(id));
        }
    }
    changes
}

/// For how long an OSD that was marked out must be up before it is marked in: longer the more often it failed
/// of late, so that one that comes and goes does not move data each time.
fn trial_ms(view: &View, osd: OsdId) -> u64 {
    let failures = view.notes.failures_unix_ms.get(&osd).map_or(0, Vec::len);
    let first_ms = TRIAL_MS.min(view.settings.osd_down_out_seconds.saturating_mul(1000));
    (first_ms << failures.saturating_sub(1).min(10)).min(TRIAL_MS_MAX)
}

/// Returns true if half of the hosts or more are away at once: that is rather a network than devices.
fn is_network(view: &View) -> bool {
    let mut hosts: BTreeMap<&str, bool> = BTreeMap::new();
    for (id, osd) in view.map.osds.iter().filter(|(_, osd)| !osd.is_out && osd.weight > 0.0) {
        *hosts.entry(&osd.host).or_default() |= view.map.up.contains_key(id);
    }
    let away = hosts.values().filter(|is_there| !**is_there).count();
    hosts.len() > 1 && away * 2 >= hosts.len()
}

/// Returns true if the others can serve without this OSD: they are on some host, they are not too few, they have
/// room for its data, and no pool that the OSD could hold data of is left with fewer failure domains than it needs
/// copies or shards.
fn can_do_without(view: &View, osds: &BTreeMap<OsdId, OsdRecord>, id: OsdId) -> bool {
    let mut without = osds.clone();
    without.entry(id).and_modify(|osd| osd.is_out = true);
    let weighted: Vec<&OsdRecord> = without.values().filter(|osd| osd.weight > 0.0).collect();
    let holding: Vec<&OsdRecord> = weighted.iter().filter(|osd| !osd.is_out).copied().collect();
    let hosts: BTreeSet<&str> = holding.iter().map(|osd| osd.host.as_str()).collect();
    let share_min = weighted.len() * view.settings.osds_in_percent_min as usize;
    let pool_is_served = |pool: &PoolRecord| {
        let min_size = pool.redundancy.min_size();
        !is_usable(&osds[&id], pool) || Tree::of_pool(pool, &without).domain_count() >= min_size as usize
    };
    !hosts.is_empty()
        && holding.len() * 100 >= share_min
        && have_room(view, &holding)
        && view.map.pools.values().all(pool_is_served)
}

/// Returns true if everything has room on these OSDs before they are near full. The data of an OSD that has not
/// reported counts as the average of the others.
fn have_room(view: &View, holding: &[&OsdRecord]) -> bool {
    let used_bytes: u64 = view.usage.values().map(|usage| usage.used_bytes).sum();
    let silent =
        view.map.osds.values().filter(|osd| osd.weight > 0.0 && !view.usage.contains_key(&osd.id)).count();
    let average_bytes = used_bytes / (view.usage.len() as u64).max(1);
    let wanted_bytes = used_bytes.saturating_add(average_bytes.saturating_mul(silent as u64));
    let room = holding.iter().filter_map(|osd| view.usage.get(&osd.id)).map(|usage| usage.total_bytes);
    wanted_bytes <= room.sum::<u64>() / 100 * u64::from(view.settings.near_full_percent)
}
