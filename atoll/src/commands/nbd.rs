//! The NBD server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use atoll_client::LocalClient;
use atoll_image::{Bridge, ImageAdmin};
use atoll_nbd::protocol::TlsPolicy;
use atoll_nbd::{NbdServer, TlsChoice, TlsMode};
use atoll_reactor::{ListenAddress, LocalRuntime};
use atoll_tls::TlsFiles;
use clap::{Args, Subcommand, ValueEnum};

use super::audit_log::ImageAuditArguments;
use super::daemon::{DaemonArguments, prepare};
use super::open_cluster::{DISK_TIMEOUT_MS, tokio_runtime};

/// How often one looks for removed images whose data is still there.
const HOUSEKEEPING_PAUSE: Duration = Duration::from_secs(10);

#[derive(Subcommand)]
pub enum NbdCommand {
    /// Run in the foreground
    #[command(after_help = "\
Examples:
  atoll nbd run --data ./atoll-data
  atoll nbd run --data ./atoll-data --tls required --tls-client-ca /etc/atoll/nbd-clients.pem
  ATOLL_NBD_TLS_CLIENT_CA=/etc/atoll/nbd-clients.pem atoll up --data ./atoll-data --nbd-listen 10.0.0.1:10809

Clients: nbdinfo 'nbds://HOST/IMAGE?tls-certificates=DIR', where DIR has ca-cert.pem (a copy of the data
directory's tls/ca.crt) and, where clients need certificates, client-cert.pem and client-key.pem.")]
    Run {
        #[command(flatten)]
        daemon: DaemonArguments,
        #[command(flatten)]
        tls: NbdTlsArguments,
        #[command(flatten)]
        audit: ImageAuditArguments,
    },
}

#[derive(Args)]
pub struct NbdTlsArguments {
    /// Refuse, allow or require TLS
    #[arg(long, value_name = "MODE", env = "ATOLL_NBD_TLS", default_value = "on")]
    pub tls: NbdTlsMode,
    /// The server's certificate and its intermediates, as PEM [default: DIR/tls/server.crt]
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, as PEM [default: DIR/tls/server.key]
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authorities, as PEM: clients need a certificate that one of them has signed. TCP is then served with TLS
    /// only
    #[arg(long, value_name = "FILE", env = "ATOLL_NBD_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NbdTlsMode {
    /// None
    Off,
    /// For clients that ask for it, if there is a certificate
    On,
    /// For all, also on Unix sockets
    Required,
}

/// Runs the NBD server.
pub fn run(command: NbdCommand) -> anyhow::Result<()> {
    let NbdCommand::Run { daemon, tls, audit } = command;
    let open = prepare(&daemon, "nbd")?;
    audit.open(&open, "nbd", "nbd")?;
    let tls = nbd_tls(tls, open.directory.root())?;
    let tokio = tokio_runtime()?;
    let admin = ImageAdmin::new(tokio.block_on(open.connect())?, open.keys()?);
    let runtime = LocalRuntime::new()?;
    let client = LocalClient::start(&runtime, open.client_config("client", DISK_TIMEOUT_MS)?)?;
    let bridge = Bridge::new(tokio.handle().clone(), runtime.wake_handle());
    let server = NbdServer::new(&client, bridge, admin.clone(), tls)
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
    // Of housekeeping, cluster state's part needs tokio where it is polled.
    let _inside = tokio.enter();
    runtime.spawn(housekeeping(admin.clone(), client.clone()));
    runtime.block_on(std::future::pending::<()>())?;
    Ok(())
}

/// Removes the rest of images and snapshots whose removal another process began.
async fn housekeeping(admin: ImageAdmin, client: LocalClient) {
    loop {
        client.runtime().sleep(HOUSEKEEPING_PAUSE).await;
        for done in [admin.purge_due(&client).await, admin.trim_all(&client).await] {
            match done {
                Ok(failed) => failed.into_iter().for_each(|(name, error)| {
                    tracing::warn!("the rest of removed image '{name}' cannot be deleted: {error}");
                }),
                Err(error) => tracing::debug!("images cannot be looked after now: {error}"),
            }
        }
    }
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

/// Removes a Unix socket of an earlier run; a socket with a listener stays.
fn remove_stale_socket(address: &ListenAddress) -> anyhow::Result<()> {
    let ListenAddress::Unix(path) = address else { return Ok(()) };
    if path.exists() && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).with_context(|| format!("cannot remove the old socket {}", path.display()))?;
    }
    Ok(())
}
