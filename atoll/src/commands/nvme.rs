//! The NVMe/TCP target.

use std::net::SocketAddr;

use anyhow::Context;
use atoll_client::LocalClient;
use atoll_image::{Bridge, ImageAdmin};
use atoll_nvme::{HostSecretStore, NvmeTarget};
use atoll_reactor::LocalRuntime;
use clap::Subcommand;

use super::audit_log::ImageAuditArguments;
use super::daemon::{DaemonArguments, prepare};
use super::nvme_host::{self, HostCommand};
use super::open_cluster::{DISK_TIMEOUT_MS, tokio_runtime};

#[derive(Subcommand)]
pub enum NvmeCommand {
    /// Run in the foreground
    #[command(after_help = "\
Examples:
  atoll up --data ./atoll-data --nvme-listen 10.0.0.1:4420
  atoll image access disk1 --allow nqn.2014-08.org.nvmexpress:uuid:6b0a...     the name in the host's /etc/nvme/hostnqn
  atoll nvme run --data ./atoll-data --listen 10.0.1.1:4420                    one more gateway, at another address

On the host:
  modprobe nvme-tcp
  nvme discover -t tcp -a 10.0.0.1 -s 4420                                      names the images of this host
  nvme connect -t tcp -a 10.0.0.1 -s 4420 -n SUBNQN                             adds /dev/nvmeXnY
  nvme disconnect -n SUBNQN")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        /// Listen here, beside the target that 'atoll up' runs; may be given several times [default: the address
        /// given to 'atoll up']
        #[arg(long, value_name = "IP:PORT")]
        listen: Vec<SocketAddr>,
        #[command(flatten)]
        audit: ImageAuditArguments,
    },
    /// Set, list and remove credentials of hosts: secrets (DH-HMAC-CHAP) and keys for TLS
    #[command(subcommand)]
    Host(HostCommand),
}

/// `atoll nvme`.
pub fn run(command: NvmeCommand) -> anyhow::Result<()> {
    match command {
        NvmeCommand::Run { daemon, listen, audit } => run_target(&daemon, &listen, &audit),
        NvmeCommand::Host(command) => nvme_host::run(&command),
    }
}

fn run_target(daemon: &DaemonArguments, listen: &[SocketAddr], audit: &ImageAuditArguments) -> anyhow::Result<()> {
    let process = listen.first().map_or("nvme".into(), |address| format!("nvme-{}", address.port()));
    let open = prepare(daemon, &process)?;
    audit.open(&open, "nvme", &process)?;
    let listen = match listen {
        [] => addresses(&open.cluster.nvme_listen)?,
        chosen => chosen.to_vec(),
    };
    let tokio = tokio_runtime()?;
    let (state, keys) = (tokio.block_on(open.connect())?, open.keys()?);
    let secrets = HostSecretStore::new(state.clone(), keys.clone());
    let admin = ImageAdmin::new(state, keys);
    let runtime = LocalRuntime::new()?;
    let client = LocalClient::start(&runtime, open.client_config("client", DISK_TIMEOUT_MS)?)?;
    let bridge = Bridge::new(tokio.handle().clone(), runtime.wake_handle());
    let target = NvmeTarget::new(&client, bridge, admin, secrets, open.cluster.cluster_id.clone());
    for address in listen {
        let address = target.listen(address).with_context(|| format!("cannot listen on {address}"))?;
        tracing::info!("NVMe/TCP is served on {address}, with TLS to hosts that have a key for it");
    }
    let _inside = tokio.enter();
    runtime.block_on(std::future::pending::<()>())?;
    Ok(())
}

fn addresses(configured: &[String]) -> anyhow::Result<Vec<SocketAddr>> {
    anyhow::ensure!(
        !configured.is_empty(),
        "no address is configured: give --listen IP:PORT, or start the cluster with 'atoll up --nvme-listen IP:PORT'"
    );
    let parse = |text: &String| text.parse().with_context(|| format!("'{text}' in cluster.json is no IP:PORT"));
    configured.iter().map(parse).collect()
}
