//! Runs of fio as a load generator: on an image or a pool of a Ceph cluster, by its rbd and rados engines, which
//! Ceph's own users trust; and on a plain file or device, as the limit of a disk.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::AccessPattern;
use crate::error::BenchError;
use crate::figures::{
    ClientMeasurement, CpuByRole, KindCounts, LatencyHistogram, MachineWork, Measurement, NoiseWatch,
    ProcessTimes, Processes, Setting, WorkingSet,
};
use crate::fio::{Direction, Job};
use crate::load::Plan;

/// Exit code of an interrupted fio.
const EXIT_INTERRUPTED: i32 = 128;
/// Size of objects in a pool.
const OBJECT_BYTES: u64 = 4 << 20;

/// Target of fio.
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
    /// A file or block device, past the page cache, each write durable when it is done. It has no server: fio's
    /// own CPU time counts as the servers'.
    File(PathBuf),
}

/// A run of fio on it.
pub struct FioBench {
    /// Target of the run.
    pub target: FioTarget,
    /// Command that starts fio: `fio`, or a wrapper that runs it elsewhere.
    pub command: Vec<String>,
    /// Which blocks are accessed, and how.
    pub pattern: AccessPattern,
    /// Reads among 100 operations of a mixed pattern.
    pub read_percent: u32,
    /// Bytes per operation.
    pub block_bytes: u64,
    /// The part of the image, or of all objects, that is used.
    pub working_set_bytes: u64,
    /// True if the working set is written before.
    pub is_filled_before: bool,
    /// Depth and lengths.
    pub plan: Plan,
    /// The servers' processes on this host.
    pub servers: Processes,
}

/// Pause between two states that fio prints while it runs.
const STATUS_PAUSE: Duration = Duration::from_millis(500);
/// Time until fio ends by itself, after the end that is chosen by its output.
const RUNTIME_SPARE: Duration = Duration::from_secs(10);

impl FioBench {
    /// Fills, then warms up and measures in one process of fio.
    pub fn run(&self) -> Result<Measurement, BenchError> {
        if self.is_filled_before {
            self.fill()?;
        }
        let interval = self.measure()?;
        let (servers_cpu, client_cpu_us) = match self.target {
            FioTarget::Ceph { .. } => (interval.servers_cpu, interval.fio_cpu_us),
            FioTarget::File(_) => (CpuByRole::of("fio", interval.fio_cpu_us), 0),
        };
        let client = ClientMeasurement { client_cpu_us, ..interval.client };
        let setting = Setting {
            operation: self.pattern.name().into(),
            size_bytes: self.block_bytes,
            depth: self.plan.depth,
            rate_per_second: None,
            working_set: WorkingSet::Blocks { bytes: self.working_set_bytes }.to_string(),
            protections: match self.target {
                FioTarget::Ceph { .. } => "as the Ceph cluster's owner set it up".into(),
                FioTarget::File(_) => {
                    "one copy, no checksums, not encrypted, every write durable (O_DSYNC)".into()
                }
            },
        };
        let measured = Measurement::of_clients(setting, &[client], &servers_cpu);
        Ok(measured.with_machine(&interval.machine, servers_cpu.total_us()))
    }

    fn fill(&self) -> Result<(), BenchError> {
        let mut fio = self.fio(&["--rw=write", "--bs=4194304", "--iodepth=8"].map(str::to_owned))?;
        std::io::copy(&mut fio.stdout, &mut std::io::sink())?;
        fio.finish()
    }

    /// Runs fio until the interval behind the warm-up is over, or its bytes are moved.
    fn measure(&self) -> Result<Interval, BenchError> {
        let mut fio = self.fio(&self.arguments())?;
        let processes = Processes([("fio".to_owned(), vec![fio.child.id()])].into());
        let (mut begin, mut end): (Option<Edge>, Option<Interval>) = (None, None);
        while let Some(text) = next_status(&mut fio.stdout)? {
            let job = Job::read(text.as_bytes())?;
            match (&begin, &mut end) {
                (None, _) if job.elapsed() >= self.plan.warm_up => {
                    begin = Some(Edge::here(job, &self.servers, &processes));
                }
                (None, _) => {}
                (Some(begin), Some(end)) if self.is_over(end) => {
                    // This is the last state, of after the interruption below.
                    end.client.take_late(&begin.job, &job, self.plan.depth)?;
                    break;
                }
                (Some(begin), end) => {
                    let now = end.insert(begin.until(&job, &self.servers, &processes)?);
                    if self.is_over(now) {
                        fio.interrupt()?;
                    }
                }
            }
        }
        fio.finish()?;
        end.filter(|end| end.client.operations() > 0)
            .ok_or_else(|| BenchError::Fio("no operation was done; is the run long enough?".into()))
    }

