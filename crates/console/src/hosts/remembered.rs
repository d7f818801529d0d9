//! Hosts that are gone, and count as down for a while.

use atoll_coordinator::unix_ms;
use atoll_types::monitoring::AdminServerRecord;

/// For how long a host that is gone counts as down, and not as removed.
const REMEMBERED_MS: u64 = 24 * 60 * 60 * 1_000;

/// Returns true if a host still counts.
pub(crate) fn is_remembered(record: &AdminServerRecord) -> bool {
    record.seen_unix_ms.saturating_add(REMEMBERED_MS) > unix_ms()
}
