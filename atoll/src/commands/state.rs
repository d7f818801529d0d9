//! The embedded cluster-state server.

use anyhow::Context;
use atoll_cluster::{EmbeddedServer, Protection};
use clap::Subcommand;

use super::daemon::{DaemonArguments, prepare};
use super::open_cluster::tokio_runtime;

#[derive(Subcommand)]
pub enum StateCommand {
    /// Run in the foreground
    Run(DaemonArguments),
}

/// Runs the embedded cluster-state server.
pub fn run(command: &StateCommand) -> anyhow::Result<()> {
    let StateCommand::Run(arguments) = command;
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
