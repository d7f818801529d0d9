//! Connections over RDMA: the loop and a [`Fabric`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use atoll_fabric::{Fabric, FabricError, LinkId, Settings, Way};
use atoll_types::limits::CONNECTIONS_MAX;
use atoll_types::transports::Transport;
use bytes::Bytes;
use io_uring::{opcode, types};

use crate::connection::{Connection, ConnectionId, ListenerId, PeerAddress};
use crate::reactor::{CloseCause, Event, Operation, Reactor};
use crate::transport::{Awaited, Carrier};
use crate::wake::Wake;

/// Address of a process that listens over RDMA: `PROVIDER:IP:PORT`, with the provider of libfabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaAddress {
    /// `verbs` for adapters, `tcp` for tests.
    pub provider: String,
    /// The address, as RDMA-CM takes it.
    pub address: SocketAddr,
}

impl FromStr for RdmaAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not PROVIDER:IP:PORT");
        let (provider, address) = text.split_once(':').ok_or_else(wrong)?;
        Ok(RdmaAddress { provider: provider.into(), address: address.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for RdmaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.provider, self.address)
    }
}

/// The fabric of a loop, and whose its links are.
struct Bound {
    fabric: Fabric,
    connections: HashMap<LinkId, ConnectionId>,
}

/// It is behind a lock because carriers use it, too; all of them are used by the loop's thread.
type Shared = Arc<Mutex<Bound>>;

fn lock(bound: &Shared) -> MutexGuard<'_, Bound> {
    bound.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Rdma {
    bound: Shared,
    listeners: BTreeMap<atoll_fabric::ListenerId, ListenerId>,
    /// True if the ring reports new events of it.
    is_watched: bool,
}

/// Addresses may be looked for at the same time.
const SEARCHES_MAX: usize = 32;

type Found = (ConnectionId, String, Result<Way, FabricError>);

/// Searches for ways to addresses, each in a thread of its own: one may take seconds, and no other waits for it.
pub(crate) struct Searches {
    sender: mpsc::Sender<Found>,
    found: mpsc::Receiver<Found>,
    under_way: usize,
}

impl Default for Searches {
    fn default() -> Self {
        let (sender, found) = mpsc::channel();
        Searches { sender, found, under_way: 0 }
    }
}

impl Searches {
    fn start(&mut self, id: ConnectionId, address: RdmaAddress, wake: Wake) -> io::Result<()> {
        if self.under_way == SEARCHES_MAX {
            return Err(io::Error::other(format!(
                "{SEARCHES_MAX} addresses are being looked for over RDMA already"
            )));
        }
        let sender = self.sender.clone();
        std::thread::Builder::new().name("rdma-search".into()).spawn(move || {
            let way = Way::find(&address.provider, address.address);
            // The loop may have ended meanwhile.
            if sender.send((id, address.provider, way)).is_ok() {
                wake.wake();
            }
        })?;
        self.under_way += 1;
        Ok(())
    }

    fn next(&mut self) -> Option<Found> {
        let found = self.found.try_recv().ok()?;
        self.under_way -= 1;
        Some(found)
    }
}

/// The carrier of a connection whose peer is still looked for: nothing is asked of it.
struct Unbound;

impl Carrier for Unbound {
    fn transport(&self) -> Transport {
        Transport::Rdma
    }

    fn tells(&self) -> bool {
        true
    }

    fn send(&mut self, _: &mut VecDeque<Bytes>) -> io::Result<usize> {
        Ok(0)
    }

    fn receive(&mut self, _: &mut Received, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn has_come(&mut self, _: Awaited) -> bool {
        false
    }

    fn fall_asleep(&mut self, _: Awaited) {}

    fn awake(&mut self) {}
}

/// One link as the carrier of a connection.
struct RdmaLink {
    bound: Shared,
    id: LinkId,
}

impl Carrier for RdmaLink {
    fn transport(&self) -> Transport {
        Transport::Rdma
    }

    fn tells(&self) -> bool {
        true
    }

