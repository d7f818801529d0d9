//! The record of a request in the audit log (docs/reference/formats.md, "Audit log").

use atoll_audit::{Bounded, DocumentChange};
use serde::Serialize;

/// One of the objects that DeleteObjects was to delete.
#[derive(Debug, Serialize)]
pub(crate) struct AuditedDeletion {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Why it was not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Who asked for what, and what became of it. No secret is in it: of a URL it has the path only.
#[derive(Debug, Serialize)]
pub(crate) struct AuditRecord<'a> {
    /// Always `s3`.
    pub source: &'static str,
    pub time_unix_ms: u64,
    pub request_id: Option<&'a str>,
    pub operation: &'a str,
    /// The action of IAM or STS, as policies name it.
    pub action: Option<&'a str>,
    /// The ARN that the action is about.
    pub subject: Option<&'a str>,
    pub method: Option<Bounded<'a>>,
    pub path: Bounded<'a>,
    /// Absent if the request was refused before it was known that it may look at it.
    pub bucket: Option<&'a str>,
    /// The version that was asked for, or made.
    pub version_id: Option<Bounded<'a>>,
    /// Of a copy.
    pub copy_source: Option<Bounded<'a>>,
    /// What DeleteObjects was to delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted: Option<&'a [AuditedDeletion]>,
    /// What became of policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<&'a [DocumentChange]>,
    pub account: Option<&'a str>,
    /// The ARN of the user, role or root that has signed.
    pub principal: Option<String>,
    pub access_key: Option<&'a str>,
    pub client: Option<String>,
    pub is_encrypted: Option<bool>,
    pub user_agent: Option<Bounded<'a>>,
    /// Absent if the client left before there was one.
    pub status: Option<u16>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub duration_us: u64,
    /// Names of fields of which only the beginning is here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<&'static str>,
}
