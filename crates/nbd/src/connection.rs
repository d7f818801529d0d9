//! One client's connection: the protocol session, and its actions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use atoll_connection_limits::Place;
use atoll_exports::{
    Attached, ByteBudget, ByteGrant, Client, ConnectionRequests, Description, ImageMetrics, OpenError,
    PATIENCE_MS, Running, Transport, UNGRANTED_BYTES_MAX,
};
use atoll_image::{ImageError, OpenImage};
use atoll_metrics::current_span::within;
use atoll_metrics::tls as tls_metrics;
use atoll_reactor::Stream;
use atoll_security_log::{SecurityEvent, note};
use rustls::ServerConfig;

use crate::metrics;
use crate::protocol::{
    Action, CloseReason, ErrorCode, ExportInfo, NbdSession, OpenPurpose, Outcome, Request, RequestKind,
    SessionConfig, StatusExtent, TlsPolicy,
};
use crate::server::{NbdServer, PURPOSE};
use crate::tls::{ChannelError, TlsChannel};

/// Bytes of all requests of one connection that are being served or whose answers wait to be sent, of those that all
/// connections have.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Answers that may wait for a client that reads slowly before their bytes count as in service.
const UNSENT_BYTES_MAX: usize = 8 << 20;
const UNSENT_POLL: Duration = Duration::from_millis(5);
const ARRIVING_POLL: Duration = Duration::from_secs(1);
/// A client that has not chosen an image after this long is cut off.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(20);

struct Connection {
    server: Rc<NbdServer>,
    transport: Transport<TlsChannel>,
    session: RefCell<NbdSession>,
    /// For STARTTLS.
    tls_config: Option<Arc<ServerConfig>>,
    opened: RefCell<Option<Opened>>,
    metrics: RefCell<Option<ImageMetrics>>,
    is_over: Cell<bool>,
    budget: ByteBudget,
    /// For the message that is arriving, if it is a long one.
    arriving: RefCell<Option<ByteGrant>>,
    /// Long messages so far.
    long_messages: Cell<u64>,
    /// Bytes of all that was sent to the client, or waits to be.
    queued: Cell<u64>,
    /// Waits for memory: for requests, or for a message that is to arrive.
    waits: Cell<usize>,
    place: Place,
}

/// The image that the client has chosen.
struct Opened {
    name: String,
    device: Rc<OpenImage>,
    client: Client,
    requests: Rc<ConnectionRequests>,
    attached: Attached,
}

/// Serves a client to its end.
pub(crate) async fn serve(server: Rc<NbdServer>, stream: Stream, tls: TlsPolicy, place: Place) {
    let session = NbdSession::new(SessionConfig { tls, ..SessionConfig::default() });
    let connection = Rc::new(Connection {
        server: Rc::clone(&server),
        transport: Transport::new(stream),
        session: RefCell::new(session),
        tls_config: server.tls_config(),
        opened: RefCell::default(),
        metrics: RefCell::default(),
        is_over: Cell::new(false),
        budget: ByteBudget::new(REQUEST_BYTES_MAX),
        arriving: RefCell::default(),
        long_messages: Cell::new(0),
        queued: Cell::new(0),
        waits: Cell::new(0),
        place,
    });
    connection.pump();
    connection.close_when_evicted();
    let watched = Rc::downgrade(&connection);
    let runtime = server.runtime.clone();
    server.runtime.spawn(async move {
        runtime.sleep(NEGOTIATION_LIMIT).await;
        if let Some(connection) = watched.upgrade()
            && connection.opened.borrow().is_none()
        {
            connection.transport.abort();
        }
    });
    while !connection.session.borrow().is_closed() {
        if connection.transport.receive().await.is_err() {
            break;
        }
        let was_handshaking = connection.is_handshaking();
        if let Err(error) = connection.transport.open_received() {
            connection.tls_failed(&error);
            break;
        }
        if was_handshaking && !connection.is_handshaking() {
            tls_metrics::handshake(true);
        }
        connection.take_messages();
        if connection.transport.has_peer_closed() {
            break;
        }
    }
    connection.transport.abort();
    connection.is_over.set(true);
    server.connections.set(server.connections.get() - 1);
    metrics::set_connections(server.connections.get());
    connection.give_device_back();
}

