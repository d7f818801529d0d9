//! Running an OSD.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use atoll_cluster::ClusterClient;
use atoll_node::{DataDir, UnlockWith, check_store, is_old_device, note_end, note_start, store_of, tell_ends};
use atoll_osd::{MEMORY_TARGET_BYTES_MIN, Osd, OsdConfig};
use atoll_types::OsdId;
use atoll_types::size::parse_size_bytes;
use clap::Args;

use super::create::{UnlockArguments, unlock_with};
use crate::commands::daemon::{DaemonArguments, prepare};
use crate::commands::explain;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};

const STATE_PATIENCE: Duration = Duration::from_secs(60);
const STATE_POLL: Duration = Duration::from_millis(200);
/// Longest wait for cluster state to record why an OSD does not start.
const NOTE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct OsdRunArguments {
    #[command(flatten)]
    pub daemon: DaemonArguments,
    /// The OSD's number
    #[arg(long)]
    pub id: u32,
    /// Memory target of the OSD, at least 256M
    #[arg(long, value_name = "SIZE", env = "ATOLL_OSD_MEMORY_TARGET", value_parser = parse_memory_target, default_value = "1G")]
    pub memory_target: u64,
    /// How many bytes per second this OSD may read for backfill while clients are active
    #[arg(long, value_name = "SIZE", env = "ATOLL_OSD_RECOVERY_RATE", value_parser = parse_size_bytes, default_value = "64M")]
    pub recovery_rate: u64,
    /// Listen over RDMA, too, by this provider of libfabric: verbs, or tcp for tests without adapters [default: do not]
    #[arg(long, value_name = "NAME", env = "ATOLL_RDMA_PROVIDER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub rdma_provider: Option<String>,
    #[command(flatten)]
    pub unlock: UnlockArguments,
}

fn parse_memory_target(text: &str) -> Result<u64, String> {
    let bytes = parse_size_bytes(text)?;
    if bytes < MEMORY_TARGET_BYTES_MIN {
        return Err("an OSD needs at least 256M".into());
    }
    Ok(bytes)
}

/// Runs an OSD. The secret that unlocks its devices is remembered, unless another is named.
pub fn run(arguments: &OsdRunArguments) -> anyhow::Result<()> {
    let id = OsdId(arguments.id);
    let open = prepare(&arguments.daemon, &id.to_string())?;
    let unlock_with =
        unlock_with(&arguments.unlock).map_or_else(|| open.directory.unlock_with(id), |named| Ok(Some(named)))?;
    note_panics(&open.directory, id);
    let result = start(arguments, &open, id, unlock_with);
    if let Err(error) = &result {
        tracing::error!("{}", explain(error));
    }
    let (osd, store_id) = result?;
    osd.run().map_err(|error| {
        tracing::error!("{error}");
        ended(&open, id, store_id, &error.to_string());
        error.into()
    })
}

/// Takes down why this process ends by itself. Cluster state learns it now, or at the next start.
fn ended(open: &OpenCluster, id: OsdId, store_id: [u8; 16], reason: &str) {
    let noted = note_end(&open.directory, id, reason).map_err(anyhow::Error::from);
    let telling = async { anyhow::Ok(tell_ends(&open.directory, &open.connect().await?, id, store_id).await?) };
    let told = noted.and_then(|()| tokio_runtime()).and_then(|runtime| {
        runtime.block_on(async { tokio::time::timeout(NOTE_LIMIT, telling).await.unwrap_or(Ok(())) })
    });
    not_noted(told);
}

/// Notes a panic's message, which the next start reports.
fn note_panics(directory: &DataDir, id: OsdId) {
    let (directory, before) = (directory.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        // Who cannot write it down ends all the same.
        let _ = note_end(&directory, id, &panic.to_string());
        before(panic);
    }));
}

/// Cluster state may be away for a while: then it is better to wait than to be started again and again.
async fn connect_patiently(open: &OpenCluster) -> anyhow::Result<ClusterClient> {
    let deadline = Instant::now() + STATE_PATIENCE;
    loop {
        match open.connect().await {
            Err(error) if Instant::now() < deadline => tracing::debug!("{}", explain(&error)),
            connected => return connected,
        }
        tokio::time::sleep(STATE_POLL).await;
    }
}

/// Starts an OSD on a device that is its own; cluster state learns why if that fails.
fn start(
    arguments: &OsdRunArguments,
    open: &OpenCluster,
    id: OsdId,
    unlock_with: Option<UnlockWith>,
) -> anyhow::Result<(Osd, [u8; 16])> {
    let runtime = tokio_runtime()?;
    let store = match store_of(&open.directory, id, unlock_with.as_ref()) {
        Ok(store) => store,
        Err(error) => {
            let error = anyhow::Error::from(error);
            // It is said by this process, and soon, whether cluster state is there to learn it or not.
            let noting =
                async { anyhow::Ok(note_start(&open.connect().await?, id, Some(&explain(&error))).await?) };
            let late = || anyhow!("it did not answer within {} s", NOTE_LIMIT.as_secs());
            let noted = async { tokio::time::timeout(NOTE_LIMIT, noting).await.unwrap_or_else(|_| Err(late())) };
            not_noted(runtime.block_on(noted));
            return Err(error);
        }
    };
    let state = runtime.block_on(connect_patiently(open))?;
    not_noted(
        runtime.block_on(tell_ends(&open.directory, &state, id, store.store_id)).map_err(anyhow::Error::from),
    );
    let checked = runtime.block_on(async {
        check_store(&open.directory, &state, id, &store).await?;
        is_old_device(&state, id, &store).await
    });
    let started = checked.map_err(anyhow::Error::from).and_then(|device_is_old| {
        let config = OsdConfig {
            id,
            device: open.directory.device(id),
            log_device: open.directory.wal_device(id),
            device_key: unlock_with.map(|choice| choice.device_key(&open.directory)).transpose()?,
            listen: std::net::SocketAddr::new(open.cluster.osd_listen(), 0),
            advertise: open.cluster.advertise,
            rdma_provider: arguments.rdma_provider.clone(),
            key: open.directory.static_key(&id.to_string())?,
            device_is_old,
            memory_target_bytes: arguments.memory_target,
            recovery_bytes_per_second: arguments.recovery_rate,
            cluster: open.directory.verifying_options(&open.cluster),
        };
        Ok(Osd::start(config)?)
    });
    let failure = started.as_ref().err().map(explain);
    let noted = runtime.block_on(note_start(&state, id, failure.as_deref()));
    not_noted(noted.map_err(anyhow::Error::from));
    Ok((started?, store.store_id))
}

/// An OSD starts, or ends, whatever cluster state learns of that.
fn not_noted(noted: anyhow::Result<()>) {
    if let Err(error) = noted {
        tracing::warn!("cluster state does not learn how this OSD started or ended: {}", explain(&error));
    }
}
