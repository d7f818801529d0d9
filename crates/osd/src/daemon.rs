//! The daemon: setting up, and the turn of the loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_base::records::{OsdUpRecord, OsdUsageRecord, RECORD_FORMAT};
use atoll_base::{ObjectName, OsdId, PgId, Transaction, Version};
use atoll_cluster::{ClusterMap, ConnectOptions};
use atoll_pg::{Leases, Pg, PgState, Token};
use atoll_reactor::{Event, ListenAddress, Reactor, ReactorError};
use atoll_store::{LoadId, OpenError, ReadData, Store, TransactionId};
use atoll_wire::KeyPair;

use crate::admission::Admission;
use crate::control::{self, Control, ControlEvent, ControlRequest};
use crate::device::{AtRestError, BlockingDevice, DeviceError, DeviceKey, RingDevice};
use crate::peers::Peers;
use crate::recovery::RecoveryScheduler;
use crate::removed_pools::RemovedPools;
use crate::scrubs::Scrubs;
use crate::sync_reads::SyncRead;

/// How an OSD is set up.
pub struct OsdConfig {
    /// Its number.
    pub id: OsdId,
    /// The file or block device with its store.
    pub device: PathBuf,
    /// The file or block device with the store's log, if it has its own.
    pub log_device: Option<PathBuf>,
    /// What unlocks the devices if they are LUKS2 volumes. It is forgotten when it has done so.
    pub device_key: Option<DeviceKey>,
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The address to announce, if it is not the one that is listened on.
    pub advertise: Option<IpAddr>,
    /// Its static key.
    pub key: KeyPair,
    /// Memory that the process should take, in bytes, at least [`crate::MEMORY_TARGET_BYTES_MIN`].
    pub memory_target_bytes: u64,
    /// Bytes per second that recovery may read while clients are at work.
    pub recovery_bytes_per_second: u64,
    /// Where cluster state is.
    pub cluster: ConnectOptions,
}

/// Why an OSD could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum OsdError {
    /// The event loop could not be set up or failed.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// A device could not be taken.
    #[error(transparent)]
    Take(#[from] DeviceError),
    /// A device could not be unlocked.
    #[error(transparent)]
    Unlock(#[from] AtRestError),
    /// It could, but it holds something else.
    #[error(
        "{} unlocks as a LUKS2 volume, but there is no Atoll store in it; name the device that 'atoll osd create          --encrypt' has made, or make one of this with --wipe if what it holds may be destroyed",
        path.display()
    )]
    NoStoreInVolume {
        /// The device.
        path: PathBuf,
    },
    /// The store could not be opened.
    #[error("cannot open the store in {}: {reason}", path.display())]
    Store {
        /// The device.
        path: PathBuf,
        /// Why.
        reason: OpenError,
    },
    /// The listening address could not be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The loop itself failed.
    #[error("the event loop failed: {0}")]
    Loop(#[from] io::Error),
    /// The device failed; what is on it is unknown until it is opened anew.
    #[error("the device failed and is not trusted any more: {0}; restart the OSD to recover from its log")]
    Device(String),
}

pub(crate) enum ReadOwner {
    Group { pg: PgId, token: Token },
    Sync(Box<SyncRead>),
}

/// Who waits for metadata.
pub(crate) enum LoadOwner {
    Group {
        pg: PgId,
        token: Token,
    },
    /// The group's submissions.
    Submit(PgId),
    List(ObjectList),
    Sync(Box<(SyncRead, ReadData)>),
    NewGroup(PgId),
    RemovedPool,
}

/// A listing of a group's objects that is under way.
pub(crate) struct ObjectList {
    pub pg: PgId,
    pub token: Token,
    pub after: Option<ObjectName>,
    pub objects: Vec<(ObjectName, Version)>,
}

/// How far stopping has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// Asked for; a checkpoint may be under way that does not hold everything.
    Asked,
    /// The last checkpoint is under way, after which the next start has little to replay.
    LastCheckpoint,
}

const TIMER_SECOND: u64 = 1;
const TIMER_TICK: u64 = 2;
/// How often groups look whether something is overdue. Fail-over waits in these steps.
const TICK: Duration = Duration::from_millis(50);
/// Every so many ticks, missing connections are made.
const CONNECT_TICKS: u64 = 4;
const USAGE_SECONDS: u64 = 3;

