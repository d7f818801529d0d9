//! The NBD server: listening on a reactor's thread, and the images that connections share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_image::{AttachedImage, Bridge, ImageAdmin, ImageError, OpenImage, ReadOnlyImage};
use atoll_reactor::{ListenAddress, LocalRuntime};
use atoll_types::records::{ExportAccess, ImageExport, ImageRecord};
use rustls::ServerConfig;

use crate::clients::Client;
use crate::connection;
use crate::metrics;
use crate::protocol::{OpenError, OpenErrorKind, TlsPolicy};
use crate::requests::tell_in_flight;
use crate::tls::{TlsChoice, TlsError, TlsIdentity};

/// Connections served at once.
const CONNECTIONS_MAX: usize = 1024;
/// An image stays attached for this long after its last connection went, because clients such as
/// nbdcopy and fio connect several times in a row.
const LINGER: Duration = Duration::from_secs(2);
/// How often a second connection looks whether the image has been opened, or closed.
const OPEN_POLL: Duration = Duration::from_millis(20);
/// What people are told of who uses an image.
const PURPOSE: &str = "NBD server";
/// How often the certificate's files are looked at.
const CERTIFICATE_POLL: Duration = Duration::from_secs(1);
/// How often requests in flight are told that have taken long.
const IN_FLIGHT_PAUSE: Duration = Duration::from_secs(1);

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

/// Serves all images of a cluster.
pub struct NbdServer {
    pub(crate) runtime: LocalRuntime,
    client: LocalClient,
    pub(crate) bridge: Bridge,
    pub(crate) admin: ImageAdmin,
    exports: RefCell<HashMap<String, Export>>,
    pub(crate) connections: Cell<usize>,
    tls: TlsChoice,
    /// For new connections.
    tls_config: RefCell<Option<Arc<ServerConfig>>>,
}

impl NbdServer {
    /// A server that reaches the cluster through `client`. It lives as long as its thread.
    pub fn new(
        client: &LocalClient,
        bridge: Bridge,
        admin: ImageAdmin,
        tls: TlsChoice,
    ) -> Result<Rc<Self>, TlsError> {
        metrics::register_all();
        let identity = tls.load()?;
        let server = Rc::new(NbdServer {
            runtime: client.runtime().clone(),
            client: client.clone(),
            bridge,
            admin,
            exports: RefCell::default(),
            connections: Cell::new(0),
            tls,
            tls_config: RefCell::new(identity.as_ref().and_then(TlsIdentity::config)),
        });
        if let Some(identity) = identity {
            server.runtime.spawn(Rc::clone(&server).follow_certificates(identity));
        }
        let runtime = server.runtime.clone();
        server.runtime.spawn(async move {
            loop {
                runtime.sleep(IN_FLIGHT_PAUSE).await;
                tell_in_flight();
            }
        });
        Ok(server)
    }

    async fn follow_certificates(self: Rc<Self>, mut identity: TlsIdentity) {
        loop {
            self.runtime.sleep(CERTIFICATE_POLL).await;
            let refresh = move || {
                identity.refresh();
                identity
            };
            let refreshed = self.bridge.run(async { tokio::task::spawn_blocking(refresh).await });
            identity = refreshed.await.expect("reading certificates returns errors");
            self.tls_config.replace(identity.config());
        }
    }

    /// What holds for TLS of clients that connect to an address now.
    pub fn tls_policy(&self, address: &ListenAddress) -> TlsPolicy {
        match self.tls.policy(address) {
            TlsPolicy::Offered if self.tls_config.borrow().is_none() => TlsPolicy::Unavailable,
            policy => policy,
        }
    }

    pub(crate) fn tls_config(&self) -> Option<Arc<ServerConfig>> {
        self.tls_config.borrow().clone()
    }

    /// Listens and serves connections from then on; returns the address with the chosen port.
    pub fn listen(self: &Rc<Self>, address: &ListenAddress) -> std::io::Result<ListenAddress> {
        let (listener, address) = self.runtime.listen(address)?;
        let (server, own_address) = (Rc::clone(self), address.clone());
        self.runtime.spawn(async move {
            loop {
                let stream = listener.accept().await;
                if server.connections.get() < CONNECTIONS_MAX {
                    server.connections.set(server.connections.get() + 1);
                    metrics::set_connections(server.connections.get());
                    let tls = server.tls_policy(&own_address);
                    server.runtime.spawn(connection::serve(Rc::clone(&server), stream, tls));
                }
            }
        });
        Ok(address)
    }

