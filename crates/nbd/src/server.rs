//! The NBD server: listening on a reactor's thread, and the images that connections share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_image::{AttachedImage, Bridge, ImageAdmin, ImageError};
use atoll_reactor::{ListenAddress, LocalRuntime};
use rustls::ServerConfig;

use crate::connection;
use crate::protocol::TlsPolicy;
use crate::tls::{TlsChoice, TlsError, TlsIdentity};

/// Connections served at once.
const CONNECTIONS_MAX: usize = 1024;
/// An image stays attached for this long after its last connection went, because clients such as
/// nbdcopy and fio connect several times in a row.
const LINGER: Duration = Duration::from_secs(2);
/// How long a second connection waits for an image that is being attached or detached.
const ATTACH_POLL: Duration = Duration::from_millis(20);
/// How often the certificate's files are looked at.
const CERTIFICATE_POLL: Duration = Duration::from_secs(1);

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
                    let tls = server.tls_policy(&own_address);
                    server.runtime.spawn(connection::serve(Rc::clone(&server), stream, tls));
                }
            }
        });
        Ok(address)
    }

    /// The image for one more connection, attached if it is not yet.
    pub(crate) async fn open(&self, name: &str) -> Result<Rc<AttachedImage>, ImageError> {
        loop {
            match self.exports.borrow_mut().get_mut(name) {
                Some(Export::Attached { image, connections }) if !image.is_lost() => {
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
    pub(crate) fn release(self: &Rc<Self>, name: String, image: Rc<AttachedImage>) {
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
