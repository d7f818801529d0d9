//! The daemon: setting up, and the turn of the loop.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use atoll_cluster::process::this_process;
use atoll_reactor::{ClockWatch, Event, ListenAddress, Reactor};
use atoll_store::{OpenError, Store};
use atoll_types::coordination::BUSY_POLL_US_MAX;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::records::{OsdUpRecord, RECORD_FORMAT};
use atoll_types::{OsdId, PgId};

use crate::config::{OsdConfig, OsdError};
use crate::context::Context;
use crate::control::{self, ControlEvent};
use crate::copies_told::tell_copies;
use crate::device::{Backing, BlockingDevice, RingDevice, health};
use crate::links::Links;
use crate::metrics::Metrics;
use crate::pgs::Pgs;
use crate::rdma::RdmaListening;
use crate::recovery::RecoveryScheduler;
use crate::removed_pools::RemovedPools;
use crate::reports::{Reports, primary_pg_states};
use crate::scrubs::Scrubs;
use crate::storage::Storage;
use crate::traced::TracedCopies;
use crate::view::StoreView;

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
/// How often PGs look whether something is overdue. Fail-over waits in these steps.
const TICK: Duration = Duration::from_millis(50);
/// Ticks after which missing connections are made.
const CONNECT_TICKS: u64 = 4;
const USAGE_SECONDS: u64 = 3;
/// How often it is reported how old the device is.
const STORE_SECONDS: u64 = 60;
/// Longest wait for a device to note that its metadata is damaged.
const DAMAGE_NOTE_LIMIT: Duration = Duration::from_secs(5);

/// An OSD: its components, joined by `effects.rs`.
pub struct Osd {
    pub(crate) context: Context,
    pub(crate) links: Links,
    pub(crate) pgs: Pgs,
    pub(crate) storage: Storage,
    pub(crate) recovery: RecoveryScheduler,
    pub(crate) scrubs: Scrubs,
    pub(crate) traced_copies: TracedCopies,
    pub(crate) removed_pools: RemovedPools,
    reports: Reports,
    rdma: RdmaListening,
    /// Its announcement in cluster state.
    up: tokio::sync::watch::Sender<OsdUpRecord>,
    pub(crate) metrics: Metrics,
    /// True if the last report, a second ago, had pending operations.
    pub(crate) has_told_in_flight: bool,
    control: std::sync::mpsc::Receiver<ControlEvent>,
    started: Instant,
    clock_watch: ClockWatch,
    ticks: u64,
    seconds: u64,
    stop: Stop,
}

/// Fresh random bytes for a handshake or an incarnation.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system's random source does not fail once booted");
    bytes
}

/// Opens the store, unlocking its devices if they are volumes.
fn open_store(
    config: &mut OsdConfig,
    incarnation: u64,
    reactor: &mut Reactor,
) -> Result<(Store, RingDevice), OsdError> {
    let device_key = config.device_key.take();
    let store_error = |reason| match reason {
        OpenError::NotAStore if device_key.is_some() => OsdError::NoStoreInVolume { path: config.device.clone() },
        reason => OsdError::Store { path: config.device.clone(), reason },
    };
    let devices = BlockingDevice::open(&config.device, config.log_device.as_deref())?;
    let mut devices = devices.unlock(device_key.as_ref())?;
    let mut store = Store::open(&mut devices, incarnation).map_err(store_error)?;
    if config.device_is_old {
        tracing::warn!(
            "the device of {} is an older copy, since this OSD has reported a later state of it: others backfill its PGs",
            config.id
        );
        // Before anything is reported of the store: after that it does not count as old any more.
        let pgs: Vec<PgId> = store.pgs().collect();
        for pg in pgs {
            store
                .apply_blocking(&mut devices, &atoll_pg::mark_incomplete(pg, Incompleteness::OldDevice))
                .map_err(store_error)?;
        }
    }
    devices.give_back_free_space(&mut store);
    Ok((store, devices.into_ring(reactor)))
}

/// Listens; returns the announcement for cluster state, without RDMA.
fn listen(config: &OsdConfig, incarnation: u64, reactor: &mut Reactor) -> Result<OsdUpRecord, OsdError> {
    let listen = ListenAddress::Tcp(config.listen);
    let (_, address) =
        reactor.listen(&listen).map_err(|source| OsdError::Listen { address: config.listen, source })?;
    let announced = match (&address, config.advertise) {
        (ListenAddress::Tcp(bound), Some(ip)) => SocketAddr::new(ip, bound.port()).to_string(),
        _ => address.to_string(),
    };
    let local_name = listen_local(config.id, incarnation, reactor);
    tracing::info!("{} serves {} on {address}", config.id, config.device.display());
    Ok(OsdUpRecord {
        format: RECORD_FORMAT,
        id: config.id,
        address: announced,
        local_name,
        rdma_address: String::new(),
        process_id: std::process::id(),
        process: this_process(),
        incarnation,
        signs_changes: true,
    })
}

