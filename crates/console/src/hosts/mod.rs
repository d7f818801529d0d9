//! Answers of the processes of all hosts: their slow operations, metrics and figures. Each host's admin server
//! answers for the processes of its host, over TLS in which both sides show their hosts' certificates and know
//! each other's keys by their records in cluster state. It answers, and does nothing else.

mod identity;
mod known_keys;
mod local;
mod others;
mod remembered;
mod serve;

use serde::{Deserialize, Serialize};

pub(crate) use identity::{HostKey, own_key_sha256, server_config};
pub(crate) use known_keys::KnownKeys;
pub(crate) use remembered::is_remembered;
pub(crate) use serve::routes;

pub(crate) use local::ask_processes;

pub use local::Tells;
pub use others::{Everywhere, OtherHosts, ThisHost};

/// The protocol that a host asks for in the TLS handshake (ALPN), so that browsers are not asked for certificates.
pub(crate) const ALPN: &[u8] = b"atoll-host/1";

/// A host or process that did not answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unanswered {
    /// The host; none if it is not known.
    pub host: Option<String>,
    /// The process; none if it is all of the host.
    pub process: Option<String>,
    /// Why.
    pub reason: String,
}

impl Unanswered {
    /// Cluster state does not say which hosts there are.
    pub fn no_hosts(reason: impl std::fmt::Display) -> Self {
        Unanswered { host: None, process: None, reason: format!("the other hosts are not known: {reason}") }
    }

    /// All processes of a host.
    pub fn of_host(host: &str, reason: impl Into<String>) -> Self {
        Unanswered { host: Some(host.to_owned()), process: None, reason: reason.into() }
    }
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.host, &self.process) {
            (Some(host), Some(process)) => write!(f, "{process} on {host} does not answer: {}", self.reason),
            (Some(host), None) => write!(f, "host {host} does not answer: {}", self.reason),
            (None, Some(process)) => write!(f, "{process} does not answer: {}", self.reason),
            (None, None) => f.write_str(&self.reason),
        }
    }
}