    fn is_over(&self, interval: &Interval) -> bool {
        let has_moved = self.plan.bytes_max.is_some_and(|most| interval.client.bytes >= most);
        has_moved || interval.client.seconds >= self.plan.duration.as_secs_f64()
    }

    /// Objects of a pool without images.
    fn objects(&self) -> u64 {
        self.working_set_bytes.div_ceil(OBJECT_BYTES).max(1)
    }

    fn arguments(&self) -> Vec<String> {
        let runtime = self.plan.warm_up + self.plan.duration + RUNTIME_SPARE;
        vec![
            format!("--rw={}", self.pattern.name()),
            format!("--rwmixread={}", self.read_percent),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.plan.depth),
            format!("--runtime={}ms", runtime.as_millis()),
            format!("--status-interval={}ms", STATUS_PAUSE.as_millis()),
            "--time_based".into(),
            "--randrepeat=0".into(),
        ]
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

    fn fio(&self, arguments: &[String]) -> Result<Fio, BenchError> {
        let wrong = |detail: String| BenchError::Fio(detail);
        let (program, before) = self.command.split_first().ok_or_else(|| wrong("no command starts it".into()))?;
        let mut command = Command::new(program);
        command.args(before).args(["--name=atoll", "--thread", "--output-format=json+"]);
        command.args(["--lat_percentiles=1", "--clat_percentiles=0"]).args(arguments);
        self.choose_target(&mut command);
        command.arg(format!("--size={}", self.working_set_bytes));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| wrong(format!("'{program}' cannot be started: {error}")))?;
        Ok(Fio::new(child))
    }
}

/// A fio that runs. It is killed when this is dropped.
struct Fio {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Fio {
    fn new(mut child: Child) -> Self {
        let stdout = child.stdout.take().expect("its standard output is a pipe");
        let stderr = child.stderr.take().expect("its standard error is a pipe");
        let stderr = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        Fio { child, stdout: BufReader::new(stdout), stderr: Some(stderr) }
    }

    /// Lets it wait for its operations in flight, print its state once more, and end.
    fn interrupt(&self) -> Result<(), BenchError> {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::INT)
            .map_err(|error| BenchError::Loop(error.into()))
    }

