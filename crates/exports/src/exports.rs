//! Images that are served, and shared by connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_image::{AttachedImage, Bridge, ImageAdmin, ImageError, OpenImage, Purpose, ReadOnlyImage};
use atoll_security_log::{SecurityEvent, note};
use atoll_types::records::{ExportAccess, ImageExport, ImageLockRecord, ImageRecord};

use crate::audit;
use crate::clients::Client;
use crate::drain::{ConnectionRequests, Drain};
use crate::open_error::{OpenError, OpenErrorKind};
use crate::questions::Questions;
use crate::rights::{Attached, Attachments};

/// An image stays attached for this long after its last connection went, because clients such as
/// nbdcopy and fio connect several times in a row.
const LINGER: Duration = Duration::from_secs(2);
/// How often a second connection looks whether the image has been opened, or closed.
const OPEN_POLL: Duration = Duration::from_millis(20);
/// Longest wait of a connection for pending requests of closed ones.
const DRAIN_LIMIT_MS: u64 = 10_000;

enum Export {
    /// Some task is opening or closing it.
    Busy,
    Open {
        device: Rc<OpenImage>,
        connections: usize,
        /// The client of the last connection; of all, if only one may use the image.
        holder: Option<Client>,
    },
}

/// Result of joining an export.
enum Joined {
    /// It is one more of those that have it open.
    Opened(OpenedExport),
    /// It has to wait.
    NotYet,
    /// It opens the export, after this one is closed.
    Replaces(Option<OpenedExport>),
}

/// All images of a cluster, as one server serves them.
pub struct Exports {
    client: LocalClient,
    bridge: Bridge,
    admin: ImageAdmin,
    exports: RefCell<HashMap<String, Export>>,
    drain: Rc<Drain>,
    questions: Questions,
    attachments: Rc<Attachments>,
}

/// An image as one more connection has it; to be given back by [`Exports::release`].
pub type OpenedExport = Rc<OpenImage>;

impl Exports {
    /// Reaches the cluster through `client`.
    pub fn new(client: &LocalClient, bridge: Bridge, admin: ImageAdmin) -> Self {
        Exports {
            client: client.clone(),
            bridge,
            admin,
            exports: RefCell::default(),
            drain: Rc::default(),
            questions: Questions::default(),
            attachments: Rc::default(),
        }
    }

    /// Ends the attachments of clients whose right to an image is taken away. Runs as long as the thread.
    pub async fn follow_rights(self: Rc<Self>) {
        let mut records = self.admin.follow_records();
        loop {
            let next = self.bridge.run(async move {
                let next = records.next().await;
                (next, records)
            });
            let (next, rest) = next.await;
            records = rest;
            let Some(changed) = next else { return };
            changed.iter().for_each(|record| self.attachments.follow(record));
        }
    }

    /// Has `end` called when a client that is attached to an image loses its right to it.
    pub fn attach(&self, record: &ImageRecord, client: &Client, end: impl Fn() + 'static) -> Attached {
        self.attachments.add(record, client, end)
    }

    /// Questions of strangers.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Where futures of this server's tasks run that need tokio, or a processor for long.
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Describes an export and its allowed use, for a client.
    pub async fn describe(&self, name: &str, client: &Client) -> Result<Description, OpenError> {
        let (admin, wanted) = (self.admin.clone(), name.to_owned());
        let ask = self.bridge.run(async move { describe(&admin, &wanted).await });
        let described = self.questions.image(name, client, ask).await.inspect_err(|error| {
            // Also one who tries names.
            if matches!(error.kind, OpenErrorKind::NotAllowed | OpenErrorKind::Unknown) {
                audit::refused(name, client, error);
            }
        })?;
        match client.may_use(&described.record.name, &described.export) {
            Ok(()) => Ok(described),
            Err(message) => {
                let error = OpenError { kind: OpenErrorKind::NotAllowed, message };
                audit::refused(name, client, &error);
                self.questions.count(client.address);
                Err(error)
            }
        }
    }

    /// Returns the purpose of an image's writer, if that is another process that is not known to have ended, and
    /// does not give way.
    pub async fn other_writer(
        &self,
        name: &str,
        description: &Description,
    ) -> Result<Option<ImageLockRecord>, OpenError> {
        if self.exports.borrow().contains_key(name) {
            return Ok(None);
        }
        let (admin, id) = (self.admin.clone(), description.record.id.clone());
        let lock = self.bridge.run(async move { admin.live_lock(&id).await }).await?;
        Ok(lock.filter(|lock| !lock.gives_way))
    }

