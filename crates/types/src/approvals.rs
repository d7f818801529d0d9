//! Operations that one operator requests and another has to approve.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request for an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// The requested operation: a command with its arguments.
    pub action: String,
    /// The operator who asks.
    pub requested_by: String,
    /// Unix time of the request, in milliseconds.
    pub requested_unix_ms: u64,
    /// Unix time when it is over, in milliseconds.
    pub expires_unix_ms: u64,
    /// Operators who may approve it, with their [`crate::operators::OperatorRecord::proof`] at that time. Empty in
    /// requests of an earlier release, which cannot be approved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub approvers: BTreeMap<String, String>,
    /// Decision of another operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,
}

/// The word of another operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    /// The operator.
    pub operator: String,
    /// True if the operation is approved.
    pub is_approved: bool,
    /// Unix time, in milliseconds.
    pub unix_ms: u64,
}
