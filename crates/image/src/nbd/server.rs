//! The NBD server: connections on a reactor's thread, the protocol session of each, and the images
//! that they share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_reactor::{ListenAddress, LocalRuntime, Stream};

use super::byte_budget::ByteBudget;
use super::protocol::{
    Action, ErrorCode, ExportInfo, NbdSession, OpenError, OpenErrorKind, OpenPurpose, Outcome, Request,
    RequestKind, SessionConfig, StatusExtent,
};
use crate::{AttachedImage, Bridge, ImageAdmin, ImageError};

/// Bytes of all requests of one connection that are being served or whose answers wait to be sent.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// Answers that may wait for a client that reads slowly before their bytes count as in service.
const UNSENT_BYTES_MAX: usize = 8 << 20;
const UNSENT_POLL: Duration = Duration::from_millis(5);
/// Connections served at once.
const CONNECTIONS_MAX: usize = 1024;
/// A client that has not chosen an image after this long is cut off.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(20);
/// An image stays attached for this long after its last connection went, because clients such as
/// nbdcopy and fio connect several times in a row.
const LINGER: Duration = Duration::from_secs(2);
/// How long a second connection waits for an image that is being attached or detached.
const ATTACH_POLL: Duration = Duration::from_millis(20);

enum Export {
    /// Some task is attaching or detaching it.
    Busy,
    Attached {
        image: Rc<AttachedImage>,
        connections: usize,
    },
}

/// Serves all images of a cluster.
pub struct NbdServer {
    runtime: LocalRuntime,
    client: LocalClient,
    bridge: Bridge,
    admin: ImageAdmin,
    exports: RefCell<HashMap<String, Export>>,
    connections: Cell<usize>,
}

struct Connection {
    server: Rc<NbdServer>,
    stream: Stream,
    session: RefCell<NbdSession>,
    image: RefCell<Option<(String, Rc<AttachedImage>)>>,
    is_over: Cell<bool>,
    budget: ByteBudget,
}

impl NbdServer {
    /// A server that reaches the cluster through `client`.
    pub fn new(client: &LocalClient, bridge: Bridge, admin: ImageAdmin) -> Rc<Self> {
        Rc::new(NbdServer {
            runtime: client.runtime().clone(),
            client: client.clone(),
            bridge,
            admin,
            exports: RefCell::default(),
            connections: Cell::new(0),
        })
    }

    /// Listens and serves connections from then on; returns the address with the chosen port.
    pub fn listen(self: &Rc<Self>, address: &ListenAddress) -> std::io::Result<ListenAddress> {
        let (listener, address) = self.runtime.listen(address)?;
        let server = Rc::clone(self);
        self.runtime.spawn(async move {
            loop {
                let stream = listener.accept().await;
                if server.connections.get() < CONNECTIONS_MAX {
                    server.connections.set(server.connections.get() + 1);
                    server.runtime.spawn(serve(Rc::clone(&server), stream));
                }
            }
        });
        Ok(address)
    }

    /// The image for one more connection, attached if it is not yet.
    async fn open(&self, name: &str) -> Result<Rc<AttachedImage>, ImageError> {
        loop {
            match self.exports.borrow_mut().get_mut(name) {
                Some(Export::Attached { image, connections }) if !image.is_lost.get() => {
                    *connections += 1;
                    return Ok(Rc::clone(image));
                }
                Some(Export::Busy) => {}
                _ => break,
            }
            self.runtime.sleep(ATTACH_POLL).await;
        }
        self.exports.borrow_mut().insert(name.into(), Export::Busy);
        let attached = AttachedImage::attach(&self.client, &self.bridge, &self.admin, name, "NBD server").await;
        let mut exports = self.exports.borrow_mut();
        match attached {
            Ok(image) => {
                let image = Rc::new(image);
                exports.insert(name.into(), Export::Attached { image: Rc::clone(&image), connections: 1 });
                Ok(image)
            }
            Err(error) => {
                exports.remove(name);
                Err(error)
            }
        }
    }

