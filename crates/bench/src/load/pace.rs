//! When operations are due.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Operations begun at a rate, whether or not earlier ones have ended (open loop). Those of one
/// client share it.
pub struct Pace {
    due: Cell<Instant>,
    interval: Duration,
}

impl Pace {
    /// Returns a pace of this rate from now on.
    pub fn new(rate_per_second: f64) -> Self {
        Pace { due: Cell::new(Instant::now()), interval: Duration::from_secs_f64(1.0 / rate_per_second) }
    }

    /// When the next operation is due; it may be in the past. Latency counts from then: an operation delayed by
    /// earlier ones has waited since it was due (G. Tene, "How NOT to measure latency": coordinated omission).
    pub fn next(&self) -> Instant {
        self.due.replace(self.due.get() + self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_due_at_the_rate_however_late_they_are_asked_for() {
        let pace = Pace::new(1000.0);
        let first = pace.next();
        tokio::time::advance(Duration::from_millis(5)).await;
        assert_eq!(pace.next() - first, Duration::from_millis(1));
        assert_eq!(pace.next() - first, Duration::from_millis(2));
    }
}
