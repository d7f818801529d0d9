//! The embedded cluster-state server.

use std::time::Duration;

use anyhow::Context;
use atoll_cluster::{EmbeddedServer, Protection};
use atoll_node::DataDir;
use clap::Subcommand;

use super::daemon::{DaemonArguments, prepare};
use super::open_cluster::tokio_runtime;

/// How often one looks whether there is room for the reserve.
const RESERVE_POLL: Duration = Duration::from_secs(2);

#[derive(Subcommand)]
pub enum StateCommand {
    /// Run in the foreground
    Run(DaemonArguments),
}

/// Runs the embedded cluster-state server.
pub fn run(command: &StateCommand) -> anyhow::Result<()> {
    let StateCommand::Run(arguments) = command;
    let open = prepare(arguments, "cluster-state")?;
    let listen = open.cluster.state_listen.clone().context("this cluster uses an etcd of its own")?;
    let listen: std::net::SocketAddr = listen.parse().context("state_listen in cluster.json")?;
    let read = |path: std::path::PathBuf| std::fs::read(&path).with_context(|| path.display().to_string());
    let tls = match open.directory.state_identity() {
        Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let credentials = open.cluster.state_user.clone().zip(open.cluster.state_password.clone());
    let directory = open.directory.state();
    let mut has_reserve = None;
    keep_reserve(&open.directory, &mut has_reserve);
    tokio_runtime()?.block_on(async {
        let server = EmbeddedServer::start(listen, &directory, Protection { credentials, tls }).await?;
        tracing::info!("cluster state is served on {}", server.local_addr());
        loop {
            tokio::select! {
                // A new process opens the file again: 'atoll up' starts one.
                () = server.failed() => anyhow::bail!("cluster state cannot be written to {}", directory.display()),
                () = tokio::time::sleep(RESERVE_POLL) => keep_reserve(&open.directory, &mut has_reserve),
            }
        }
    })
}

/// OSDs that fill the file system must not end cluster state, which would end them. Says when that changes.
fn keep_reserve(directory: &DataDir, before: &mut Option<bool>) {
    let kept = directory.keep_state_reserve();
    let has_reserve = *kept.as_ref().unwrap_or(&false);
    if before.replace(has_reserve) == Some(has_reserve) {
        return;
    }
    match kept {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the file system of cluster state is almost full: it has no reserve of space"),
        Err(error) => tracing::warn!("cluster state has no reserve of space: {error}"),
    }
}