impl Connection {
    fn close_when_evicted(self: &Rc<Self>) {
        let (evicted, watched) = (self.place.evicted(), Rc::downgrade(self));
        self.server.runtime.spawn(async move {
            if evicted.await
                && let Some(connection) = watched.upgrade()
            {
                connection.transport.abort();
            }
        });
    }

    fn give_device_back(&self) {
        self.metrics.borrow_mut().take();
        if let Some(Opened { name, device, client, requests, attached }) = self.opened.borrow_mut().take() {
            drop(attached);
            requests.end();
            self.server.exports.release(name, device, &client);
        }
    }

    /// Returns true if TLS has begun and its handshake has not ended.
    fn is_handshaking(&self) -> bool {
        self.transport.with_tls(TlsChannel::is_handshaking).unwrap_or(false)
    }

    /// Returns the client's identity, as far as its socket and its certificate show it.
    fn client(&self) -> Client {
        let certificate = self.transport.with_tls(TlsChannel::client_certificate).flatten();
        Client { address: self.transport.peer_address(), certificate, nvme_host: None }
    }

    /// TLS has failed: nothing that the client sends from now on could be trusted.
    fn tls_failed(&self, error: &ChannelError) {
        if self.is_handshaking() {
            tls_metrics::handshake(false);
            note(SecurityEvent::FailedTls, self.transport.peer_address(), error);
        } else {
            let detail = format!("the connection ends because TLS was broken: {error}");
            note(SecurityEvent::RefusedClient, self.transport.peer_address(), detail);
        }
        self.transport.close();
    }

    fn take_messages(self: &Rc<Self>) {
        loop {
            let has_taken = self.transport.take_unread(|unread| self.session.borrow_mut().receive(unread));
            self.pump();
            if self.takes_no_more() {
                // Nothing more is taken from this client until requests are done.
                self.transport.pause();
                return;
            }
            if !has_taken {
                return self.expect_message();
            }
        }
    }

    /// Returns true if nothing may be taken from the client now.
    fn takes_no_more(&self) -> bool {
        self.waits.get() > 0 || self.session.borrow().is_saturated()
    }

    /// Makes room for the rest of a message, once there is memory for it.
    fn expect_message(self: &Rc<Self>) {
        let bytes = self.session.borrow().needed_bytes();
        if bytes <= UNGRANTED_BYTES_MAX || self.arriving.borrow().is_some() {
            return self.transport.expect_bytes(bytes);
        }
        self.transport.pause();
        let connection = Rc::clone(self);
        self.server.runtime.spawn(async move {
            connection.waits.set(connection.waits.get() + 1);
            let (grant, _) = connection.server.memory.take(bytes as u64).await;
            connection.waits.set(connection.waits.get() - 1);
            *connection.arriving.borrow_mut() = Some(grant);
            let number = connection.long_messages.get() + 1;
            connection.long_messages.set(number);
            connection.transport.expect_bytes(bytes);
            connection.go_on();
            let is_this = || connection.long_messages.get() == number && connection.arriving.borrow().is_some();
            connection.cut_if_needed(ARRIVING_POLL, is_this).await;
        });
    }

    /// Waits for memory; all connections share a limited amount.
    async fn memory(self: &Rc<Self>, bytes: u64) -> ByteGrant {
        self.waits.set(self.waits.get() + 1);
        let (grant, has_waited) = self.server.memory.take(bytes).await;
        self.waits.set(self.waits.get() - 1);
        if has_waited {
            self.go_on();
        }
        grant
    }

    /// Waits as long as the client has not done its part, for which memory is held. Cuts it off if it has had its
    /// time and others wait.
    async fn cut_if_needed(&self, poll: Duration, is_held: impl Fn() -> bool) {
        let begun_ms = self.server.runtime.now_ms();
        while !self.is_over.get() && is_held() {
            let has_had_its_time = self.server.runtime.now_ms().saturating_sub(begun_ms) >= PATIENCE_MS;
            if has_had_its_time && self.server.memory.is_short() {
                let detail = "the connection ends: it holds memory that others need";
                note(SecurityEvent::RefusedClient, self.transport.peer_address(), detail);
                return self.transport.abort();
            }
            self.server.runtime.sleep(poll).await;
        }
    }

