//! One connection of a host: the queue's session, and its actions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use atoll_connection_limits::Place;
use atoll_exports::{ByteBudget, ByteGrant, Client, ConnectionRequests, PATIENCE_MS, Running, Transport};
use atoll_image::ImageError;
use atoll_metrics::current_span::within;
use atoll_reactor::Stream;
use atoll_security_log::{SecurityEvent, note};

use crate::association::Association;
use crate::authentication::Unproved;
use crate::handshake::TlsPeer;
use crate::metrics;
use crate::perform::{perform, status_of};
use crate::protocol::{
    Action, CloseReason, CommandId, ConnectRefusal, ConnectRequest, IoKind, Namespace, QueueConfig, QueueSession,
    Response, Status,
};
use crate::target::{Caller, Demands, NvmeTarget};
use crate::tls::TlsChannel;

/// Bytes of all commands of one connection that are being served or whose answers wait to be sent, of those that all
/// connections have.
const COMMAND_BYTES_MAX: u64 = 16 << 20;
/// Answers that may wait for a host that reads slowly before their bytes count as in service.
const UNSENT_BYTES_MAX: usize = 4 << 20;
const UNSENT_POLL: Duration = Duration::from_millis(5);
const ARRIVING_POLL: Duration = Duration::from_secs(1);
/// A host that has not connected a queue after this long is cut off.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Connection {
    pub(crate) target: Rc<NvmeTarget>,
    pub(crate) transport: Transport<TlsChannel>,
    /// The host that has proved by TLS that it has a key.
    pub(crate) tls_peer: RefCell<Option<TlsPeer>>,
    pub(crate) session: RefCell<QueueSession>,
    /// Until the host has proved itself, if it must.
    pub(crate) unproved: RefCell<Option<Unproved>>,
    association: RefCell<Option<Rc<Association>>>,
    pub queue_id: Cell<u16>,
    /// Requests of an I/O queue.
    requests: RefCell<Option<Rc<ConnectionRequests>>>,
    is_over: Cell<bool>,
    budget: ByteBudget,
    /// Memory for data that the host was asked to send.
    arriving: RefCell<VecDeque<ByteGrant>>,
    /// Bytes of all data that it was asked to send, and the part that has arrived or ended.
    promised: Cell<u64>,
    arrived: Cell<u64>,
    /// Bytes of all that was sent to it, or waits to be.
    queued: Cell<u64>,
    /// True while it waits for room for more of it.
    awaits_room: Cell<bool>,
    /// Commands that wait for memory.
    waits: Cell<usize>,
    place: Place,
}

/// Serves a host's queue to its end.
pub(crate) async fn serve(target: Rc<NvmeTarget>, stream: Stream, place: Place) {
    let connection = Rc::new(Connection {
        target: Rc::clone(&target),
        transport: Transport::new(stream),
        tls_peer: RefCell::default(),
        session: RefCell::new(QueueSession::new(QueueConfig::default())),
        unproved: RefCell::default(),
        association: RefCell::default(),
        queue_id: Cell::new(0),
        requests: RefCell::default(),
        is_over: Cell::new(false),
        budget: ByteBudget::new(COMMAND_BYTES_MAX),
        arriving: RefCell::default(),
        promised: Cell::new(0),
        arrived: Cell::new(0),
        queued: Cell::new(0),
        awaits_room: Cell::new(false),
        waits: Cell::new(0),
        place,
    });
    connection.close_when_evicted();
    let watched = Rc::downgrade(&connection);
    let runtime = target.runtime.clone();
    target.runtime.spawn(async move {
        runtime.sleep(CONNECT_LIMIT).await;
        if let Some(connection) = watched.upgrade()
            && !connection.session.borrow().is_connected()
        {
            connection.abort();
        }
    });
    if connection.begin().await {
        connection.take_all().await;
    }
    connection.abort();
    target.count_connections(-1);
    let association = connection.association.borrow_mut().take();
    if let Some(association) = association
        && connection.queue_id.get() == 0
    {
        target.end(association.controller_id);
    }
}

impl Connection {
    fn close_when_evicted(self: &Rc<Self>) {
        let (evicted, watched) = (self.place.evicted(), Rc::downgrade(self));
        self.target.runtime.spawn(async move {
            if evicted.await
                && let Some(connection) = watched.upgrade()
            {
                connection.abort();
            }
        });
    }