    fn finish(mut self) -> Result<(), BenchError> {
        std::io::copy(&mut self.stdout, &mut std::io::sink())?;
        let status = self.child.wait()?;
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        // After an interruption fio exits with 128.
        let is_well = status.success() || status.code() == Some(EXIT_INTERRUPTED);
        if is_well { Ok(()) } else { Err(BenchError::Fio(stderr.trim().to_owned())) }
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // It has ended by itself, or is not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the next state: a JSON object whose braces alone are at the beginning of a line.
fn next_status(stdout: &mut impl BufRead) -> Result<Option<String>, BenchError> {
    let (mut text, mut is_inside) = (String::new(), false);
    for line in stdout.by_ref().lines() {
        let line = line?;
        is_inside |= line.starts_with('{');
        if is_inside {
            text.push_str(&line);
            text.push('\n');
        }
        if is_inside && line.starts_with('}') {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// One end of an interval: fio's state, and the CPU times when it was printed.
struct Edge {
    job: Job,
    servers: ProcessTimes,
    fio: ProcessTimes,
    machine: NoiseWatch,
}

/// Measurements between two states.
struct Interval {
    client: ClientMeasurement,
    servers_cpu: CpuByRole,
    fio_cpu_us: u64,
    machine: MachineWork,
}

impl Edge {
    fn here(job: Job, servers: &Processes, fio: &Processes) -> Self {
        let (servers, fio) = (ProcessTimes::read(servers), ProcessTimes::read(fio));
        Edge { job, servers, fio, machine: NoiseWatch::begin() }
    }

    fn until(&self, job: &Job, servers: &Processes, fio: &Processes) -> Result<Interval, BenchError> {
        Ok(Interval {
            servers_cpu: self.servers.until(&ProcessTimes::read(servers), servers),
            fio_cpu_us: self.fio.until(&ProcessTimes::read(fio), fio).total_us(),
            machine: self.machine.end(),
            client: between(&self.job, job)?,
        })
    }
}

/// Operations between two states of one job.
fn between(begin: &Job, end: &Job) -> Result<ClientMeasurement, BenchError> {
    let mut by_kind = BTreeMap::new();
    for (kind, before, after) in [("read", &begin.read, &end.read), ("write", &begin.write, &end.write)] {
        let latencies = latencies_between(before, after)?;
        if latencies.count() > 0 {
            by_kind.insert(kind.to_owned(), KindCounts { operations: latencies.count(), latencies });
        }
    }
    Ok(ClientMeasurement {
        seconds: end.elapsed().saturating_sub(begin.elapsed()).as_secs_f64(),
        bytes: (end.read.io_bytes + end.write.io_bytes).saturating_sub(begin.read.io_bytes + begin.write.io_bytes),
        by_kind,
        ..ClientMeasurement::default()
    })
}

fn latencies_between(before: &Direction, after: &Direction) -> Result<LatencyHistogram, BenchError> {
    let mut histogram = LatencyHistogram::default();
    for (latency_ns, count) in &after.lat_ns.bins {
        let earlier = before.lat_ns.bins.get(latency_ns).copied().unwrap_or(0);
        let latency_ns: u64 = latency_ns
            .parse()
            .map_err(|_| BenchError::Fio(format!("'{latency_ns}' is not a latency in nanoseconds")))?;
        histogram.record_us(latency_ns / 1000, count.saturating_sub(earlier));
    }
    Ok(histogram)
}

impl ClientMeasurement {
    /// Adds the latencies of operations that were in flight at the end of the interval: `last` is the state after them.
    fn take_late(&mut self, begin: &Job, last: &Job, depth: u32) -> Result<(), BenchError> {
        let late = between(begin, last)?;
        for (kind, counts) in late.by_kind {
            self.by_kind.entry(kind).or_default().latencies = counts.latencies;
        }
        self.unfinished = u64::from(depth).min(self.histogram().count().saturating_sub(self.operations()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(runtime_ms: u64, bins: &str) -> Job {
        let json = format!(
            r#"{{ "jobs": [ {{ "error": 0, "read": {{ "io_bytes": 0, "runtime": 0, "lat_ns": {{ "N": 0 }} }},
            "write": {{ "io_bytes": {}, "runtime": {runtime_ms}, "lat_ns": {{ "bins": {{ {bins} }} }} }} }} ] }}"#,
            runtime_ms * 10
        );
        Job::read(json.as_bytes()).unwrap()
    }

    #[test]
    fn an_interval_is_the_difference_of_two_states() {
        let (begin, end) = (job(1000, r#""100352": 9"#), job(3000, r#""100352": 18, "2007040": 1"#));
        let mut measured = between(&begin, &end).unwrap();
        assert_eq!((measured.seconds, measured.bytes, measured.operations()), (2.0, 20_000, 10));
        let latency = measured.by_kind["write"].latencies.latency();
        assert!(latency.p50 == 100 && latency.max >= 2_007, "{latency:?}");
        assert!(!measured.by_kind.contains_key("read"));
        let last = job(9000, r#""100352": 18, "2007040": 1, "6000000000": 3"#);
        measured.take_late(&begin, &last, 4).unwrap();
        assert_eq!((measured.operations(), measured.unfinished, measured.histogram().count()), (10, 3, 13));
        assert!(measured.histogram().latency().max >= 6_000_000, "{:?}", measured.histogram().latency());
    }

    #[test]
    fn states_are_found_between_other_lines() {
        let mut text = "librbd says {hello}\n{\n  \"jobs\": {\n  }\n}\n{\n}\n{\n cut".as_bytes();
        assert_eq!(next_status(&mut text).unwrap().unwrap(), "{\n  \"jobs\": {\n  }\n}\n");
        assert_eq!(next_status(&mut text).unwrap().unwrap(), "{\n}\n");
        assert_eq!(next_status(&mut text).unwrap(), None);
    }

    fn raw(path: PathBuf) -> FioBench {
        FioBench {
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
                warm_up: Duration::from_millis(500),
                duration: Duration::from_secs(1),
                bytes_max: None,
            },
            servers: Processes::default(),
        }
    }

    #[test]
    fn fios_own_time_stands_for_the_servers_of_a_plain_file() {
        let directory = tempfile::tempdir_in(".").unwrap();
        let path = directory.path().join("raw");
        std::fs::write(&path, vec![1; 4 << 20]).unwrap();
        let measured = raw(path).run().unwrap();
        assert!((0.9..5.0).contains(&measured.seconds), "{measured:?}");
        assert!(measured.operations > 0 && measured.latency_us.p50 > 0, "{measured:?}");
        assert!(measured.cpu_us_per_op > 0.0 && measured.client_cpu_us_per_op == 0.0, "{measured:?}");
        assert_eq!(measured.cpu_us_per_op_by_role["fio"], measured.cpu_us_per_op);
        assert!(measured.protections.contains("O_DSYNC"));
    }

    #[test]
    fn a_fio_that_cannot_run_says_why() {
        assert!(raw("/proc/nowhere/raw".into()).run().unwrap_err().to_string().contains("nowhere"));
    }
}
