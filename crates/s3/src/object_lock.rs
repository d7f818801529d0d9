//! Locks that keep versions from being removed: retention until a time, and legal holds.
//!
//! A lock is part of a version's record, and a removal of a version requires that its record is
//! still the one that was read. So no removal is decided by an older lock.

use atoll_types::records::RetentionMode;
use s3s::dto::{ObjectLockLegalHoldStatus, ObjectLockMode};
use serde::{Deserialize, Serialize};

/// End of a version's retention, and its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retention {
    pub mode: RetentionMode,
    pub until_ms: u64,
}

/// The lock of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectLock {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// `None` if it was never set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub legal_hold: Option<bool>,
}

impl ObjectLock {
    /// Returns true if there is none.
    pub(crate) fn is_none(&self) -> bool {
        *self == ObjectLock::default()
    }

    fn retention_in_force(&self, now_ms: u64) -> Option<Retention> {
        self.retention.filter(|retention| now_ms < retention.until_ms)
    }

    /// Returns true if the version may be removed now.
    pub(crate) fn allows_removal(&self, now_ms: u64, bypasses_governance: bool) -> bool {
        let is_free = match self.retention_in_force(now_ms).map(|retention| retention.mode) {
            None => true,
            Some(RetentionMode::Governance) => bypasses_governance,
            Some(RetentionMode::Compliance) => false,
        };
        is_free && self.legal_hold != Some(true)
    }

    /// Returns true if `wanted` may replace the retention now. One in force may become longer.
    pub(crate) fn allows_retention(
        &self,
        wanted: Option<Retention>,
        now_ms: u64,
        bypasses_governance: bool,
    ) -> bool {
        let Some(current) = self.retention_in_force(now_ms) else { return true };
        let is_longer =
            wanted.is_some_and(|wanted| wanted.mode == current.mode && wanted.until_ms >= current.until_ms);
        is_longer || current.mode == RetentionMode::Governance && bypasses_governance
    }
}

/// Returns the name of a mode of retention in S3.
pub(crate) fn mode_name(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => ObjectLockMode::GOVERNANCE,
        RetentionMode::Compliance => ObjectLockMode::COMPLIANCE,
    }
}

/// Returns the status of a legal hold in S3.
pub(crate) fn legal_hold_name(is_on: bool) -> &'static str {
    if is_on { ObjectLockLegalHoldStatus::ON } else { ObjectLockLegalHoldStatus::OFF }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RetentionMode::{Compliance, Governance};

    fn lock(mode: RetentionMode) -> ObjectLock {
        ObjectLock { retention: Some(Retention { mode, until_ms: 100 }), legal_hold: None }
    }

    #[test]
    fn removal_waits_for_retention_and_legal_hold() {
        // Lock, time, bypass, whether a removal is allowed.
        let held = |lock| ObjectLock { legal_hold: Some(true), ..lock };
        let cases = [
            (ObjectLock::default(), 99, false, true),
            (lock(Governance), 99, false, false),
            (lock(Governance), 99, true, true),
            (lock(Governance), 100, false, true),
            (lock(Compliance), 99, true, false),
            (lock(Compliance), 100, false, true),
            (held(ObjectLock::default()), 99, true, false),
            (held(lock(Governance)), 99, true, false),
            (held(lock(Compliance)), 100, true, false),
            (ObjectLock { legal_hold: Some(false), ..ObjectLock::default() }, 99, false, true),
        ];
        for (lock, now_ms, bypasses, expected) in cases {
            assert_eq!(lock.allows_removal(now_ms, bypasses), expected, "{lock:?} at {now_ms}, {bypasses}");
        }
    }

    #[test]
    fn retention_in_force_becomes_no_weaker() {
        let until = |mode, until_ms| Some(Retention { mode, until_ms });
        // Before, wanted, whether without and with bypass.
        let cases = [
            (Governance, until(Governance, 101), true, true),
            (Governance, until(Governance, 99), false, true),
            (Governance, until(Compliance, 101), false, true),
            (Governance, None, false, true),
            (Compliance, until(Compliance, 100), true, true),
            (Compliance, until(Compliance, 99), false, false),
            (Compliance, until(Governance, 200), false, false),
            (Compliance, None, false, false),
        ];
        for (before, wanted, without, with) in cases {
            let lock = lock(before);
            assert_eq!(lock.allows_retention(wanted, 50, false), without, "{before:?} to {wanted:?}");
            assert_eq!(lock.allows_retention(wanted, 50, true), with, "{before:?} to {wanted:?} with bypass");
            assert!(lock.allows_retention(wanted, 100, false), "it has run out");
        }
        assert!(ObjectLock::default().allows_retention(until(Compliance, 9), 50, false));
    }
}
