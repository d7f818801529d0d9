//! The cost for clients when an OSD's data moves to others and back: latency before, while it moves, and after,
//! the speed of the move, and its cost in CPU.
//!
//! The OSD is marked out and in again, so every copy stays until the one in its place is whole, and the OSD itself
//! serves meanwhile.

mod load;
mod report;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::{Prefill, ProcessTimes, Processes, prefill};
use atoll_image::AttachedImage;
use atoll_reactor::LocalRuntime;

use self::load::Load;
use self::report::Measured;
pub use self::report::{RecoveryPhase, RecoveryReport};
use crate::error::BenchError;

/// The state of the cluster, as the run sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoveryView {
    /// PGs.
    pub pgs: u64,
    /// Those of them that do not serve with all their copies where they should be.
    pub pgs_left: u64,
    /// Bytes that all OSDs have read for backfill since they started.
    pub recovered_bytes: u64,
    /// Objects that the OSD holds.
    pub objects_on_osd: u64,
    /// Bytes that each OSD may read for that per second while clients are at work; the lowest of all.
    pub recovery_bytes_per_second: u64,
}

/// The cluster, for a run that marks an OSD out and in again.
pub trait RecoveryCluster {
    /// Marks the OSD out, or in.
    fn set_out(&self, is_out: bool) -> impl Future<Output = Result<(), BenchError>>;

    /// Looks how far the cluster is.
    fn look(&self) -> impl Future<Output = Result<RecoveryView, BenchError>>;
}

/// Work of clients during all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLoad {
    /// Bytes per operation.
    pub block_bytes: u64,
    /// Operations in flight at once, at most.
    pub depth: u32,
    /// Operations begun per second; as many as the depth allows if there is no rate.
    pub rate_per_second: Option<u32>,
    /// Reads among 100 operations; the others are writes.
    pub read_percent: u32,
}

/// A run.
#[derive(Clone, Debug)]
pub struct RecoveryBench {
    /// Bytes of the image that are written before, and that clients use.
    pub size_bytes: u64,
    /// Work of clients; none without clients.
    pub load: Option<ClientLoad>,
    /// How long to measure before and after.
    pub duration: Duration,
    /// The servers.
    pub servers: Processes,
    /// Protections in use, for the report.
    pub protections: String,
}

/// Step of a run, for a progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// The image is being written; bytes.
    Filling,
    /// The OSD's data moves to others; counted in PGs.
    Out,
    /// The OSD's data moves back; counted in PGs.
    In,
}

/// How often the cluster is looked at while data moves.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Pause after which OSDs have reported their reads, which they do every three seconds.
const REPORT_PAUSE: Duration = Duration::from_secs(4);
/// Pause for the checkpoints that follow the writing of the image.
const CALM_PAUSE: Duration = Duration::from_secs(3);
/// For how long the OSD may take to delete its stray copies.
const REMOVAL_MAX: Duration = Duration::from_secs(300);

struct Run<'a, C> {
    runtime: &'a LocalRuntime,
    cluster: &'a C,
    bench: &'a RecoveryBench,
    load: &'a Load,
    is_out: Cell<bool>,
    progress: &'a dyn Fn(RecoveryStep, u64, u64),
}

/// Fills the image, moves the OSD's data away and back, and measures. If it fails the OSD is in
/// again, as far as cluster state can be reached.
pub async fn run_recovery(
    runtime: &LocalRuntime,
    image: Rc<AttachedImage>,
    cluster: &impl RecoveryCluster,
    bench: &RecoveryBench,
    progress: &dyn Fn(RecoveryStep, u64, u64),
) -> Result<RecoveryReport, BenchError> {
    let size_bytes = bench.size_bytes.min(image.size_bytes());
    let filling = |done, all| progress(RecoveryStep::Filling, done, all);
    prefill(&image, size_bytes, Prefill::Holes, None, &filling).await?;
    runtime.sleep(CALM_PAUSE).await;
    let load = Load::new(runtime.clone(), image, size_bytes, bench.load)?;
    let run = Run { runtime, cluster, bench, load: &load, is_out: Cell::new(false), progress };
    let measuring = async {
        let outcome = run.measure().await;
        if run.is_out.get() && outcome.is_err() {
            // The first error is reported; this one would add nothing.
            let _ = cluster.set_out(false).await;
        }
        load.stop();
        outcome
    };
    let (outcome, ()) = futures::join!(measuring, load.run());
    let (measured, seen) = outcome?;
    Ok(RecoveryReport::new(bench, size_bytes, seen.recovery_bytes_per_second, &measured))
}