    /// Carries out the session's actions.
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
        let connection = Rc::clone(self);
        match action {
            Action::Send(bytes) => {
                self.queued.set(self.queued.get() + bytes.len() as u64);
                self.transport.send(bytes);
            }
            Action::StartTls => self.start_tls(),
            Action::Request(request) => {
                let arrived = match &request.kind {
                    RequestKind::Write { data, .. } if data.len() > UNGRANTED_BYTES_MAX => self.arriving.take(),
                    _ => None,
                };
                self.server.runtime.spawn(async move { connection.handle(request, arrived).await });
            }
            Action::OpenExport { name, purpose } => {
                self.server.runtime.spawn(async move {
                    let opened = connection.open(&name, purpose).await;
                    if connection.is_over.get() {
                        return connection.give_device_back();
                    }
                    connection.session.borrow_mut().export_opened(opened);
                    connection.go_on();
                });
            }
            Action::ListExports => {
                self.server.runtime.spawn(async move {
                    let listed = connection.server.exports.list(&connection.client()).await;
                    let names = listed.unwrap_or_else(|error| {
                        let detail = format!("cannot list images for an NBD client: {error}");
                        note(SecurityEvent::RefusedClient, connection.transport.peer_address(), detail);
                        Vec::new()
                    });
                    connection.session.borrow_mut().exports_listed(names);
                    connection.go_on();
                });
            }
            Action::Close { reason } => {
                match reason {
                    CloseReason::Violated(error) => {
                        note(SecurityEvent::MalformedInput, self.transport.peer_address(), error);
                    }
                    reason => tracing::debug!("NBD connection closed: {reason:?}"),
                }
                self.transport.close();
            }
        }
    }

    fn start_tls(&self) {
        let config = self.tls_config.clone().expect("TLS is offered where there is a configuration");
        match TlsChannel::new(config) {
            Ok(channel) => self.transport.secure(channel),
            Err(error) => {
                tracing::error!("TLS cannot begin: {error}");
                self.transport.abort();
            }
        }
    }

    /// Something that the session waited for is done.
    fn go_on(self: &Rc<Self>) {
        if self.is_over.get() {
            // The client is gone.
            return;
        }
        self.pump();
        if self.transport.has_opened() && !self.takes_no_more() {
            self.take_messages();
        }
        if !self.takes_no_more() {
            self.transport.resume();
        }
    }

    /// Has the connection end when the client's right to an image is taken away.
    fn attach(self: &Rc<Self>, described: &Description, client: &Client) -> Attached {
        let connection = Rc::downgrade(self);
        self.server.exports.attach(&described.record, client, move || {
            if let Some(connection) = connection.upgrade() {
                connection.transport.abort();
            }
        })
    }

    async fn open(self: &Rc<Self>, name: &str, purpose: OpenPurpose) -> Result<ExportInfo, OpenError> {
        let client = self.client();
        let (size_bytes, read_only) = match purpose {
            OpenPurpose::Inspect => {
                let described = self.server.exports.describe(name, &client).await?;
                (described.size_bytes, described.is_read_only())
            }
            OpenPurpose::Serve => {
                let described = self.server.exports.describe(name, &client).await?;
                let attached = self.attach(&described, &client);
                let device = self.server.exports.open(name, &client, &described, &PURPOSE.into()).await?;
                *self.metrics.borrow_mut() = Some(ImageMetrics::of(name, &client.describe()));
                let about = (device.size_bytes(), device.is_read_only());
                let requests = Rc::new(self.server.exports.requests(name, client.clone()));
                let name = name.to_owned();
                *self.opened.borrow_mut() = Some(Opened { name, device, client, requests, attached });
                self.place.log_in();
                about
            }
        };
        Ok(ExportInfo { size_bytes, read_only, multi_conn: true, fast_zero: true })
    }

    /// `arrived` is the memory in which a long message has arrived.
    async fn handle(self: Rc<Self>, request: Request, arrived: Option<ByteGrant>) {
        let opened =
            self.opened.borrow().as_ref().map(|opened| (Rc::clone(&opened.device), Rc::clone(&opened.requests)));
        let running = self.metrics.borrow().as_ref().map(|metrics| {
            let (operation, offset, bytes) = metrics::operation(&request.kind);
            metrics.begin(operation, offset, bytes)
        });
        let bytes = payload_bytes(&request.kind);
        let _share = self.budget.take(bytes).await;
        let _memory = match arrived {
            Some(arrived) => arrived,
            None => self.memory(bytes).await,
        };
        let outcome = match opened {
            Some((device, requests)) => carry_out(&device, &requests, running.as_ref(), request.kind).await,
            None => image_closed(),
        };
        if let Some(running) = running {
            let error = match &outcome {
                Outcome::Failed { message, .. } => Some(&message[..]),
                _ => None,
            };
            running.answered(error);
        }
        self.session.borrow_mut().reply(request.id, outcome);
        self.go_on();
        // The bytes count until a slow reader has taken them.
        let queued = self.queued.get();
        let is_unsent = || {
            let unsent_bytes = self.transport.unsent_bytes();
            unsent_bytes > UNSENT_BYTES_MAX && self.queued.get().saturating_sub(unsent_bytes as u64) < queued
        };
        self.cut_if_needed(UNSENT_POLL, is_unsent).await;
    }
}

