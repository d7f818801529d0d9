//! How long OSDs are up and down, as the coordinator that leads has seen it by its own monotonic clock.
//!
//! Times of other clocks do not count: while the whole cluster was off, or a clock was stepped, no process saw an
//! OSD down.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::ClusterMap;
use atoll_types::OsdId;

/// Most time that counts between two looks: a process that was paused has seen nothing meanwhile.
const STEP_MS_MAX: u64 = 5_000;
/// Time for which failures of an OSD count.
const FAILURES_KEPT_MS: u64 = 3_600_000;
/// Failures of an OSD that are kept, the newest ones.
const FAILURES_KEPT: usize = 16;

/// Observations of OSDs by one coordinator since it leads.
#[derive(Clone, Debug, Default)]
pub struct Presence {
    looked_at_ms: Option<u64>,
    seen: BTreeMap<OsdId, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    is_up: bool,
    for_ms: u64,
}

impl Presence {
    /// Looks at all OSDs, at a time of this process's monotonic clock. Returns those that were up at the last look
    /// and are down.
    pub fn look(&mut self, map: &ClusterMap, now_ms: u64) -> BTreeSet<OsdId> {
        let step_ms = self.looked_at_ms.map_or(0, |last_ms| now_ms.saturating_sub(last_ms).min(STEP_MS_MAX));
        self.looked_at_ms = Some(now_ms);
        let before = std::mem::take(&mut self.seen);
        let mut failed = BTreeSet::new();
        for osd in map.osds.keys() {
            let is_up = map.up.contains_key(osd);
            let seen = match before.get(osd) {
                Some(seen) if seen.is_up == is_up => Seen { is_up, for_ms: seen.for_ms.saturating_add(step_ms) },
                changed => {
                    if changed.is_some() && !is_up {
                        failed.insert(*osd);
                    }
                    Seen { is_up, for_ms: 0 }
                }
            };
            self.seen.insert(*osd, seen);
        }
        failed
    }

    /// For how long an OSD has been down, in milliseconds; 0 if it is up.
    pub fn down_ms(&self, osd: OsdId) -> u64 {
        self.seen.get(&osd).map_or(0, |seen| if seen.is_up { 0 } else { seen.for_ms })
    }

    /// For how long an OSD has been up, in milliseconds; 0 if it is down.
    pub fn up_ms(&self, osd: OsdId) -> u64 {
        self.seen.get(&osd).map_or(0, |seen| if seen.is_up { seen.for_ms } else { 0 })
    }
}

/// When each OSD failed within the last hour, in Unix milliseconds: as known, and now for those of `failed`.
pub(crate) fn track_failures(
    map: &ClusterMap,
    known: &BTreeMap<OsdId, Vec<u64>>,
    failed: &BTreeSet<OsdId>,
    now_unix_ms: u64,
) -> BTreeMap<OsdId, Vec<u64>> {
    let is_recent = |at: &u64| *at <= now_unix_ms && now_unix_ms - *at < FAILURES_KEPT_MS;
    let of = |osd: OsdId| {
        let known = known.get(&osd).into_iter().flatten().copied().filter(is_recent);
        let mut all: Vec<u64> = known.chain(failed.contains(&osd).then_some(now_unix_ms)).collect();
        all.drain(..all.len().saturating_sub(FAILURES_KEPT));
        all
    };
    map.osds.keys().map(|osd| (*osd, of(*osd))).filter(|(_, failures)| !failures.is_empty()).collect()
}