    /// A connection is over. The last one gives the image back after a while.
    fn release(self: &Rc<Self>, name: String, image: Rc<AttachedImage>) {
        if !self.count_down(&name, &image) {
            return;
        }
        let server = Rc::clone(self);
        self.runtime.spawn(async move {
            server.runtime.sleep(LINGER).await;
            let is_unused = matches!(
                server.exports.borrow().get(&name),
                Some(Export::Attached { image: current, connections: 0 }) if Rc::ptr_eq(current, &image)
            );
            if is_unused {
                server.exports.borrow_mut().insert(name.clone(), Export::Busy);
                if let Err(error) = image.detach().await {
                    tracing::warn!("image '{name}' was not given back cleanly: {error}");
                }
                server.exports.borrow_mut().remove(&name);
            }
        });
    }

    fn count_down(&self, name: &str, image: &Rc<AttachedImage>) -> bool {
        match self.exports.borrow_mut().get_mut(name) {
            Some(Export::Attached { image: current, connections }) if Rc::ptr_eq(current, image) => {
                *connections -= 1;
                *connections == 0
            }
            _ => false,
        }
    }
}

async fn serve(server: Rc<NbdServer>, stream: Stream) {
    let session = NbdSession::new(SessionConfig::default());
    let connection = Rc::new(Connection {
        server: Rc::clone(&server),
        stream,
        session: RefCell::new(session),
        image: RefCell::default(),
        is_over: Cell::new(false),
        budget: ByteBudget::new(REQUEST_BYTES_MAX),
    });
    connection.pump();
    let watched = Rc::downgrade(&connection);
    let runtime = server.runtime.clone();
    server.runtime.spawn(async move {
        runtime.sleep(NEGOTIATION_LIMIT).await;
        if let Some(connection) = watched.upgrade()
            && connection.image.borrow().is_none()
        {
            connection.stream.abort();
        }
    });
    while !connection.session.borrow().is_closed() {
        if connection.stream.receive().await.is_err() {
            break;
        }
        connection.take_received();
    }
    connection.stream.abort();
    connection.is_over.set(true);
    server.connections.set(server.connections.get() - 1);
    connection.give_image_back();
}

impl Connection {
    fn give_image_back(&self) {
        if let Some((name, image)) = self.image.borrow_mut().take() {
            self.server.release(name, image);
        }
    }

    fn take_received(self: &Rc<Self>) {
        loop {
            let consumed = self.stream.with_received(|buffer| {
                let before = buffer.len();
                self.session.borrow_mut().receive(buffer);
                before - buffer.len()
            });
            self.pump();
            let session = self.session.borrow();
            if session.is_saturated() {
                // Nothing more is taken from this client until requests are done.
                self.stream.pause();
                return;
            }
            if consumed.unwrap_or(0) == 0 {
                return self.stream.expect_bytes(session.needed_bytes());
            }
        }
    }

    /// Carries out what the session wants.
    fn pump(self: &Rc<Self>) {
        loop {
            let Some(action) = self.session.borrow_mut().next_action() else { return };
            match action {
                Action::Send(bytes) => self.stream.send([bytes]),
                Action::Request(request) => {
                    let connection = Rc::clone(self);
                    self.server.runtime.spawn(async move { connection.handle(request).await });
                }
                Action::OpenExport { name, purpose } => {
                    let connection = Rc::clone(self);
                    self.server.runtime.spawn(async move {
                        let opened = connection.open(&name, purpose).await;
                        if connection.is_over.get() {
                            return connection.give_image_back();
                        }
                        connection.session.borrow_mut().export_opened(opened);
                        connection.go_on();
                    });
                }
                Action::ListExports => {
                    let connection = Rc::clone(self);
                    self.server.runtime.spawn(async move {
                        let admin = connection.server.admin.clone();
                        let listed = connection.server.bridge.run(async move { admin.list().await }).await;
                        let names = listed.unwrap_or_else(|error| {
                            tracing::warn!("cannot list images for an NBD client: {error}");
                            Vec::new()
                        });
                        let names = names.into_iter().map(|record| record.name).collect();
                        connection.session.borrow_mut().exports_listed(names);
                        connection.go_on();
                    });
                }
                Action::Close { reason } => {
                    tracing::debug!("NBD connection closed: {reason:?}");
                    self.stream.close_after_send();
                }
            }
        }
    }

