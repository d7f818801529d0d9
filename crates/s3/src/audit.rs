//! The record of a request in the audit log (docs/reference/formats.md, "Audit log").

use serde::Serialize;

/// Who asked for what, and what became of it. No secret is in it: of a URL it has the path only.
#[derive(Debug, Serialize)]
pub(crate) struct AuditRecord<'a> {
    /// Always `s3`.
    pub source: &'static str,
    pub time_unix_ms: u64,
    pub request_id: Option<&'a str>,
    pub operation: &'a str,
    pub method: Option<&'a str>,
    pub path: &'a str,
    /// Absent if the request was refused before it was known that it may look at it.
    pub bucket: Option<&'a str>,
    pub account: Option<&'a str>,
    /// The ARN of the user, role or root that has signed.
    pub principal: Option<String>,
    pub access_key: Option<&'a str>,
    pub client: Option<String>,
    pub is_encrypted: Option<bool>,
    pub user_agent: Option<&'a str>,
    /// Absent if the client left before there was one.
    pub status: Option<u16>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub duration_us: u64,
}
