//! Cluster state: its embedded server, snapshots, and putting one back.

use atoll_files::Access;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use atoll_authority::Authority;
use atoll_cluster::server::StartError;
use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, Protection, RecordGuard, verify_snapshot};
use atoll_node::{DataDir, STATE_FILES_CODE, login_source, raise_restored, restore_state};
use atoll_terminal::print_line;
use atoll_types::size::format_size;
use clap::Subcommand;
use serde_json::json;

use super::arguments::OutputArguments;
use super::daemon::{DaemonArguments, prepare};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{print_json, progress_bar};

/// How often one looks whether there is room for the reserve.
const RESERVE_POLL: Duration = Duration::from_secs(2);
/// How often the keys of signed records are read: a host that joins within it waits.
const SIGNER_PAUSE: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub enum StateCommand {
    /// Run in the foreground
    Run(DaemonArguments),
    /// Save all of cluster state to a file while the cluster runs
    #[command(after_help = "\
Example:
  atoll state snapshot /mnt/safe/state-$(date +%F).snapshot

It has the format of 'etcdctl snapshot save': of an etcd, 'etcdutl snapshot restore' restores it and 'atoll state raise' makes
it fit to be used; of the embedded server, 'atoll state restore' does both. It contains wrapped keys of images and buckets: with the keys of 'atoll key backup' and a device
it opens all data, so keep these apart. An older cluster state loses images and buckets made later, and writes to an
image that was attached again later: take a snapshot often.")]
    Snapshot {
        #[command(flatten)]
        output: OutputArguments,
        /// A new file
        file: PathBuf,
    },
    /// Put back a snapshot of the embedded cluster state, with the cluster stopped
    #[command(after_help = "\
Example:
  atoll down; atoll state restore /mnt/safe/state-2026-11-26.snapshot && atoll up

Only when cluster state is lost. Changes since the snapshot are lost: new images, buckets, users and keys, and
removed rights. Where one OSD alone has the latest writes, and the
snapshot does not know it as a member of the PG, those writes are lost: restore the newest snapshot, and start all OSDs.
A PG whose copies have all moved to other OSDs since does not serve: 'atoll pg why' shows where they
are, and 'atoll pg accept' resumes it from one of them.")]
    Restore {
        #[command(flatten)]
        output: OutputArguments,
        /// The file
        file: PathBuf,
        /// Go back, although there is cluster state: that is kept under another name
        #[arg(long)]
        replace: bool,
    },
    /// After an etcd was restored from a snapshot: raise its counters beyond those of OSDs, with the cluster
    /// stopped
    #[command(after_help = "\
Example:
  atoll down                                                   # on all hosts
  etcdutl snapshot restore state-2026-11-26.snapshot ...       # for each member of the etcd, which is then started
  atoll state raise && atoll up                                # 'raise' once, 'up' on all hosts

An etcd that is restored reuses numbers that it has given since the snapshot: epochs of PGs, generations of images'
writers, numbers of pools. OSDs would take new writes for old ones, and pools would find the data of others. As with
'atoll state restore', changes since the snapshot are lost. It does no harm to raise twice.")]
    Raise(OutputArguments),
}

/// Runs a command about cluster state.
pub fn run(command: &StateCommand) -> anyhow::Result<ExitCode> {
    match command {
        StateCommand::Run(arguments) => return serve(arguments),
        StateCommand::Snapshot { output, file } => snapshot(output, file)?,
        StateCommand::Restore { output, file, replace } => restore(output, file, *replace)?,
        StateCommand::Raise(output) => raise(output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn snapshot(output: &OutputArguments, file: &Path) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    if file.exists() {
        anyhow::bail!("{} exists already: name a new file", file.display());
    }
    let runtime = tokio_runtime()?;
    let client = runtime.block_on(open.connect())?;
    let partial = file.with_added_extension("partial");
    let in_file = || partial.display().to_string();
    let mut writer = atoll_files::make_anew(&partial, Access::Owner).with_context(in_file)?;
    let progress = progress_bar("saving cluster state");
    runtime.block_on(client.snapshot(&mut writer, progress))?;
    writer.sync_all().with_context(in_file)?;
    let state_bytes = verify_snapshot(&partial).with_context(in_file)?;
    let state_bytes = state_bytes.context("the snapshot from cluster state is incomplete; try again")?;
    atoll_files::rename(&partial, file).with_context(|| file.display().to_string())?;
    if output.json {
        return print_json(&json!({ "file": file, "state_bytes": state_bytes }));
    }
    print_line!("{} has all of cluster state, {}", file.display(), format_size(state_bytes));
    Ok(())
}

fn restore(output: &OutputArguments, file: &Path, replace: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let restored = tokio_runtime()?.block_on(restore_state(&open.directory, &open.cluster, file, replace))?;
    if output.json {
        return print_json(&restored);
    }
    print_line!("cluster state is that of the snapshot: {} PGs, {} images", restored.pgs, restored.images);
    if let Some(before) = &restored.before {
        print_line!("the previous cluster state is in {}", before.display());
    }
    print_line!("start all OSDs together: 'atoll up' on each host");
    Ok(())
}

fn raise(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let raised = tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        anyhow::Ok(raise_restored(&open.directory, &open.cluster, &state).await?)
    })?;
    if output.json {
        return print_json(&raised);
    }
    print_line!("raised the counters of {} PGs and {} images, and of pools", raised.pgs, raised.images);
    print_line!("start all OSDs together: 'atoll up' on each host");
    Ok(())
}

/// Runs the embedded cluster-state server.
fn serve(arguments: &DaemonArguments) -> anyhow::Result<ExitCode> {
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
        let login_source = Some(login_source(&open.directory));
        // The first start of a cluster makes the key service after cluster state.
        let key_file = open.directory.key_service_file();
        let signer: Arc<dyn RecordGuard> = Arc::new(Authority::of_file(&key_file, false));
        let found = signer.clone();
        let find = move || key_file.exists().then(|| found.clone());
        let protection = Protection { credentials, login_source, tls, signer: Some(Arc::new(find)) };
        let server = match EmbeddedServer::start(listen, &directory, protection).await {
            Err(StartError::Disk(error)) if error.is_lasting() => {
                tracing::error!("{error}");
                return Ok(ExitCode::from(STATE_FILES_CODE));
            }
            started => started?,
        };
        tracing::info!("cluster state is served on {}", server.local_addr());
        tokio::spawn(keep_signer(signer, open.directory.key_service_file(), open.cluster.connect_options()));
        loop {
            tokio::select! {
                // A new process opens the file again: 'atoll up' starts one.
                () = server.failed() => anyhow::bail!("cluster state cannot be written to {}", directory.display()),
                () = tokio::time::sleep(RESERVE_POLL) => keep_reserve(&open.directory, &mut has_reserve),
            }
        }
    })
}

/// Has the signer of the keys of processes know the newest key of the authority.
async fn keep_signer(signer: Arc<dyn RecordGuard>, key_file: PathBuf, options: ConnectOptions) {
    let mut client = None;
    loop {
        tokio::time::sleep(SIGNER_PAUSE).await;
        if client.is_none() {
            client = ClusterClient::connect(&options).await.ok();
        }
        if let Some(client) = client.as_ref().filter(|_| key_file.exists())
            && let Err(error) = signer.refresh(client).await
        {
            tracing::warn!("keys of hosts that join cannot be signed now: {error}");
        }
    }
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