    /// Something that the session waited for is done.
    fn go_on(self: &Rc<Self>) {
        self.pump();
        if !self.session.borrow().is_saturated() {
            self.stream.resume();
        }
    }

    async fn open(&self, name: &str, purpose: OpenPurpose) -> Result<ExportInfo, OpenError> {
        let size_bytes = match purpose {
            OpenPurpose::Inspect => {
                let (admin, wanted) = (self.server.admin.clone(), name.to_owned());
                let found = self.server.bridge.run(async move { admin.get(&wanted).await }).await;
                found.map(|(record, _)| record.size_bytes).map_err(open_error)?
            }
            OpenPurpose::Serve => {
                let image = self.server.open(name).await.map_err(open_error)?;
                *self.image.borrow_mut() = Some((name.to_owned(), Rc::clone(&image)));
                // It may have been attached for another connection before it grew.
                let (admin, wanted) = (self.server.admin.clone(), name.to_owned());
                let (record, _) =
                    self.server.bridge.run(async move { admin.get(&wanted).await }).await.map_err(open_error)?;
                image.grow(record.size_bytes);
                image.size_bytes()
            }
        };
        Ok(ExportInfo { size_bytes, read_only: false, multi_conn: true, fast_zero: true })
    }

    async fn handle(self: Rc<Self>, request: Request) {
        let image = self.image.borrow().as_ref().map(|(_, image)| Rc::clone(image));
        let _grant;
        let outcome = match image {
            Some(image) => {
                _grant = self.budget.take(payload_bytes(&request.kind)).await;
                perform(&image, request.kind).await.unwrap_or_else(|error| {
                    tracing::warn!("NBD request failed: {error}");
                    failed(&error)
                })
            }
            None => Outcome::Failed { code: ErrorCode::ShuttingDown, message: "the image is closed".into() },
        };
        self.session.borrow_mut().reply(request.id, outcome);
        self.go_on();
        // The bytes count until a slow reader has taken them.
        while !self.is_over.get() && self.stream.unsent_bytes() > UNSENT_BYTES_MAX {
            self.server.runtime.sleep(UNSENT_POLL).await;
        }
    }
}

fn payload_bytes(kind: &RequestKind) -> u64 {
    match kind {
        RequestKind::Read { length, .. } => u64::from(*length),
        RequestKind::Write { data, .. } => data.len() as u64,
        _ => 0,
    }
}

async fn perform(image: &AttachedImage, kind: RequestKind) -> Result<Outcome, ImageError> {
    match kind {
        RequestKind::Read { offset, length } => Ok(Outcome::Data(image.read(offset, length).await?)),
        // Every acknowledged write is durable on all members, so FUA and FLUSH ask for nothing more.
        RequestKind::Write { offset, data, .. } => image.write(offset, &data).await.map(|()| Outcome::Done),
        RequestKind::Flush => Ok(Outcome::Done),
        RequestKind::Trim { offset, length, .. } => {
            image.trim(offset, length.into()).await.map(|()| Outcome::Done)
        }
        RequestKind::WriteZeroes { offset, length, .. } => {
            image.write_zeroes(offset, length.into()).await.map(|()| Outcome::Done)
        }
        RequestKind::BlockStatus { offset, length, one_extent } => {
            let mut extents = image.extents(offset, length.into()).await?;
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
        ImageError::Lost(_) => ErrorCode::ShuttingDown,
        _ => ErrorCode::Io,
    };
    Outcome::Failed { code, message: error.to_string() }
}

fn open_error(error: ImageError) -> OpenError {
    let kind = match error {
        ImageError::NoSuchImage(_) => OpenErrorKind::Unknown,
        _ => OpenErrorKind::Policy,
    };
    OpenError { kind, message: error.to_string() }
}
