//! The embedded cluster-state server: the part of the etcd v3 API that Atoll and `etcdctl` use,
//! for clusters of one machine. Everything is held in memory, every write is on disk before it is
//! answered, and there is no replication: a cluster of several machines runs etcd itself.

mod audit_heads;
mod auth;
mod auth_calls;
mod batch;
mod change;
mod connections;
mod disk;
mod disk_error;
mod history;
mod host_calls;
mod host_records;
mod join_login;
mod lease_clock;
mod limits;
mod metrics;
mod own_records;
mod passwords;
mod permissions;
#[allow(missing_docs, clippy::all)]
mod proto;
mod services;
mod shared;
mod snapshot;
mod span;
mod state;
mod state_file;
mod status;
mod tokens;
mod txn;
mod watch;
mod writer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch as latest;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity as TlsIdentity, Server, ServerTlsConfig};
use tower_layer::layer_fn;

use batch::Batch;
use disk::Disk;
pub use disk_error::DiskError;
use lease_clock::LeaseClock;
use services::Services;
pub use shared::FindSigner;
use shared::{Shared, stopped};
use tokens::Gate;
use writer::WriterHandle;

use crate::client::LoginSource;

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The address asked for.
        address: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The stored state could not be opened.
    #[error("cannot open the cluster state: {0}")]
    Disk(#[from] DiskError),
    /// Certificate and key cannot be used.
    #[error("cannot serve cluster state with TLS: {0}; are certificate and key PEM, and do they belong together?")]
    Tls(tonic::transport::Error),
    /// The writer thread could not be started.
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(std::io::Error),
}

/// Where to listen: an address to bind, or a socket that is bound already.
#[derive(Debug)]
pub enum Listen {
    /// Port 0 takes any free one.
    Address(SocketAddr),
    /// Bound and listening.
    Listener(std::net::TcpListener),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Listen::Address(address)
    }
}

impl From<std::net::TcpListener> for Listen {
    fn from(listener: std::net::TcpListener) -> Self {
        Listen::Listener(listener)
    }
}

/// Protection of the server: its credentials and TLS.
#[derive(Clone, Default)]
pub struct Protection {
    /// User and password of a user with all rights; with them every call but the one for a token needs a token.
    pub credentials: Option<(String, String)>,
    /// Where that user has another password when one is refused, so that it can be changed without a stop.
    pub login_source: Option<LoginSource>,
    /// Certificate chain and private key as PEM; with them the server speaks TLS only.
    pub tls: Option<(Vec<u8>, Vec<u8>)>,
    /// Finds the signer of keys of processes of hosts that join.
    pub signer: Option<FindSigner>,
}

impl From<Option<(String, String)>> for Protection {
    fn from(credentials: Option<(String, String)>) -> Self {
        Protection { credentials, ..Protection::default() }
    }
}

/// A running server. Dropping it stops it too, without waiting for pending requests.
#[derive(Debug)]
pub struct EmbeddedServer {
    address: SocketAddr,
    stop: latest::Sender<bool>,
    serving: JoinHandle<()>,
    expiring: JoinHandle<()>,
    keeping: JoinHandle<()>,
    writer: Option<WriterThread>,
}

struct WriterThread {
    handle: WriterHandle,
    thread: std::thread::JoinHandle<()>,
}

impl std::fmt::Debug for WriterThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WriterThread")
    }
}

impl EmbeddedServer {
    /// Serves the state kept in `directory` (made if it is missing). Must be called within a tokio
    /// runtime.
    pub async fn start(
        listen: impl Into<Listen>,
        directory: &Path,
        protection: impl Into<Protection>,
    ) -> Result<EmbeddedServer, StartError> {
        Self::start_boxed(listen.into(), directory.to_path_buf(), protection.into()).await
    }

    /// Boxed, so that the server is compiled here, once, and not again in each crate that starts one.
    fn start_boxed(
        listen: Listen,
        directory: PathBuf,
        protection: Protection,
    ) -> Pin<Box<dyn Future<Output = Result<EmbeddedServer, StartError>> + Send>> {
        Box::pin(Self::start_now(listen, directory, protection))
    }

    async fn start_now(
        listen: Listen,
        directory: PathBuf,
        protection: Protection,
    ) -> Result<EmbeddedServer, StartError> {
        let Protection { credentials, login_source, tls, signer } = protection;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let builder = builder(tls).map_err(StartError::Tls)?;
        let listener = bind(listen).await?;
        let address = listener
            .local_addr()
            .map_err(|source| StartError::Listen { address: "the given socket".into(), source })?;
        let (disk, state, identity) = tokio::task::spawn_blocking(move || Disk::open(&directory))
            .await
            .map_err(|error| StartError::Thread(std::io::Error::other(error)))??;
        let directory = disk.directory().to_path_buf();
        let has_old_roles = host_records::has_old_roles(&state);
        let (writer, thread) = WriterHandle::start(disk, state).map_err(StartError::Thread)?;
        if has_old_roles {
            let renewed = writer.submit(|change| {
                host_records::set_roles(change.auth());
                Ok(())
            });
            if let Err(error) = renewed.await {
                tracing::warn!("the roles of hosts are still those of another release: {error}");
            }
        }
        let (stop, stopping) = latest::channel(false);
        let shared = Arc::new(Shared {
            identity,
            writer: writer.clone(),
            lease_clock: Mutex::new(LeaseClock::default()),
            gate: Gate::new(credentials, login_source, writer.clone()),
            url: format!("{scheme}://{address}"),
            directory,
            signer,
            snapshot: Arc::default(),
            stop: stopping,
        });
        let expiring = tokio::spawn(expire_leases(shared.clone()));
        let keeping = tokio::spawn(keep_snapshots(shared.clone()));
        let serving = tokio::spawn(serve(builder, listener, shared));
        let writer = Some(WriterThread { handle: writer, thread });
        Ok(EmbeddedServer { address, stop, serving, expiring, keeping, writer })
    }

