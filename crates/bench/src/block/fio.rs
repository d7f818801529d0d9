//! Runs of fio as a load generator: on an image or a pool of a Ceph cluster, by its rbd and rados engines, which
//! Ceph's own users trust; and on a plain file or device, which is what a disk can do at all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::AccessPattern;
use crate::error::BenchError;
use crate::figures::{
    ClientMeasurement, CpuByRole, LatencyHistogram, Measurement, NoiseWatch, ProcessTimes, Processes, Setting,
};
use crate::fio::Job;
use crate::load::Plan;

/// Of objects in a pool.
const OBJECT_BYTES: u64 = 4 << 20;

/// What fio works on.
#[derive(Clone, Debug)]
pub enum FioTarget {
    /// A pool of a Ceph cluster.
    Ceph {
        /// The pool.
        pool: String,
        /// An image of it; without one objects of the pool are used.
        image: Option<String>,
        /// Ceph's configuration file.
        conf: String,
        /// The Ceph client's name.
        client: String,
    },
    /// A file or block device, past the page cache, each write durable when it is done. Nobody serves it:
    /// fio's own CPU time counts as the servers'.
    File(PathBuf),
}

/// A run of fio on it.
pub struct FioBench {
    /// What it works on.
    pub target: FioTarget,
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
    /// The servers' processes on this host.
    pub servers: Processes,
}

/// What a run of fio used besides what it says itself.
struct Ended {
    json: Vec<u8>,
    servers_cpu: CpuByRole,
    client_cpu_us: u64,
    machine: crate::figures::MachineWork,
}

impl FioBench {
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
        let job = Job::read(&ended.json)?;
        let (servers_cpu, client_cpu_us) = match self.target {
            FioTarget::Ceph { .. } => (ended.servers_cpu, ended.client_cpu_us),
            FioTarget::File(_) => (CpuByRole::of("fio", job.cpu().as_micros() as u64), 0),
        };
        let client = ClientMeasurement { client_cpu_us, ..understand(&job)? };
        let ours_us = servers_cpu.total_us() + client_cpu_us;
        let setting = Setting {
            operation: self.pattern.name().into(),
            size_bytes: self.block_bytes,
            depth: self.plan.depth,
            rate_per_second: None,
            protections: match self.target {
                FioTarget::Ceph { .. } => "as the Ceph cluster's owner set it up".into(),
                FioTarget::File(_) => {
                    "one copy, no checksums, not encrypted, every write durable (O_DSYNC)".into()
                }
            },
        };
        let measured = Measurement::of_clients(setting, &[client], &servers_cpu);
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

    /// An engine's own options are known to fio only behind the engine's name.
    fn choose_target(&self, command: &mut Command) {
        match &self.target {
            FioTarget::Ceph { pool, image, conf, client } => {
                match image {
                    Some(image) => command.arg("--ioengine=rbd").arg(format!("--rbdname={image}")),
                    None => command.arg("--ioengine=rados").arg(format!("--nrfiles={}", self.objects())),
                };
                command.arg(format!("--pool={pool}")).arg(format!("--clientname={client}"));
                command.env("CEPH_CONF", conf);
            }
            FioTarget::File(path) => {
                command.args(["--ioengine=io_uring", "--direct=1", "--sync=dsync"]);
                command.arg(format!("--filename={}", path.display()));
            }
        }
    }

    fn fio(&self, arguments: Vec<String>) -> Result<Ended, BenchError> {
        let wrong = |detail: String| BenchError::Fio(detail);
        let (program, before) = self.command.split_first().ok_or_else(|| wrong("no command starts it".into()))?;
        let mut command = Command::new(program);
        command.args(before).args(["--name=atoll", "--thread", "--output-format=json+"]);
        command.args(["--lat_percentiles=1", "--clat_percentiles=0"]).args(arguments);
        self.choose_target(&mut command);
        command.arg(format!("--size={}", self.working_set_bytes));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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

fn understand(job: &Job) -> Result<ClientMeasurement, BenchError> {
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
    Ok(ClientMeasurement {
        seconds: job.elapsed().as_secs_f64(),
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
        let json = r#"{ "jobs": [ { "error": 0,
            "read": { "io_bytes": 0, "runtime": 0, "lat_ns": { "N": 0 } },
            "write": { "io_bytes": 40960, "runtime": 2000, "lat_ns": { "bins": { "100352": 9, "2007040": 1 } } } } ] }"#;
        let measured = understand(&Job::read(json.as_bytes()).unwrap()).unwrap();
        assert_eq!((measured.seconds, measured.bytes), (2.0, 40_960));
        let latency = measured.by_kind["write"].latency();
        assert_eq!(measured.by_kind["write"].count(), 10);
        assert!(latency.p50 == 100 && latency.max >= 2_007, "{latency:?}");
        assert!(!measured.by_kind.contains_key("read"));
    }

    #[test]
    fn fios_own_time_stands_for_the_servers_of_a_plain_file() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("raw");
        std::fs::write(&path, vec![1; 4 << 20]).unwrap();
        let bench = FioBench {
            target: FioTarget::File(path),
            command: vec!["fio".into()],
            pattern: "randread".parse().unwrap(),
            read_percent: 50,
            block_bytes: 4096,
            working_set_bytes: 4 << 20,
            is_filled_before: false,
            plan: Plan {
                depth: 4,
                rate_per_second: None,
                warm_up: Duration::ZERO,
                duration: Duration::from_millis(500),
                bytes_max: None,
            },
            servers: Processes::default(),
        };
        let measured = bench.run().unwrap();
        assert!(measured.operations > 0 && measured.latency_us.p50 > 0, "{measured:?}");
        assert!(measured.cpu_us_per_op > 0.0 && measured.client_cpu_us_per_op == 0.0, "{measured:?}");
        assert_eq!(measured.cpu_us_per_op_by_role["fio"], measured.cpu_us_per_op);
        assert!(measured.protections.contains("O_DSYNC"));
    }

    #[test]
    fn a_run_without_operations_is_an_error() {
        let idle = r#"{ "jobs": [ { "error": 0, "read": { "io_bytes": 0, "runtime": 0, "lat_ns": {} },
            "write": { "io_bytes": 0, "runtime": 0, "lat_ns": {} } } ] }"#;
        assert!(understand(&Job::read(idle.as_bytes()).unwrap()).is_err());
    }
}
