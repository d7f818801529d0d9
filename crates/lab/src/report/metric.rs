//! The figures of runs that are compared.

use atoll_bench::Measurement;
use serde::Serialize;

use crate::matrix::Load;

/// One figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Operations a second, or bytes where they say more.
    Throughput,
    /// CPU time of the servers per operation.
    ServersCpu,
    /// CPU time of servers and load generators per operation.
    AllCpu,
    /// Median latency.
    P50,
    /// 99th percentile of latency.
    P99,
    /// 99.9th percentile of latency.
    P999,
}

impl Metric {
    /// Metrics of cost.
    pub const COSTS: [Metric; 4] = [Metric::Throughput, Metric::ServersCpu, Metric::AllCpu, Metric::P99];

    /// Returns the title of the metric.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Throughput => "Throughput",
            Metric::ServersCpu => "CPU per operation, servers",
            Metric::AllCpu => "CPU per operation, servers and clients",
            Metric::P50 => "Latency, median",
            Metric::P99 => "Latency, 99th percentile",
            Metric::P999 => "Latency, 99.9th percentile",
        }
    }

    /// The figure of a run; none if it was not measured, which a zero says.
    pub fn of(self, load: &Load, run: &Measurement) -> Option<f64> {
        let figure = match self {
            Metric::Throughput if load.is_bandwidth => run.mb_per_s,
            Metric::Throughput => run.iops,
            Metric::ServersCpu => run.cpu_us_per_op,
            Metric::AllCpu => run.cpu_us_per_op + run.client_cpu_us_per_op,
            Metric::P50 => run.latency_us.p50 as f64,
            Metric::P99 => run.latency_us.p99 as f64,
            Metric::P999 => run.p999_us()? as f64,
        };
        Some(figure).filter(|figure| figure.is_finite() && *figure > 0.0)
    }

    /// Returns true if larger values are better.
    pub fn is_better_when_more(self) -> bool {
        self == Metric::Throughput
    }
}

/// The unit of a load's throughput.
pub fn throughput_unit(load: &Load) -> &'static str {
    if load.is_bandwidth { "MB/s" } else { "op/s" }
}
