//! The records of admin servers, and of the tokens with which they are scraped.

use serde::{Deserialize, Serialize};

/// An admin server that runs, under a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminServerRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Its host.
    pub host: String,
    /// Where others reach it: `IP:PORT`, TLS only.
    pub address: String,
    /// The processes of its host, of which it tells.
    pub processes: Vec<String>,
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
