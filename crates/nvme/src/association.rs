//! A controller with its queues and its image.
//!
//! Several gateways may serve an image to the same host, which then has several paths. Only one of them has the image
//! open: the one that holds its lock. On the others the namespace is inaccessible, and they take the image when its
//! lock is free, never before: its holder has given it back, or its lease has run out, and then the fence that comes
//! with the lock keeps whatever the former gateway still sends from being done.
//!
//! A host caches read data and unwritten changes. So a gateway takes the image again for a controller only if no
//! client but gateways of the same host has changed it since that controller had it, or was made. Otherwise the
//! controller loses its namespace, and the host reconnects.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};

use atoll_exports::{Attached, Client, ImageMetrics, OpenError, OpenErrorKind, OpenedExport};
use atoll_image::Purpose;
use atoll_types::records::ImageRecord;

use crate::connection::Connection;
use crate::protocol::{Controller, ControllerConfig, ControllerEvent, LBA_BYTES, Namespace, Subject};
use crate::target::{Caller, NvmeTarget};

/// Rounds between a discovery controller's looks for other subsystems.
const DISCOVERY_ROUNDS: u32 = 5;

/// A host's controller.
pub(crate) struct Association {
    target: Weak<NvmeTarget>,
    pub controller: RefCell<Controller>,
    pub controller_id: u16,
    pub client: Client,
    own_address: SocketAddr,
    /// True if its admin queue came with TLS, as all its queues must then.
    pub is_secured: bool,
    /// The image, unless this is a discovery controller.
    pub image: Option<String>,
    device: RefCell<Option<OpenedExport>>,
    attached: RefCell<Option<Attached>>,
    /// The image's generation as the host knows it.
    seen_generation: Cell<u64>,
    pub metrics: Option<ImageMetrics>,
    admin_queue: RefCell<Weak<Connection>>,
    io_queues: RefCell<Vec<Weak<Connection>>>,
    rounds: Cell<u32>,
    is_looking: Cell<bool>,
    is_over: Cell<bool>,
}

/// An image for a controller.
pub(crate) struct Opened {
    /// If this gateway has it.
    pub device: Option<OpenedExport>,
    pub size_bytes: u64,
    pub is_read_only: bool,
    pub created_unix_ms: u64,
    /// Generation of this gateway as the writer, or else of the last writer.
    pub generation: u64,
    /// The image's record, which lets the host use it.
    pub record: ImageRecord,
}

impl Association {
    pub fn new(
        target: &Rc<NvmeTarget>,
        config: ControllerConfig,
        caller: Caller,
        device: Option<OpenedExport>,
        generation: u64,
    ) -> Rc<Self> {
        let Caller { client, own_address, is_secured, .. } = caller;
        let is_image = matches!(config.subject, Subject::Namespace { .. });
        let image = target.names.image(&config.subsystem).filter(|_| is_image).map(ToOwned::to_owned);
        let metrics = image.as_ref().map(|image| ImageMetrics::of(image, &client.describe()));
        let controller_id = config.controller_id;
        Rc::new(Association {
            target: Rc::downgrade(target),
            controller: RefCell::new(Controller::new(config, target.runtime.now_ms())),
            controller_id,
            client,
            own_address,
            is_secured,
            image,
            device: RefCell::new(device),
            attached: RefCell::default(),
            seen_generation: Cell::new(generation),
            metrics,
            admin_queue: RefCell::default(),
            io_queues: RefCell::default(),
            rounds: Cell::new(0),
            is_looking: Cell::new(false),
            is_over: Cell::new(false),
        })
    }

