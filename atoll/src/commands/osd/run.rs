//! Running an OSD.

use atoll_osd::{MEMORY_TARGET_BYTES_MIN, Osd, OsdConfig};
use atoll_types::OsdId;
use atoll_types::size::parse_size_bytes;
use clap::Args;

use super::create::{UnlockArguments, unlock_with};
use crate::commands::daemon::{DaemonArguments, prepare};

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

/// Runs an OSD. What unlocks its devices is remembered, unless something else is named.
pub fn run(arguments: &OsdRunArguments) -> anyhow::Result<()> {
    let open = prepare(&arguments.daemon)?;
    let id = OsdId(arguments.id);
    let unlock_with =
        unlock_with(&arguments.unlock).map_or_else(|| open.directory.unlock_with(id), |named| Ok(Some(named)))?;
    let config = OsdConfig {
        id,
        device: open.directory.device(id),
        log_device: open.directory.wal_device(id),
        device_key: unlock_with.map(|choice| choice.device_key(&open.directory)).transpose()?,
        listen: std::net::SocketAddr::new(open.cluster.osd_listen(), 0),
        advertise: open.cluster.advertise,
        key: open.directory.static_key(&id.to_string())?,
        memory_target_bytes: arguments.memory_target,
        recovery_bytes_per_second: arguments.recovery_rate,
        cluster: open.cluster.connect_options(),
    };
    let result = Osd::start(config).and_then(Osd::run);
    if let Err(error) = &result {
        tracing::error!("{error}");
    }
    Ok(result?)
}