/// Listens for processes of this host; the name that is announced in cluster state, empty if there is none. No
/// name is used twice, so a process of another host that tries it finds no listener.
fn listen_local(id: OsdId, incarnation: u64, reactor: &mut Reactor) -> String {
    let name = format!("atoll-{id}-{incarnation:016x}");
    match reactor.listen_local(&name) {
        Ok(_) => {
            if let Err(error) = reactor.listen_shared(&name) {
                tracing::warn!("no shared memory for processes of this host ({error}); they use Unix sockets");
            }
            name
        }
        Err(error) => {
            tracing::warn!("no Unix socket for processes of this host ({error}); they use TCP");
            String::new()
        }
    }
}

/// Watches the health of the disks under the devices, if there are any.
fn watch_disks(config: &OsdConfig) -> std::io::Result<()> {
    let devices = [("data", Some(&*config.device)), ("log", config.log_device.as_deref())];
    health::watch(devices.into_iter().filter_map(|(name, path)| Some((name, path?))))
}

impl Osd {
    /// Opens the store, listens, and announces itself in cluster state.
    pub fn start(mut config: OsdConfig) -> Result<Self, OsdError> {
        let mut reactor = Reactor::new()?;
        atoll_buffers::keep_at_most(crate::memory::kept_bytes(config.memory_target_bytes));
        let incarnation = u64::from_le_bytes(random());
        let (store, devices) = open_store(&mut config, incarnation, &mut reactor)?;
        let mut up = listen(&config, incarnation, &mut reactor)?;
        let mut rdma = RdmaListening::start(&config, &mut reactor)?;
        up.rdma_address = rdma.look(&up, &mut reactor, 0).unwrap_or_default();
        let backing = Backing::of([Some(&*config.device), config.log_device.as_deref()].into_iter().flatten());
        watch_disks(&config)?;
        let proposer = config.key.clone().into();
        let control = control::start(config.cluster.clone(), proposer, up, reactor.wake_handle())?;
        reactor.set_timer(Duration::from_secs(1), TIMER_SECOND);
        reactor.set_timer(TICK, TIMER_TICK);
        let mut osd = Osd {
            metrics: Metrics::new(config.log_device.is_some()),
            has_told_in_flight: false,
            links: Links::new(config.memory_target_bytes),
            recovery: RecoveryScheduler::new(config.recovery_bytes_per_second),
            context: Context::new(config, reactor, control.requests),
            pgs: Pgs::default(),
            storage: Storage::new(store, devices, backing),
            scrubs: Scrubs::new(),
            traced_copies: TracedCopies::default(),
            removed_pools: RemovedPools::default(),
            reports: Reports::new(),
            rdma,
            up: control.up,
            control: control.events,
            started: Instant::now(),
            clock_watch: ClockWatch::default(),
            ticks: 0,
            seconds: 0,
            stop: Stop::No,
        };
        osd.reports.store(&osd.context, osd.storage.store());
        Ok(osd)
    }

    /// Serves until it is asked to stop (SIGTERM, SIGINT) or something fails.
    pub fn run(mut self) -> Result<(), OsdError> {
        let mut events = Vec::new();
        loop {
            self.context.reactor.poll(None, &mut events)?;
            self.context.begin_turn(self.elapsed_us());
            if self.clock_watch.stood_still(Duration::from_micros(self.context.now_us())) {
                self.links.clock_stood_still(&self.context);
            }
            self.storage.look_at_backing_if_near();
            for event in events.drain(..) {
                self.event(event);
            }
            self.settle();
            self.links.answer_pings(&mut self.context, self.storage.store().room());
            self.links.send_output(&mut self.context, &self.metrics, self.started);
            self.links.pace_paused(&mut self.context);
            self.link_events();
            if let Some(cause) = self.storage.failure() {
                // Others go on without this OSD at once: the process itself may have to wait for the device.
                self.links.close_all(&mut self.context);
                self.note_damage(&mut events)?;
                return Err(cause);
            }
            if self.has_stopped() {
                return Ok(());
            }
        }
    }