/// An OSD.
pub struct Osd {
    pub(crate) config: OsdConfig,
    pub(crate) reactor: Reactor,
    pub(crate) devices: RingDevice,
    pub(crate) store: Store,
    pub(crate) control: Control,
    pub(crate) map: ClusterMap,
    pub(crate) peers: Peers,
    pub(crate) admission: Admission,
    pub(crate) recovery: RecoveryScheduler,
    pub(crate) scrubs: Scrubs,
    pub(crate) removed_pools: RemovedPools,
    /// Objects that the store examines for groups.
    pub(crate) object_scrubs: BTreeMap<u64, (PgId, Token)>,
    pub(crate) leases: Leases,
    /// Since the start, as of this turn of the loop.
    pub(crate) now_ms: u64,
    started: Instant,
    ticks: u64,
    pub(crate) pgs: BTreeMap<PgId, Pg>,
    /// Groups that may have something to do.
    pub(crate) dirty: BTreeSet<PgId>,
    /// Groups that wait for time to pass, for room or for leases: all that are not at rest.
    pub(crate) restless: BTreeSet<PgId>,
    pub(crate) submitted: BTreeMap<TransactionId, (PgId, Token)>,
    /// Submissions that wait for room in the log or for metadata, in order per group.
    pub(crate) backlog: BTreeMap<PgId, VecDeque<(Token, Transaction)>>,
    /// Groups whose next submission waits for metadata.
    pub(crate) loading_for_submit: BTreeSet<PgId>,
    pub(crate) loads: BTreeMap<LoadId, LoadOwner>,
    pub(crate) waits_for_room: bool,
    pub(crate) reads: BTreeMap<u64, ReadOwner>,
    pub(crate) failure: Option<String>,
    stop: Stop,
    seconds: u64,
    reported_pg_states: BTreeMap<String, u32>,
    /// Since when a group that this OSD leads has not served; at first none does.
    not_serving_since_ms: Option<u64>,
}

/// Fresh random bytes for a handshake or an incarnation.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system's random source does not fail once booted");
    bytes
}

impl Osd {
    /// Opens the store, listens, and announces itself in cluster state.
    pub fn start(mut config: OsdConfig) -> Result<Self, OsdError> {
        let mut reactor = Reactor::new()?;
        atoll_base::block::keep_at_most(crate::memory::kept_bytes(config.memory_target_bytes));
        let admission = Admission::new(config.memory_target_bytes);
        let device_key = config.device_key.take();
        let recovery_bytes_per_second = config.recovery_bytes_per_second;
        let store_error = |reason| match reason {
            OpenError::NotAStore if device_key.is_some() => {
                OsdError::NoStoreInVolume { path: config.device.clone() }
            }
            reason => OsdError::Store { path: config.device.clone(), reason },
        };
        let devices = BlockingDevice::open(&config.device, config.log_device.as_deref())?;
        let mut devices = devices.unlock(device_key.as_ref())?;
        let incarnation = u64::from_le_bytes(random());
        let store = Store::open(&mut devices, incarnation).map_err(store_error)?;
        let devices = devices.into_ring(&mut reactor);
        let listen = ListenAddress::Tcp(config.listen);
        let (_, address) =
            reactor.listen(&listen).map_err(|source| OsdError::Listen { address: config.listen, source })?;
        let announced = match (&address, config.advertise) {
            (ListenAddress::Tcp(bound), Some(ip)) => SocketAddr::new(ip, bound.port()).to_string(),
            _ => address.to_string(),
        };
        let up = OsdUpRecord {
            format: RECORD_FORMAT,
            id: config.id,
            address: announced,
            process_id: std::process::id(),
            incarnation,
        };
        tracing::info!("{} serves {} on {address}", config.id, config.device.display());
        let control = control::start(config.cluster.clone(), up, reactor.wake_handle())?;
        reactor.set_timer(Duration::from_secs(1), TIMER_SECOND);
        reactor.set_timer(TICK, TIMER_TICK);
        Ok(Osd {
            config,
            reactor,
            devices,
            store,
            control,
            map: ClusterMap::default(),
            peers: Peers::default(),
            admission,
            recovery: RecoveryScheduler::new(recovery_bytes_per_second),
            scrubs: Scrubs::new(),
            removed_pools: RemovedPools::default(),
            object_scrubs: BTreeMap::new(),
            leases: Leases::new(0),
            now_ms: 0,
            started: Instant::now(),
            ticks: 0,
            pgs: BTreeMap::new(),
            dirty: BTreeSet::new(),
            restless: BTreeSet::new(),
            submitted: BTreeMap::new(),
            backlog: BTreeMap::new(),
            loading_for_submit: BTreeSet::new(),
            loads: BTreeMap::new(),
            waits_for_room: false,
            reads: BTreeMap::new(),
            failure: None,
            stop: Stop::No,
            seconds: 0,
            reported_pg_states: BTreeMap::new(),
            not_serving_since_ms: Some(0),
        })
    }