    /// The device for one more connection of a client, opened if it is not yet. `purpose` describes the user of
    /// the image. No request of a closed connection is carried out after this returns: it was waited for, or the
    /// image was opened again, and its fence refuses the request.
    pub async fn open(
        &self,
        name: &str,
        client: &Client,
        description: &Description,
        purpose: &Purpose,
    ) -> Result<OpenedExport, OpenError> {
        let opened = match atoll_audit::is_refusing() {
            false => self.open_unaudited(name, client, description, purpose).await,
            true => Err(unaudited(client)),
        };
        match &opened {
            Ok(device) => audit::attached(name, !device.is_read_only(), client),
            Err(error) => audit::refused(name, client, error),
        }
        opened
    }

    async fn open_unaudited(
        &self,
        name: &str,
        client: &Client,
        description: &Description,
        purpose: &Purpose,
    ) -> Result<OpenedExport, OpenError> {
        let deadline_ms = self.client.runtime().now_ms() + DRAIN_LIMIT_MS;
        let replaced = loop {
            match self.join(name, client, description, deadline_ms)? {
                Joined::Opened(device) => return Ok(device),
                Joined::NotYet => self.client.runtime().sleep(OPEN_POLL).await,
                Joined::Replaces(device) => break device,
            }
        };
        self.exports.borrow_mut().insert(name.into(), Export::Busy);
        if let Some(device) = replaced {
            close(name, &device).await;
        }
        let opened = self.open_device(description, purpose).await;
        let mut exports = self.exports.borrow_mut();
        match opened {
            Ok(device) => {
                let device = Rc::new(device);
                let (connections, holder) = (1, Some(client.clone()));
                exports.insert(name.into(), Export::Open { device: Rc::clone(&device), connections, holder });
                Ok(device)
            }
            Err(error) => {
                exports.remove(name);
                tracing::warn!("export '{name}' cannot be opened: {error}");
                Err(error.into())
            }
        }
    }

    /// Joins the other connections of an export, if it is open and of use.
    fn join(
        &self,
        name: &str,
        client: &Client,
        description: &Description,
        deadline_ms: u64,
    ) -> Result<Joined, OpenError> {
        let mut exports = self.exports.borrow_mut();
        let (device, connections, holder) = match exports.get_mut(name) {
            None => return Ok(Joined::Replaces(None)),
            Some(Export::Busy) => return Ok(Joined::NotYet),
            Some(Export::Open { device, connections, holder }) => (device, connections, holder),
        };
        if device.is_lost(description.record.writer_generation) {
            return Ok(Joined::Replaces(None));
        }
        let used_by = holder.as_ref().filter(|_| *connections > 0);
        // 'atoll image access' has changed that: those who are connected stay what they are.
        let is_other_kind = device.is_read_only() != description.is_read_only();
        let is_in_the_way = |holder: &&Client| is_other_kind || description.is_exclusive() && **holder != *client;
        if let Some(other) = used_by.filter(is_in_the_way) {
            return Err(in_use_by(name, other, is_other_kind));
        }
        if self.must_drain(name, deadline_ms)? {
            return Ok(Joined::NotYet);
        }
        if is_other_kind {
            return Ok(Joined::Replaces(Some(Rc::clone(device))));
        }
        if let OpenImage::Written(image) = &**device {
            // It may have been opened for another connection before it grew.
            image.grow(description.size_bytes);
        }
        *connections += 1;
        *holder = Some(client.clone());
        Ok(Joined::Opened(Rc::clone(device)))
    }

    /// Returns true if requests of closed connections must be waited for; an error if that took too long.
    fn must_drain(&self, name: &str, deadline_ms: u64) -> Result<bool, OpenError> {
        let is_draining = self.drain.is_draining(name, None);
        if is_draining && self.client.runtime().now_ms() > deadline_ms {
            return Err(OpenError {
                kind: OpenErrorKind::Unavailable,
                message: format!(
                    "requests to image '{name}' of a closed connection are still being carried out; connect \
                     again when the cluster has done them"
                ),
            });
        }
        Ok(is_draining)
    }

    /// Waits for requests of connections that are gone.
    pub async fn drained(&self, name: &str) -> Result<(), OpenError> {
        let deadline_ms = self.client.runtime().now_ms() + DRAIN_LIMIT_MS;
        while self.must_drain(name, deadline_ms)? {
            self.client.runtime().sleep(OPEN_POLL).await;
        }
        Ok(())
    }

    /// For the requests of a connection of a client that has the image open.
    pub fn requests(&self, name: &str, client: Client) -> ConnectionRequests {
        self.drain.connection(name, client)
    }

    async fn open_device(&self, description: &Description, purpose: &Purpose) -> Result<OpenImage, ImageError> {
        let (image, snapshot) = (&description.record.name[..], description.snapshot.as_deref());
        if description.is_read_only() {
            let opened =
                ReadOnlyImage::open(&self.client, &self.bridge, &self.admin, image, snapshot, &purpose.text);
            return opened.await.map(|image| OpenImage::Read(Box::new(image)));
        }
        let attached = AttachedImage::attach(&self.client, &self.bridge, &self.admin, image, purpose.clone());
        attached.await.map(|image| OpenImage::Written(Box::new(image)))
    }