    fn peer_address(&self) -> PeerAddress {
        let peer = lock(&self.bound).fabric.peer(self.id);
        peer.map_or(PeerAddress::Unknown, |address| PeerAddress::Host(address.ip().to_canonical()))
    }

    fn send(&mut self, queue: &mut VecDeque<Bytes>) -> io::Result<usize> {
        Ok(lock(&self.bound).fabric.send(self.id, queue)?)
    }

    fn receive(&mut self, received: &mut Received, bytes_max: usize) -> io::Result<usize> {
        Ok(lock(&self.bound).fabric.receive(self.id, received, bytes_max)?)
    }

    fn has_come(&mut self, awaited: Awaited) -> bool {
        let fabric = &lock(&self.bound).fabric;
        (awaited.bytes > 0 && fabric.has_news(self.id)) || (awaited.room > 0 && fabric.has_room(self.id))
    }

    // The fabric has one descriptor for all links, which the loop watches.
    fn fall_asleep(&mut self, _: Awaited) {}

    fn awake(&mut self) {}
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        let mut bound = lock(&self.bound);
        bound.connections.remove(&self.id);
        bound.fabric.finish(self.id);
    }
}

impl Reactor {
    /// Listens over RDMA, at once or as soon as a device has the address: [`Reactor::rdma_address`] returns the
    /// address, and [`Reactor::take_rdma_problem`] the reason why not. Whatever the library does first is done
    /// here, so this may take a while: it is for the time before the loop.
    pub fn listen_rdma(&mut self, address: &RdmaAddress) -> io::Result<ListenerId> {
        let id = ListenerId(self.next_id());
        let rdma = self.rdma(&address.provider)?;
        let listener = lock(&rdma.bound).fabric.listen_patiently(address.address);
        rdma.listeners.insert(listener, id);
        Ok(id)
    }

    /// Where a listener listens over RDMA; nowhere while no device has its address.
    pub fn rdma_address(&self, listener: ListenerId) -> Option<RdmaAddress> {
        let rdma = self.rdma.as_ref()?;
        let (id, _) = rdma.listeners.iter().find(|(_, own)| **own == listener)?;
        let fabric = &lock(&rdma.bound).fabric;
        let address = fabric.listening(*id)?;
        Some(RdmaAddress { provider: fabric.provider().into(), address })
    }

    /// The last thing that kept a peer from a connection over RDMA, or had bytes copied in vain; once.
    pub fn take_rdma_problem(&mut self) -> Option<io::Error> {
        let problem = lock(&self.rdma.as_ref()?.bound).fabric.take_problem()?;
        Some(problem.into())
    }

    /// Begins to connect over RDMA.
    pub fn connect_rdma(&mut self, address: &RdmaAddress) -> io::Result<ConnectionId> {
        if let Some(rdma) = &self.rdma {
            rdma.check(&address.provider)?;
        }
        let id = ConnectionId(self.next_id());
        self.searches.start(id, address.clone(), self.wake.clone())?;
        self.connections.insert(id, Connection::carried(Box::new(Unbound), false));
        Ok(id)
    }

    /// Resumes connections to whose peers ways were found.
    fn take_searches(&mut self) {
        while let Some((id, provider, way)) = self.searches.next() {
            if !self.connections.contains_key(&id) {
                continue;
            }
            let begun = way.map_err(io::Error::from).and_then(|way| self.connect_by(id, &provider, way));
            if let Err(error) = begun {
                self.fail(id, CloseCause::Failed(error));
                self.forget_if_idle(id);
            }
        }
    }

