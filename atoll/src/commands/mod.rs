//! One module per family of commands.

mod bench;
mod bench_block;
mod bench_client;
mod bench_disk;
mod bench_guard;
mod bench_model;
mod bench_object;
mod bench_osds;
mod bench_recovery;
mod bench_report;
mod bench_run;
mod bench_store;
mod bucket;
mod daemons;
mod gateway_listeners;
mod health;
mod hosts;
mod image;
mod key;
mod osd;
mod osd_members;
mod peer_keys;
mod pg;
mod pg_scrub;
mod pool;
mod preflight;
mod show;
mod sim;
mod store;
mod up;
mod whole;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use atoll_client::ClientConfig;
use atoll_cluster::ClusterClient;
use atoll_crypto::{KeyRing, KeyService};
use atoll_supervisor::{ClusterFile, DataDir, ProcessesFile, SupervisorError, check_identity};
use clap::CommandFactory;
use serde::Serialize;

use crate::cli::{
    Arguments, ClusterCommand, Command, DaemonCommand, DataArgument, GatewayCommand, NbdCommand, OsdCommand,
};

/// Runs the command that was asked for.
pub fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Health(arguments) => health::health(&arguments),
        Command::Preflight(arguments) => preflight::run(arguments),
        command => run_plain(command).map(|()| ExitCode::SUCCESS),
    }
}

fn run_plain(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Health(arguments) => health::health(&arguments).map(drop),
        Command::Preflight(arguments) => preflight::run(arguments).map(drop),
        Command::Up(arguments) => up::up(&arguments),
        Command::Down(data) => up::down(&data),
        Command::Join(arguments) => hosts::run_join(&arguments),
        Command::Cluster(ClusterCommand::Token(command)) => hosts::token(&command),
        Command::Cluster(ClusterCommand::Key(command)) => peer_keys::run(&command),
        Command::Status(output) => show::status(&output),
        Command::Df(output) => show::df(&output),
        Command::Credentials(output) => show::credentials(&output),
        Command::Osd(command) => run_osd(command),
        Command::Store(command) => store::run(&command),
        Command::Pool(command) => pool::run(&command),
        Command::Pg(command) => pg::run(&command),
        Command::Flag(command) => whole::flag(&command),
        Command::Settings(command) => whole::settings(&command),
        Command::Image(command) => image::run(command),
        Command::Bucket(command) => bucket::run(&command),
        Command::Key(command) => key::run(&command),
        Command::Bench(command) => bench::run(command),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::State(DaemonCommand::Run(daemon)) => daemons::state(&daemon),
        Command::Gateway(GatewayCommand::Run { daemon, data_pool, serving }) => {
            daemons::gateway(&daemon, data_pool, &serving)
        }
        Command::Nbd(NbdCommand::Run { daemon, tls }) => daemons::nbd(&daemon, tls),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "atoll", &mut std::io::stdout());
            Ok(())
        }
    }
}

fn run_osd(command: OsdCommand) -> anyhow::Result<()> {
    match command {
        OsdCommand::Ls(output) => osd_members::list(&output),
        OsdCommand::Tree(output) => osd_members::tree(&output),
        OsdCommand::Create(arguments) => osd::create(&arguments),
        OsdCommand::Add(arguments) => osd_members::add(&arguments),
        OsdCommand::Out(arguments) => osd_members::set_out(&arguments, true),
        OsdCommand::In(arguments) => osd_members::set_out(&arguments, false),
        OsdCommand::Reweight(arguments) => osd_members::reweight(&arguments),
        OsdCommand::SetLocation(arguments) => osd_members::set_location(&arguments),
        OsdCommand::Rm(arguments) => osd_members::remove(&arguments),
        OsdCommand::Run { daemon, id, memory_target, recovery_rate, unlock } => {
            daemons::osd(&daemon, id, memory_target, recovery_rate, &unlock)
        }
    }
}

/// A data directory with its cluster's settings.
struct OpenCluster {
    directory: DataDir,
    cluster: ClusterFile,
    /// Daemons wait for cluster state; commands say at once when the cluster is not running.
    is_daemon: bool,
}

impl OpenCluster {
    fn open(data: &DataArgument) -> anyhow::Result<Self> {
        let directory = DataDir::new(&data.data);
        let cluster = directory.cluster()?;
        Ok(OpenCluster { directory, cluster, is_daemon: false })
    }

    /// A client of OSDs with the static key of this host's `client`, or its `gateway`.
    fn client_config(&self, key_holder: &str, timeout_ms: u64) -> anyhow::Result<ClientConfig> {
        Ok(ClientConfig {
            key: self.directory.static_key(key_holder)?,
            cluster: self.cluster.connect_options(),
            timeout_ms,
        })
    }

    fn keys(&self) -> anyhow::Result<Arc<dyn KeyService>> {
        Ok(Arc::new(KeyRing::open(&self.directory.key_service_file())?))
    }

    async fn connect(&self) -> anyhow::Result<ClusterClient> {
        let is_embedded = self.cluster.state_listen.is_some();
        if is_embedded && !self.is_daemon && ProcessesFile::running(&self.directory).is_none() {
            return Err(SupervisorError::NotRunning { path: self.directory.root().into() }.into());
        }
        let hint =
            format!("is the cluster running? start it with 'atoll up --data {}'", self.directory.root().display());
        let state = ClusterClient::connect(&self.cluster.connect_options()).await.context(hint)?;
        check_identity(&self.cluster, &state).await?;
        Ok(state)
    }
}

fn tokio_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the tokio runtime")
}

fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    writeln!(std::io::stdout(), "{text}").context("cannot write the output")
}

/// Prints columns aligned under their headings.
fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    println!("{}", line(headings.to_vec()));
    for row in rows {
        println!("{}", line(row.iter().map(String::as_str).collect()));
    }
}