    /// What an export of this name is and may be used for, by a client that wants to.
    pub(crate) async fn describe(&self, name: &str, client: &Client) -> Result<Description, OpenError> {
        let (admin, wanted) = (self.admin.clone(), name.to_owned());
        let described = self.bridge.run(async move { describe(&admin, &wanted).await }).await?;
        client.may_use(&described.image, &described.export).map_err(policy)?;
        Ok(described)
    }

    /// The device for one more connection of a client, opened if it is not yet.
    pub(crate) async fn open(&self, name: &str, client: &Client) -> Result<Rc<OpenImage>, OpenError> {
        let description = self.describe(name, client).await?;
        let is_exclusive = !description.is_read_only() && description.export.access == ExportAccess::Exclusive;
        loop {
            match self.exports.borrow_mut().get_mut(name) {
                Some(Export::Open { device, connections, holder })
                    if !device.is_lost(description.writer_generation) =>
                {
                    let other = holder.as_ref().filter(|holder| *connections > 0 && **holder != *client);
                    if let Some(other) = other.filter(|_| is_exclusive) {
                        return Err(policy(format!(
                            "image '{name}' is in use by {}; 'atoll image access {name} --access multi-attach' lets \
                             several clients write to it, which must agree among themselves who writes where",
                            other.describe()
                        )));
                    }
                    if let OpenImage::Written(image) = &**device {
                        // It may have been opened for another connection before it grew.
                        image.grow(description.size_bytes);
                    }
                    *connections += 1;
                    *holder = Some(client.clone());
                    return Ok(Rc::clone(device));
                }
                Some(Export::Busy) => {}
                _ => break,
            }
            self.runtime.sleep(OPEN_POLL).await;
        }
        self.exports.borrow_mut().insert(name.into(), Export::Busy);
        let opened = self.open_device(&description).await;
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

    async fn open_device(&self, description: &Description) -> Result<OpenImage, ImageError> {
        let (image, snapshot) = (&description.image[..], description.snapshot.as_deref());
        if description.is_read_only() {
            let opened = ReadOnlyImage::open(&self.client, &self.bridge, &self.admin, (image, snapshot), PURPOSE);
            return opened.await.map(|image| OpenImage::Read(Box::new(image)));
        }
        let attached = AttachedImage::attach(&self.client, &self.bridge, &self.admin, image, PURPOSE);
        attached.await.map(|image| OpenImage::Written(Box::new(image)))
    }

    /// A connection is over. The last one gives the image back after a while.
    pub(crate) fn release(self: &Rc<Self>, name: String, device: Rc<OpenImage>) {
        if !self.count_down(&name, &device) {
            return;
        }
        let server = Rc::clone(self);
        self.runtime.spawn(async move {
            server.runtime.sleep(LINGER).await;
            let is_unused = matches!(
                server.exports.borrow().get(&name),
                Some(Export::Open { device: current, connections: 0, .. }) if Rc::ptr_eq(current, &device)
            );
            if is_unused {
                server.exports.borrow_mut().insert(name.clone(), Export::Busy);
                if let Err(error) = device.close().await {
                    tracing::warn!("export '{name}' was not given back cleanly: {error}");
                }
                server.exports.borrow_mut().remove(&name);
            }
        });
    }

    fn count_down(&self, name: &str, device: &Rc<OpenImage>) -> bool {
        match self.exports.borrow_mut().get_mut(name) {
            Some(Export::Open { device: current, connections, .. }) if Rc::ptr_eq(current, device) => {
                *connections -= 1;
                *connections == 0
            }
            _ => false,
        }
    }

    /// The names of everything that this client may use.
    pub(crate) async fn list(&self, client: &Client) -> Result<Vec<String>, ImageError> {
        let admin = self.admin.clone();
        let records = self.bridge.run(async move { admin.list().await }).await?;
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
pub(crate) struct Description {
    image: String,
    snapshot: Option<String>,
    export: ImageExport,
    writer_generation: u64,
    pub size_bytes: u64,
}

impl Description {
    pub fn is_read_only(&self) -> bool {
        self.snapshot.is_some() || self.export.access == ExportAccess::ReadOnly
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
        writer_generation: record.writer_generation,
        size_bytes: snapshot.as_ref().map_or(record.size_bytes, |snapshot| snapshot.size_bytes),
        image: record.name,
        snapshot: snapshot.map(|snapshot| snapshot.name),
    })
}

fn policy(message: String) -> OpenError {
    OpenError { kind: OpenErrorKind::Policy, message }
}
