//! One run on the store: keeps as many operations in flight as the workload says and counts.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{LoadId, LoadRequest, StoreError, StoreEvent};
use atoll_types::limits::OBJECT_BYTES_MAX;
use rustix::time::{ClockId, clock_gettime};

use super::engine::Engine;
use super::objects::{Objects, Payloads, Place};
use super::report::{StoreFigures, StoreRun, run_figures};
use super::workload::Workload;
use crate::error::BenchError;
use crate::figures::{Counts, round};
use crate::load::Random;

/// When a run ends.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// After this many operations.
    Operations(u64),
    /// After some time.
    Elapsed(Duration),
}

struct Operation {
    place: Place,
    began: Beginning,
}

#[derive(Clone, Copy)]
struct Beginning {
    time: Instant,
    /// See [`Engine::moment`].
    moment: u64,
}

struct Load<'a> {
    engine: &'a mut Engine,
    objects: &'a mut Objects,
    workload: Workload,
    payloads: Payloads,
    random: Random,
    next_slot: u64,
    /// Operations that wait for room in the store's log.
    waiting: VecDeque<Operation>,
    /// Operations that wait for metadata.
    loading: BTreeMap<LoadId, Operation>,
    log_full_since: Option<Instant>,
    log_full: Duration,
    /// By the store's number of the transaction or read.
    in_flight: BTreeMap<u64, Beginning>,
    begun: u64,
    /// Times that an operation waited for metadata.
    loaded: u64,
    started: Instant,
    until: Until,
    counts: Counts,
    counts_beside_checkpoints: Counts,
    counts_between_checkpoints: Counts,
}

/// User and system time of this process, which has no other busy thread than the loop and those that
/// the kernel makes for its ring.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The most that [`resident_bytes`] was since [`forget_resident_max`].
fn resident_bytes_max() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kib << 10
}

