//! Results of a run.

use std::time::Duration;

use crate::{Counts, Latency, round};
use serde::Serialize;

use super::RecoveryBench;

/// Measurements of one phase.
pub(super) struct Measured {
    pub elapsed: Duration,
    pub recovered_bytes: u64,
    pub cpu_us: u64,
    pub counts: Counts,
}

/// One phase of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryPhase {
    /// `before`, `out` (data moves from the OSD to others), `in` (data moves back), `after`.
    pub name: &'static str,
    /// How long it took.
    pub seconds: f64,
    /// Bytes that were read from copies for backfill.
    pub recovered_bytes: u64,
    /// The same in megabytes (10^6 bytes) a second.
    pub recovered_mb_per_s: f64,
    /// CPU time of all server processes per MiB (2^20 bytes), less the cost of the clients' operations before; or,
    /// without clients, less the processes' use before.
    pub recovery_cpu_us_per_mib: Option<f64>,
    /// Clients' operations a second.
    pub iops: f64,
    /// Latency of the operations that were done.
    pub latency_us: Latency,
    /// The median, divided by that before.
    pub p50_ratio: Option<f64>,
    /// The 99th percentile, divided by that before.
    pub p99_ratio: Option<f64>,
    /// Operations that failed.
    pub errors: u64,
    /// The first error, if there was one.
    pub first_error: Option<String>,
}

/// The result of a run; printed as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryReport {
    /// Bytes of the image that were written before, and that clients used.
    pub size_bytes: u64,
    /// Bytes per operation of the clients; absent if there were none.
    pub block_bytes: Option<u64>,
    /// Operations in flight at once.
    pub depth: Option<u32>,
    /// Operations begun per second; absent: as many as the depth allowed.
    pub rate_per_second: Option<u32>,
    /// Reads among 100 operations.
    pub read_percent: Option<u32>,
    /// Bytes that each OSD might read per second for backfill while clients were active.
    pub recovery_bytes_per_second: u64,
    /// The phases, in order.
    pub phases: Vec<RecoveryPhase>,
    /// Durability and protections that were on.
    pub protections: String,
}

impl RecoveryReport {
    pub(super) fn new(
        bench: &RecoveryBench,
        size_bytes: u64,
        recovery_bytes_per_second: u64,
        measured: &[Measured; 4],
    ) -> Self {
        let before = &measured[0];
        let names = ["before", "out", "in", "after"];
        RecoveryReport {
            size_bytes,
            block_bytes: bench.load.map(|load| load.block_bytes),
            depth: bench.load.map(|load| load.depth),
            rate_per_second: bench.load.and_then(|load| load.rate_per_second),
            read_percent: bench.load.map(|load| load.read_percent),
            recovery_bytes_per_second,
            phases: names.into_iter().zip(measured).map(|(name, phase)| phase.report(name, before)).collect(),
            protections: bench.protections.clone(),
        }
    }
}

impl Measured {
    fn report(&self, name: &'static str, before: &Measured) -> RecoveryPhase {
        let seconds = self.elapsed.as_secs_f64();
        let (latency, latency_before) = (self.counts.latency(), before.counts.latency());
        let ratio = |now: u64, then: u64| (then > 0).then(|| round(now as f64 / then as f64 * 10.0) / 10.0);
        RecoveryPhase {
            name,
            seconds: round(seconds),
            recovered_bytes: self.recovered_bytes,
            recovered_mb_per_s: round(self.recovered_bytes as f64 / 1e6 / seconds),
            recovery_cpu_us_per_mib: self.recovery_cpu_us_per_mib(before),
            iops: round(self.counts.operations() as f64 / seconds),
            p50_ratio: ratio(latency.p50, latency_before.p50),
            p99_ratio: ratio(latency.p99, latency_before.p99),
            latency_us: latency,
            errors: self.counts.errors,
            first_error: self.counts.first_error.clone(),
        }
    }

    fn recovery_cpu_us_per_mib(&self, before: &Measured) -> Option<f64> {
        if self.recovered_bytes == 0 {
            return None;
        }
        let share = match before.counts.operations() {
            0 => self.elapsed.as_secs_f64() / before.elapsed.as_secs_f64(),
            operations => self.counts.operations() as f64 / operations as f64,
        };
        let cpu_us = self.cpu_us as f64 - before.cpu_us as f64 * share;
        Some(round(cpu_us / (self.recovered_bytes as f64 / f64::from(1 << 20))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(seconds: u64, latency_us: u64, operations: u64, cpu_us: u64, recovered_bytes: u64) -> Measured {
        let mut counts = Counts::default();
        (0..operations).for_each(|_| counts.done(Duration::from_micros(latency_us)));
        Measured { elapsed: Duration::from_secs(seconds), recovered_bytes, cpu_us, counts }
    }

    #[test]
    fn cpu_of_clients_is_not_counted_as_recovery() {
        let before = measured(10, 200, 100, 1_000, 0);
        let moving = measured(5, 500, 30, 1_300, 10 << 20).report("out", &before);
        assert_eq!(moving.recovery_cpu_us_per_mib, Some(100.0));
        assert_eq!((moving.p50_ratio, moving.p99_ratio), (Some(2.5), Some(2.5)));
        assert_eq!(moving.recovered_mb_per_s, 2.1);
        // Without clients it is what passes anyhow.
        let before = measured(10, 0, 0, 1_000, 0);
        let moving = measured(5, 0, 0, 1_500, 10 << 20).report("out", &before);
        assert_eq!((moving.recovery_cpu_us_per_mib, moving.p99_ratio), (Some(100.0), None));
        assert_eq!(before.report("before", &before).recovery_cpu_us_per_mib, None);
    }
}
