//! The options of a run: drawn from the seed, or given by a script. Each seed leaves out some
//! faults (swarm testing), because a fault that ends every long history hides defects that need
//! one.

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::CodeShape;
use atoll_types::limits::PG_LOG_ENTRIES;

use crate::Setup;
use crate::device::Budget;
use crate::random::Random;
use crate::state::PGS_MAX;

/// A fault that happens by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    BreakLink,
    Crash,
    ReplaceDevice,
    OutOfRoom,
    RefuseWrites,
    /// An OSD takes no new data for a while, and says so. Not among those that are drawn.
    Fill,
    BreakClient,
    SlowDevice,
    Partition,
    Pause,
    /// A virtual machine is paused, and its clock with it.
    StopClock,
    BlockState,
    StateOutage,
    Move,
    Scrub,
    DamageBlock,
    Split,
    /// A device loses its latest durable data. Drawn only in runs with this option.
    Forget,
    /// A device is copied, so that the copy may be put back later. Drawn only in runs with this option.
    CopyDevice,
    /// An older copy of a device is put back.
    PutBack,
    /// The store of an OSD refuses one write, or additions to one object, for good. Drawn only in runs with this
    /// option.
    RefuseForGood,
    /// A snapshot of cluster state is taken. Drawn only in runs with this option.
    SaveState,
    /// It is put back.
    RestoreState,
    /// All copies count as incomplete, and an operator chooses the one from which a PG resumes. Drawn only in runs
    /// with this option.
    Decide,
}

/// All faults, and how often each happens among the others.
const FAULTS: [(Fault, u64); 16] = [
    (Fault::BreakLink, 14),
    (Fault::Crash, 14),
    (Fault::ReplaceDevice, 3),
    (Fault::OutOfRoom, 10),
    (Fault::RefuseWrites, 4),
    (Fault::BreakClient, 6),
    (Fault::SlowDevice, 7),
    (Fault::Partition, 10),
    (Fault::Pause, 8),
    (Fault::StopClock, 4),
    (Fault::BlockState, 6),
    (Fault::StateOutage, 3),
    (Fault::Move, 6),
    (Fault::Scrub, 6),
    (Fault::DamageBlock, 14),
    (Fault::Split, 3),
];

/// The shape of one run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The rate of each OSD's clock, in millionths; one entry per OSD.
    pub clock_rates: Vec<u64>,
    /// How objects are cut into shards, in an erasure-coded pool.
    pub shape: Option<CodeShape>,
    /// With fewer copies, or shards, nothing is served.
    pub min_size: u32,
    /// Entries of the log. With few of them, logs do not reach back to where histories part.
    pub ring_entries: usize,
    /// Bytes that a PG may use to recognise retries, if they are fewer than usual.
    pub retry_memory_bytes: Option<usize>,
    /// PGs that the pool begins with.
    pub pgs: u32,
    pub sessions: u64,
    pub objects: u64,
    /// The usual time between bursts of a session's requests.
    pub client_pace: u64,
    /// The usual time between faults.
    pub fault_pace: u64,
    /// The faults, with their weights.
    pub faults: Vec<(Fault, u64)>,
    /// How often metadata is evicted when a PG has no more actions.
    pub eviction_percent: u64,
    /// Stores remember their earlier states, because they may lose the latest.
    pub keeps_past: bool,
    /// Members have the real store, with this budget of memory; otherwise its stand-in.
    pub real_store: Option<Budget>,
    /// How often a request is under way for long.
    pub late_percent: u64,
    /// True if chance delays, loses or repeats events that usually go well.
    pub has_mishaps: bool,
    /// Simulated time at which all faults end.
    pub quiet_at: u64,
}

impl Options {
    /// Copies, or shards, that the PG should have.
    pub fn size(&self) -> usize {
        self.shape.map_or(3, |shape| shape.shards().into())
    }

