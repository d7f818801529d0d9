//! The NBD server: listening on a reactor's thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_connection_limits::{Limits, Places};
use atoll_exports::{Exports, RequestMemory, enter, follow_in_flight};
use atoll_image::{Bridge, ImageAdmin};
use atoll_reactor::{ListenAddress, LocalRuntime};
use atoll_tls::{TlsError, TlsIdentity};
use rustls::ServerConfig;

use crate::connection;
use crate::metrics;
use crate::protocol::TlsPolicy;
use crate::tls::TlsChoice;

/// Clients that use an image have places that those without one cannot take.
const LIMITS: Limits = Limits { strangers_max: 256, address_max: 64, members_max: 1_024 };
/// Name of this server in the lock of an image.
pub(crate) const PURPOSE: &str = "NBD server";
/// How often the certificate's files are looked at.
const CERTIFICATE_POLL: Duration = Duration::from_secs(1);

/// Serves all images of a cluster.
pub struct NbdServer {
    pub(crate) runtime: LocalRuntime,
    bridge: Bridge,
    pub(crate) exports: Rc<Exports>,
    pub(crate) connections: Cell<usize>,
    places: Places,
    pub(crate) memory: RequestMemory,
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
            exports: Rc::new(Exports::new(client, bridge.clone(), admin)),
            bridge,
            connections: Cell::new(0),
            places: Places::new(LIMITS),
            memory: RequestMemory::default(),
            tls,
            tls_config: RefCell::new(identity.as_ref().and_then(TlsIdentity::config)),
        });
        if let Some(identity) = identity {
            server.runtime.spawn(Rc::clone(&server).follow_certificates(identity));
        }
        server.runtime.spawn(follow_in_flight(server.runtime.clone()));
        server.runtime.spawn(Rc::clone(&server.exports).follow_rights());
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

    /// Returns the current TLS policy for clients that connect to an address.
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
                server.connections.set(server.connections.get() + 1);
                metrics::set_connections(server.connections.get());
                let tls = server.tls_policy(&own_address);
                let place = enter(&server.places, stream.peer_address());
                server.runtime.spawn(connection::serve(Rc::clone(&server), stream, tls, place));
            }
        });
        Ok(address)
    }
}
