//! The daemons' entry points.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use atoll_base::OsdId;
use atoll_client::{LocalClient, RemoteClient};
use atoll_cluster::{EmbeddedServer, Protection};
use atoll_image::nbd::protocol::TlsPolicy;
use atoll_image::nbd::{NbdServer, TlsChoice, TlsFiles, TlsMode};
use atoll_image::{Bridge, ImageAdmin};
use atoll_osd::{Osd, OsdConfig};
use atoll_reactor::{ListenAddress, LocalRuntime};
use atoll_s3::{EtcdDirectory, Gateway, GatewayConfig, check_data_pool};
use atoll_supervisor::{POOL_DATA, POOL_OBJECTS};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use super::gateway_listeners::listeners;
use super::osd::unlock_with;
use super::{OpenCluster, tokio_runtime};
use crate::cli::{DaemonArguments, GatewayArguments, NbdTlsArguments, NbdTlsMode, UnlockArguments};

/// Reads of a gateway's client end after this long, so that its own clients get an answer.
const GATEWAY_TIMEOUT_MS: u64 = 30_000;
/// A virtual machine's disk rather waits than fails.
const NBD_TIMEOUT_MS: u64 = 600_000;

/// What is logged when `ATOLL_LOG` does not say. s3s logs every answer that is an error, missing keys included,
/// and rustls every client that names a server by its address.
const LOG_FILTER: &str = "info,s3s=off,rustls=error";

/// What `ATOLL_LOG` says.
pub(super) fn log_filter() -> anyhow::Result<Targets> {
    let filter = std::env::var("ATOLL_LOG").unwrap_or_default();
    let filter = if filter.is_empty() { LOG_FILTER } else { &filter };
    filter
        .parse()
        .with_context(|| format!("ATOLL_LOG is '{filter}', which is no filter; one is 'info,atoll_osd=debug'"))
}

fn prepare(arguments: &DaemonArguments) -> anyhow::Result<OpenCluster> {
    let log = layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(log).with(log_filter()?).init();
    // A daemon with a dead thread would neither serve nor be restarted.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    raise_descriptor_limit();
    if arguments.exit_with_parent {
        std::thread::Builder::new().name("parent-watch".into()).spawn(|| {
            // The supervisor never writes; the pipe ends when the supervisor does.
            let _ = std::io::stdin().read(&mut [0]);
            tracing::info!("the supervisor is gone; ending");
            std::process::exit(0);
        })?;
    }
    Ok(OpenCluster { is_daemon: true, ..OpenCluster::open(&arguments.data)? })
}