    /// Closes the connection now.
    pub fn abort(&self) {
        self.is_over.set(true);
        if let Some(requests) = &*self.requests.borrow() {
            requests.end();
        }
        self.transport.abort();
    }

    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// The namespace has changed.
    pub fn set_namespace(&self, namespace: Namespace) {
        self.session.borrow_mut().set_namespace(namespace);
    }

    /// Takes the host's bytes until there are no more.
    async fn take_all(self: &Rc<Self>) {
        loop {
            self.take_pdus();
            if self.session.borrow().is_closed()
                || self.transport.has_peer_closed()
                || self.transport.receive().await.is_err()
            {
                return;
            }
            if let Err(error) = self.transport.open_received() {
                let detail = format!("the connection ends because TLS was broken: {error}");
                note(SecurityEvent::RefusedClient, self.transport.peer_address(), detail);
                return self.transport.close();
            }
        }
    }

    fn take_pdus(self: &Rc<Self>) {
        if let Some(association) = &*self.association.borrow() {
            association.controller.borrow_mut().heard(self.target.runtime.now_ms());
        }
        loop {
            let has_taken = self.transport.take_unread(|unread| self.session.borrow_mut().receive(unread));
            self.arrived.set(self.session.borrow().finished_bytes());
            self.pump();
            // What has come for commands that are refused, or that need no data to be kept.
            drop(self.take_arrived(u64::MAX));
            if self.takes_no_more() {
                // Nothing more is taken from this host until something is done.
                return self.transport.pause();
            }
            if !has_taken {
                return self.transport.expect_bytes(self.session.borrow().needed_bytes());
            }
        }
    }

    /// Returns true if nothing may be taken from the host now.
    fn takes_no_more(&self) -> bool {
        self.waits.get() > 0 || self.session.borrow().is_saturated()
    }

    /// Carries out the session's actions.
    fn pump(self: &Rc<Self>) {
        while let Some(action) = self.next_action() {
            self.act(action);
        }
        self.transport.flush();
        self.make_room();
    }

    /// Sees to it that the host may send the data of its writes, once there is memory for it.
    fn make_room(self: &Rc<Self>) {
        let bytes = self.session.borrow().needed_room_bytes();
        if bytes == 0 || self.is_over.get() || self.awaits_room.replace(true) {
            return;
        }
        let connection = Rc::clone(self);
        self.target.runtime.spawn(async move {
            let (grant, _) = connection.target.memory.take(bytes as u64).await;
            let is_watched = connection.promised.get() > connection.arrived.get();
            connection.arriving.borrow_mut().push_back(grant);
            connection.promised.set(connection.promised.get() + bytes as u64);
            connection.awaits_room.set(false);
            connection.session.borrow_mut().add_room(bytes);
            connection.go_on();
            while !is_watched && !connection.is_over.get() && connection.promised.get() > connection.arrived.get()
            {
                let promised = connection.promised.get();
                connection.cut_if_needed(ARRIVING_POLL, || connection.arrived.get() < promised).await;
            }
        });
    }

    /// Takes memory of arrived data, at most `bytes`.
    fn take_arrived(&self, bytes: u64) -> Vec<ByteGrant> {
        let (mut arriving, mut taken) = (self.arriving.borrow_mut(), Vec::new());
        let held: u64 = arriving.iter().map(ByteGrant::bytes).sum();
        let mut left = bytes.min(held - (self.promised.get() - self.arrived.get()));
        while left > 0 {
            let first = arriving.front_mut().expect("no more is taken than is held");
            let part = first.split(left);
            if first.bytes() == 0 {
                arriving.pop_front();
            }
            left -= part.bytes();
            taken.push(part);
        }
        taken
    }

    /// Waits for memory; all connections share a limited amount.
    async fn memory(self: &Rc<Self>, bytes: u64) -> ByteGrant {
        self.waits.set(self.waits.get() + 1);
        let (grant, has_waited) = self.target.memory.take(bytes).await;
        self.waits.set(self.waits.get() - 1);
        if has_waited {
            self.go_on();
        }
        grant
    }

    /// Waits as long as the host has not done its part, for which memory is held. Cuts it off if it has had its time
    /// and others wait.
    async fn cut_if_needed(&self, poll: Duration, is_held: impl Fn() -> bool) {
        let begun_ms = self.target.runtime.now_ms();
        while !self.is_over.get() && is_held() {
            let has_had_its_time = self.target.runtime.now_ms().saturating_sub(begun_ms) >= PATIENCE_MS;
            if has_had_its_time && self.target.memory.is_short() {
                let detail = "the connection ends: it holds memory that others need";
                note(SecurityEvent::RefusedClient, self.transport.peer_address(), detail);
                return self.abort();
            }
            self.target.runtime.sleep(poll).await;
        }
    }

