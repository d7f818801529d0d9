//! How the logs of a process are, for `atoll health`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use crate::writer::unix_ms;

/// How a log is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// Where it goes.
    pub log: String,
    /// Why lines can be neither written nor spooled now.
    pub failure: Option<String>,
    /// True if requests that would leave a line are refused until lines can be written.
    pub is_refusing: bool,
    /// Lines that are lost, since the process started.
    pub lost_lines: u64,
    /// When one was lost last.
    pub lost_unix_ms: Option<u64>,
    /// Since when a collector takes none, and why.
    pub collector_away: Option<CollectorAway>,
    /// Bytes of lines that wait for the collector.
    pub waiting_bytes: u64,
    /// As many may wait.
    pub waiting_bytes_max: u64,
    /// When it was opened.
    #[serde(default)]
    pub begun_unix_ms: u64,
    /// When cluster state took a signed line of it last.
    #[serde(default)]
    pub heard_unix_ms: Option<u64>,
}

/// A collector that takes no lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorAway {
    /// When it was first away.
    pub since_unix_ms: u64,
    /// The collector's answer, or the network's error.
    pub reason: String,
}

/// The status of a log, which its threads share.
pub(crate) struct SharedStatus {
    status: Mutex<LogStatus>,
    /// The same as in the status, for every request to look at.
    is_refusing: AtomicBool,
}

static ALL: Mutex<Vec<Weak<SharedStatus>>> = Mutex::new(Vec::new());

/// How all logs of this process are.
pub fn log_statuses() -> Vec<LogStatus> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|status| status.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).map(|status| status.lock().clone()).collect()
}

impl SharedStatus {
    pub fn new(log: String) -> Arc<Self> {
        let status = LogStatus { log, begun_unix_ms: unix_ms(), ..LogStatus::default() };
        let shared = Arc::new(SharedStatus { status: Mutex::new(status), is_refusing: AtomicBool::new(false) });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&shared));
        shared
    }

    fn lock(&self) -> MutexGuard<'_, LogStatus> {
        // Each field is right by itself, whatever has panicked elsewhere.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change(&self, change: impl FnOnce(&mut LogStatus)) {
        let mut status = self.lock();
        change(&mut status);
        self.is_refusing.store(status.is_refusing, Ordering::Relaxed);
    }

    pub fn is_refusing(&self) -> bool {
        self.is_refusing.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn lost_lines(&self) -> u64 {
        self.lock().lost_lines
    }

    #[cfg(test)]
    pub fn is_well(&self) -> bool {
        self.lock().failure.is_none()
    }
}
