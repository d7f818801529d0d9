//! How hosts come into a cluster: the record of a join token in cluster state.

use serde::{Deserialize, Serialize};

/// Purpose of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostRole {
    /// It runs OSDs and cannot read sealed data of clients.
    Osd,
    /// It runs S3 gateways, and administers nothing.
    Gateway,
    /// It runs gateways, NBD servers and tools, and administers the cluster.
    Client,
    /// All of that.
    #[default]
    Host,
}

impl HostRole {
    /// Returns true if it may run OSDs.
    pub fn has_osds(self) -> bool {
        matches!(self, HostRole::Osd | HostRole::Host)
    }

    /// Returns true if it may administer the cluster, and serve images.
    pub fn is_admin(self) -> bool {
        matches!(self, HostRole::Client | HostRole::Host)
    }

    /// Returns true if it may be a client of OSDs.
    pub fn has_clients(self) -> bool {
        self != HostRole::Osd
    }
}

impl std::fmt::Display for HostRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HostRole::Osd => "osd",
            HostRole::Gateway => "gateway",
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
    /// Role of the joining host.
    pub role: HostRole,
    /// SHA-256 of the secret (256 random bits), in hexadecimal.
    pub secret_sha256: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
    /// Unix time from which on it is worth nothing, in milliseconds.
    pub expires_unix_ms: u64,
    /// The host that has used it first.
    pub used_by: Option<JoinedHost>,
    /// How many hosts may use it.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub uses: u32,
    /// The hosts that have used it after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by_others: Vec<JoinedHost>,
    /// Attempts to use it once more than it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedUses>,
}

fn one() -> u32 {
    1
}

fn is_one(uses: &u32) -> bool {
    *uses == 1
}

impl JoinTokenRecord {
    /// The hosts that have used it, in order.
    pub fn users(&self) -> impl Iterator<Item = &JoinedHost> {
        self.used_by.iter().chain(&self.used_by_others)
    }

    /// Returns true if one more host may use it, apart from its lifetime.
    pub fn has_uses_left(&self) -> bool {
        self.users().count() < self.uses as usize
    }

    /// Notes one more use.
    pub fn use_by(&mut self, host: JoinedHost) {
        match &self.used_by {
            None => self.used_by = Some(host),
            Some(_) => self.used_by_others.push(host),
        }
    }
}

/// Attempts to use a token that had been used as often as it may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedUses {
    /// How many there were.
    pub count: u64,
    /// Where the last one came from.
    pub address: String,
    /// When it came, as Unix time in milliseconds.
    pub last_unix_ms: u64,
}

/// With this before a token's id as its name, and a [`JoinRequest`] as JSON for its password, a host joins through the
/// embedded cluster state. In place of a token of etcd it gets a [`JoinAnswer`] as JSON.
pub const JOIN_USER_PREFIX: &str = "atoll-join.";

/// A host asks to join.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The token's secret.
    pub secret: String,
    /// The name that the host is to have.
    pub host: String,
    /// Public key of the host's clients, in hexadecimal; a host that asks again is known by it.
    pub public_key: String,
    /// Public key of its gateway.
    pub gateway_key: String,
    /// The password that it has drawn, and with which it will log in. Cluster state never returns a password.
    pub password: String,
}

/// A host has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// The host's own user in cluster state.
    pub user: String,
    /// Its role.
    pub role: HostRole,
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
    /// Address of the requester; absent with an etcd, which does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}
