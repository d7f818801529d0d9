//! The hosts of a cluster: their identities in cluster state, and requests of a host to its embedded server.

use serde::{Deserialize, Serialize};

use crate::join::HostRole;
use crate::records::OsdRecord;

/// A host with credentials of its own. The roles of its user, and not this record, decide its rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its name.
    pub host: String,
    /// Its role.
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

/// Prefix of a host's user name in a request for a change of the host's own records: the password is a
/// [`HostRequest`] as JSON. In place of a token of etcd it gets "done".
pub const HOST_USER_PREFIX: &str = "atoll-host.";

/// Request of a host.
#[derive(Clone, Serialize, Deserialize)]
pub struct HostRequest {
    /// Its password.
    pub password: String,
    /// The requested change.
    pub change: HostChange,
}

/// A change of a host's own records.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostChange {
    /// From now on it logs in with this password.
    Password(String),
    /// OSDs of the host are as these records say, if those that there are have these revisions.
    Osds {
        /// Records, and the revisions of the records that they replace; 0 for new ones.
        osds: Vec<(OsdRecord, i64)>,
        /// Required revision of the record of the next OSD's number.
        next_osd_revision: Option<i64>,
    },
}
