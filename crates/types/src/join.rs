//! How hosts come into a cluster: the record of a join token in cluster state.

use serde::{Deserialize, Serialize};

/// What a host is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostRole {
    /// It runs OSDs and has no access to what clients have sealed.
    Osd,
    /// It runs gateways, NBD servers and tools.
    Client,
    /// Both.
    #[default]
    Host,
}

impl HostRole {
    /// Whether it may run OSDs.
    pub fn has_osds(self) -> bool {
        self != HostRole::Client
    }

    /// Whether it may be a client of OSDs.
    pub fn has_clients(self) -> bool {
        self != HostRole::Osd
    }
}

impl std::fmt::Display for HostRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HostRole::Osd => "osd",
            HostRole::Client => "client",
            HostRole::Host => "host",
        })
    }
}

/// The permission for one host to join. The secret itself is in the token only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinTokenRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// What the host that joins may be.
    pub role: HostRole,
    /// SHA-256 of the secret (256 random bits), in hexadecimal.
    pub secret_sha256: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Unix time from which on it is worth nothing, in milliseconds.
    pub expires_unix_ms: u64,
    /// The host that has used it; no other host can use it then.
    pub used_by: Option<JoinedHost>,
}

/// With this before a token's id as its name, and the token's secret as its password, a host that joins logs in to the
/// embedded cluster state. In place of a token of etcd it gets a [`StateLogin`] as JSON.
pub const JOIN_USER_PREFIX: &str = "atoll-join.";

/// How the hosts of a cluster log in to cluster state.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateLogin {
    /// The user.
    pub user: String,
    /// Its password.
    pub password: String,
}

/// The use of a join token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedHost {
    /// Its name.
    pub host: String,
    /// Public key of the host's clients, in hexadecimal; the same host is known by it again.
    pub public_key: String,
    /// Unix time, in milliseconds.
    pub joined_unix_ms: u64,
}