    fn next_action(&self) -> Option<Action> {
        self.session.borrow_mut().next_action()
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Send(bytes) => {
                self.queued.set(self.queued.get() + bytes.len() as u64);
                self.transport.send(bytes);
            }
            Action::Io { id, kind } => {
                let (connection, arrived) = (Rc::clone(self), self.take_arrived(data_bytes(&kind)));
                self.target.runtime.spawn(async move { connection.serve_command(id, kind, arrived).await });
            }
            Action::Connect(request) => {
                let connection = Rc::clone(self);
                self.target.runtime.spawn(async move { connection.connect(request).await });
            }
            Action::AuthenticationSend { id, message } => {
                let connection = Rc::clone(self);
                self.target.runtime.spawn(async move { connection.authentication_send(id, message).await });
            }
            Action::AuthenticationReceive { id, length_bytes } => {
                let connection = Rc::clone(self);
                self.target
                    .runtime
                    .spawn(async move { connection.authentication_receive(id, length_bytes).await });
            }
            Action::Admin { id, command } => {
                let association = self.association.borrow().clone().expect("only a connected queue has commands");
                let response = association.controller.borrow_mut().execute(id, &command);
                if let Some(response) = response {
                    self.session.borrow_mut().complete(id, response);
                }
                association.pump();
            }
            Action::Close(reason) => {
                match reason {
                    CloseReason::Violated(error) => {
                        note(SecurityEvent::MalformedInput, self.transport.peer_address(), error);
                    }
                    reason => tracing::debug!("NVMe connection closed: {reason}"),
                }
                self.transport.close();
            }
        }
    }

    async fn connect(self: Rc<Self>, request: ConnectRequest) {
        let demands = self.target.demands_on(&request.host, self.transport.peer_address()).await;
        let allowed = demands.and_then(|demands| {
            self.check_channel(&request, demands.security)?;
            Ok(demands)
        });
        let connected = match allowed {
            Ok(Demands { secrets: Some(secrets), .. }) => {
                return self.begin_authentication(request, secrets).await;
            }
            Ok(Demands { secrets: None, .. }) => self.join(&request, None).await,
            Err(refusal) => Err(refusal),
        };
        if !self.is_over.get() {
            self.session.borrow_mut().connected(connected);
            self.go_on();
        }
    }

    /// Makes this a queue of its controller: its id, and the namespace for an I/O queue. `announced` is the number
    /// that the host got before.
    pub(crate) async fn join(
        self: &Rc<Self>,
        request: &ConnectRequest,
        announced: Option<u16>,
    ) -> Result<(u16, Option<Namespace>), ConnectRefusal> {
        let association = self.find_controller(request, announced).await?;
        if self.is_over.get() {
            if request.queue_id == 0 {
                self.target.end(association.controller_id);
            }
            // There is nobody to be told.
            return Err(ConnectRefusal::new(Status::InternalError));
        }
        self.queue_id.set(request.queue_id);
        association.add_queue(self);
        if let Some(image) = association.image.as_ref().filter(|_| request.queue_id > 0) {
            let requests = self.target.exports.requests(image, association.client.clone());
            self.requests.replace(Some(Rc::new(requests)));
        }
        let namespace = association.namespace().filter(|_| request.queue_id > 0);
        let joined = (association.controller_id, namespace);
        // Anybody may discover, for as long as nobody else needs the place.
        if association.image.is_some() {
            self.place.log_in();
        }
        self.association.replace(Some(association));
        Ok(joined)
    }

    /// Returns the host's claimed identity.
    pub(crate) fn client(&self, request: &ConnectRequest) -> Client {
        Client { address: self.transport.peer_address(), certificate: None, nvme_host: Some(request.host.clone()) }
    }

    /// Returns true if TLS protects the connection.
    pub(crate) fn is_secured(&self) -> bool {
        self.tls_peer.borrow().is_some()
    }

    async fn find_controller(
        &self,
        request: &ConnectRequest,
        announced: Option<u16>,
    ) -> Result<Rc<Association>, ConnectRefusal> {
        if request.queue_id > 0 {
            return self.target.find_drained(request, self.is_secured()).await;
        }
        let own_address = self.transport.local_address();
        let own_address = own_address.ok_or(ConnectRefusal::new(Status::InternalError))?;
        let is_secured = self.is_secured();
        let caller = Caller { client: self.client(request), own_address, is_secured, announced };
        self.target.associate(request, caller).await
    }

    /// Something that the session waited for is done.
    pub(crate) fn go_on(self: &Rc<Self>) {
        if self.is_over.get() {
            return;
        }
        self.pump();
        if self.transport.has_opened() && !self.takes_no_more() {
            self.take_pdus();
        }
        if !self.takes_no_more() {
            self.transport.resume();
        }
    }

    /// Answers a command.
    pub fn complete(self: &Rc<Self>, id: CommandId, response: Response) {
        self.session.borrow_mut().complete(id, response);
        self.go_on();
    }

    /// `arrived` is the memory that its data has arrived in.
    async fn serve_command(self: Rc<Self>, id: CommandId, kind: IoKind, arrived: Vec<ByteGrant>) {
        let association = self.association.borrow().clone();
        // A queue that is gone does nothing more.
        let Some(association) = association.filter(|_| !self.is_over.get()) else { return };
        let requests = self.requests.borrow().clone();
        let (operation, offset, bytes) = metrics::operation(&kind);
        let running = association.metrics.as_ref().map(|metrics| metrics.begin(operation, offset, bytes));
        let bytes = held_bytes(&kind);
        let _share = self.budget.take(bytes).await;
        let _memory = self.memory(bytes.saturating_sub(arrived.iter().map(ByteGrant::bytes).sum())).await;
        let in_flight = match &requests {
            Some(requests) => requests.begin().await,
            None => None,
        };
        running.iter().for_each(Running::begun);
        let done = match association.device() {
            Some(device) if in_flight.is_some() => match running.as_ref().and_then(Running::span) {
                None => perform(&device, &kind).await,
                Some(span) => Box::pin(within(|| Some(span), perform(&device, &kind))).await,
            },
            _ => Ok(Response::of(Status::AnaInaccessible)),
        };
        drop(in_flight);
        let response = done.as_ref().map_or_else(|error| Response::of(status_of(error)), Clone::clone);
        if let Some(running) = running {
            let error = match &done {
                Err(error) => Some(error.to_string()),
                Ok(response) if !response.status.is_success() => Some(format!("{:?}", response.status)),
                Ok(_) => None,
            };
            running.answered(error.as_deref());
        }
        match &done {
            Err(ImageError::Lost(_)) => association.lost(),
            Err(error) => tracing::warn!("an NVMe command failed: {error}"),
            Ok(_) => {}
        }
        if let IoKind::CompareAndWrite { write, .. } = kind {
            let of_write = if response.status.is_success() { Status::Success } else { Status::FailedFused };
            self.session.borrow_mut().complete(id, response);
            self.complete(write, Response::of(of_write));
        } else {
            self.complete(id, response);
        }
        // The bytes count until a slow reader has taken them.
        let queued = self.queued.get();
        let is_unsent = || {
            let unsent_bytes = self.transport.unsent_bytes();
            unsent_bytes > UNSENT_BYTES_MAX && self.queued.get().saturating_sub(unsent_bytes as u64) < queued
        };
        self.cut_if_needed(UNSENT_POLL, is_unsent).await;
    }
}

/// Returns the number of bytes of it that the host has sent.
fn data_bytes(kind: &IoKind) -> u64 {
    match kind {
        IoKind::Write { data, .. } => data.len() as u64,
        IoKind::Compare { expected, .. } => expected.len() as u64,
        IoKind::CompareAndWrite { data, .. } => 2 * data.len() as u64,
        IoKind::Read(_) | IoKind::Flush | IoKind::WriteZeroes(_) | IoKind::Trim(_) => 0,
    }
}

/// Memory that a command takes.
fn held_bytes(kind: &IoKind) -> u64 {
    match kind {
        IoKind::Read(range) => range.length,
        IoKind::Write { data, .. } => data.len() as u64,
        IoKind::Compare { expected, .. } => 2 * expected.len() as u64,
        IoKind::CompareAndWrite { data, .. } => 3 * data.len() as u64,
        IoKind::Flush | IoKind::WriteZeroes(_) | IoKind::Trim(_) => 0,
    }
}
