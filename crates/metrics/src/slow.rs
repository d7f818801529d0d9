//! The slowest operations of this process in the last hour, with where their time went. There are few of them, so that
//! keeping them costs nothing that could be noticed.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Duration below which an operation is not kept.
pub const SLOW_MIN: Duration = Duration::from_millis(100);
/// Operations that are kept: the slowest.
const KEPT_MAX: usize = 256;
/// Additional operations of strangers that are kept.
const STRANGERS_KEPT_MAX: usize = 32;
/// For how long.
const KEPT_MS: u64 = 60 * 60 * 1_000;

/// An operation that was slow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowOperation {
    /// Unix time when it began, in milliseconds.
    pub begun_unix_ms: u64,
    /// From its arrival to its answer, or until now, in microseconds.
    pub duration_us: u64,
    /// Kind of the operation: `write`, `GetObject`, ...
    pub kind: String,
    /// The client, as far as it is known.
    pub client: String,
    /// An object, an image and a place in it, or a bucket and a key.
    pub object: Option<String>,
    /// The pool's name, of an operation of an OSD.
    pub pool: Option<String>,
    /// The PG, of an operation of an OSD.
    pub pg: Option<String>,
    /// Data that came with it or was its answer, in bytes.
    pub size_bytes: u64,
    /// Why it was refused; none if it was done.
    pub error: Option<String>,
    /// Its stages, in the order of time.
    pub steps: Vec<SlowStep>,
    /// Its reason for waiting; none if it was answered.
    #[serde(default)]
    pub waits_for: Option<String>,
}

/// Something that a slow operation has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowStep {
    /// Name of the stage.
    pub name: String,
    /// When: microseconds after it began.
    pub after_us: u64,
    /// Since when it was waited for that, in the same way.
    #[serde(default)]
    pub since_us: u64,
}

/// Groups of clients whose operations are kept together. A stranger can be slow at will, and pushes out strangers
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Operations of processes and users that have authenticated.
    Identified,
    /// Operations of others.
    Strangers,
}

impl Ring {
    fn kept_max(self) -> usize {
        match self {
            Ring::Identified => KEPT_MAX,
            Ring::Strangers => STRANGERS_KEPT_MAX,
        }
    }
}

/// By ring.
static KEPT: Mutex<[Vec<SlowOperation>; 2]> = Mutex::new([Vec::new(), Vec::new()]);

/// Operations that have not been answered: of those that have taken long already, the oldest.
static IN_FLIGHT: Mutex<Vec<SlowOperation>> = Mutex::new(Vec::new());

/// Most pending operations in a report: further ones wait for the same.
pub const IN_FLIGHT_MAX: usize = 64;

/// Returns true for durations that are kept.
pub fn is_slow(duration_us: u64) -> bool {
    u128::from(duration_us) >= SLOW_MIN.as_micros()
}

/// Returns the Unix time of the begin of an operation that has taken `duration_us` until now, in milliseconds.
pub fn begun_unix_ms(duration_us: u64) -> u64 {
    unix_ms().saturating_sub(duration_us / 1_000)
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Keeps an operation if it is among the slowest of its ring.
pub fn record(operation: SlowOperation, ring: Ring) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    keep(&mut kept[ring as usize], ring.kept_max(), operation, unix_ms());
}

type Teller = fn() -> Vec<SlowOperation>;

/// Source of slow pending operations for a report.
static TELLER: OnceLock<Teller> = OnceLock::new();

/// Sets the source of slow pending operations, where they are not reported with [`set_in_flight`].
pub fn tell_in_flight_with(teller: Teller) {
    let _ = TELLER.set(teller);
}

/// Replaces the reported slow pending operations.
pub fn set_in_flight(operations: Vec<SlowOperation>) {
    *IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner) = operations;
}

/// How long operations in flight have taken until now. The report may be old: a process that hangs reports nothing
/// new.
fn still_in_flight(mut operations: Vec<SlowOperation>, now_unix_ms: u64) -> Vec<SlowOperation> {
    for operation in &mut operations {
        let until_now_us = now_unix_ms.saturating_sub(operation.begun_unix_ms) * 1_000;
        operation.duration_us = operation.duration_us.max(until_now_us);
    }
    operations
}

fn keep(kept: &mut Vec<SlowOperation>, kept_max: usize, operation: SlowOperation, now_unix_ms: u64) {
    if kept.len() >= kept_max {
        forget_old(kept, now_unix_ms);
    }
    if kept.len() >= kept_max {
        let fastest = (0..kept.len()).min_by_key(|index| (kept[*index].duration_us, kept[*index].begun_unix_ms));
        match fastest {
            Some(index) if kept[index].duration_us <= operation.duration_us => drop(kept.swap_remove(index)),
            _ => return,
        }
    }
    kept.push(operation);
}

fn forget_old(kept: &mut Vec<SlowOperation>, now_unix_ms: u64) {
    kept.retain(|operation| operation.begun_unix_ms + KEPT_MS > now_unix_ms);
}

/// Those that are kept and those in flight, the latest last.
pub fn slow_operations() -> Vec<SlowOperation> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter_mut().for_each(|ring| forget_old(ring, unix_ms()));
    let mut all = kept.concat();
    drop(kept);
    let in_flight = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner).clone();
    all.extend(still_in_flight(in_flight, unix_ms()));
    all.extend(TELLER.get().map(|teller| teller()).unwrap_or_default());
    all.sort_by_key(|operation| (operation.begun_unix_ms, operation.duration_us));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(begun_unix_ms: u64, duration_us: u64) -> SlowOperation {
        SlowOperation { begun_unix_ms, duration_us, ..SlowOperation::default() }
    }

    #[test]
    fn operations_in_flight_age_and_are_reported_until_answered() {
        let told = still_in_flight(vec![operation(1_000, 500_000)], 1_700);
        assert_eq!(told, [operation(1_000, 700_000)]);
        let waiting = SlowOperation { waits_for: Some("the device".into()), ..operation(1, 2_000_000) };
        set_in_flight(vec![waiting]);
        let is_told = || slow_operations().iter().any(|told| told.waits_for.as_deref() == Some("the device"));
        assert!(is_told());
        set_in_flight(Vec::new());
        assert!(!is_told());
    }

    #[test]
    fn strangers_do_not_displace_others() {
        let of = |kind: &str| SlowOperation { kind: kind.into(), ..operation(unix_ms(), 200_000) };
        record(of("ours"), Ring::Identified);
        (0..2 * KEPT_MAX)
            .for_each(|_| record(SlowOperation { duration_us: 9_000_000, ..of("theirs") }, Ring::Strangers));
        let count = |kind: &str| slow_operations().iter().filter(|told| told.kind == kind).count();
        assert_eq!((count("ours"), count("theirs")), (1, STRANGERS_KEPT_MAX));
    }

    #[test]
    fn the_slowest_of_the_last_hour_are_kept() {
        let mut kept = Vec::new();
        let now = KEPT_MS;
        for duration_us in 0..2 * KEPT_MAX as u64 {
            keep(&mut kept, KEPT_MAX, operation(now, duration_us), now);
        }
        assert_eq!(kept.len(), KEPT_MAX);
        assert!(kept.iter().all(|operation| operation.duration_us >= KEPT_MAX as u64));
        keep(&mut kept, KEPT_MAX, operation(now, 1), now);
        assert!(!kept.contains(&operation(now, 1)), "all that are kept were slower");
        keep(&mut kept, KEPT_MAX, operation(2 * now, 1), 2 * now);
        assert_eq!(kept, [operation(2 * now, 1)], "the others are older than an hour");
    }
}
