//! Records of audit logs in cluster state.

use serde::{Deserialize, Serialize};

/// The latest signed line of a log, as its process has said it in an hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditHeadRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// The host.
    pub host: String,
    /// The process, such as `gateway`.
    pub process: String,
    /// The name of the file, or the log's name at a collector.
    pub log: String,
    /// The run of the process.
    pub run: String,
    /// Its public key, in hexadecimal.
    pub key: String,
    /// The number of the line.
    pub number: u64,
    /// The digest of the line, in hexadecimal.
    pub digest: String,
    /// Unix time when this was said, in milliseconds.
    pub unix_ms: u64,
}