    /// A connection of a client is over. The last one gives the image back after a while.
    pub fn release(self: &Rc<Self>, name: String, device: OpenedExport, client: &Client) {
        audit::detached(&name, !device.is_read_only(), client);
        if !self.count_down(&name, &device) {
            return;
        }
        let exports = Rc::clone(self);
        self.client.runtime().spawn(async move {
            exports.client.runtime().sleep(LINGER).await;
            let is_unused = matches!(
                exports.exports.borrow().get(&name),
                Some(Export::Open { device: current, connections: 0, .. }) if Rc::ptr_eq(current, &device)
            );
            if is_unused {
                exports.exports.borrow_mut().insert(name.clone(), Export::Busy);
                close(&name, &device).await;
                exports.exports.borrow_mut().remove(&name);
            }
        });
    }

    fn count_down(&self, name: &str, device: &OpenedExport) -> bool {
        match self.exports.borrow_mut().get_mut(name) {
            Some(Export::Open { device: current, connections, .. }) if Rc::ptr_eq(current, device) => {
                *connections -= 1;
                *connections == 0
            }
            _ => false,
        }
    }

    /// The names of everything that this client may use.
    pub async fn list(&self, client: &Client) -> Result<Vec<String>, OpenError> {
        // Everybody may ask, and all images are read for it.
        self.questions.may_ask("", client.address)?;
        self.questions.count(client.address);
        let admin = self.admin.clone();
        let records = self.bridge.run(async move { admin.list_usable().await }).await?;
        let may_use = |record: &ImageRecord| client.may_use(&record.name, &export_of(record)).is_ok();
        let names = records.into_iter().filter(may_use).flat_map(|record| {
            let snapshots = record.snapshots().iter().filter(|snapshot| !snapshot.is_pending);
            let snapshots = snapshots.map(|snapshot| format!("{}@{}", record.name, snapshot.name));
            std::iter::once(record.name.clone()).chain(snapshots).collect::<Vec<_>>()
        });
        Ok(names.collect())
    }
}

/// An export, before it is opened.
pub struct Description {
    /// The image's record.
    pub record: ImageRecord,
    snapshot: Option<String>,
    export: ImageExport,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Unix time of the image's creation, in milliseconds. It stays when the image is moved to another pool.
    pub created_unix_ms: u64,
}

impl Description {
    /// Returns true if it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.snapshot.is_some() || self.export.access == ExportAccess::ReadOnly
    }

    /// Returns true for a snapshot, which never changes.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Returns true if one client at a time may use it.
    pub fn is_exclusive(&self) -> bool {
        !self.is_read_only() && self.export.access == ExportAccess::Exclusive
    }
}

fn export_of(record: &ImageRecord) -> ImageExport {
    record.export.clone().unwrap_or_default()
}

async fn describe(admin: &ImageAdmin, name: &str) -> Result<Description, ImageError> {
    let (record, snapshot) = match name.split_once('@') {
        Some((image, snapshot)) => {
            let (record, found) = admin.get_snapshot(image, snapshot).await?;
            (record, Some(found))
        }
        None => (admin.get(name).await?.0, None),
    };
    Ok(Description {
        export: export_of(&record),
        size_bytes: snapshot.as_ref().map_or(record.size_bytes, |snapshot| snapshot.size_bytes),
        created_unix_ms: snapshot.as_ref().map_or(record.created_unix_ms, |snapshot| snapshot.created_unix_ms),
        snapshot: snapshot.map(|snapshot| snapshot.name),
        record,
    })
}

async fn close(name: &str, device: &OpenImage) {
    if let Err(error) = device.close().await {
        tracing::warn!("export '{name}' was not given back cleanly: {error}");
    }
}

/// Refuses an opening without an audit line.
fn unaudited(client: &Client) -> OpenError {
    let message = "the audit log takes no lines, and this server refuses clients until it does".to_owned();
    note(SecurityEvent::Unaudited, client.describe(), &message);
    OpenError { kind: OpenErrorKind::Unavailable, message }
}

fn in_use_by(name: &str, other: &Client, is_other_kind: bool) -> OpenError {
    let other = other.describe();
    let message = match is_other_kind {
        true => format!(
            "image '{name}' is in use by {other}, connected under an earlier setting of 'atoll image \
             access'; it must leave first"
        ),
        false => format!(
            "image '{name}' is in use by {other}; 'atoll image access {name} --access multi-attach' lets several clients \
             write to it, which must agree among themselves who writes where"
        ),
    };
    OpenError { kind: OpenErrorKind::InUse, message }
}
