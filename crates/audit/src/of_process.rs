//! The log of this process, for whatever happens far from a door: an image that is attached, a key that is used.

use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use serde::Serialize;

use crate::repeats::{self, Repeats, Unlisted};
use crate::{AuditLog, Stranger};

/// The process that writes lines: these fields come first in all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessLog {
    /// The host.
    pub host: String,
    /// The process, such as `nbd`; `command` for one of the command line.
    pub process: String,
    /// The user that has started it, if it is a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

static WHO: OnceLock<ProcessLog> = OnceLock::new();
static LOG: RwLock<Option<AuditLog>> = RwLock::new(None);
static REPEATS: LazyLock<Mutex<Repeats>> = LazyLock::new(Mutex::default);

/// A record with the time and its process.
#[derive(Serialize)]
struct Noted<'a, R> {
    source: &'a str,
    time_unix_ms: u64,
    operation: &'a str,
    #[serde(flatten)]
    who: Option<&'a ProcessLog>,
    #[serde(flatten)]
    record: &'a R,
}

/// Makes a log the one of this process; `None` closes it.
pub fn set_of_process(who: ProcessLog, log: Option<AuditLog>) {
    let _ = WHO.set(who);
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = log;
}

/// The log of this process, if it has one.
pub fn of_process() -> Option<AuditLog> {
    LOG.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns true if requests that would leave a line are to be refused.
pub fn is_refusing() -> bool {
    of_process().is_some_and(|log| log.is_refusing())
}

/// Adds a record, which is an object, to the log of this process. A program without a log notes nothing.
pub fn note(source: &str, operation: &str, record: &impl Serialize) {
    let Some(log) = of_process() else { return };
    log.add(&noted(source, operation, record));
}

/// Adds a record about a change, as [`AuditLog::add_change`] does.
pub fn note_change(source: &str, operation: &str, record: &impl Serialize) {
    let Some(log) = of_process() else { return };
    log.add_change(&noted(source, operation, record));
}

/// Adds a record about a change as [`note_change`] does, if not too many like it have come: with this operation and
/// this name. A caller who makes one in a loop needs room for few.
pub fn note_like_others(source: &'static str, operation: &'static str, name: &str, record: &impl Serialize) {
    let (name, now) = (format!("{operation} {name}"), Instant::now());
    if with_repeats(|repeats| repeats.takes(&name, now)) {
        return note_change(source, operation, record);
    }
    let latest = serde_json::to_value(record).expect("records are texts and numbers, which become JSON");
    let unlisted = Unlisted { source, repeated: operation, lines: 0, latest };
    if with_repeats(|repeats| repeats.count(&name, unlisted, now)) {
        let report = || {
            std::thread::sleep(repeats::COUNTED);
            report_unlisted();
        };
        if std::thread::Builder::new().name("audit-repeats".into()).spawn(report).is_err() {
            // Without a thread it is reported at once.
            report_unlisted();
        }
    }
}

fn report_unlisted() {
    for unlisted in with_repeats(Repeats::end_interval) {
        note_change(unlisted.source, "RepeatedLines", &unlisted);
    }
}

fn with_repeats<T>(call: impl FnOnce(&mut Repeats) -> T) -> T {
    // Counts are right whatever has panicked elsewhere.
    call(&mut REPEATS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds a record about a refused caller, as far as these get lines.
pub fn note_refusal(source: &str, operation: &str, address: Option<IpAddr>, record: &impl Serialize) {
    let Some(log) = of_process() else { return };
    log.add_of_stranger(Stranger { address, is_refused: true }, &noted(source, operation, record));
}

fn noted<'a, R>(source: &'a str, operation: &'a str, record: &'a R) -> Noted<'a, R> {
    Noted { source, time_unix_ms: crate::writer::unix_ms(), operation, who: WHO.get(), record }
}