    /// Continues the state in a directory, which no server has open, behind this revision, as if all before were
    /// compacted: a watch from a revision that this state has not reached would otherwise miss the next changes.
    pub fn pass_over_revisions(directory: &Path, to: i64) -> Result<(), StartError> {
        let (mut disk, mut state, _) = Disk::open(directory)?;
        state.revision = state.revision.saturating_add(1).max(to);
        state.compacted = state.revision;
        Ok(disk.commit(&Batch::default(), &state)?)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns when a commit has failed: nothing can be written any more until the file is opened again.
    pub async fn failed(&self) {
        let Some(writer) = &self.writer else { return };
        let mut states = writer.handle.follow();
        // An error means that the writer has ended.
        while states.changed().await.is_ok() {}
    }

    /// Ends all streams, answers pending requests and closes the file.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        self.expiring.abort();
        self.keeping.abort();
        if tokio::time::timeout(limits::SHUTDOWN_GRACE, &mut self.serving).await.is_err() {
            tracing::debug!("connections outlived the shutdown's patience");
            self.serving.abort();
        }
        if let Some(writer) = self.writer.take() {
            writer.handle.stop().await;
            // It ends after at most one commit; a panic in it has been printed already.
            let _ = tokio::task::spawn_blocking(move || writer.thread.join()).await;
        }
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.expiring.abort();
        self.keeping.abort();
    }
}

async fn bind(listen: Listen) -> Result<tokio::net::TcpListener, StartError> {
    match listen {
        Listen::Address(address) => tokio::net::TcpListener::bind(address)
            .await
            .map_err(|source| StartError::Listen { address: address.to_string(), source }),
        Listen::Listener(listener) => listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .map_err(|source| StartError::Listen { address: "the given socket".into(), source }),
    }
}

fn builder(tls: Option<(Vec<u8>, Vec<u8>)>) -> Result<Server, tonic::transport::Error> {
    let builder = Server::builder();
    let Some((certificates, key)) = tls else { return Ok(builder) };
    builder.tls_config(ServerTlsConfig::new().identity(TlsIdentity::from_pem(certificates, key)))
}

async fn serve(builder: Server, listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    let services = Services { shared: shared.clone() };
    let gate = shared.gate.clone();
    let mut stop = shared.stop.clone();
    /// Every service has the same limits; all but one stand behind the gate.
    macro_rules! limited {
        ($server:ty) => {
            <$server>::new(services.clone())
                .max_decoding_message_size(limits::REQUEST_BYTES)
                .max_encoding_message_size(limits::RESPONSE_BYTES)
        };
    }
    macro_rules! gated {
        ($server:ty) => {
            InterceptedService::new(limited!($server), gate.clone())
        };
    }
    metrics::register_all();
    metrics::set_stored_bytes(shared.writer.state().stored_bytes);
    let connections = gate.connections.clone();
    let incoming = TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .map(move |accepted| accepted.and_then(|stream| connections.guard(stream)));
    let served = builder
        .layer(layer_fn(metrics::Measured))
        .max_concurrent_streams(limits::STREAMS)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .add_service(gated!(proto::kv_server::KvServer<Services>))
        .add_service(gated!(proto::watch_server::WatchServer<Services>))
        .add_service(gated!(proto::lease_server::LeaseServer<Services>))
        .add_service(gated!(proto::cluster_server::ClusterServer<Services>))
        .add_service(gated!(proto::maintenance_server::MaintenanceServer<Services>))
        .add_service(limited!(proto::auth_server::AuthServer<Services>))
        .serve_with_incoming_shutdown(incoming, async move {
            stopped(&mut stop).await;
        })
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the embedded cluster-state server stopped serving");
    }
}

/// Takes a snapshot each hour.
async fn keep_snapshots(shared: Arc<Shared>) {
    // A start is not made slower, and after one that follows soon there is one already.
    let age = snapshot::newest_age(&shared.directory).unwrap_or(limits::SNAPSHOT_EVERY);
    let mut pause = limits::SNAPSHOT_EVERY.saturating_sub(age).max(limits::SNAPSHOT_FIRST);
    loop {
        tokio::time::sleep(pause).await;
        let alone = shared.snapshot.clone().lock_owned().await;
        let (directory, state, identity) = (shared.directory.clone(), shared.writer.state(), shared.identity);
        let kept = tokio::task::spawn_blocking(move || {
            let _alone = alone;
            snapshot::keep(&directory, &state, identity)
        });
        pause = limits::SNAPSHOT_EVERY;
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("no hourly snapshot of cluster state was taken: {error}"),
            // The server stops.
            Err(_) => return,
        }
    }
}

async fn expire_leases(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(limits::LEASE_TICK);
    loop {
        tick.tick().await;
        let state = shared.writer.state();
        let expired = services::clock(&shared.lease_clock).tick(&state, Instant::now());
        for id in expired {
            match shared.writer.submit(move |change| change.revoke_lease(id)).await {
                Ok(()) => tracing::debug!(id, "lease expired"),
                Err(status) if status.code() == tonic::Code::NotFound => {}
                Err(status) => {
                    tracing::warn!(%status, "expired leases cannot be revoked");
                    return;
                }
            }
        }
    }
}
