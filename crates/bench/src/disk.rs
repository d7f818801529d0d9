//! A drive alone, by the eight tests that operators run before they deploy: linear, parallel, one at a time, and
//! as a log writes. fio does the work, as in the field; the meaning of each figure is beside it.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use atoll_preflight::SyncedWriteClass;
use atoll_reactor::DirectFile;
use atoll_types::size::format_size;
use serde::Serialize;

use crate::block::AccessPattern;
use crate::error::BenchError;
use crate::figures::{HostFacts, round};
use crate::store::Workload;
use crate::store::fio::{self, FioRun, WriteSync};
use crate::store::target::Target;

/// Less would fit the caches of many drives, and a linear run would reach its own beginning.
const SIZE_BYTES_MIN: u64 = 256 << 20;
/// Rate of writes of the drives in the field's example, which Ceph reached only in part.
const FIELD_WRITES_PER_S: f64 = 260_000.0;

/// The tests of one drive.
#[derive(Clone, Debug)]
pub struct DiskBench {
    /// The file or block device.
    pub device: PathBuf,
    /// How much of it is filled and used, from its beginning.
    pub size_bytes: u64,
    /// True if its content may be overwritten.
    pub wipe: bool,
    /// How long each test runs.
    pub duration: Duration,
}

/// Results of all tests.
#[derive(Clone, Debug, Serialize)]
pub struct DiskBenchReport {
    /// The file or block device.
    pub device: String,
    /// How much of it was filled and used.
    pub size_bytes: u64,
    /// How long each test was to run.
    pub seconds: f64,
    /// The tests, in the order in which they ran.
    pub tests: Vec<DiskTestReport>,
    /// Durability of writes at their completion.
    pub durability: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// Number and model of the processors.
    pub cpu: String,
    /// fio's version.
    pub fio_version: String,
}

/// Result of one test.
#[derive(Clone, Debug, Serialize)]
pub struct DiskTestReport {
    /// The test, such as `journal-sync`.
    pub test: &'static str,
    /// Work of fio, such as `4k-write-qd1`.
    pub workload: String,
    /// How each write was made durable.
    pub sync: &'static str,
    /// Operations a second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Mean latency of an operation, with the call that makes it durable.
    pub mean_us: f64,
    /// Its 99th percentile; nothing if it has two parts that fio measures apart.
    pub p99_us: Option<u64>,
    /// Class of drives with such a rate of writes.
    pub class: Option<SyncedWriteClass>,
    /// Meaning of the figure.
    pub meaning: String,
}

/// Use of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Linear,
    ParallelRead,
    ParallelWrite,
    OneRead,
    SyncedWrite,
}

struct Test {
    name: &'static str,
    block_bytes: u64,
    pattern: AccessPattern,
    depth: u32,
    sync: WriteSync,
    shape: Shape,
}

const fn test(
    name: &'static str,
    block_bytes: u64,
    pattern: AccessPattern,
    depth: u32,
    sync: WriteSync,
    shape: Shape,
) -> Test {
    Test { name, block_bytes, pattern, depth, sync, shape }
}

const SMALL_BYTES: u64 = 4 << 10;
const LARGE_BYTES: u64 = 4 << 20;

/// The eight of the field's guide. Reads come first, while the drive has nothing to tidy up.
const TESTS: [Test; 8] = {
    use AccessPattern::{RandomRead, RandomWrite, Read, Write};
    [
        test("linear-read", LARGE_BYTES, Read, 32, WriteSync::None, Shape::Linear),
        test("parallel-read", SMALL_BYTES, RandomRead, 128, WriteSync::None, Shape::ParallelRead),
        test("single-read", SMALL_BYTES, RandomRead, 1, WriteSync::None, Shape::OneRead),
        test("journal-sync", SMALL_BYTES, Write, 1, WriteSync::Flag, Shape::SyncedWrite),
        test("journal-fsync", SMALL_BYTES, Write, 1, WriteSync::Call, Shape::SyncedWrite),
        test("single-write-sync", SMALL_BYTES, RandomWrite, 1, WriteSync::Flag, Shape::SyncedWrite),
        test("linear-write", LARGE_BYTES, Write, 32, WriteSync::None, Shape::Linear),
        test("parallel-write", SMALL_BYTES, RandomWrite, 128, WriteSync::None, Shape::ParallelWrite),
    ]
};

impl DiskBench {
    fn check(&self) -> Result<(), BenchError> {
        if self.size_bytes < SIZE_BYTES_MIN || !self.size_bytes.is_multiple_of(LARGE_BYTES) {
            let (size, least) = (self.size_bytes, format_size(SIZE_BYTES_MIN));
            let text = format!("a size of {size} bytes: it must be a multiple of 4 MiB and {least} at the least");
            return Err(BenchError::Invalid(text));
        }
        if self.duration < Duration::from_secs(1) {
            return Err(BenchError::Invalid("each test needs a second at the least".into()));
        }
        Ok(())
    }

