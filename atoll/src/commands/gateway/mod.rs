//! The S3 gateway.

mod arguments;
mod listeners;

use std::sync::Arc;

use anyhow::Context;
use atoll_admin::pools::{POOL_DATA, POOL_OBJECTS};
use atoll_client::ClientThreads;
use atoll_gateway::{ClusterObjects, EtcdDirectory};
use atoll_s3::{Gateway, GatewayConfig, Workers, check_data_pool};
use clap::Subcommand;

use self::arguments::{GatewayArguments, Switch};
pub use self::arguments::{S3ListenArguments, parse_listen};
use self::listeners::listeners;
use super::audit_log;
use super::daemon::{DaemonArguments, prepare, until_verifiable};
use super::open_cluster::tokio_runtime;

/// Reads of a gateway's client end after this long, so that its own clients get an answer.
const TIMEOUT_MS: u64 = 30_000;

#[derive(Subcommand)]
pub enum GatewayCommand {
    /// Run in the foreground
    #[command(after_help = "\
Examples:
  atoll gateway run --data ./atoll-data
  atoll gateway run --data ./atoll-data --data-pool cold
  ATOLL_S3_DATA_POOL=cold atoll up --data ./atoll-data
  ATOLL_S3_OBJECT_OWNERSHIP=object-writer atoll up --data ./atoll-data    ACLs count in new buckets, as with RGW
  ATOLL_TRUSTED_PROXIES=10.0.0.4,10.0.0.5 atoll up --data ./atoll-data
  atoll gateway run --data ./atoll-data --s3-listen off --s3-tls-listen 10.0.0.1:9444 --tls-min 1.3

A client may choose another pool for a bucket: aws s3api create-bucket --bucket B
--create-bucket-configuration LocationConstraint=pool:cold")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// The pool for the data of new buckets; their indexes are in the pool 'objects' [default: the pool 'data'
        /// if there is one, or else 'objects']
        #[arg(long, value_name = "NAME", env = "ATOLL_S3_DATA_POOL")]
        data_pool: Option<String>,
        #[command(flatten)]
        serving: GatewayArguments,
    },
}

/// Runs the S3 gateway.
pub fn run(command: &GatewayCommand) -> anyhow::Result<()> {
    let GatewayCommand::Run { daemon, data_pool, serving } = command;
    let open = prepare(daemon, "gateway")?;
    let name = ("s3", "gateway", atoll_s3::AUDIT_SOURCE);
    let audit = audit_log::open(&open, name, serving.audit_log.as_ref(), &serving.audit_room)?;
    let config = open.client_config(open.cluster.gateway_key_holder(), TIMEOUT_MS)?;
    let mut threads = ClientThreads::start(serving.threads(), &config)?;
    tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        until_verifiable(&state).await?;
        let pools = state.list_usable::<atoll_types::records::PoolRecord>(atoll_cluster::keys::POOLS).await?;
        let find = |name: &str| pools.entries.iter().map(|(_, pool, _)| pool).find(|pool| pool.name == name);
        let pool = find(POOL_OBJECTS).with_context(|| format!("there is no pool '{POOL_OBJECTS}'"))?.id;
        if let Some(name) = data_pool {
            let found =
                find(name).with_context(|| format!("there is no pool '{name}'; 'atoll pool ls' names all"))?;
            check_data_pool(found).map_err(anyhow::Error::msg)?;
        } else if let Some(Err(why)) = find(POOL_DATA).map(check_data_pool) {
            // What is stored already is served all the same.
            tracing::error!("no buckets can be made: {why}, or choose another with --data-pool");
        }
        let data_pool = Some(data_pool.clone().unwrap_or(POOL_DATA.into()));
        let directory = Arc::new(EtcdDirectory::start(state).await?);
        let gateway = Gateway::new(
            GatewayConfig {
                data_pool,
                object_ownership: serving.object_ownership.into(),
                allows_version_2: serving.signature_version_2 == Switch::On,
                trusted_proxies: serving.trusted_proxies.clone(),
                audit,
                key_lifetime: std::time::Duration::from_secs(serving.key_lifetime_seconds.max(1)),
                identity_lifetime: std::time::Duration::from_secs(serving.identity_lifetime_seconds.into()),
                garbage_grace: std::time::Duration::from_secs(serving.garbage_grace_seconds),
                collect_interval: Some(std::time::Duration::from_secs(
                    (serving.garbage_grace_seconds / 2).clamp(1, 30),
                )),
                ..GatewayConfig::new(pool)
            },
            Arc::new(ClusterObjects),
            directory,
            open.keys()?,
        )?;
        let listeners = listeners(&open, serving)?;
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let workers = Workers::new(threads.handles().iter().cloned());
        let served = gateway.serve(workers, listeners, async move {
            terminate.recv().await;
        });
        tokio::select! {
            () = served => Ok(()),
            error = threads.failed() => Err(error).context("the event loop of an object client failed; the supervisor starts the gateway again"),
        }
    })
}
