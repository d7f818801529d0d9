//! The object store alone on a device: no network, no PGs, one event loop. fio can run the same workloads on the
//! same device alternately, with the same depth and durability.

mod engine;
pub(crate) mod fio;
mod load;
mod objects;
mod report;
pub(crate) mod target;
mod workload;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use atoll_buffers::BLOCK_BYTES;
use atoll_osd::DeviceKey;
use atoll_store::DEVICE_BYTES_MIN;
use atoll_types::limits::OBJECT_BYTES_MAX;

use self::engine::Engine;
use self::load::{Until, run_load};
use self::objects::Objects;
use self::target::Target;
use crate::block::AccessPattern;
use crate::error::BenchError;
use crate::figures::HostFacts;

pub use report::{Ratios, RunFigures, StoreBenchReport, StoreFigures, StoreRun, WorkloadReport};
pub use workload::Workload;

/// A run on a store of its own.
#[derive(Clone, Debug)]
pub struct StoreBench {
    /// The file or block device. Its content is lost.
    pub device: PathBuf,
    /// Size of the store; of a block device only its beginning is used.
    pub size_bytes: u64,
    /// Bytes of objects that are written before and that operations go to.
    pub working_set_bytes: u64,
    /// True if the content of the device may be overwritten.
    pub wipe: bool,
    /// How long each run is measured.
    pub duration: Duration,
    /// How often each workload runs.
    pub rounds: u32,
    /// Workloads to run.
    pub workloads: Vec<Workload>,
    /// True if fio runs the same alternately.
    pub with_fio: bool,
    /// Memory that the store's metadata may take, and as much again for data that is not at its
    /// place yet.
    pub memory_bytes: Option<u64>,
    /// True if the store is inside a LUKS2 volume with a temporary key.
    pub with_luks: bool,
    /// A file or block device that holds the log instead. Its content is lost.
    pub log_device: Option<PathBuf>,
    /// Size of the log.
    pub log_bytes: u64,
}

const PREFILL: Workload = Workload { block_bytes: OBJECT_BYTES_MAX, pattern: AccessPattern::Write, depth: 8 };

impl StoreBench {
    fn check(&self) -> Result<(), BenchError> {
        let invalid = |text: String| Err(BenchError::Invalid(text));
        if self.size_bytes < DEVICE_BYTES_MIN || !self.size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return invalid(format!(
                "a store of {} bytes: the least is {DEVICE_BYTES_MIN}, in multiples of {BLOCK_BYTES}",
                self.size_bytes
            ));
        }
        // Large overwrites need room beside what they replace until a checkpoint frees it.
        let working_set_bytes_max = self.size_bytes / 4 * 3;
        if self.working_set_bytes < OBJECT_BYTES_MAX || self.working_set_bytes > working_set_bytes_max {
            return invalid(format!(
                "a working set of {} bytes: it must be from {OBJECT_BYTES_MAX} to {working_set_bytes_max} bytes, \
                 three quarters of the store",
                self.working_set_bytes
            ));
        }
        if self.duration.is_zero() || self.rounds == 0 || self.workloads.is_empty() {
            return invalid("the runtime, the rounds and the workloads must not be none".into());
        }
        Ok(())
    }

    /// Makes the store and the place for fio and fills both. `progress` gets the written bytes and the number of
    /// all.
    pub fn prepare(self, progress: &dyn Fn(u64, u64)) -> Result<PreparedStoreBench, BenchError> {
        self.check()?;
        let fio_version = self.with_fio.then(fio::version).transpose()?;
        let objects = Objects::new(self.working_set_bytes);
        let objects_bytes = objects.count() as u64 * OBJECT_BYTES_MAX;
        let mut target =
            Target::claim(&self.device, self.size_bytes, self.with_fio.then_some(objects_bytes), self.wipe)?;
        target.log_bytes = self.log_bytes;
        if let Some(path) = &self.log_device {
            target.claim_log(path, self.wipe)?;
        }
        target.key = self.with_luks.then(DeviceKey::ephemeral);
        let (done, all) = (Cell::new(0), target.layout_bytes() + objects_bytes);
        let mut advance = |bytes| {
            done.set(done.get() + bytes);
            progress(done.get(), all);
        };
        target.lay_out(&mut advance)?;
        target.format()?;
        let mut prepared = PreparedStoreBench { bench: self, target, objects, fio_version, opens: 0 };
        let until = Until::Operations(prepared.objects.count() as u64);
        prepared.store_run(PREFILL, until, &mut || advance(OBJECT_BYTES_MAX))?;
        Ok(prepared)
    }
}

/// A store that is filled and ready.
pub struct PreparedStoreBench {
    bench: StoreBench,
    target: Target,
    objects: Objects,
    fio_version: Option<String>,
    opens: u64,
}

impl PreparedStoreBench {
    /// Runs all workloads, the store and fio alternately. `progress` gets the completed runs and the number of
    /// all.
    pub fn run(mut self, progress: &dyn Fn(u64, u64)) -> Result<StoreBenchReport, BenchError> {
        let sides = if self.bench.with_fio { 2 } else { 1 };
        let all = self.bench.workloads.len() as u64 * u64::from(self.bench.rounds) * sides;
        let mut done = 0;
        let mut finished = || {
            done += 1;
            progress(done, all);
        };
        let mut workloads = Vec::new();
        for workload in self.bench.workloads.clone() {
            let (mut store_rounds, mut fio_rounds) = (Vec::new(), Vec::new());
            for _ in 0..self.bench.rounds {
                store_rounds.push(self.store_run(workload, Until::Elapsed(self.bench.duration), &mut || ())?);
                finished();
                if let Some(region) = &self.target.fio {
                    fio_rounds.push(fio::run(region, workload, self.bench.duration)?);
                    finished();
                }
            }
            workloads.push(report::workload_report(workload, store_rounds, fio_rounds));
        }
        let host = HostFacts::here();
        Ok(StoreBenchReport {
            device: self.bench.device.display().to_string(),
            size_bytes: self.bench.size_bytes,
            working_set_bytes: self.objects.count() as u64 * OBJECT_BYTES_MAX,
            protections: format!(
                "store: every ack durable (RWF_DSYNC), CRC-32C per 4 KiB, a seal of 28 bytes per 4 KiB stored (sealing \
                 itself is the client's), LUKS2 at rest {}; fio: O_DSYNC, no checks",
                if self.bench.with_luks { "on" } else { "off" }
            ),
            kernel: host.kernel,
            cpu: format!("{} x {}", host.cores, host.cpu),
            fio_version: self.fio_version.take(),
            workloads,
        })
    }

    /// Runs one workload on the store, opened again.
    fn store_run(
        &mut self,
        workload: Workload,
        until: Until,
        progress: &mut dyn FnMut(),
    ) -> Result<StoreRun, BenchError> {
        self.opens += 1;
        let (file, store) = self.target.open(self.opens, self.bench.memory_bytes)?;
        let mut engine = Engine::new(file, store)?;
        let run = run_load(&mut engine, &mut self.objects, workload, until, progress)?;
        engine.finish()?;
        Ok(run)
    }
}
