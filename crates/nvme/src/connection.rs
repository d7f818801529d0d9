//! One connection of a host: the queue's session, and what it wants done.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use atoll_exports::{ByteBudget, Client, ConnectionRequests, Running, Transport};
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

/// Bytes of all commands of one connection that are being served or whose answers wait to be sent.
const COMMAND_BYTES_MAX: u64 = 16 << 20;
/// Answers that may wait for a host that reads slowly before their bytes count as in service.
const UNSENT_BYTES_MAX: usize = 4 << 20;
const UNSENT_POLL: Duration = Duration::from_millis(5);
/// A host that has not connected a queue after this long is cut off.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Connection {
    pub(crate) target: Rc<NvmeTarget>,
    pub(crate) transport: Transport<TlsChannel>,
    /// Who has proved by TLS that it has a key.
    pub(crate) tls_peer: RefCell<Option<TlsPeer>>,
    pub(crate) session: RefCell<QueueSession>,
    /// Until the host has proved itself, if it must.
    pub(crate) unproved: RefCell<Option<Unproved>>,
    association: RefCell<Option<Rc<Association>>>,
    pub queue_id: Cell<u16>,
    /// Of an I/O queue.
    requests: RefCell<Option<Rc<ConnectionRequests>>>,
    is_over: Cell<bool>,
    budget: ByteBudget,
}

/// Serves a host's queue to its end.
pub(crate) async fn serve(target: Rc<NvmeTarget>, stream: Stream) {
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
    });
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

    /// Takes what the host sends until there is no more.
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
                tracing::warn!(
                    "the connection of {} ends because TLS was broken: {error}",
                    self.transport.peer_address()
                );
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
            self.pump();
            let session = self.session.borrow();
            if session.is_saturated() {
                // Nothing more is taken from this host until something is done.
                return self.transport.pause();
            }
            if !has_taken {
                return self.transport.expect_bytes(session.needed_bytes());
            }
        }
    }

    /// Carries out what the session wants.
    fn pump(self: &Rc<Self>) {
        while let Some(action) = self.next_action() {
            self.act(action);
        }
        self.transport.flush();
    }

    fn next_action(&self) -> Option<Action> {
        self.session.borrow_mut().next_action()
    }

    fn act(self: &Rc<Self>, action: Action) {
        match action {
            Action::Send(bytes) => self.transport.send(bytes),
            Action::Io { id, kind } => {
                let connection = Rc::clone(self);
                self.target.runtime.spawn(async move { connection.serve_command(id, kind).await });
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
        let demands = self.target.demands_on(&request.host).await;
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

    /// Makes this a queue of its controller: its id, and the namespace for an I/O queue. `announced` is what the host was
    /// told before.
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
        self.association.replace(Some(association));
        Ok(joined)
    }

    /// Who the host says that it is.
    pub(crate) fn client(&self, request: &ConnectRequest) -> Client {
        Client { address: self.transport.peer_address(), certificate: None, nvme_host: Some(request.host.clone()) }
    }

    /// Whether TLS protects what is sent.
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
        if self.transport.has_opened() && !self.session.borrow().is_saturated() {
            self.take_pdus();
        }
        if !self.session.borrow().is_saturated() {
            self.transport.resume();
        }
    }

    /// Answers a command.
    pub fn complete(self: &Rc<Self>, id: CommandId, response: Response) {
        self.session.borrow_mut().complete(id, response);
        self.go_on();
    }

    async fn serve_command(self: Rc<Self>, id: CommandId, kind: IoKind) {
        let association = self.association.borrow().clone();
        // A queue that is gone does nothing more.
        let Some(association) = association.filter(|_| !self.is_over.get()) else { return };
        let requests = self.requests.borrow().clone();
        let (operation, offset, bytes) = metrics::operation(&kind);
        let running = association.metrics.as_ref().map(|metrics| metrics.begin(operation, offset, bytes));
        let _grant = self.budget.take(held_bytes(&kind)).await;
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
        while !self.is_over.get() && self.transport.unsent_bytes() > UNSENT_BYTES_MAX {
            self.target.runtime.sleep(UNSENT_POLL).await;
        }
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
