//! An image or a pool of a Ceph cluster, by fio's rbd and rados engines: the instrument that Ceph's own users trust.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use super::AccessPattern;
use crate::error::BenchError;
use crate::figures::{
    ClientMeasurement, LatencyHistogram, Measurement, NoiseWatch, ProcessTimes, Processes, Setting,
};
use crate::load::Plan;

/// Of objects in a pool.
const OBJECT_BYTES: u64 = 4 << 20;

/// What fio works on.
#[derive(Clone, Debug)]
pub struct CephTarget {
    /// The pool.
    pub pool: String,
    /// An image of it; without one objects of the pool are used.
    pub image: Option<String>,
}

/// A run of fio on it.
pub struct CephBench {
    /// What it works on.
    pub target: CephTarget,
    /// Ceph's configuration file.
    pub conf: String,
    /// The Ceph client's name.
    pub client: String,
    /// How fio is started: `fio`, or what runs it elsewhere.
    pub command: Vec<String>,
    /// Which blocks are accessed, and how.
    pub pattern: AccessPattern,
    /// Reads among 100 operations of a mixed pattern.
    pub read_percent: u32,
    /// Bytes per operation.
    pub block_bytes: u64,
    /// The part of the image, or of all objects, that is used.
    pub working_set_bytes: u64,
    /// Whether that is written before.
    pub is_filled_before: bool,
    /// Depth and lengths.
    pub plan: Plan,
    /// Ceph's processes on this host.
    pub servers: Processes,
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    #[serde(rename = "runtime")]
    runtime_ms: u64,
    lat_ns: Latencies,
}

#[derive(Deserialize)]
struct Latencies {
    /// Operations by latency in nanoseconds.
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

/// What a run of fio used besides what it says itself.
struct Ended {
    json: Vec<u8>,
    servers_cpu: crate::figures::CpuByRole,
    client_cpu_us: u64,
    machine: crate::figures::MachineWork,
}

impl CephBench {
    /// Fills, warms up and measures, each by a fio of its own.
    pub fn run(&self) -> Result<Measurement, BenchError> {
        if self.is_filled_before {
            let fill = ["--rw=write", "--bs=4194304", "--iodepth=8"];
            self.fio(fill.iter().map(|&word| word.to_owned()).collect())?;
        }
        if !self.plan.warm_up.is_zero() {
            self.fio(self.arguments(self.plan.warm_up, None))?;
        }
        let ended = self.fio(self.arguments(self.plan.duration, self.plan.bytes_max))?;
        let client = ClientMeasurement { client_cpu_us: ended.client_cpu_us, ..understand(&ended.json)? };
        let ours_us = ended.servers_cpu.total_us() + ended.client_cpu_us;
        let setting = Setting {
            operation: self.pattern.name().into(),
            size_bytes: self.block_bytes,
            depth: self.plan.depth,
            rate_per_second: None,
            protections: "as the Ceph cluster's owner set it up".into(),
        };
        let measured = Measurement::of_clients(setting, &[client], &ended.servers_cpu);
        Ok(Measurement { noise: Some(ended.machine.without(ours_us)), ..measured })
    }

    /// Objects of a pool without images.
    fn objects(&self) -> u64 {
        self.working_set_bytes.div_ceil(OBJECT_BYTES).max(1)
    }

    fn arguments(&self, duration: Duration, bytes_max: Option<u64>) -> Vec<String> {
        let mut arguments = vec![
            format!("--rw={}", self.pattern.name()),
            format!("--rwmixread={}", self.read_percent),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.plan.depth),
            format!("--runtime={}ms", duration.as_millis()),
            "--randrepeat=0".into(),
        ];
        match bytes_max {
            // It ends with whichever comes first.
            Some(bytes) => arguments.push(format!("--io_size={bytes}")),
            None => arguments.push("--time_based".into()),
        }
        arguments
    }

