//! The hosts of a cluster: who they are in cluster state, and what a host asks of its embedded server for itself.

use serde::{Deserialize, Serialize};

use crate::join::HostRole;
use crate::records::OsdRecord;

/// A host with credentials of its own. What it may do is not decided by this record but by the roles of its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name.
    pub host: String,
    /// What it may be.
    pub role: HostRole,
    /// Its user in cluster state.
    pub user: String,
    /// Public key of its clients, in hexadecimal.
    pub public_key: String,
    /// When it joined, or got credentials of its own, as Unix time in milliseconds.
    pub joined_unix_ms: u64,
    /// When its password was changed last, as Unix time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_unix_ms: Option<u64>,
    /// Where it joined from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// With this before its user's name as the name, and a [`HostRequest`] as JSON for the password, a host asks the embedded
/// cluster state for a change of what is its own. In place of a token of etcd it gets "done".
pub const HOST_USER_PREFIX: &str = "atoll-host.";

/// What a host asks for.
#[derive(Clone, Serialize, Deserialize)]
pub struct HostRequest {
    /// Its password.
    pub password: String,
    /// What is to be changed.
    pub change: HostChange,
}

/// A change of what is a host's own.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostChange {
    /// From now on it logs in with this password.
    Password(String),
    /// OSDs of the host are as these records say, if those that there are have these revisions.
    Osds {
        /// Records, and the revisions of what they replace; 0 for new ones.
        osds: Vec<(OsdRecord, i64)>,
        /// What must be the revision of the record of the next OSD's number.
        next_osd_revision: Option<i64>,
    },
}