    /// Returns the image as this gateway may serve it to a host now: itself, or, if another gateway has it for the
    /// same host, only its properties. A host that knows it as of a generation gets it only if no other client has
    /// changed it since.
    pub async fn open(
        target: &NvmeTarget,
        image: &str,
        client: &Client,
        seen_generation: Option<u64>,
    ) -> Result<Opened, OpenError> {
        let described = target.exports.describe(image, client).await?;
        let purpose = purpose_for(client, described.is_exclusive());
        let check = |record: &ImageRecord| match seen_generation {
            Some(seen) if !record.is_unchanged_but_for(purpose.nvme_host.as_deref(), seen) => Err(changed(image)),
            _ => Ok(()),
        };
        if !described.is_snapshot() {
            check(&described.record)?;
        }
        let (size_bytes, is_read_only, created_unix_ms) =
            (described.size_bytes, described.is_read_only(), described.created_unix_ms);
        let generation = described.record.writer_generation;
        let opened = |device| {
            let record = described.record.clone();
            Opened { device, size_bytes, is_read_only, created_unix_ms, generation, record }
        };
        if !is_read_only
            && let Some(writer) = target.exports.other_writer(image, &described).await?
            && writer.nvme_host == purpose.nvme_host
        {
            return Ok(opened(None));
        }
        let device = target.exports.open(image, client, &described, &purpose).await?;
        let size_bytes = device.size_bytes();
        let Some(record) = device.written_record() else {
            return Ok(Opened { size_bytes, ..opened(Some(device)) });
        };
        // Somebody may have come and gone since it was looked at.
        if let Err(error) = check(&record) {
            target.exports.release(image.to_owned(), device, client);
            return Err(error);
        }
        Ok(Opened { size_bytes, generation: record.writer_generation, ..opened(Some(device)) })
    }

    /// Keeps the attachment of the host, as long as this controller is there.
    pub fn is_attached(&self, attached: Attached) {
        self.attached.replace(Some(attached));
    }

