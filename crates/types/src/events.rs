//! Past events of the cluster: a log in cluster state, which keeps the last few thousand.

use serde::{Deserialize, Serialize};

use crate::records::RECORD_FORMAT;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// OSDs that go down, come back, are marked out and in.
    Osd,
    /// PGs that get other primaries.
    Failover,
    /// Problems that begin and end.
    Health,
    /// A change by a command.
    Command,
    /// Hosts that join, or are shut out.
    Host,
}

/// How bad an event or a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Everything is served, but less safely, or not for much longer.
    Warning,
    /// Something is not served.
    Error,
}

impl Severity {
    /// Its name, as in records.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// [`crate::records::RECORD_FORMAT`].
    pub format: u32,
    /// Unix time, in milliseconds.
    pub unix_ms: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// Always the same for the same kind of event: `OSD_DOWN`, `PG_DEGRADED`, `PG_DEGRADED_OVER`, ...
    pub code: String,
    /// How bad it is.
    pub severity: Severity,
    /// Description of the event, in one line.
    pub summary: String,
    /// The OSDs, PGs or pools that it is about, at most a few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// Why, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The user that caused it; none without a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where that was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl EventRecord {
    /// An event without an author.
    pub fn new(unix_ms: u64, kind: EventKind, code: &str, severity: Severity, summary: String) -> Self {
        EventRecord {
            format: RECORD_FORMAT,
            unix_ms,
            kind,
            code: code.to_owned(),
            severity,
            summary,
            subjects: Vec::new(),
            cause: None,
            user: None,
            host: None,
        }
    }
}
