//! What a run found.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A setting that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The image could not be read or written.
    #[error(transparent)]
    Image(#[from] atoll_image::ImageError),
    /// The S3 endpoint could not be used.
    #[error("S3: {0}")]
    S3(String),
    /// Cluster state could not be read or changed.
    #[error("cluster state: {0}")]
    Cluster(String),
    /// The event loop failed.
    #[error("the event loop failed: {0}")]
    Loop(#[from] std::io::Error),
    /// The event loop could not be set up.
    #[error(transparent)]
    Reactor(#[from] atoll_reactor::ReactorError),
    /// The device under a store, or the file beside it, could not be used.
    #[error("cannot use {}: {detail}", path.display())]
    Device {
        /// The file or block device.
        path: std::path::PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// The store failed or refused what it must take.
    #[error("store: {0}")]
    Store(String),
    /// fio could not be run or understood.
    #[error("fio: {0}")]
    Fio(String),
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

/// The result of one run; printed as one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// What was done, such as `randwrite`.
    pub operation: String,
    /// Bytes per operation.
    pub size_bytes: u64,
    /// Operations in flight at once.
    pub depth: u32,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Operations done.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The first error, if there was one.
    pub first_error: Option<String>,
    /// Operations a second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Latency of the operations that were done.
    pub latency_us: Latency,
    /// CPU time of all server processes per operation.
    pub cpu_us_per_op: f64,
    /// CPU time of this load generator per operation; for block runs it holds the client's part of
    /// the work, sealing included.
    pub client_cpu_us_per_op: f64,
    /// Durability and protections that were on.
    pub protections: String,
}

/// Counts while a run goes on.
pub(crate) struct Counts {
    histogram: Histogram<u64>,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Counts {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are valid");
        Counts { histogram, errors: 0, first_error: None }
    }

    pub fn done(&mut self, latency: Duration) {
        self.histogram.saturating_record(latency.as_micros().max(1) as u64);
    }

    pub fn operations(&self) -> u64 {
        self.histogram.len()
    }

    pub fn latency(&self) -> Latency {
        Latency {
            mean: round(self.histogram.mean()),
            p50: self.histogram.value_at_quantile(0.5),
            p99: self.histogram.value_at_quantile(0.99),
            p999: self.histogram.value_at_quantile(0.999),
            max: self.histogram.max(),
        }
    }

    pub fn failed(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }
}

/// What a run was asked to do, for its report.
pub(crate) struct Setting {
    pub operation: String,
    pub size_bytes: u64,
    pub depth: u32,
    pub protections: String,
}

pub(crate) fn report(
    setting: Setting,
    counts: Counts,
    elapsed: Duration,
    server_cpu_us: u64,
    client_cpu_us: u64,
) -> BenchReport {
    let (operations, latency_us) = (counts.operations(), counts.latency());
    let seconds = elapsed.as_secs_f64();
    let per_operation = |us: u64| if operations == 0 { 0.0 } else { round(us as f64 / operations as f64) };
    let iops = operations as f64 / seconds;
    BenchReport {
        operation: setting.operation,
        size_bytes: setting.size_bytes,
        depth: setting.depth,
        seconds: round(seconds),
        operations,
        errors: counts.errors,
        first_error: counts.first_error,
        iops: round(iops),
        mb_per_s: round(iops * setting.size_bytes as f64 / 1e6),
        latency_us,
        cpu_us_per_op: per_operation(server_cpu_us),
        client_cpu_us_per_op: per_operation(client_cpu_us),
        protections: setting.protections,
    }
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
