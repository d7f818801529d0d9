//! All links of one thread.

mod completing;
mod listening;
mod opening;
mod receiving;
mod sending;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use listening::Listener;
pub use opening::Way;
use rustix::event::epoll;

use crate::device::Device;
use crate::error::FabricError;
use crate::link::{Link, Reading, Stage};
use crate::message::REFERRED_BYTES_MAX;
use crate::sys::{Completion, EventQueue, NetworkFabric};

/// How a fabric works. [`Settings::new`] has the values that are documented.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider of libfabric: `verbs` for RDMA, `tcp` for tests.
    pub provider: String,
    /// Links that there may be.
    pub links_max: usize,
    /// True if links of a device share their receives, where the device can.
    pub shares_receives: bool,
    /// True if memory that only this side uses is registered even where the device does not need it.
    pub registers_everything: bool,
    /// Buffers of 8 KiB for receives, for each device.
    pub receive_buffers_max: usize,
    /// Buffers of 8 KiB for sends, for each device.
    pub send_buffers_max: usize,
    /// Messages that peers may be promised beyond the first four of each link, for each device.
    pub extra_grant_max: usize,
    /// Pieces from this size on go by reference, in bytes.
    pub reference_bytes_min: usize,
    /// Bytes that are offered to one peer for reading and not read yet; one piece may be larger.
    pub referred_bytes_max: usize,
    /// The same for all peers of a device; bytes beyond it are copied into messages.
    pub referred_bytes_total_max: usize,
    /// Bytes of buffers for reads that are registered for the next time, for each device.
    pub read_target_bytes_max: usize,
    /// Bytes of memory that may be registered at a time, for each device. More is refused, as the system refuses it when
    /// no more may be locked.
    pub registered_bytes_max: usize,
    /// Longest time for a connection to open, and for a closed one to send its queue.
    pub patience: Duration,
}

impl Settings {
    /// Returns the usual settings, for `links_max` links.
    pub fn new(provider: &str, links_max: usize) -> Self {
        Settings {
            provider: provider.into(),
            links_max,
            shares_receives: true,
            registers_everything: false,
            receive_buffers_max: 24_576,
            send_buffers_max: 1024,
            extra_grant_max: 8192,
            reference_bytes_min: 32 << 10,
            referred_bytes_max: 8 << 20,
            referred_bytes_total_max: 256 << 20,
            read_target_bytes_max: 128 << 20,
            registered_bytes_max: usize::MAX,
            patience: Duration::from_secs(10),
        }
    }
}

/// Most references that a peer has received and not read.
const REFERENCES_MAX: usize = 64;
/// Most bytes of one read, so that a waiting process sees that the peer is alive.
const READ_BYTES_MAX: usize = 1 << 20;
const _: () = assert!(READ_BYTES_MAX <= REFERRED_BYTES_MAX);
/// Pause after which a waiting sender retries even if nothing has completed.
const RETRY: Duration = Duration::from_millis(10);
/// Interval of looks at events of connecting while messages come: each look is a system call.
const LOOK: Duration = Duration::from_millis(1);

/// Names a link of one fabric; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

/// Names an address that a fabric listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(u64);

/// Events of links that were not open yet. [`Fabric::receive`] and [`Fabric::send`] report those of open links.
#[derive(Debug)]
pub enum Event {
    /// A peer has connected.
    Accepted {
        /// Where it connected to.
        listener: ListenerId,
        /// The new link.
        link: LinkId,
    },
    /// A link that this side asked for is open.
    Connected(LinkId),
    /// A link that this side asked for cannot be had. It is gone.
    Failed(LinkId, FabricError),
}

/// Resources that a fabric holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Links, open or not.
    pub link_count: usize,
    /// Buffers for messages that have been made, in bytes.
    pub message_bytes: usize,
    /// Receives that are posted and shared.
    pub posted: usize,
    /// Messages that peers may send by shared receives.
    pub granted: usize,
    /// Bytes that peers may read now.
    pub referred_bytes: usize,
    /// Bytes of buffers for reads that are registered for the next time.
    pub kept_target_bytes: usize,
}

struct Network {
    name: String,
    fabric: Arc<NetworkFabric>,
    events: Arc<EventQueue>,
}

/// Streams over RDMA, for one thread.
pub struct Fabric {
    // Links are closed first, because devices work for them with memory that devices own.
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) listeners: BTreeMap<ListenerId, Listener>,
    pub(crate) devices: Vec<Device>,
    networks: Vec<Network>,
    settings: Settings,
    by_endpoint: HashMap<usize, LinkId>,
    by_token: HashMap<u64, LinkId>,
    /// Links that are opening or finishing.
    unsettled: BTreeSet<LinkId>,
    /// Links that may have something to send: a prepared message or an acknowledgement.
    due: BTreeSet<LinkId>,
    /// Links that wait for room: for a buffer, or of the device. A completion makes some.
    blocked: BTreeSet<LinkId>,
    /// When they try again without one.
    retry_at: Option<Instant>,
    /// Links with events since [`Fabric::take_changed`].
    changed: BTreeSet<LinkId>,
    /// When events of connecting were last looked for.
    looked_at: Instant,
    /// Room for completions, kept from poll to poll.
    completions: Vec<Completion>,
    /// The reason why this side has no RDMA link or copies data, until it is reported.
    problem: Option<FabricError>,
    waiting: OwnedFd,
    next_id: u64,
}