    /// Serves until it is asked to stop (SIGTERM, SIGINT) or something fails.
    pub fn run(mut self) -> Result<(), OsdError> {
        let mut events = Vec::new();
        loop {
            self.reactor.poll(None, &mut events)?;
            // Whatever is handled in this turn came in before: a lease that holds now held then.
            self.now_ms = self.started.elapsed().as_millis() as u64;
            for event in events.drain(..) {
                self.event(event);
            }
            self.settle();
            self.answer_pings();
            self.send_output();
            self.pace_paused();
            if let Some(cause) = self.failure.take() {
                return Err(OsdError::Device(cause));
            }
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    fn has_stopped(&mut self) -> bool {
        if self.stop == Stop::No || self.store.is_checkpointing() {
            return false;
        }
        if self.stop == Stop::LastCheckpoint {
            return true;
        }
        self.stop = Stop::LastCheckpoint;
        self.store.start_checkpoint();
        self.settle();
        false
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Accepted { connection, .. } => self.accepted(connection),
            Event::Connected(_) => {}
            Event::Received(connection) => self.received(connection),
            Event::Closed(connection, _) => self.close_link(connection.number()),
            Event::File { tag, result } => self.store.complete(tag, result),
            Event::Timer(TIMER_TICK) => self.tick(),
            Event::Timer(_) => self.second(),
            Event::Woken => {
                while let Ok(event) = self.control.events.try_recv() {
                    match event {
                        ControlEvent::Changes(changes) => {
                            self.map_changes(changes);
                        }
                        ControlEvent::Stop => self.stop = Stop::Asked,
                    }
                }
            }
        }
    }

    fn tick(&mut self) {
        self.reactor.set_timer(TICK, TIMER_TICK);
        self.ticks += 1;
        if self.ticks.is_multiple_of(CONNECT_TICKS) {
            self.connect_peers();
            self.report_usage(false);
        }
        self.look_after_peers();
        self.start_recovery();
        self.empty_removed_pools();
        self.tick_restless_groups();
        self.note_serving();
    }

    /// Says when all groups serve that this OSD leads.
    fn note_serving(&mut self) {
        // Who leads and does not serve is not at rest.
        let restless = self.restless.iter().filter_map(|pg| self.pgs.get(pg));
        let all_serve = restless.map(Pg::state).all(|state| matches!(state, PgState::Member | PgState::Active));
        match self.not_serving_since_ms {
            Some(since_ms) if all_serve => {
                let led = self.pgs.values().filter(|group| *group.state() == PgState::Active).count();
                if led > 0 {
                    self.not_serving_since_ms = None;
                    let ms = self.now_ms - since_ms;
                    tracing::info!(
                        "all {led} placement groups that {} leads serve, after {ms} ms",
                        self.config.id
                    );
                }
            }
            None if !all_serve => self.not_serving_since_ms = Some(self.now_ms),
            _ => {}
        }
    }

    fn second(&mut self) {
        self.reactor.set_timer(Duration::from_secs(1), TIMER_SECOND);
        self.seconds += 1;
        self.look_after_links();
        self.share_memory();
        self.look_after_scrubs();
        self.report_usage(self.seconds.is_multiple_of(USAGE_SECONDS));
    }

    fn share_memory(&mut self) {
        let usage = self.store.usage();
        let cached_bytes = usage.metadata_memory_bytes + usage.pending_memory_bytes;
        let resident_bytes = crate::memory::resident_bytes();
        let budgets = crate::memory::share(self.config.memory_target_bytes, resident_bytes, cached_bytes);
        self.store.set_memory_budget(budgets.pages_bytes, budgets.pending_bytes);
    }

    /// Reports figures now and then, and at once when the state of a group has changed.
    fn report_usage(&mut self, is_due: bool) {
        let usage = self.usage();
        if is_due || usage.primary_pg_states != self.reported_pg_states {
            self.reported_pg_states = usage.primary_pg_states.clone();
            // The control thread ends only with the process.
            let _ = self.control.requests.send(ControlRequest::Usage(usage));
        }
    }

    fn usage(&self) -> OsdUsageRecord {
        let usage = self.store.usage();
        let mut primary_pg_states = BTreeMap::new();
        for group in self.pgs.values() {
            let name = match group.state() {
                PgState::Member => continue,
                PgState::Inactive => "inactive",
                PgState::Peering => "peering",
                PgState::Recovering => "recovering",
                PgState::Active if group.learners().next().is_some() => "active+backfilling",
                PgState::Active if group.record().members.len() < group.size() => "active+degraded",
                PgState::Active if !group.is_on_target() => "active+remapped",
                PgState::Active => "active",
            };
            *primary_pg_states.entry(name.to_owned()).or_default() += 1;
        }
        OsdUsageRecord {
            format: RECORD_FORMAT,
            total_bytes: usage.total_bytes,
            used_bytes: usage.used_bytes,
            is_full: self.store.is_full(),
            object_count: usage.object_count,
            primary_pg_states,
            corrupt_block_count: usage.corrupt_block_count,
            recovery_read_bytes: self.recovery.read_bytes(),
            recovery_bytes_per_second: self.config.recovery_bytes_per_second,
            links_in_other_mode: self.links_in_other_mode(),
        }
    }
}