    /// Adds a queue; number 0 is the admin queue.
    pub fn add_queue(&self, connection: &Rc<Connection>) {
        if connection.queue_id.get() == 0 {
            self.admin_queue.replace(Rc::downgrade(connection));
            return;
        }
        let mut queues = self.io_queues.borrow_mut();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Rc::downgrade(connection));
    }

    /// Returns true if an I/O queue of this number is connected.
    pub fn has_queue(&self, queue_id: u16) -> bool {
        self.io_queues().any(|queue| queue.queue_id.get() == queue_id && !queue.is_over())
    }

    /// The image, if this gateway has it.
    pub fn device(&self) -> Option<OpenedExport> {
        self.device.borrow().clone()
    }

    /// The namespace as it is now.
    pub fn namespace(&self) -> Option<Namespace> {
        self.controller.borrow().namespace().copied()
    }

    /// The controller is over: so are its queues, and the image is given back.
    pub fn end(&self) {
        self.is_over.set(true);
        self.end_io_queues();
        if let Some(admin) = self.admin_queue.borrow().upgrade() {
            admin.abort();
        }
        self.give_device_back();
    }

    fn end_io_queues(&self) {
        self.io_queues().for_each(|queue| queue.abort());
    }

    fn io_queues(&self) -> impl Iterator<Item = Rc<Connection>> {
        self.io_queues.borrow().clone().into_iter().filter_map(|queue| queue.upgrade())
    }

    fn give_device_back(&self) {
        let device = self.device.borrow_mut().take();
        if let (Some(device), Some(image), Some(target)) = (device, &self.image, self.target.upgrade()) {
            target.exports.release(image.clone(), device, &self.client);
        }
    }

    /// Carries out the controller's events.
    pub fn pump(&self) {
        while let Some(event) = self.next_event() {
            match event {
                ControllerEvent::Complete(id, response) => {
                    if let Some(admin) = self.admin_queue.borrow().upgrade() {
                        admin.complete(id, response);
                    }
                }
                ControllerEvent::EndIoQueues => self.end_io_queues(),
            }
        }
    }

    fn next_event(&self) -> Option<ControllerEvent> {
        self.controller.borrow_mut().next_event()
    }

    fn set_namespace(&self, namespace: Namespace) {
        if self.namespace() == Some(namespace) {
            return;
        }
        self.controller.borrow_mut().set_namespace(namespace);
        self.io_queues().for_each(|queue| queue.set_namespace(namespace));
        self.pump();
    }

    /// Another writer has taken the image.
    pub fn lost(&self) {
        if let Some(namespace) = self.namespace() {
            if let Some(record) = self.device().and_then(|device| device.written_record()) {
                self.seen_generation.set(record.writer_generation);
            }
            self.give_device_back();
            self.set_namespace(Namespace { is_accessible: false, ..namespace });
        }
    }

    /// Withdraws the namespace: other clients have changed the image, and the host does not know.
    fn changed(&self) {
        if let Some(namespace) = self.namespace() {
            self.set_namespace(Namespace { is_accessible: false, is_gone: true, ..namespace });
        }
    }

    /// Checks if the host is still there, and the state of the image.
    pub fn look_after(self: &Rc<Self>) {
        let Some(target) = self.target.upgrade() else { return };
        let deadline_ms = self.controller.borrow().deadline_ms();
        if deadline_ms.is_some_and(|deadline_ms| target.runtime.now_ms() > deadline_ms) {
            let (host, subsystem) = {
                let controller = self.controller.borrow();
                (controller.config().host.clone(), controller.config().subsystem.clone())
            };
            tracing::warn!("NVMe host {host} has not been heard of; its controller of {subsystem} ends");
            return target.end(self.controller_id);
        }
        self.rounds.set(self.rounds.get().wrapping_add(1));
        let device = self.device();
        match (&self.image, device, self.namespace()) {
            (_, _, Some(Namespace { is_gone: true, .. })) => {}
            (Some(_), Some(device), Some(namespace)) => {
                // Only what says so itself is lost: the record is not looked at here.
                if device.is_lost(0) {
                    return self.lost();
                }
                let size_bytes = device.size_bytes() / LBA_BYTES * LBA_BYTES;
                self.set_namespace(Namespace { size_bytes, ..namespace });
            }
            (None, ..) if !self.rounds.get().is_multiple_of(DISCOVERY_ROUNDS) => {}
            _ if self.is_looking.replace(true) => {}
            _ => {
                let association = Rc::clone(self);
                target.runtime.spawn(async move {
                    match &association.image {
                        Some(image) => association.take_over(image).await,
                        None => association.look_for_subsystems().await,
                    }
                    association.is_looking.set(false);
                });
            }
        }
    }

    /// Takes the image, if it has no writer any more.
    async fn take_over(&self, image: &str) {
        let Some(target) = self.target.upgrade() else { return };
        let seen = self.seen_generation.get();
        let opened = match Association::open(&target, image, &self.client, Some(seen)).await {
            Ok(Opened { device: Some(device), size_bytes, is_read_only, .. }) => {
                (device, size_bytes, is_read_only)
            }
            Ok(_) => return,
            Err(error) if error.kind == OpenErrorKind::Changed => {
                tracing::warn!("the controller of {} has no namespace any more: {error}", self.client.describe());
                return self.changed();
            }
            Err(error) if matches!(error.kind, OpenErrorKind::Unknown | OpenErrorKind::NotAllowed) => {
                tracing::warn!("the controller of {} ends: {error}", self.client.describe());
                return target.end(self.controller_id);
            }
            Err(error) => return tracing::debug!("image '{image}' cannot be taken yet: {error}"),
        };
        let (device, size_bytes, is_read_only) = opened;
        if self.is_over.get() {
            return target.exports.release(image.to_owned(), device, &self.client);
        }
        tracing::info!("this gateway has image '{image}' now, for {}", self.client.describe());
        self.device.replace(Some(device));
        self.set_namespace(Namespace { size_bytes, is_read_only, is_accessible: true, is_gone: false });
    }

    async fn look_for_subsystems(&self) {
        let Some(target) = self.target.upgrade() else { return };
        match target.subsystems(&self.client, self.own_address).await {
            Ok(entries) => {
                self.controller.borrow_mut().set_discovery(entries);
                self.pump();
            }
            Err(error) => tracing::debug!("images cannot be listed now: {error}"),
        }
    }
}

fn changed(image: &str) -> OpenError {
    OpenError {
        kind: OpenErrorKind::Changed,
        message: format!(
            "other clients have changed image '{image}' since this controller had it; disconnect it and \
             reconnect it ('nvme disconnect')"
        ),
    }
}

/// Returns the purpose of a writer, by which other gateways know if it serves the same host.
fn purpose_for(client: &Client, is_exclusive: bool) -> Purpose {
    Purpose::nvme_gateway(client.nvme_host.as_deref().filter(|_| is_exclusive))
}
