//! The records of admin servers, and of the tokens with which they are scraped.

use serde::{Deserialize, Serialize};

/// An admin server. The record stays for a day when its host is gone, so that it is noticed that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminServerRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its host.
    pub host: String,
    /// Where others reach it: `IP:PORT`, TLS only.
    pub address: String,
    /// The processes of its host that it reports.
    pub processes: Vec<String>,
    /// SHA-256 of the public key of its certificate (`SubjectPublicKeyInfo`), in hexadecimal: other hosts know it by
    /// that, whether they ask or are asked. Empty if it cannot be read.
    #[serde(default)]
    pub public_key_sha256: String,
    /// When it was there last, to within ten minutes: Unix time, in milliseconds.
    pub seen_unix_ms: u64,
}

/// A token that may read metrics. The secret itself is in the token only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsTokenRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// SHA-256 of the token's text, in hexadecimal.
    pub sha256: String,
    /// Unix time of creation, in milliseconds.
    pub created_unix_ms: u64,
}