    /// Waits until the device says that its metadata is damaged, if that is why this OSD ends.
    fn note_damage(&mut self, events: &mut Vec<Event>) -> Result<(), OsdError> {
        let deadline = Instant::now() + DAMAGE_NOTE_LIMIT;
        while self.storage.store().is_noting_damage() && Instant::now() < deadline {
            self.storage.start_requests(&mut self.context);
            self.context.reactor.poll(Some(TICK), events)?;
            for event in events.drain(..) {
                if let Event::File { tag, result } = event {
                    self.storage.complete(tag, result, self.context.now_us(), &self.metrics);
                }
            }
        }
        Ok(())
    }

    fn elapsed_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn has_stopped(&mut self) -> bool {
        if self.stop == Stop::No || self.storage.store().is_checkpointing() {
            return false;
        }
        if self.stop == Stop::LastCheckpoint {
            return true;
        }
        self.stop = Stop::LastCheckpoint;
        self.storage.start_checkpoint();
        self.settle();
        false
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Accepted { connection, .. } => self.links.accepted(&mut self.context, connection),
            Event::Connected(_) => {}
            Event::Received(connection) => self.received(connection),
            Event::Closed(connection, cause) => self.links.ended(&mut self.context, connection.number(), &cause),
            Event::File { tag, result } => {
                self.storage.complete(tag, result, self.context.now_us(), &self.metrics);
            }
            Event::Timer(TIMER_TICK) => self.tick(),
            Event::Timer(_) => self.second(),
            Event::Woken => {
                while let Ok(event) = self.control.try_recv() {
                    match event {
                        ControlEvent::Changes(changes) => self.map_changes(changes),
                        ControlEvent::Stop => self.stop = Stop::Asked,
                    }
                }
            }
        }
        self.link_events();
    }

    fn tick(&mut self) {
        self.context.reactor.set_timer(TICK, TIMER_TICK);
        self.ticks += 1;
        if self.ticks.is_multiple_of(CONNECT_TICKS) {
            self.links.connect(&mut self.context);
            self.report_usage(false);
        }
        self.links.tick(&mut self.context);
        self.link_events();
        self.start_recovery();
        self.removed_pools.go_on(&mut self.storage);
        self.tick_pgs();
        self.reports.note_serving(&self.context, &self.pgs);
    }

    fn second(&mut self) {
        self.context.reactor.set_timer(Duration::from_secs(1), TIMER_SECOND);
        self.seconds += 1;
        self.links.second(&mut self.context);
        self.link_events();
        self.look_after_rdma();
        self.look_after_presence();
        self.storage.share_memory(self.context.config.memory_target_bytes);
        self.look_after_scrubs();
        self.put_back();
        self.storage.set_full_percent(self.context.map.settings.full_percent);
        let busy_poll_us = self.context.map.settings.busy_poll_us;
        self.context.reactor.set_busy_poll(Duration::from_micros(busy_poll_us.min(BUSY_POLL_US_MAX).into()));
        self.storage.look_at_backing();
        self.storage.watch_devices(self.context.map.settings.device_silence_seconds);
        self.report_usage(self.seconds.is_multiple_of(USAGE_SECONDS));
        if self.seconds.is_multiple_of(STORE_SECONDS) {
            self.reports.store(&self.context, self.storage.store());
        }
        self.storage.check();
        self.measure();
        tell_copies(&self.pgs, &StoreView::new(&self.storage, &self.links, &self.context));
        self.tell_in_flight();
    }

    /// Announces this OSD again if its presence was removed by hand: in time it would be taken for lost.
    fn look_after_presence(&mut self) {
        if !self.context.map.up.contains_key(&self.context.me()) {
            self.up.send_modify(|_| {});
        }
    }

    /// Announces where this OSD listens over RDMA when that changes.
    fn look_after_rdma(&mut self) {
        let now_ms = self.context.now_ms();
        let changed = self.rdma.look(&self.up.borrow(), &mut self.context.reactor, now_ms);
        if let Some(address) = changed {
            self.up.send_modify(|up| up.rdma_address = address);
        }
    }

    /// Brings the metrics up to date that are not counted where they arise.
    fn measure(&mut self) {
        self.links.measure();
        self.metrics.set_pg_states(&primary_pg_states(&self.pgs));
        let (sum, max) = self.pgs.waiting();
        Metrics::set_waiting(sum, max);
        Metrics::set_usage(&self.storage.store().usage(), self.storage.store().is_full());
        if let Some(pools) = self.storage.store().pool_usage() {
            self.metrics.set_pool_usage(&pools);
        }
        Metrics::set_recovery_read_bytes(self.recovery.read_bytes());
    }

    fn report_usage(&mut self, is_due: bool) {
        let links = self.links.count_accepted(&self.context);
        let read_bytes = self.recovery.read_bytes();
        let store = self.storage.store();
        self.reports.usage(&self.context, &self.pgs, store, read_bytes, links, is_due);
    }
}
