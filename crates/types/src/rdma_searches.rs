//! When OSDs are sought over RDMA that were not reached by it.

use std::collections::BTreeMap;

use crate::OsdId;

/// First pause before an OSD is sought again at an address where it was not reached. It may not have known the key of
/// the caller yet.
const PAUSE_FIRST_MS: u64 = 1_000;
/// Longest pause. Each is twice as long as the one before.
const PAUSE_MAX_MS: u64 = 60_000;

/// Search of an OSD at an address.
#[derive(Debug, Default)]
struct Search {
    address: String,
    /// Not again before this time.
    until_ms: u64,
    /// The last pause; 0 if there was none.
    pause_ms: u64,
}

/// Where OSDs were sought over RDMA, and when they are sought again. An OSD that announces another address, or one after
/// it had none, is sought at once.
#[derive(Debug, Default)]
pub struct RdmaSearches {
    by_osd: BTreeMap<OsdId, Search>,
}

impl RdmaSearches {
    /// Returns true if an OSD that announces this address is to be sought there now.
    pub fn is_due(&mut self, osd: OsdId, address: &str, now_ms: u64) -> bool {
        let search = self.by_osd.entry(osd).or_default();
        if search.address != address {
            *search = Search { address: address.to_owned(), ..Search::default() };
        }
        now_ms >= search.until_ms
    }

    /// An OSD was not reached where it was sought, or not any longer.
    pub fn failed(&mut self, osd: OsdId, now_ms: u64) {
        let Some(search) = self.by_osd.get_mut(&osd) else { return };
        // It was there meanwhile, or is sought again at the next pause: one long pause without a failure ends a series.
        let is_new_series = now_ms >= search.until_ms.saturating_add(PAUSE_MAX_MS);
        search.pause_ms = match search.pause_ms {
            1.. if !is_new_series => (search.pause_ms * 2).min(PAUSE_MAX_MS),
            _ => PAUSE_FIRST_MS,
        };
        search.until_ms = now_ms + search.pause_ms;
    }

    /// An OSD announces no address of RDMA.
    pub fn forget(&mut self, osd: OsdId) {
        self.by_osd.remove(&osd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which an OSD that is never reached is sought, from a time on.
    fn sought(searches: &mut RdmaSearches, osd: OsdId, address: &str, from_ms: u64, until_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        for now_ms in (from_ms..until_ms).step_by(500) {
            if searches.is_due(osd, address, now_ms) {
                times.push(now_ms - from_ms);
                searches.failed(osd, now_ms);
            }
        }
        times
    }

    #[test]
    fn resumes_unreached_peers_after_backoff_or_their_return() {
        let (osd, mut searches) = (OsdId(3), RdmaSearches::default());
        let seconds = [0, 1, 3, 7, 15, 31, 63, 123, 183];
        let expected: Vec<u64> = seconds.iter().map(|second| second * 1_000).collect();
        assert_eq!(sought(&mut searches, osd, "verbs:10.0.0.3:7001", 5_000, 200_000), expected);
        assert!(searches.is_due(OsdId(4), "verbs:10.0.0.4:7001", 200_000), "others are not concerned");
        // Another address, and any address after none.
        assert_eq!(sought(&mut searches, osd, "verbs:10.0.0.3:7002", 200_000, 204_000), [0, 1_000, 3_000]);
        searches.forget(osd);
        assert_eq!(sought(&mut searches, osd, "verbs:10.0.0.3:7002", 204_000, 206_000), [0, 1_000]);
        searches.forget(osd);
        searches.failed(osd, 206_000);
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7002", 206_000), "it announces one since");
    }

    #[test]
    fn a_failure_after_a_long_time_is_a_first_one() {
        let (osd, mut searches) = (OsdId(3), RdmaSearches::default());
        sought(&mut searches, osd, "verbs:10.0.0.3:7001", 0, 100_000);
        // Sought at 123 s, and reached. The connection ends an hour later.
        let hour_ms = 3_600_000;
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7001", 123_000));
        searches.failed(osd, hour_ms);
        assert!(!searches.is_due(osd, "verbs:10.0.0.3:7001", hour_ms + 999));
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7001", hour_ms + 1_000));
    }
}