fn forget_resident_max() {
    // Without the permission the figure is that of all runs so far.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Runs the load. `progress` is called for every operation.
pub(super) fn run_load(
    engine: &mut Engine,
    objects: &mut Objects,
    workload: Workload,
    until: Until,
    progress: &mut dyn FnMut(),
) -> Result<StoreRun, BenchError> {
    let mut random = Random::new(u64::from(workload.depth) + workload.block_bytes);
    let payloads = Payloads::new(workload.block_bytes, &mut random);
    let (checkpoints_before, traffic_before) = (engine.store.usage().checkpoint_count, engine.traffic);
    forget_resident_max();
    let cpu_before = cpu_time();
    let mut load = Load {
        engine,
        objects,
        workload,
        payloads,
        random,
        next_slot: 0,
        waiting: VecDeque::new(),
        loading: BTreeMap::new(),
        log_full_since: None,
        log_full: Duration::ZERO,
        in_flight: BTreeMap::new(),
        begun: 0,
        loaded: 0,
        started: Instant::now(),
        until,
        counts: Counts::default(),
        counts_beside_checkpoints: Counts::default(),
        counts_between_checkpoints: Counts::default(),
    };
    load.run(progress)?;
    let elapsed = load.started.elapsed();
    let cpu = cpu_time().saturating_sub(cpu_before);
    let figures = run_figures(workload.block_bytes, load.counts.latency(), elapsed, cpu, load.begun);
    let accepted_bytes = load.begun * workload.block_bytes;
    let per_byte = |bytes: u64| {
        workload.pattern.is_write().then(|| (bytes as f64 / accepted_bytes as f64 * 100.0).round() / 100.0)
    };
    let p999 = |counts: &Counts| counts.latency().p999;
    let traffic = load.engine.traffic;
    let usage = load.engine.store.usage();
    Ok(StoreRun {
        figures,
        store: StoreFigures {
            checkpoints: usage.checkpoint_count - checkpoints_before,
            beside_checkpoints_percent: round(
                load.counts_beside_checkpoints.operations() as f64 * 100.0 / load.begun.max(1) as f64,
            ),
            p999_beside_checkpoints_us: p999(&load.counts_beside_checkpoints),
            p999_between_checkpoints_us: p999(&load.counts_between_checkpoints),
            log_full_percent: round(load.log_full.as_secs_f64() * 100.0 / elapsed.as_secs_f64()),
            durable_bytes_per_byte: per_byte(traffic.durable_bytes - traffic_before.durable_bytes),
            later_bytes_per_byte: per_byte(traffic.later_bytes - traffic_before.later_bytes),
            resident_bytes: resident_bytes(),
            resident_bytes_max: resident_bytes_max(),
            metadata_bytes: u64::from(usage.metadata_page_count) * BLOCK_BYTES as u64,
            loading_percent: round(load.loaded as f64 * 100.0 / load.begun.max(1) as f64),
        },
    })
}

impl Load<'_> {
    fn run(&mut self, progress: &mut dyn FnMut()) -> Result<(), BenchError> {
        (0..self.workload.depth).for_each(|_| self.begin());
        loop {
            // Operations that the store serves from memory end within the turn and make room for more.
            loop {
                self.start_waiting()?;
                let Some(event) = self.engine.store.next_event() else { break };
                self.event(event)?;
                progress();
            }
            if self.in_flight.is_empty() && self.waiting.is_empty() && self.loading.is_empty() {
                return Ok(());
            }
            self.engine.turn()?;
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.until {
            Until::Operations(count) => self.begun >= count,
            Until::Elapsed(duration) => now.duration_since(self.started) >= duration,
        }
    }

    /// Decides on the next operation. Its time runs from here on, so that waiting for room in the log
    /// counts as latency.
    fn begin(&mut self) {
        let began = Beginning { time: Instant::now(), moment: self.engine.moment() };
        if self.is_over(began.time) {
            return;
        }
        let per_object = OBJECT_BYTES_MAX / self.workload.block_bytes;
        let slots = self.objects.count() as u64 * per_object;
        let slot = if self.workload.pattern.is_random() {
            self.random.below(slots)
        } else {
            let slot = self.next_slot;
            self.next_slot = (slot + 1) % slots;
            slot
        };
        let offset = slot % per_object * self.workload.block_bytes;
        self.waiting.push_back(Operation { place: Place { object: (slot / per_object) as usize, offset }, began });
        self.begun += 1;
    }

    fn start_waiting(&mut self) -> Result<(), BenchError> {
        let is_write = self.workload.pattern.is_write();
        while let Some(Operation { place, began }) = self.waiting.front() {
            let (place, began) = (*place, *began);
            let store = &mut self.engine.store;
            let id = if !is_write {
                store.read(self.objects.key(place.object), place.offset, self.workload.block_bytes as u32)
            } else if !store.has_log_room() {
                self.log_full_since.get_or_insert_with(Instant::now);
                break;
            } else {
                self.log_full += self.log_full_since.take().map_or(Duration::ZERO, |since| since.elapsed());
                match self.objects.write(store, place, &self.payloads) {
                    Ok(id) => id.0,
                    // What was overwritten becomes free with the checkpoint.
                    Err(StoreError::NoSpace) if store.is_checkpointing() => break,
                    Err(StoreError::Cold(cold)) => {
                        self.loaded += 1;
                        let load = store.load(LoadRequest::Pages(cold));
                        let operation = self.waiting.pop_front().expect("looked at above");
                        self.loading.insert(load, operation);
                        continue;
                    }
                    Err(error) => return Err(BenchError::Store(error.to_string())),
                }
            };
            self.waiting.pop_front();
            self.in_flight.insert(id, began);
            // As the OSD does after each PG.
            self.engine.hand_over();
        }
        Ok(())
    }

    fn event(&mut self, event: StoreEvent) -> Result<(), BenchError> {
        let id = match event {
            StoreEvent::Committed(id) => id.0,
            StoreEvent::Read { id, result } => match result {
                Ok(found) if found.data.len() as u64 == self.workload.block_bytes => id,
                Ok(found) => {
                    let got = found.data.len();
                    return Err(BenchError::Store(format!("a read found {got} bytes where more were written")));
                }
                Err(error) => return Err(BenchError::Store(format!("a read failed: {error}"))),
            },
            StoreEvent::Loaded(load) => {
                self.waiting.extend(self.loading.remove(&load));
                return Ok(());
            }
            StoreEvent::Scrubbed { .. } => unreachable!("a load scrubs nothing"),
            StoreEvent::Poisoned { cause } => return Err(BenchError::Store(cause)),
        };
        let began = self.in_flight.remove(&id).expect("a completed operation was in flight");
        let latency = began.time.elapsed();
        self.counts.done(latency);
        if self.engine.was_beside_checkpoint(began.moment) {
            self.counts_beside_checkpoints.done(latency);
        } else {
            self.counts_between_checkpoints.done(latency);
        }
        self.begin();
        Ok(())
    }
}