/// Carries a request out, unless its connection is over by now.
async fn carry_out(
    device: &OpenImage,
    requests: &ConnectionRequests,
    running: Option<&Running>,
    kind: RequestKind,
) -> Outcome {
    let Some(_in_flight) = requests.begin().await else { return image_closed() };
    running.into_iter().for_each(Running::begun);
    let done = match running.and_then(Running::span) {
        None => perform(device, kind).await,
        Some(span) => Box::pin(within(|| Some(span), perform(device, kind))).await,
    };
    done.unwrap_or_else(|error| {
        tracing::warn!("NBD request failed: {error}");
        failed(&error)
    })
}

fn image_closed() -> Outcome {
    Outcome::Failed { code: ErrorCode::ShuttingDown, message: "the image is closed".into() }
}

fn payload_bytes(kind: &RequestKind) -> u64 {
    match kind {
        RequestKind::Read { length, .. } => u64::from(*length),
        RequestKind::Write { data, .. } => data.len() as u64,
        _ => 0,
    }
}

async fn perform(device: &OpenImage, kind: RequestKind) -> Result<Outcome, ImageError> {
    match kind {
        RequestKind::Read { offset, length } => Ok(Outcome::Data(device.read(offset, length).await?)),
        // Every acknowledged write is durable on all members, so FUA and FLUSH ask for nothing more.
        RequestKind::Write { offset, data, .. } => {
            device.writable()?.write(offset, &data).await.map(|()| Outcome::Done)
        }
        RequestKind::Flush => Ok(Outcome::Done),
        RequestKind::Trim { offset, length, .. } => {
            device.writable()?.trim(offset, length.into()).await.map(|()| Outcome::Done)
        }
        RequestKind::WriteZeroes { offset, length, .. } => {
            device.writable()?.write_zeroes(offset, length.into()).await.map(|()| Outcome::Done)
        }
        RequestKind::BlockStatus { offset, length, one_extent } => {
            let mut extents = device.extents(offset, length.into()).await?;
            if one_extent {
                extents.truncate(1);
            }
            let status = |(length, is_hole)| StatusExtent { length, is_hole, is_zero: is_hole };
            Ok(Outcome::Extents(extents.into_iter().map(status).collect()))
        }
    }
}

fn failed(error: &ImageError) -> Outcome {
    let code = match error {
        _ if error.is_no_space() => ErrorCode::NoSpace,
        ImageError::Invalid(_) => ErrorCode::Invalid,
        ImageError::ReadOnly(_) => ErrorCode::NotPermitted,
        ImageError::Lost(_) => ErrorCode::ShuttingDown,
        _ => ErrorCode::Io,
    };
    Outcome::Failed { code, message: error.to_string() }
}
