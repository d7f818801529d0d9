//! Records of the coordinator, and settings of operators for the whole cluster.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{OsdId, PoolId};
use crate::records::RECORD_FORMAT;

/// Settings of operators for the whole cluster. A record of an earlier release lacks some fields, which then have
/// their defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingsRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Seconds after which a down OSD counts as lost: it is marked out, and other OSDs take over its PGs. 0:
    /// never.
    pub osd_down_out_seconds: u64,
    /// Smallest share of OSDs that the coordinator leaves in: more failures at once are rather a broken switch
    /// than broken devices.
    pub osds_in_percent_min: u32,
    /// Pause between two rounds of the balancer.
    pub balance_seconds: u64,
    /// An OSD with more of its space in use is near full.
    pub near_full_percent: u32,
    /// An OSD with more of its space in use is full: it takes no new data of clients.
    #[serde(default = "full_percent_default")]
    pub full_percent: u32,
    /// Microseconds that an OSD polls before it sleeps, up to [`BUSY_POLL_US_MAX`]. 0: none.
    #[serde(default)]
    pub busy_poll_us: u32,
    /// Seconds without a completed request, while some are pending, after which an OSD ends, from
    /// [`DEVICE_SILENCE_SECONDS_MIN`] to [`DEVICE_SILENCE_SECONDS_MAX`].
    pub device_silence_seconds: u64,
    /// Where traces are exported to: the address of a collector that takes OTLP over HTTP. Empty: nowhere.
    pub trace_endpoint: String,
    /// One of this many operations is exported; 0: none.
    pub trace_one_in: u32,
    /// True if all slow operations are exported, too.
    pub trace_slow: bool,
    /// Quota of an etcd that does not report its own (before 3.6), in bytes.
    pub etcd_quota_bytes: u64,
    /// Networks, with commas between them, into which calls may go whose addresses operators have chosen, although they
    /// are not public.
    pub outgoing_networks: String,
    /// The same for calls whose addresses accounts have chosen.
    pub outgoing_networks_of_accounts: String,
    /// Age in days above which health reports a secret. 0: none.
    pub secret_age_days_max: u32,
    /// True if changes of PGs count only with the signature of a member, or of a host that decides.
    pub pg_signatures_required: bool,
}

/// A pause between operations that is longer is no pause within one.
pub const BUSY_POLL_US_MAX: u32 = 1_000;

/// A drive that is woken or collects its garbage may take some time for one request.
pub const DEVICE_SILENCE_SECONDS_MIN: u64 = 2;
/// I/O of a whole cluster may wait for one device.
pub const DEVICE_SILENCE_SECONDS_MAX: u64 = 600;

/// The remaining space is for recovery, deletes and checkpoints.
pub const FULL_PERCENT_DEFAULT: u32 = 95;
/// Half of the space above the default is for checkpoints alone, which free space.
pub const FULL_PERCENT_MAX: u32 = 97;

/// Quota of an etcd whose `--quota-backend-bytes` is not set.
pub const ETCD_QUOTA_BYTES_DEFAULT: u64 = 2 << 30;

fn full_percent_default() -> u32 {
    FULL_PERCENT_DEFAULT
}

impl Default for SettingsRecord {
    fn default() -> Self {
        SettingsRecord {
            format: RECORD_FORMAT,
            osd_down_out_seconds: 600,
            osds_in_percent_min: 50,
            balance_seconds: 60,
            near_full_percent: 85,
            full_percent: FULL_PERCENT_DEFAULT,
            busy_poll_us: 0,
            device_silence_seconds: 15,
            trace_endpoint: String::new(),
            trace_one_in: 1_000,
            trace_slow: true,
            etcd_quota_bytes: ETCD_QUOTA_BYTES_DEFAULT,
            outgoing_networks: String::new(),
            outgoing_networks_of_accounts: String::new(),
            secret_age_days_max: 0,
            pg_signatures_required: false,
        }
    }
}

/// The current time, as the coordinator writes it every few seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Unix time, in milliseconds.
    pub unix_ms: u64,
}

/// Largest difference of the clocks of a process and of the cluster, in milliseconds.
pub const CLOCK_DIFFERENCE_MS_MAX: u64 = 60_000;

