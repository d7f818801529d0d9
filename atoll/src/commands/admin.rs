//! The admin server.

use anyhow::Context;
use atoll_console::AdminServer;
use clap::Subcommand;

use super::daemon::{DaemonArguments, prepare};
use super::open_cluster::tokio_runtime;

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Run in the foreground, where 'atoll up --admin-listen' has said
    #[command(after_help = "Example:\n  atoll admin run --data ./atoll-data")]
    Run(DaemonArguments),
}

/// Runs the admin server.
pub fn run(command: &AdminCommand) -> anyhow::Result<()> {
    let AdminCommand::Run(arguments) = command;
    let open = prepare(arguments, "admin")?;
    let listen = open.cluster.admin_listen();
    let listen = listen.context("this host has no admin server: 'atoll up --admin-listen off' has said so")?;
    tokio_runtime()?.block_on(async {
        let server = AdminServer::bind(open.directory, open.cluster, &listen).await?;
        tracing::info!("the admin server listens on https://{}", server.address());
        server.serve().await;
        Ok(())
    })
}