    /// Fills the range and runs all tests. `filling` and `measuring` get the completed part and the whole.
    pub fn run(
        &self,
        filling: &dyn Fn(u64, u64),
        measuring: &dyn Fn(u64, u64),
    ) -> Result<DiskBenchReport, BenchError> {
        self.check()?;
        let fio_version = fio::version()?;
        let target = Target::claim_scratch(&self.device, self.size_bytes, self.wipe)?;
        let done = Cell::new(0);
        target.lay_out(&mut |bytes| {
            done.set(done.get() + bytes);
            filling(done.get(), target.layout_bytes());
        })?;
        // While it is claimed nobody can mount it; fio claims nothing.
        let _claim = DirectFile::open(&self.device)
            .map_err(|error| BenchError::Device { path: self.device.clone(), detail: error.to_string() })?;
        let mut tests = Vec::new();
        for test in &TESTS {
            let run = fio::run_synced(&target.store, test.workload(), test.sync, self.duration)?;
            tests.push(test.report(&run));
            measuring(tests.len() as u64, TESTS.len() as u64);
        }
        let host = HostFacts::here();
        Ok(DiskBenchReport {
            device: self.device.display().to_string(),
            size_bytes: self.size_bytes,
            seconds: round(self.duration.as_secs_f64()),
            tests,
            durability: "all with O_DIRECT on a range that was filled with random bytes; sync: each write with O_DSYNC; fsync: \
                         a call after each write; the others are not synced, and a volatile cache may hold a part of them",
            kernel: host.kernel,
            cpu: format!("{} x {}", host.cores, host.cpu),
            fio_version,
        })
    }
}

impl Test {
    fn workload(&self) -> Workload {
        Workload { block_bytes: self.block_bytes, pattern: self.pattern, depth: self.depth }
    }

    fn report(&self, run: &FioRun) -> DiskTestReport {
        let figures = &run.figures;
        let class = (self.shape == Shape::SyncedWrite).then(|| SyncedWriteClass::of(figures.iops));
        DiskTestReport {
            test: self.name,
            workload: self.workload().to_string(),
            sync: match self.sync {
                WriteSync::None => "none",
                WriteSync::Flag => "O_DSYNC",
                WriteSync::Call => "fsync",
            },
            iops: figures.iops,
            mb_per_s: figures.mb_per_s,
            mean_us: round(figures.latency_us.mean + run.sync_mean_us.unwrap_or(0.0)),
            p99_us: run.sync_mean_us.is_none().then_some(figures.latency_us.p99),
            class,
            meaning: self.meaning(figures.iops, figures.mb_per_s, figures.latency_us.mean),
        }
    }

    fn meaning(&self, iops: f64, mb_per_s: f64, mean_us: f64) -> String {
        match self.shape {
            Shape::Linear => format!(
                "as much as a network of {:.1} Gbit/s carries; large objects and recovery are no faster on this drive",
                mb_per_s * 8.0 / 1e3
            ),
            Shape::ParallelRead => "the most small reads that this drive can give to all clients together".into(),
            Shape::ParallelWrite => format!(
                "{:.0}% of the 260,000/s of the field's NVMe drives; Ceph passed on about 35,000 of each",
                iops * 100.0 / FIELD_WRITES_PER_S
            ),
            Shape::OneRead => format!(
                "{mean_us:.0} us before any network: the wait of a database at depth 1 (all of Ceph rarely takes \
                 less than 500 us)"
            ),
            Shape::SyncedWrite => SyncedWriteClass::of(iops).meaning().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Latency;
    use crate::store::RunFigures;

    fn run(iops: f64, sync_mean_us: Option<f64>) -> FioRun {
        let latency_us = Latency { mean: 80.0, p50: 70, p99: 140, p999: Some(900), max: 7_000 };
        let mb_per_s = iops * 4096.0 / 1e6;
        let figures = RunFigures { seconds: 1.0, operations: 1, iops, mb_per_s, latency_us, cpu_us_per_op: 1.0 };
        FioRun { figures, sync_mean_us }
    }

    fn named(name: &str) -> &'static Test {
        TESTS.iter().find(|test| test.name == name).unwrap()
    }

    #[test]
    fn the_eight_tests_are_the_guides() {
        let mut tests: Vec<String> =
            TESTS.iter().map(|test| format!("{} {:?}", test.workload(), test.sync)).collect();
        tests.sort();
        let guide = [
            "4k-randread-qd1 None",
            "4k-randread-qd128 None",
            "4k-randwrite-qd1 Flag",
            "4k-randwrite-qd128 None",
            "4k-write-qd1 Call",
            "4k-write-qd1 Flag",
            "4m-read-qd32 None",
            "4m-write-qd32 None",
        ];
        assert_eq!(tests, guide);
    }

    #[test]
    fn rates_of_synced_writes_reveal_capacitors() {
        let of = |iops| named("journal-sync").report(&run(iops, None)).class;
        assert_eq!(of(288.0), Some(SyncedWriteClass::WithoutCapacitors));
        assert_eq!(of(18_000.0), Some(SyncedWriteClass::WithCapacitors));
        assert_eq!(named("linear-write").report(&run(288.0, None)).class, None);
    }

    #[test]
    fn the_call_after_a_write_is_part_of_its_latency() {
        let report = named("journal-fsync").report(&run(4_586.0, Some(119.5)));
        assert_eq!((report.mean_us, report.p99_us), (199.5, None));
        let report = named("journal-sync").report(&run(4_586.0, None));
        assert_eq!((report.mean_us, report.p99_us), (80.0, Some(140)));
    }

    #[test]
    fn figures_are_set_beside_the_fields() {
        assert!(named("parallel-write").report(&run(130_000.0, None)).meaning.starts_with("50% of the 260,000/s"));
        let linear = named("linear-read").meaning(100.0, 1_250.0, 1.0);
        assert!(linear.starts_with("as much as a network of 10.0 Gbit/s"), "{linear}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let bench = DiskBench {
            device: "/nowhere/device".into(),
            size_bytes: SIZE_BYTES_MIN,
            wipe: false,
            duration: Duration::from_secs(1),
        };
        assert!(bench.check().is_ok());
        assert!(DiskBench { size_bytes: 4096, ..bench.clone() }.check().is_err());
        assert!(DiskBench { size_bytes: SIZE_BYTES_MIN + 4096, ..bench.clone() }.check().is_err());
        assert!(DiskBench { duration: Duration::ZERO, ..bench }.check().is_err());
    }
}
