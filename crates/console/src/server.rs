//! The server as its process sees it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_audit::AuditLog;
use atoll_connection_limits::{LoginTurns, LookUps};
use atoll_node::{ClusterFile, DataDir};
use atoll_tls::{Tls, TlsError, TlsSettings};
use axum::Router;
use tokio::net::TcpListener;

use crate::api::{OidcLogins, Sessions};
use crate::cluster_state::ClusterState;
use crate::commands::RunCommands;
use crate::figures::Figures;
use crate::hosts::{self, KnownKeys};
use crate::shared::Shared;
use crate::token_check::TokenCheck;
use crate::{announcement, api, assets, cluster_metrics, listener, metrics_routes, outgoing, refused_records};

/// Processes of a supervisor that was just killed may need a moment to give an address back.
const LISTEN_PATIENCE: Duration = Duration::from_secs(3);
const LISTEN_PAUSE: Duration = Duration::from_millis(100);

/// Log-ins of one network that are under way.
const NETWORK_LOGINS_MAX: usize = 2;
/// Log-ins of all networks that are under way. One password is compared at a time, so the last waits for two seconds.
const LOGINS_MAX: usize = 32;

/// Why the admin server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum AdminServerError {
    /// The address is no address.
    #[error("'{0}' is no address to listen on; one is 10.0.0.1:8443")]
    Address(String),
    /// It cannot be listened on.
    #[error("cannot listen on {address}: {source}; choose another address with --admin-listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How an admin server is set up.
pub struct AdminServerConfig {
    /// `IP:PORT`.
    pub listen: String,
    /// Longest session at this server, if that is less than the cluster's setting.
    pub session_max: Option<Duration>,
    /// Runner of the commands that calls consist of.
    pub commands: Arc<dyn RunCommands>,
    /// Where the record of each call that may change something goes; `None`: nowhere.
    pub audit: Option<AuditLog>,
}

/// The admin server of a host.
pub struct AdminServer {
    shared: Arc<Shared>,
    socket: TcpListener,
    tls: Arc<Tls>,
    address: SocketAddr,
}

impl AdminServer {
    /// Listens. Cluster state need not be there.
    pub async fn bind(
        directory: DataDir,
        cluster: ClusterFile,
        config: AdminServerConfig,
    ) -> Result<Self, AdminServerError> {
        let AdminServerConfig { listen, session_max, commands, audit } = config;
        let address: SocketAddr = listen.parse().map_err(|_| AdminServerError::Address(listen.clone()))?;
        let settings =
            TlsSettings { certificates: directory.tls(), client_authority: None, only_version_13: false };
        let tls = Arc::new(Tls::load(settings)?);
        let socket = bind(address).await.map_err(|source| AdminServerError::Listen { address, source })?;
        let address = socket.local_addr().map_err(|source| AdminServerError::Listen { address, source })?;
        let state = ClusterState::new(directory.clone(), cluster.clone());
        let shared = Arc::new(Shared {
            tokens: TokenCheck::default(),
            host_keys: KnownKeys::default(),
            others: Mutex::default(),
            cluster_metrics: cluster_metrics::ClusterMetrics::register(),
            sessions: Sessions::default(),
            session_max,
            login_turns: LoginTurns::new(NETWORK_LOGINS_MAX, LOGINS_MAX),
            oidc: OidcLogins::default(),
            look_ups: LookUps::new(None),
            password_turn: tokio::sync::Mutex::default(),
            commands,
            audit,
            copies: Arc::default(),
            figures: Figures::default(),
            directory,
            cluster,
            state,
        });
        Ok(AdminServer { shared, socket, tls, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves for as long as the process lives.
    pub async fn serve(self) {
        tokio::spawn(announcement::keep(Arc::clone(&self.shared), self.shared.cluster.reached(self.address)));
        tokio::spawn(Figures::keep(Arc::clone(&self.shared)));
        tokio::spawn(outgoing::keep(Arc::clone(&self.shared)));
        tokio::spawn(refused_records::keep(Arc::clone(&self.shared)));
        let routes = Router::new().merge(metrics_routes::routes()).merge(api::routes()).merge(assets::routes());
        let routers = listener::Routers {
            everyone: routes.with_state(Arc::clone(&self.shared)),
            hosts: hosts::routes().with_state(Arc::clone(&self.shared)),
        };
        listener::serve(self.socket, self.tls, self.shared, routers).await;
    }
}

async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let deadline = tokio::time::Instant::now() + LISTEN_PATIENCE;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LISTEN_PAUSE).await;
            }
            bound => return bound,
        }
    }
}