/// The usual soft limit of 1,024 descriptors is below our own limit of connections.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// Runs the embedded cluster-state server.
pub fn state(arguments: &DaemonArguments) -> anyhow::Result<()> {
    let open = prepare(arguments)?;
    let listen = open.cluster.state_listen.clone().context("this cluster uses an etcd of its own")?;
    let listen: std::net::SocketAddr = listen.parse().context("state_listen in cluster.json")?;
    let read = |path: std::path::PathBuf| std::fs::read(&path).with_context(|| path.display().to_string());
    let tls = match open.directory.state_identity() {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let credentials = open.cluster.state_user.clone().zip(open.cluster.state_password.clone());
    tokio_runtime()?.block_on(async {
        let server =
            EmbeddedServer::start(listen, &open.directory.state(), Protection { credentials, tls }).await?;
        tracing::info!("cluster state is served on {}", server.local_addr());
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// Runs an OSD. What unlocks its devices is remembered, unless something else is named.
pub fn osd(
    arguments: &DaemonArguments,
    id: u32,
    memory_target: u64,
    recovery_rate: u64,
    unlock: &UnlockArguments,
) -> anyhow::Result<()> {
    let open = prepare(arguments)?;
    let id = OsdId(id);
    let unlock_with =
        unlock_with(unlock).map_or_else(|| open.directory.unlock_with(id), |named| Ok(Some(named)))?;
    let config = OsdConfig {
        id,
        device: open.directory.device(id),
        log_device: open.directory.wal_device(id),
        device_key: unlock_with.map(|choice| choice.device_key(&open.directory)).transpose()?,
        listen: std::net::SocketAddr::new(open.cluster.osd_listen(), 0),
        advertise: open.cluster.advertise,
        key: open.directory.static_key(&id.to_string())?,
        memory_target_bytes: memory_target,
        recovery_bytes_per_second: recovery_rate,
        cluster: open.cluster.connect_options(),
    };
    let result = Osd::start(config).and_then(Osd::run);
    if let Err(error) = &result {
        tracing::error!("{error}");
    }
    Ok(result?)
}

/// Runs the S3 gateway.
pub fn gateway(
    arguments: &DaemonArguments,
    data_pool: Option<String>,
    serving: &GatewayArguments,
) -> anyhow::Result<()> {
    let open = prepare(arguments)?;
    let config = open.client_config(open.cluster.gateway_key_holder(), GATEWAY_TIMEOUT_MS)?;
    let client = RemoteClient::start(config)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        let pools = state.list::<atoll_base::records::PoolRecord>(atoll_cluster::keys::POOLS).await?;
        let find = |name: &str| pools.entries.iter().map(|(_, pool, _)| pool).find(|pool| pool.name == name);
        let pool = find(POOL_OBJECTS).with_context(|| format!("there is no pool '{POOL_OBJECTS}'"))?.id;
        if let Some(name) = &data_pool {
            let found =
                find(name).with_context(|| format!("there is no pool '{name}'; 'atoll pool ls' names all"))?;
            check_data_pool(found).map_err(anyhow::Error::msg)?;
        } else if let Some(Err(why)) = find(POOL_DATA).map(check_data_pool) {
            // What is stored already is served all the same.
            tracing::error!("no buckets can be made: {why}, or choose another with --data-pool");
        }
        let data_pool = Some(data_pool.unwrap_or(POOL_DATA.into()));
        let directory = Arc::new(EtcdDirectory::start(state).await?);
        let gateway = Gateway::new(
            GatewayConfig {
                data_pool,
                trusted_proxies: serving.trusted_proxies.clone(),
                key_lifetime: std::time::Duration::from_secs(serving.key_lifetime_seconds.max(1)),
                garbage_grace: std::time::Duration::from_secs(serving.garbage_grace_seconds),
                collect_interval: Some(std::time::Duration::from_secs(
                    (serving.garbage_grace_seconds / 2).clamp(1, 30),
                )),
                ..GatewayConfig::new(pool)
            },
            Arc::new(client),
            directory,
            open.keys()?,
        )?;
        let listeners = listeners(&open, serving)?;
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        gateway
            .serve(listeners, async move {
                terminate.recv().await;
            })
            .await;
        Ok(())
    })
}

/// Runs the NBD server.
pub fn nbd(arguments: &DaemonArguments, tls: NbdTlsArguments) -> anyhow::Result<()> {
    let open = prepare(arguments)?;
    let tls = nbd_tls(tls, open.directory.root())?;
    let tokio = tokio_runtime()?;
    let admin = ImageAdmin::new(tokio.block_on(open.connect())?, open.keys()?);
    let runtime = LocalRuntime::new()?;
    let client = LocalClient::start(&runtime, open.client_config("client", NBD_TIMEOUT_MS)?)?;
    let bridge = Bridge::new(tokio.handle().clone(), runtime.wake_handle());
    let server = NbdServer::new(&client, bridge, admin, tls)
        .context("TLS for NBD (see --tls and its files in 'atoll nbd run --help')")?;
    for text in &open.cluster.nbd_listen {
        let address: ListenAddress = text.parse().map_err(anyhow::Error::msg)?;
        remove_stale_socket(&address)?;
        server.listen(&address).with_context(|| format!("cannot listen on {address}"))?;
        let how = match server.tls_policy(&address) {
            TlsPolicy::Unavailable => "without TLS",
            TlsPolicy::Offered => "with and without TLS",
            TlsPolicy::Required => "with TLS only",
        };
        tracing::info!("NBD is served on {address}, {how}");
    }
    runtime.block_on(std::future::pending::<()>())?;
    Ok(())
}

fn nbd_tls(arguments: NbdTlsArguments, data: &Path) -> anyhow::Result<TlsChoice> {
    let mode = match arguments.tls {
        NbdTlsMode::Off => TlsMode::Off,
        NbdTlsMode::On => TlsMode::On,
        NbdTlsMode::Required => TlsMode::Required,
    };
    anyhow::ensure!(
        mode != TlsMode::Off || arguments.tls_client_ca.is_none(),
        "--tls-client-ca (ATOLL_NBD_TLS_CLIENT_CA) needs TLS; leave it out, or leave out --tls off"
    );
    let files = TlsFiles {
        certificate: arguments.tls_cert.unwrap_or_else(|| data.join("tls/server.crt")),
        key: arguments.tls_key.unwrap_or_else(|| data.join("tls/server.key")),
        client_authorities: arguments.tls_client_ca,
    };
    Ok(TlsChoice { mode, files })
}

/// A Unix socket of an earlier run is in the way; one that somebody listens on stays.
fn remove_stale_socket(address: &ListenAddress) -> anyhow::Result<()> {
    let ListenAddress::Unix(path) = address else { return Ok(()) };
    if path.exists() && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).with_context(|| format!("cannot remove the old socket {}", path.display()))?;
    }
    Ok(())
}
