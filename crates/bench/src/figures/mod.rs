//! Measurements of runs: operations, latency, CPU time, and the machine.

mod counts;
mod cpu;
mod host;
mod latency;
mod measurement;
mod working_set;

pub use counts::Counts;
pub(crate) use cpu::own_cpu_us;
pub use cpu::{CpuByRole, ProcessTimes, Processes};
pub use host::{HostFacts, MachineWork, Noise, NoiseWatch, unix_s};
pub(crate) use latency::p999;
pub use latency::{Latency, LatencyHistogram};
pub use measurement::{ClientMeasurement, KindCounts, KindMeasurement, Measurement, Second, Setting};
pub use working_set::{COLD_OBJECTS_MIN, WorkingSet};

/// Rounds to a tenth.
pub fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Rounds to a thousandth: seconds to milliseconds, MB/s so that a few small operations a second
/// are not shown as none.
pub fn round_finely(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
