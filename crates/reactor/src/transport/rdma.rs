//! Connections over RDMA: the loop and a [`Fabric`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_buffers::Received;
use atoll_fabric::{Fabric, LinkId, Settings};
use atoll_types::limits::CONNECTIONS_MAX;
use atoll_types::transports::Transport;
use bytes::Bytes;
use io_uring::{opcode, types};

use crate::connection::{Connection, ConnectionId, ListenerId, PeerAddress};
use crate::reactor::{CloseCause, Event, Operation, Reactor};
use crate::transport::{Awaited, Carrier};

/// Where a process listens over RDMA: `PROVIDER:IP:PORT`, with the provider of libfabric by which it is reached.
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

/// The fabric of a loop. It is behind a lock because carriers use it, too; all of them are used by the loop's thread.
type Shared = Arc<Mutex<Fabric>>;

fn lock(fabric: &Shared) -> MutexGuard<'_, Fabric> {
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Rdma {
    fabric: Shared,
    listeners: BTreeMap<atoll_fabric::ListenerId, ListenerId>,
    /// Connections that are being made.
    connecting: HashMap<LinkId, ConnectionId>,
    /// The ring tells when something comes.
    is_watched: bool,
}

/// One link as the carrier of a connection.
struct RdmaLink {
    fabric: Shared,
    id: LinkId,
}

impl Carrier for RdmaLink {
    fn transport(&self) -> Transport {
        Transport::Rdma
    }

    fn peer_address(&self) -> PeerAddress {
        let peer = lock(&self.fabric).peer(self.id);
        peer.map_or(PeerAddress::Unknown, |address| PeerAddress::Host(address.ip().to_canonical()))
    }

    fn send(&mut self, queue: &mut VecDeque<Bytes>) -> io::Result<usize> {
        Ok(lock(&self.fabric).send(self.id, queue)?)
    }

    fn receive(&mut self, received: &mut Received, bytes_max: usize) -> io::Result<usize> {
        Ok(lock(&self.fabric).receive(self.id, received, bytes_max)?)
    }

    fn has_come(&mut self, awaited: Awaited) -> bool {
        let fabric = lock(&self.fabric);
        (awaited.bytes > 0 && fabric.has_news(self.id)) || (awaited.room > 0 && fabric.has_room(self.id))
    }

    // The fabric has one descriptor for all links, which the loop watches.
    fn fall_asleep(&mut self, _: Awaited) {}

    fn awake(&mut self) {}
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        lock(&self.fabric).finish(self.id);
    }
}

impl Reactor {
    /// Listens over RDMA; gives the listener and the address with the port that was chosen.
    pub fn listen_rdma(&mut self, address: &RdmaAddress) -> io::Result<(ListenerId, RdmaAddress)> {
        let id = ListenerId(self.next_id());
        let rdma = self.rdma(&address.provider)?;
        let (listener, bound) = lock(&rdma.fabric).listen(address.address)?;
        rdma.listeners.insert(listener, id);
        Ok((id, RdmaAddress { provider: address.provider.clone(), address: bound }))
    }

    /// Begins to connect over RDMA.
    pub fn connect_rdma(&mut self, address: &RdmaAddress) -> io::Result<ConnectionId> {
        let id = ConnectionId(self.next_id());
        let rdma = self.rdma(&address.provider)?;
        let link = lock(&rdma.fabric).connect(address.address)?;
        let carrier = RdmaLink { fabric: Arc::clone(&rdma.fabric), id: link };
        rdma.connecting.insert(link, id);
        self.connections.insert(id, Connection::carried(Box::new(carrier), false));
        // Of those that were given up, the fabric tells nothing.
        let (rdma, connections) = (self.rdma.as_mut().expect("it is made above"), &self.connections);
        rdma.connecting.retain(|_, id| connections.contains_key(id));
        Ok(id)
    }

    /// The fabric of this loop, which is made when it is first asked for.
    fn rdma(&mut self, provider: &str) -> io::Result<&mut Rdma> {
        if self.rdma.is_none() {
            let fabric = Fabric::open(Settings::new(provider, CONNECTIONS_MAX))?;
            self.rdma = Some(Rdma {
                fabric: Arc::new(Mutex::new(fabric)),
                listeners: BTreeMap::new(),
                connecting: HashMap::new(),
                is_watched: false,
            });
        }
        let rdma = self.rdma.as_mut().expect("it is made above");
        let chosen = lock(&rdma.fabric).provider().to_owned();
        match chosen == provider {
            true => Ok(rdma),
            false => Err(io::Error::other(format!(
                "this process uses the libfabric provider '{chosen}' and cannot use '{provider}' too"
            ))),
        }
    }

    /// Something has come over RDMA.
    pub(crate) fn rdma_has_news(&mut self) {
        if let Some(rdma) = &mut self.rdma {
            rdma.is_watched = false;
        }
    }

    /// How long the loop may sleep for what happens over RDMA; it is woken when something comes. No time if something is
    /// there already.
    pub(crate) fn until_rdma(&mut self, now: Instant) -> Option<Duration> {
        let rdma = self.rdma.as_mut()?;
        let fabric = lock(&rdma.fabric);
        if fabric.has_work() {
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
        drop(fabric);
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32).build();
        self.submit(Operation::Rdma, entry);
        until_deadline
    }

    /// Takes what has come over RDMA.
    pub(crate) fn poll_rdma(&mut self) {
        let Some(rdma) = &self.rdma else { return };
        let fabric = Arc::clone(&rdma.fabric);
        let mut events = Vec::new();
        {
            let mut fabric = lock(&fabric);
            let is_late = || fabric.deadline().is_some_and(|deadline| deadline <= Instant::now());
            if rdma.is_watched && !fabric.has_work() && !is_late() {
                return;
            }
            fabric.poll(&mut events);
        }
        for event in events {
            self.rdma_event(event);
        }
    }

    fn rdma_event(&mut self, event: atoll_fabric::Event) {
        let rdma = self.rdma.as_mut().expect("its events come from it");
        match event {
            atoll_fabric::Event::Accepted { listener, link } => {
                let carrier = RdmaLink { fabric: Arc::clone(&rdma.fabric), id: link };
                let listener = rdma.listeners[&listener];
                if self.connections.len() >= CONNECTIONS_MAX {
                    return;
                }
                let id = ConnectionId(self.next_id());
                self.connections.insert(id, Connection::carried(Box::new(carrier), true));
                self.carried.push(id);
                self.events.push_back(Event::Accepted { listener, connection: id });
            }
            atoll_fabric::Event::Connected(link) => {
                let Some(id) = rdma.connecting.remove(&link) else { return };
                // It may have been closed meanwhile.
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.is_connected = true;
                    self.carried.push(id);
                    self.touched.insert(id);
                    self.events.push_back(Event::Connected(id));
                }
            }
            atoll_fabric::Event::Failed(link, error) => {
                if let Some(id) = rdma.connecting.remove(&link) {
                    self.fail(id, CloseCause::Failed(error.into()));
                    self.forget_if_idle(id);
                }
            }
        }
    }
}