impl Fabric {
    /// Nothing is loaded: ways, and listening, bring libfabric with them.
    pub fn open(settings: Settings) -> Result<Self, FabricError> {
        Ok(Fabric {
            links: BTreeMap::new(),
            listeners: BTreeMap::new(),
            devices: Vec::new(),
            networks: Vec::new(),
            settings,
            by_endpoint: HashMap::new(),
            by_token: HashMap::new(),
            unsettled: BTreeSet::new(),
            due: BTreeSet::new(),
            blocked: BTreeSet::new(),
            retry_at: None,
            changed: BTreeSet::new(),
            looked_at: Instant::now(),
            completions: Vec::new(),
            problem: None,
            waiting: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            next_id: 1,
        })
    }

    /// The provider that was chosen.
    pub fn provider(&self) -> &str {
        &self.settings.provider
    }

    /// Becomes readable when [`Fabric::poll`] has something to do. Before sleeping on it, ask [`Fabric::may_wait`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }

    /// Returns true if the descriptor wakes a sleeper for every later event. If not, something has come.
    pub fn may_wait(&self) -> bool {
        self.networks.iter().enumerate().all(|(index, network)| {
            let devices = self.devices.iter().filter(|device| device.network == index && !device.is_gone());
            let queues: Vec<_> = devices.filter_map(|device| device.completions.as_deref()).collect();
            network.fabric.may_wait(&network.events, &queues)
        })
    }

    /// Returns true if [`Fabric::poll`] has work without new events.
    pub fn has_work(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns true if [`Fabric::take_changed`] has links to return.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns open links that have changed since the last call: they may have bytes, an error, or room. A caller
    /// that asks for each new link once, and then calls this, misses nothing.
    pub fn take_changed(&mut self) -> BTreeSet<LinkId> {
        std::mem::take(&mut self.changed)
    }

    /// A link waits for room.
    fn block(&mut self, id: LinkId) {
        self.blocked.insert(id);
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    /// There may be room again.
    fn unblock(&mut self) {
        self.retry_at = None;
        for id in std::mem::take(&mut self.blocked) {
            let Some(link) = self.links.get_mut(&id) else { continue };
            if matches!(link.reading, Reading::Blocked) {
                link.reading = Reading::Nothing;
            }
            self.due.insert(id);
            self.changed.insert(id);
        }
    }

    /// When [`Fabric::poll`] is to be called even if nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = |id: &LinkId| match self.links[id].stage {
            Stage::Opening(_, deadline) | Stage::Finishing(deadline) => Some(deadline),
            Stage::Open => None,
        };
        let listening = self.listeners.values().filter_map(Listener::due);
        let release = self.is_left().then_some(self.looked_at);
        self.unsettled.iter().filter_map(deadline).chain(self.retry_at).chain(listening).chain(release).min()
    }

    /// Returns true if no device that was in use is needed any more.
    fn is_left(&self) -> bool {
        let is_listening = || self.listeners.values().any(|listener| listener.endpoint.is_some());
        !self.networks.is_empty()
            && self.links.is_empty()
            && self.devices.iter().all(Device::is_gone)
            && !is_listening()
    }

    /// Closes the objects that keep libfabric loaded; a loaded library keeps devices open and finds no others.
    fn release(&mut self) {
        self.devices.clear();
        self.networks.clear();
    }

    #[cfg(test)]
    pub(crate) fn is_released(&self) -> bool {
        self.networks.is_empty()
    }

    /// Takes completed operations and sends the waiting bytes. Returns at once.
    pub fn poll(&mut self, events: &mut Vec<Event>) {
        let is_connecting = !self.unsettled.is_empty();
        if is_connecting {
            self.take_connecting(events);
        }
        let taken = self.take_completions(events);
        if !is_connecting && (taken.count == 0 || self.looked_at.elapsed() > LOOK) {
            self.take_connecting(events);
        }
        if taken.makes_room || self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.unblock();
        }
        for id in std::mem::take(&mut self.due) {
            self.acknowledge(id);
        }
        self.settle(events);
        if self.is_left() {
            self.release();
        }
        self.listen_again();
    }

    /// The last thing on this side that kept a peer from a link, or had bytes copied that were to be read by it;
    /// once. Links that this side opens report theirs by [`Event::Failed`].
    pub fn take_problem(&mut self) -> Option<FabricError> {
        let of_devices = self.devices.iter_mut().filter_map(Device::take_refusal).last();
        self.problem.take().or(of_devices)
    }

    /// Returns the address of the other end.
    pub fn peer(&self, id: LinkId) -> Option<SocketAddr> {
        self.links.get(&id).map(|link| link.peer)
    }

    /// Returns the resources in use.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage { link_count: self.links.len(), ..Usage::default() };
        for device in &self.devices {
            usage.message_bytes += device.buffer_count() * crate::message::MESSAGE_BYTES_MAX;
            usage.posted += device.posted;
            usage.granted += device.granted;
            usage.referred_bytes += device.referred_bytes;
            usage.kept_target_bytes += device.kept_target_bytes();
        }
        usage
    }

    fn watch(&self, descriptor: RawFd) -> Result<(), FabricError> {
        let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        crate::sys::with_descriptor(descriptor, |descriptor| epoll::add(&self.waiting, descriptor, data, flags))?;
        Ok(())
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