    fn fio(&self, arguments: Vec<String>) -> Result<Ended, BenchError> {
        let wrong = |detail: String| BenchError::Fio(detail);
        let (program, before) = self.command.split_first().ok_or_else(|| wrong("no command starts it".into()))?;
        let mut command = Command::new(program);
        command.args(before).args(["--name=atoll", "--thread", "--output-format=json+"]);
        command.args(["--lat_percentiles=1", "--clat_percentiles=0"]).args(arguments);
        // An engine's own options are known to fio only behind the engine's name.
        match &self.target.image {
            Some(image) => command.arg("--ioengine=rbd").arg(format!("--rbdname={image}")),
            None => command.arg("--ioengine=rados").arg(format!("--nrfiles={}", self.objects())),
        };
        command.arg(format!("--pool={}", self.target.pool));
        command.arg(format!("--clientname={}", self.client)).arg(format!("--size={}", self.working_set_bytes));
        command.env("CEPH_CONF", &self.conf).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (before, watch) = (ProcessTimes::read(&self.servers), NoiseWatch::begin());
        let children_before_us = crate::figures::children_cpu_us();
        let child = command.spawn().map_err(|error| wrong(format!("'{program}' cannot be started: {error}")))?;
        let output = child.wait_with_output()?;
        let servers_cpu = before.until(&ProcessTimes::read(&self.servers), &self.servers);
        if !output.status.success() {
            return Err(wrong(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let client_cpu_us = crate::figures::children_cpu_us().saturating_sub(children_before_us);
        Ok(Ended { json: output.stdout, servers_cpu, client_cpu_us, machine: watch.end() })
    }
}

fn understand(json: &[u8]) -> Result<ClientMeasurement, BenchError> {
    // Its engines may print lines of their own before.
    let start = json.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let output: Output = serde_json::from_slice(&json[start..])
        .map_err(|error| BenchError::Fio(format!("its output is not understood: {error}")))?;
    let Some(job) = output.jobs.first().filter(|job| job.error == 0) else {
        return Err(BenchError::Fio("the job failed".into()));
    };
    let mut by_kind = BTreeMap::new();
    for (kind, direction) in [("read", &job.read), ("write", &job.write)] {
        let mut histogram = LatencyHistogram::default();
        for (latency_ns, count) in &direction.lat_ns.bins {
            let latency_ns: u64 = latency_ns
                .parse()
                .map_err(|_| BenchError::Fio(format!("'{latency_ns}' is not a latency in nanoseconds")))?;
            histogram.record_us(latency_ns / 1000, *count);
        }
        if histogram.count() > 0 {
            by_kind.insert(kind.to_owned(), histogram);
        }
    }
    if by_kind.is_empty() {
        return Err(BenchError::Fio("no operation was done; is the run long enough?".into()));
    }
    let runtime_ms = job.read.runtime_ms.max(job.write.runtime_ms);
    Ok(ClientMeasurement {
        seconds: runtime_ms as f64 / 1e3,
        bytes: job.read.io_bytes + job.write.io_bytes,
        by_kind,
        ..ClientMeasurement::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_become_a_histogram() {
        let json = r#"librbd says hello
            { "jobs": [ { "error": 0,
            "read": { "io_bytes": 0, "runtime": 0, "lat_ns": { "N": 0 } },
            "write": { "io_bytes": 40960, "runtime": 2000, "lat_ns": { "bins": { "100352": 9, "2007040": 1 } } } } ] }"#;
        let measured = understand(json.as_bytes()).unwrap();
        assert_eq!((measured.seconds, measured.bytes), (2.0, 40_960));
        let latency = measured.by_kind["write"].latency();
        assert_eq!(measured.by_kind["write"].count(), 10);
        assert!(latency.p50 == 100 && latency.max >= 2_007, "{latency:?}");
        assert!(!measured.by_kind.contains_key("read"));
    }

    #[test]
    fn failures_are_errors() {
        assert!(understand(b"oops").is_err());
        assert!(understand(br#"{ "jobs": [] }"#).is_err());
        let idle = r#"{ "jobs": [ { "error": 0, "read": { "io_bytes": 0, "runtime": 0, "lat_ns": {} },
            "write": { "io_bytes": 0, "runtime": 0, "lat_ns": {} } } ] }"#;
        assert!(understand(idle.as_bytes()).is_err());
    }
}
