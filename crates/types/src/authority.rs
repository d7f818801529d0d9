//! Keys that sign the records of cluster state.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The keys of a cluster's authority. The record is signed by the newest of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Version of this record's format.
    pub format: u32,
    /// The keys that hold, oldest first; the last one signs.
    pub keys: Vec<AuthorityKey>,
    /// Records without a signature are still read: the cluster is being signed.
    #[serde(default)]
    pub accepts_unsigned: bool,
    /// There is a manifest: a record that it names and that is not there was removed by hand.
    #[serde(default)]
    pub has_manifest: bool,
    /// Public halves of this key and of those before it, oldest first. Each is endorsed by the one before it, so that a
    /// holder of any of them finds the newest. Missing in records of earlier releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<AuthorityPublicKey>,
    /// All records that processes without the key service obey are signed so that these can verify them.
    #[serde(default)]
    pub signs_for_all: bool,
}

/// The manifest: signed records whose absence would loosen something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRecord {
    /// Version of this record's format.
    pub format: u32,
    /// Their keys in cluster state.
    pub names: BTreeSet<String>,
}

/// One key of a cluster's authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityKey {
    /// 16 hexadecimal digits that name it in signatures.
    pub id: String,
    /// The key, wrapped by the key service.
    pub wrapped_key: String,
    /// Unix time of its creation, in milliseconds.
    pub created_unix_ms: u64,
}

/// The public half of a key of a cluster's authority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityPublicKey {
    /// The id of the key.
    pub id: String,
    /// An Ed25519 key in hexadecimal.
    pub public_key: String,
    /// Signature of id and key by the key before it, in hexadecimal; none of the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsement: Option<String>,
}
