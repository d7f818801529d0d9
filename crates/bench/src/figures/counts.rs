//! Counts of operations that all are of one kind.

use std::time::Duration;

use super::{Latency, LatencyHistogram};

/// Counts while a run goes on.
#[derive(Default)]
pub(crate) struct Counts {
    histogram: LatencyHistogram,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Counts {
    pub fn done(&mut self, latency: Duration) {
        self.histogram.record(latency);
    }

    pub fn operations(&self) -> u64 {
        self.histogram.count()
    }

    pub fn latency(&self) -> Latency {
        self.histogram.latency()
    }

    pub fn failed(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }
}
