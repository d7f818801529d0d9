//! Block I/O on an attached image, as a virtual machine would do it, through the native client.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_image::AttachedImage;
use bytes::Bytes;

use crate::cpu::ProcessTimes;
use crate::random::Random;
use crate::report::{BenchError, BenchReport, Counts, Setting, report};

/// Which blocks are accessed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessPattern {
    /// Writes at random places.
    RandomWrite,
    /// Reads at random places.
    RandomRead,
    /// Writes in order.
    Write,
    /// Reads in order.
    Read,
}

impl AccessPattern {
    pub(crate) const ALL: [AccessPattern; 4] =
        [AccessPattern::RandomWrite, AccessPattern::RandomRead, AccessPattern::Write, AccessPattern::Read];

    /// The name that fio uses.
    pub fn name(self) -> &'static str {
        match self {
            AccessPattern::RandomWrite => "randwrite",
            AccessPattern::RandomRead => "randread",
            AccessPattern::Write => "write",
            AccessPattern::Read => "read",
        }
    }

    pub(crate) fn is_write(self) -> bool {
        matches!(self, AccessPattern::RandomWrite | AccessPattern::Write)
    }

    pub(crate) fn is_random(self) -> bool {
        matches!(self, AccessPattern::RandomWrite | AccessPattern::RandomRead)
    }
}

/// A run on an image.
#[derive(Clone, Debug)]
pub struct BlockBench {
    /// What to do.
    pub pattern: AccessPattern,
    /// Bytes per operation.
    pub block_bytes: u64,
    /// Operations in flight at once.
    pub depth: u32,
    /// How long to measure.
    pub duration: Duration,
    /// The part of the image that is used, from its beginning.
    pub working_set_bytes: u64,
    /// Process ids of the servers.
    pub servers: Vec<u32>,
    /// What was on, for the report.
    pub protections: String,
}

const PREFILL_BYTES: u64 = 1 << 20;
const PREFILL_DEPTH: usize = 8;
const PAYLOADS: usize = 16;

struct Run {
    image: Rc<AttachedImage>,
    bench: BlockBench,
    payloads: Vec<Bytes>,
    slots: u64,
    next_slot: Cell<u64>,
    random: RefCell<Random>,
    counts: RefCell<Counts>,
    deadline: Cell<Instant>,
}

/// Writes the working set once where it was never written, so that reads find data.
pub(crate) async fn prefill(
    image: &AttachedImage,
    working_set_bytes: u64,
    progress: &dyn Fn(u64, u64),
) -> Result<(), BenchError> {
    let mut random = Random::new(7);
    let mut position = 0;
    while position < working_set_bytes {
        let extents = image.extents(position, working_set_bytes - position).await?;
        for (length, is_hole) in extents {
            if is_hole {
                fill(image, position, length, &mut random).await?;
            }
            position += length;
            progress(position, working_set_bytes);
        }
    }
    Ok(())
}

async fn fill(image: &AttachedImage, start: u64, length: u64, random: &mut Random) -> Result<(), BenchError> {
    let mut position = start;
    let end = start + length;
    while position < end {
        let mut writes = Vec::new();
        while position < end && writes.len() < PREFILL_DEPTH {
            let bytes = PREFILL_BYTES.min(end - position);
            let data = Bytes::from(random.fill(bytes as usize));
            writes.push(async move { image.write(position, &data).await });
            position += bytes;
        }
        futures::future::try_join_all(writes).await?;
    }
    Ok(())
}

/// Runs the load on this thread's runtime. `progress` is told of the prefill: bytes done and of
/// all.
pub async fn run_block(
    image: Rc<AttachedImage>,
    bench: BlockBench,
    progress: &dyn Fn(u64, u64),
) -> Result<BenchReport, BenchError> {
    let working_set_bytes = bench.working_set_bytes.min(image.size_bytes());
    let slots = working_set_bytes.checked_div(bench.block_bytes).unwrap_or(0);
    if slots == 0 || bench.depth == 0 || bench.block_bytes > 32 << 20 {
        return Err(BenchError::Invalid(format!(
            "operations of {} bytes at depth {} on {working_set_bytes} bytes make no run",
            bench.block_bytes, bench.depth
        )));
    }
    prefill(&image, working_set_bytes, progress).await?;
    let mut random = Random::new(bench.depth.into());
    let payloads = (0..PAYLOADS).map(|_| random.fill(bench.block_bytes as usize).into()).collect();
    let started = Instant::now();
    let run = Run {
        image,
        payloads,
        slots,
        next_slot: Cell::new(0),
        random: RefCell::new(random),
        counts: RefCell::new(Counts::new()),
        deadline: Cell::new(started + bench.duration),
        bench,
    };
    let own = [std::process::id()];
    let (servers_before, own_before) = (ProcessTimes::read(&run.bench.servers), ProcessTimes::read(&own));
    futures::future::join_all((0..run.bench.depth).map(|_| run.worker())).await;
    let elapsed = started.elapsed();
    let server_cpu_us = ProcessTimes::read(&run.bench.servers).us_since(&servers_before);
    let client_cpu_us = ProcessTimes::read(&own).us_since(&own_before);
    let setting = Setting {
        operation: run.bench.pattern.name().into(),
        size_bytes: run.bench.block_bytes,
        depth: run.bench.depth,
        protections: run.bench.protections,
    };
    Ok(report(setting, run.counts.into_inner(), elapsed, server_cpu_us, client_cpu_us))
}

impl Run {
    fn offset(&self) -> u64 {
        let slot = if self.bench.pattern.is_random() {
            self.random.borrow_mut().below(self.slots)
        } else {
            let slot = self.next_slot.get();
            self.next_slot.set((slot + 1) % self.slots);
            slot
        };
        slot * self.bench.block_bytes
    }

    async fn worker(&self) {
        while Instant::now() < self.deadline.get() {
            let offset = self.offset();
            let started = Instant::now();
            let result = if self.bench.pattern.is_write() {
                let choice = (offset / self.bench.block_bytes) as usize % PAYLOADS;
                self.image.write(offset, &self.payloads[choice]).await
            } else {
                self.image.read(offset, self.bench.block_bytes as u32).await.map(|_| ())
            };
            match result {
                Ok(()) => self.counts.borrow_mut().done(started.elapsed()),
                Err(error) => {
                    self.counts.borrow_mut().failed(error.to_string());
                    // An image that is lost gives errors at once; do not spin on them.
                    if self.counts.borrow().errors > 100 {
                        return;
                    }
                }
            }
        }
    }
}