impl<C: RecoveryCluster> Run<'_, C> {
    async fn measure(&self) -> Result<([Measured; 4], RecoveryView), BenchError> {
        let seen = self.cluster.look().await?;
        if seen.pgs_left > 0 {
            let text = "some PGs do not serve with all their copies where they should be; wait until \
                        'atoll health' says that all is well";
            return Err(BenchError::Invalid(text.into()));
        }
        let before = self.baseline().await;
        let out = self.move_data(true).await?;
        self.wait_for_removal().await?;
        let back = self.move_data(false).await?;
        let after = self.baseline().await;
        Ok(([before, out, back, after], seen))
    }

    /// Measures while nothing moves.
    async fn baseline(&self) -> Measured {
        let phase = self.begin();
        self.runtime.sleep(self.bench.duration).await;
        phase.end(self)
    }

    /// Measures from marking the OSD until all PGs are where they should be.
    async fn move_data(&self, is_out: bool) -> Result<Measured, BenchError> {
        let step = if is_out { RecoveryStep::Out } else { RecoveryStep::In };
        let recovered_before = self.cluster.look().await?.recovered_bytes;
        let phase = self.begin();
        self.is_out.set(true);
        self.cluster.set_out(is_out).await?;
        self.is_out.set(is_out);
        let mut most_left = 1;
        loop {
            let seen = self.cluster.look().await?;
            most_left = most_left.max(seen.pgs_left);
            (self.progress)(step, most_left - seen.pgs_left, most_left);
            if seen.pgs_left == 0 {
                break;
            }
            self.runtime.sleep(LOOK_PAUSE).await;
        }
        let mut measured = phase.end(self);
        self.runtime.sleep(REPORT_PAUSE).await;
        let recovered_bytes = self.cluster.look().await?.recovered_bytes;
        measured.recovered_bytes = recovered_bytes.saturating_sub(recovered_before);
        Ok(measured)
    }

    /// Waits until the OSD has deleted its stray copies: copies that it still has would not be copied back.
    async fn wait_for_removal(&self) -> Result<(), BenchError> {
        let started = Instant::now();
        loop {
            let seen = self.cluster.look().await?;
            // Of each PG its own object stays.
            if seen.objects_on_osd <= seen.pgs {
                return Ok(());
            }
            if started.elapsed() > REMOVAL_MAX {
                let text = format!(
                    "the OSD still holds {} objects {} s after they were moved to others; its log says why",
                    seen.objects_on_osd,
                    REMOVAL_MAX.as_secs()
                );
                return Err(BenchError::Invalid(text));
            }
            self.runtime.sleep(LOOK_PAUSE).await;
        }
    }

    fn begin(&self) -> Begun {
        self.load.begin_phase();
        Begun { started: Instant::now(), cpu: ProcessTimes::read(&self.bench.servers) }
    }
}

/// A phase that is being measured.
struct Begun {
    started: Instant,
    cpu: ProcessTimes,
}

impl Begun {
    fn end<C>(self, run: &Run<'_, C>) -> Measured {
        Measured {
            elapsed: self.started.elapsed(),
            recovered_bytes: 0,
            cpu_us: self.cpu.until(&ProcessTimes::read(&run.bench.servers), &run.bench.servers).total_us(),
            counts: run.load.end_phase(),
        }
    }
}
