//! Output of fio: the used fields of its JSON, from many more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::error::BenchError;

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

/// One job.
#[derive(Deserialize)]
pub(crate) struct Job {
    error: i64,
    pub read: Direction,
    pub write: Direction,
    /// The calls after writes, with `--fsync`.
    pub sync: Option<Syncs>,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
}

/// Its reads or its writes.
#[derive(Deserialize)]
pub(crate) struct Direction {
    #[serde(default)]
    pub total_ios: u64,
    #[serde(default)]
    pub io_bytes: u64,
    #[serde(rename = "runtime")]
    pub runtime_ms: u64,
    pub lat_ns: Latencies,
}

#[derive(Deserialize)]
pub(crate) struct Syncs {
    pub lat_ns: Latencies,
}

/// Latencies in nanoseconds.
#[derive(Deserialize)]
pub(crate) struct Latencies {
    #[serde(default)]
    pub mean: f64,
    #[serde(default)]
    pub max: u64,
    /// These three are in fio's default list, too.
    pub percentile: Option<Percentiles>,
    /// Operations by latency, with `--output-format=json+`.
    #[serde(default)]
    pub bins: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
pub(crate) struct Percentiles {
    #[serde(rename = "50.000000")]
    pub p50: u64,
    #[serde(rename = "99.000000")]
    pub p99: u64,
    #[serde(rename = "99.900000")]
    pub p999: u64,
}

impl Job {
    /// The one job of a run. fio's engines may print lines of their own before the JSON.
    pub fn read(output: &[u8]) -> Result<Self, BenchError> {
        let start = output.iter().position(|&byte| byte == b'{').unwrap_or(0);
        let output: Output = serde_json::from_slice(&output[start..])
            .map_err(|error| BenchError::Fio(format!("its output is not understood: {error}")))?;
        let job = output.jobs.into_iter().next().filter(|job| job.error == 0);
        job.ok_or_else(|| BenchError::Fio("the job failed".into()))
    }

    /// How long it ran.
    pub fn elapsed(&self) -> Duration {
        Duration::from_millis(self.read.runtime_ms.max(self.write.runtime_ms))
    }

    /// Its user and system time. Percentages of the run time; setting up and ending the process are not
    /// in them, nor are threads that an engine has of its own.
    pub fn cpu(&self) -> Duration {
        let percent = self.usr_cpu + self.sys_cpu;
        Duration::try_from_secs_f64(self.elapsed().as_secs_f64() * percent / 100.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_found_after_the_output_of_engines() {
        let json = br#"librbd says hello
            { "jobs": [ { "error": 0, "read": { "total_ios": 0, "runtime": 0, "lat_ns": {} },
            "write": { "total_ios": 10, "io_bytes": 40960, "runtime": 2000, "lat_ns": { "bins": { "100352": 10 } } },
            "usr_cpu": 2.5, "sys_cpu": 7.5 } ] }"#;
        let job = Job::read(json).unwrap();
        assert_eq!((job.elapsed(), job.cpu()), (Duration::from_secs(2), Duration::from_millis(200)));
        assert_eq!((job.write.total_ios, job.write.io_bytes), (10, 40960));
        assert_eq!(job.write.lat_ns.bins["100352"], 10);
    }

    #[test]
    fn failures_are_errors() {
        let failed = br#"{ "jobs": [ { "error": 5, "read": { "runtime": 0, "lat_ns": {} },
            "write": { "runtime": 0, "lat_ns": {} } } ] }"#;
        for output in [b"fio: oops".as_slice(), b"", br#"{ "jobs": [] }"#, failed] {
            assert!(Job::read(output).is_err());
        }
    }
}
