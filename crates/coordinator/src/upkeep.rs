//! Upkeep of cluster state itself: an etcd keeps every value that a key ever had until it is compacted, and takes
//! no writes once it has its quota.

use std::time::{Duration, Instant};

use atoll_cluster::StateSize;
use atoll_types::size::format_size;

use crate::health::{Problem, Severity};

/// Shortest time for which the history of cluster state is kept, at most twice as long: a watch that was cut off
/// for less continues.
const HISTORY_KEPT: Duration = Duration::from_secs(600);

/// Time and revision of the next compaction.
#[derive(Default)]
pub(crate) struct Compaction {
    /// A moment, and the revision that was the newest one then.
    noted: Option<(Instant, i64)>,
}

impl Compaction {
    /// Gives the revision before which all is to be forgotten, if it is time.
    pub fn due(&mut self, now: Instant, revision: i64) -> Option<i64> {
        let Some((since, noted)) = self.noted else {
            self.noted = Some((now, revision));
            return None;
        };
        if now.duration_since(since) < HISTORY_KEPT {
            return None;
        }
        self.noted = Some((now, revision));
        (revision > noted).then_some(noted)
    }
}

const ACTION: &str = "of an etcd: the coordinator compacts it every 10 minutes, 'etcdctl defrag --cluster' frees the compacted space, and 'etcdctl alarm disarm' permits writes again; or give it a larger \
                      --quota-backend-bytes, and an etcd before 3.6 the setting etcd_quota_bytes too. The embedded server has no history: remove buckets, images and users that \
                      are not needed";

/// The problem of a cluster state that is near its quota, or out of it. `unreported_bytes` is the quota of an etcd that
/// does not report its own.
pub(crate) fn problem(size: &StateSize, unreported_bytes: u64) -> Option<Problem> {
    let quota_bytes = size.quota_bytes.unwrap_or(unreported_bytes);
    let share = format!("{} of {}", format_size(size.bytes), format_size(quota_bytes));
    let (code, severity, summary) = if size.is_out_of_quota {
        let summary = format!("cluster state takes no writes, for it has had all of its quota; it has {share}");
        ("STATE_OUT_OF_QUOTA", Severity::Error, summary)
    } else if size.bytes > quota_bytes / 2 {
        ("STATE_NEAR_QUOTA", Severity::Warning, format!("cluster state has {share} that it may have"))
    } else {
        return None;
    };
    Some(Problem { code, severity, summary, subjects: Vec::new(), action: ACTION.into(), since_unix_ms: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_forgotten_when_it_is_old_enough() {
        let (mut compaction, begun) = (Compaction::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(compaction.due(at(0), 1_000), None, "how old that is nobody knows");
        assert_eq!(compaction.due(at(599), 1_500), None);
        assert_eq!(compaction.due(at(600), 1_600), Some(1_000));
        assert_eq!(compaction.due(at(1_100), 1_700), None);
        assert_eq!(compaction.due(at(1_200), 1_600), None, "nothing has changed");
        assert_eq!(compaction.due(at(1_800), 1_601), Some(1_600));
    }

    #[test]
    fn half_of_the_quota_is_a_warning_and_the_alarm_an_error() {
        let size =
            |bytes, is_out_of_quota| StateSize { revision: 1, bytes, quota_bytes: Some(100), is_out_of_quota };
        assert_eq!(problem(&size(50, false), 10), None);
        let near = problem(&size(51, false), 10).unwrap();
        assert_eq!((near.code, near.severity), ("STATE_NEAR_QUOTA", Severity::Warning));
        // After a compaction it is less, and the alarm stays.
        let out = problem(&size(10, true), 10).unwrap();
        assert_eq!((out.code, out.severity), ("STATE_OUT_OF_QUOTA", Severity::Error));
        let silent = StateSize { quota_bytes: None, ..size(51, false) };
        assert_eq!(problem(&silent, 102), None);
        assert_eq!(problem(&silent, 101).unwrap().code, "STATE_NEAR_QUOTA");
    }
}
