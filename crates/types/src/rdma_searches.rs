//! When OSDs are sought over RDMA that were not reached by it.

use std::collections::BTreeMap;

use crate::OsdId;

/// Pause before an OSD is sought again at an address where it was not reached.
const PAUSE_MS: u64 = 60_000;

/// Where OSDs were sought over RDMA, and when they are sought again. An OSD that announces another address, or one after
/// it had none, is sought at once.
#[derive(Debug, Default)]
pub struct RdmaSearches {
    by_osd: BTreeMap<OsdId, (String, u64)>,
}

impl RdmaSearches {
    /// Returns true if an OSD that announces this address is to be sought there now.
    pub fn is_due(&mut self, osd: OsdId, address: &str, now_ms: u64) -> bool {
        let (sought, until_ms) = self.by_osd.entry(osd).or_default();
        if sought != address {
            (*sought, *until_ms) = (address.to_owned(), 0);
        }
        now_ms >= *until_ms
    }

    /// An OSD was not reached where it was sought.
    pub fn failed(&mut self, osd: OsdId, now_ms: u64) {
        if let Some((_, until_ms)) = self.by_osd.get_mut(&osd) {
            *until_ms = now_ms + PAUSE_MS;
        }
    }

    /// An OSD announces no address of RDMA.
    pub fn forget(&mut self, osd: OsdId) {
        self.by_osd.remove(&osd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumes_unreached_peers_after_backoff_or_their_return() {
        let (osd, mut searches) = (OsdId(3), RdmaSearches::default());
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7001", 5));
        searches.failed(osd, 5);
        assert!(!searches.is_due(osd, "verbs:10.0.0.3:7001", 4 + PAUSE_MS));
        assert!(searches.is_due(OsdId(4), "verbs:10.0.0.4:7001", 6), "others are not concerned");
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7001", 5 + PAUSE_MS));
        searches.failed(osd, 5 + PAUSE_MS);
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7002", 6 + PAUSE_MS), "another address");
        searches.failed(osd, 6 + PAUSE_MS);
        assert!(!searches.is_due(osd, "verbs:10.0.0.3:7002", 7 + PAUSE_MS));
        searches.forget(osd);
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7002", 8 + PAUSE_MS), "it had no address meanwhile");
        searches.forget(osd);
        searches.failed(osd, 9 + PAUSE_MS);
        assert!(searches.is_due(osd, "verbs:10.0.0.3:7002", 9 + PAUSE_MS), "it announces one since");
    }
}