    fn connect_by(&mut self, id: ConnectionId, provider: &str, way: Way) -> io::Result<()> {
        let shared = Arc::clone(&self.rdma(provider)?.bound);
        let mut bound = lock(&shared);
        let link = bound.fabric.connect(way)?;
        bound.connections.insert(link, id);
        drop(bound);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.carrier = Some(Box::new(RdmaLink { bound: shared, id: link }));
        }
        Ok(())
    }

    /// The fabric of this loop, which is made when it is first asked for.
    fn rdma(&mut self, provider: &str) -> io::Result<&mut Rdma> {
        if self.rdma.is_none() {
            let fabric = Fabric::open(Settings::new(provider, CONNECTIONS_MAX))?;
            let bound = Bound { fabric, connections: HashMap::new() };
            self.rdma =
                Some(Rdma { bound: Arc::new(Mutex::new(bound)), listeners: BTreeMap::new(), is_watched: false });
        }
        let rdma = self.rdma.as_mut().expect("it is made above");
        rdma.check(provider)?;
        Ok(rdma)
    }

    /// Something has come over RDMA.
    pub(crate) fn rdma_has_news(&mut self) {
        if let Some(rdma) = &mut self.rdma {
            rdma.is_watched = false;
        }
    }

    /// Returns how long the loop may sleep for events over RDMA; it is woken when one comes. No time if something
    /// is there already.
    pub(crate) fn until_rdma(&mut self, now: Instant) -> Option<Duration> {
        let rdma = self.rdma.as_mut()?;
        let bound = lock(&rdma.bound);
        let fabric = &bound.fabric;
        if fabric.has_work() || fabric.has_changed() {
            return Some(Duration::ZERO);
        }
        let until_deadline = fabric.deadline().map(|deadline| deadline.saturating_duration_since(now));
        if rdma.is_watched {
            return until_deadline;
        }
        if !fabric.may_wait() {
            return Some(Duration::ZERO);
        }
        rdma.is_watched = true;
        let descriptor = types::Fd(fabric.descriptor().as_raw_fd());
        drop(bound);
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build();
        self.submit(Operation::Rdma, entry);
        until_deadline
    }

    /// Takes data and events that have come over RDMA.
    pub(crate) fn poll_rdma(&mut self) {
        self.take_searches();
        let Some(rdma) = &self.rdma else { return };
        let shared = Arc::clone(&rdma.bound);
        let mut events = Vec::new();
        {
            let mut bound = lock(&shared);
            let Bound { fabric, connections } = &mut *bound;
            let is_late = || fabric.deadline().is_some_and(|deadline| deadline <= Instant::now());
            let has_news = !rdma.is_watched || fabric.has_work() || is_late();
            if has_news {
                fabric.poll(&mut events);
            }
            self.told.extend(fabric.take_changed().iter().filter_map(|link| connections.get(link)));
        }
        for event in events {
            self.rdma_event(event, &shared);
        }
    }

    fn rdma_event(&mut self, event: atoll_fabric::Event, shared: &Shared) {
        match event {
            atoll_fabric::Event::Accepted { listener, link } => {
                let carrier = RdmaLink { bound: Arc::clone(shared), id: link };
                if self.connections.len() >= CONNECTIONS_MAX {
                    return;
                }
                let id = ConnectionId(self.next_id());
                let rdma = self.rdma.as_ref().expect("its events come from it");
                let listener = rdma.listeners[&listener];
                lock(shared).connections.insert(link, id);
                self.connections.insert(id, Connection::carried(Box::new(carrier), true));
                self.told.insert(id);
                self.events.push_back(Event::Accepted { listener, connection: id });
            }
            atoll_fabric::Event::Connected(link) => {
                // It may have been given up meanwhile.
                let Some(id) = lock(shared).connections.get(&link).copied() else { return };
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.is_connected = true;
                    self.told.insert(id);
                    self.touched.insert(id);
                    self.events.push_back(Event::Connected(id));
                }
            }
            atoll_fabric::Event::Failed(link, error) => {
                let Some(id) = lock(shared).connections.remove(&link) else { return };
                self.fail(id, CloseCause::Failed(error.into()));
                self.forget_if_idle(id);
            }
        }
    }
}

impl Rdma {
    /// A process uses one provider.
    fn check(&self, provider: &str) -> io::Result<()> {
        match lock(&self.bound).fabric.provider() {
            chosen if chosen == provider => Ok(()),
            chosen => Err(io::Error::other(format!(
                "this process uses the libfabric provider '{chosen}' and cannot use '{provider}' too"
            ))),
        }
    }
}
