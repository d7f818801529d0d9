//! Which OSDs are taken for lost.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::ClusterMap;
use atoll_placement::{Tree, is_usable};
use atoll_types::OsdId;
use atoll_types::records::{ClusterFlag, OsdRecord, PoolRecord};

use crate::{View, invariants};

/// A change of who holds data by plan.
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

/// What is to be changed now. The view's notes say since when OSDs are down.
pub fn membership_changes(view: &View, now_unix_ms: u64) -> Vec<MembershipChange> {
    let changes = decide(view, now_unix_ms);
    invariants::changes_follow_from_the_map(&view.map, |osd| view.auto_out.contains_key(&osd), &changes);
    changes
}

fn decide(view: &View, now_unix_ms: u64) -> Vec<MembershipChange> {
    let map = &view.map;
    let is_back = |osd: &&OsdId| map.up.contains_key(osd) && map.osds.get(osd).is_some_and(|osd| osd.is_out);
    let mut changes: Vec<_> = view.auto_out.keys().filter(is_back).copied().map(MembershipChange::In).collect();
    let limit_ms = view.settings.osd_down_out_seconds.saturating_mul(1000);
    if limit_ms == 0 || map.flags.flags.contains_key(&ClusterFlag::NoOut) {
        return changes;
    }
    let mut late: Vec<(u64, OsdId)> = view
        .notes
        .down_since_unix_ms
        .iter()
        .filter(|(osd, since)| !map.up.contains_key(osd) && now_unix_ms.saturating_sub(**since) >= limit_ms)
        .map(|(osd, since)| (*since, *osd))
        .collect();
    late.sort_unstable();
    let mut osds = map.osds.clone();
    for (_, id) in late {
        if osds.get(&id).is_some_and(|osd| !osd.is_out) && can_do_without(view, &osds, id) {
            osds.entry(id).and_modify(|osd| osd.is_out = true);
            changes.push(MembershipChange::Out(id));
        }
    }
    changes
}

/// Whether the others can serve without this OSD: they are on some host, they are not too few, and
/// no pool that the OSD could hold data of is left with fewer failure domains than it needs copies
/// or shards.
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
    !hosts.is_empty() && holding.len() * 100 >= share_min && view.map.pools.values().all(pool_is_served)
}