/// Returns the time at which terms lapse whose end removes or releases data. A process whose clock is ahead uses the
/// cluster's time: nothing goes because a clock was moved.
pub fn lapse_unix_ms(own_unix_ms: u64, cluster_unix_ms: Option<u64>) -> u64 {
    match cluster_unix_ms {
        Some(cluster) if own_unix_ms > cluster.saturating_add(CLOCK_DIFFERENCE_MS_MAX) => cluster,
        _ => own_unix_ms,
    }
}

/// Returns the time at which such a term begins, and at which credentials end. A process whose clock is behind uses
/// the cluster's time: the term would be over by the clocks of others, and the credentials are.
pub fn later_unix_ms(own_unix_ms: u64, cluster_unix_ms: Option<u64>) -> u64 {
    own_unix_ms.max(cluster_unix_ms.unwrap_or(0))
}

/// The current coordinator; the key is tied to its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The OSD in whose process it runs.
    pub osd: OsdId,
    /// Unix time since when, in milliseconds.
    pub since_unix_ms: u64,
}

/// Notes of one coordinator for the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CoordinatorNotesRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// OSDs that are down, with the Unix time, in milliseconds, when that was first seen.
    pub down_since_unix_ms: BTreeMap<OsdId, u64>,
    /// Problems by their code, with the Unix time, in milliseconds, when each was first seen.
    pub problem_since_unix_ms: BTreeMap<String, u64>,
    /// When OSDs failed within the last hour, in Unix milliseconds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures_unix_ms: BTreeMap<OsdId, Vec<u64>>,
    /// Changes of PGs that were refused lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_changes: Option<RefusedChangesNote>,
}

/// Refused changes of PGs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedChangesNote {
    /// Number of them, since there was a day without.
    pub count: u64,
    /// Unix time of the last one, in milliseconds.
    pub last_unix_ms: u64,
    /// The last one: its key, and why it was refused.
    pub last: String,
}

/// Says that the coordinator, and no operator, has marked an OSD out; so it may mark it in again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoOutRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// Unix time when, in milliseconds.
    pub since_unix_ms: u64,
}

/// The number of the next pool. Numbers are never given twice, because OSDs may still hold objects
/// of a pool that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextPoolRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The number.
    pub next: PoolId,
}

/// No OSD gets a lower number. Numbers below that no OSD has were of OSDs that are removed, which
/// PGs may remember.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextOsdRecord {
    /// [`RECORD_FORMAT`].
    pub format: u32,
    /// The number.
    pub next: OsdId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_not_there_have_their_defaults() {
        let settings: SettingsRecord = serde_json::from_str(r#"{"format":1,"osd_down_out_seconds":5}"#).unwrap();
        assert_eq!(settings, SettingsRecord { osd_down_out_seconds: 5, ..SettingsRecord::default() });
    }

    #[test]
    fn a_clock_that_is_ahead_lets_nothing_lapse() {
        assert_eq!(lapse_unix_ms(1_000_000, None), 1_000_000);
        assert_eq!(lapse_unix_ms(1_000_000, Some(950_000)), 1_000_000, "as clocks differ");
        assert_eq!(lapse_unix_ms(1_000_000, Some(939_999)), 939_999);
        assert_eq!(lapse_unix_ms(u64::MAX, Some(1)), 1);
        assert_eq!(lapse_unix_ms(1_000, Some(1_000_000)), 1_000, "one that is behind waits longer by itself");
    }

    #[test]
    fn a_clock_that_is_behind_shortens_no_term() {
        assert_eq!(later_unix_ms(1_000, None), 1_000);
        assert_eq!(later_unix_ms(1_000, Some(1_000_000)), 1_000_000);
        assert_eq!(later_unix_ms(1_000_000, Some(1_000)), 1_000_000, "the term is longer");
    }

    #[test]
    fn notes_are_plain_json() {
        let notes = CoordinatorNotesRecord {
            format: 1,
            down_since_unix_ms: BTreeMap::from([(OsdId(3), 5)]),
            problem_since_unix_ms: BTreeMap::new(),
            failures_unix_ms: BTreeMap::new(),
            refused_changes: None,
        };
        let text = serde_json::to_string(&notes).unwrap();
        assert_eq!(text, r#"{"format":1,"down_since_unix_ms":{"3":5},"problem_since_unix_ms":{}}"#);
        assert_eq!(serde_json::from_str::<CoordinatorNotesRecord>(&text).unwrap(), notes);
    }
}