    /// The options of a seed's run, in a replicated or in an erasure-coded pool.
    pub fn draw(is_coded: bool, random: &mut Random) -> Self {
        let ring_entries = if random.chance(40) { 64 } else { PG_LOG_ENTRIES };
        let fault_pace = random.one_of([200_000, 600_000, 2_000_000]);
        let eviction_percent = random.one_of([0, 5, 50]);
        let shape = is_coded.then(|| {
            let (data, parity) = random.one_of([(2, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]);
            CodeShape { data, parity, chunk_bytes: BLOCK_BYTES as u32 * random.one_of([1, 1, 2]) }
        });
        let (osds, needed) = match shape {
            None => (random.between(3, 6), 1),
            Some(shape) => (u64::from(shape.shards()) + random.below(3), u32::from(shape.data)),
        };
        let min_size = if random.chance(30) { needed } else { needed + 1 };
        let drift = random.one_of([0, 20_000, 40_000]);
        let are_all = random.chance(40);
        let mut faults = FAULTS.to_vec();
        faults.retain(|_| are_all || random.chance(60));
        Options {
            shape,
            clock_rates: (0..osds).map(|_| 1_000_000 - drift + random.below(2 * drift + 1)).collect(),
            min_size,
            ring_entries,
            retry_memory_bytes: random.chance(25).then_some(2_000),
            pgs: 1,
            sessions: random.between(2, 6),
            objects: random.one_of([3, 3, 12]),
            client_pace: random.one_of([200_000, 1_000_000, 1_000_000]),
            fault_pace,
            faults,
            eviction_percent,
            keeps_past: false,
            real_store: None,
            late_percent: 0,
            has_mishaps: true,
            quiet_at: 20_000_000,
        }
    }

    /// Adds faults that are not among those that are drawn.
    pub fn with_faults_of(mut self, setup: Setup) -> Self {
        if setup.forgets {
            self.faults.push((Fault::Forget, 10));
        }
        if setup.puts_back {
            self.faults.extend([(Fault::CopyDevice, 6), (Fault::PutBack, 6)]);
        }
        if setup.decides {
            self.faults.push((Fault::Decide, 8));
        }
        if setup.refuses_for_good {
            self.faults.push((Fault::RefuseForGood, 3));
        }
        if setup.restores && !setup.decides {
            self.faults.extend([(Fault::SaveState, 5), (Fault::RestoreState, 6)]);
        }
        self.keeps_past = setup.forgets || setup.puts_back;
        self
    }

    /// The pool begins with half as many PGs as there may be, and its objects are in all of them.
    pub fn with_many_pgs(self) -> Self {
        Options { pgs: PGS_MAX as u32 / 2, objects: 12, ..self }
    }

    /// Gives the members the real store. Mostly it has so little memory that metadata is cold.
    pub fn with_real_store(mut self, random: &mut Random) -> Self {
        let pages = random.one_of([4, 8, 16, 64, 4_096]);
        let pending_bytes = random.one_of([0, 64 << 10, 16 << 20]);
        self.real_store = Some(Budget { page_bytes: pages * BLOCK_BYTES as u64, pending_bytes });
        // The store's own.
        self.ring_entries = PG_LOG_ENTRIES;
        self
    }

    /// Gives the members the real store, and memory for all of its metadata.
    pub fn on_real_stores(self) -> Self {
        Options { real_store: Some(Budget { page_bytes: 16 << 20, pending_bytes: 16 << 20 }), ..self }
    }

    /// An erasure-coded world in which only the script acts.
    pub fn scripted_coded(osds: usize, data: u8, parity: u8) -> Self {
        let shape = Some(CodeShape { data, parity, chunk_bytes: BLOCK_BYTES as u32 });
        Options { shape, min_size: u32::from(data) + 1, ..Options::scripted(osds) }
    }

    /// A world in which only the script acts.
    pub fn scripted(osds: usize) -> Self {
        Options {
            shape: None,
            clock_rates: vec![1_000_000; osds],
            min_size: 2,
            ring_entries: PG_LOG_ENTRIES,
            retry_memory_bytes: None,
            pgs: 1,
            sessions: 2,
            objects: 3,
            client_pace: u64::MAX,
            fault_pace: u64::MAX,
            faults: Vec::new(),
            eviction_percent: 0,
            keeps_past: false,
            real_store: None,
            late_percent: 0,
            has_mishaps: false,
            quiet_at: u64::MAX,
        }
    }
}
