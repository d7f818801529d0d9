//! Counts of operations that all are of one kind.

use std::time::Duration;

use super::{Latency, LatencyHistogram};

/// Counters during a run.
#[derive(Default)]
pub struct Counts {
    histogram: LatencyHistogram,
    /// Operations that failed.
    pub errors: u64,
    /// Why the first of them did.
    pub first_error: Option<String>,
}

impl Counts {
    /// An operation is done.
    pub fn done(&mut self, latency: Duration) {
        self.histogram.record(latency);
    }

    /// Operations that are done.
    pub fn operations(&self) -> u64 {
        self.histogram.count()
    }

    /// Their latency.
    pub fn latency(&self) -> Latency {
        self.histogram.latency()
    }

    /// An operation has failed.
    pub fn failed(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }
}
