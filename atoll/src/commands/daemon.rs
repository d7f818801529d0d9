//! Common start of all daemons.

use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use atoll_admin_socket::{AUDIT_ROUTE, CLOCK_ROUTE, PG_COPIES_ROUTE, Reply, Routes, SLOW_ROUTE};
use atoll_cluster::{ClusterClient, ClusterError};
use atoll_metrics::slow::slow_operations;
use atoll_traces::Source;
use clap::Args;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use super::arguments::DataArgument;
use super::audit_heads;
use super::audit_log::{daemon_log, follow_key_uses, own_log};
use super::log_lines::LogLines;
use super::open_cluster::OpenCluster;

/// Time after which the key service is asked again.
const KEY_SERVICE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct DaemonArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// End when standard input is closed
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// Default of `ATOLL_LOG`. s3s logs every answer that is an error, missing keys included, and rustls every client
/// that names a server by its address.
const LOG_FILTER: &str = "info,s3s=off,rustls=error";

/// Returns the log filter that `ATOLL_LOG` sets.
pub fn log_filter() -> anyhow::Result<Targets> {
    let filter = std::env::var("ATOLL_LOG").unwrap_or_default();
    let filter = if filter.is_empty() { LOG_FILTER } else { &filter };
    filter
        .parse()
        .with_context(|| format!("ATOLL_LOG is '{filter}', which is no filter; one is 'info,atoll_osd=debug'"))
}

/// Logs to standard error, ends with the parent if that is asked for, opens the data directory, and serves the admin
/// socket under the process' name.
pub fn prepare(arguments: &DaemonArguments, process: &str) -> anyhow::Result<OpenCluster> {
    let log = layer().with_writer(LogLines).with_ansi(false);
    tracing_subscriber::registry().with(log).with(log_filter()?).init();
    // A daemon with a dead thread would neither serve nor be restarted.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    raise_descriptor_limit();
    if arguments.exit_with_parent {
        std::thread::Builder::new().name("parent-watch".into()).spawn(|| {
            // The supervisor never writes; the pipe ends when the supervisor does.
            let _ = std::io::stdin().read(&mut [0]);
            tracing::info!("the supervisor is gone; ending");
            std::process::exit(0);
        })?;
    }
    let open = OpenCluster { is_daemon: true, ..OpenCluster::open(&arguments.data)? };
    serve_admin_socket(&open, process);
    follow_key_uses(daemon_log(&open, process), own_log(&open.directory, process, "keys"));
    audit_heads::follow(&open, process);
    export_traces(&open, process);
    Ok(open)
}

/// Waits until records of cluster state can be verified. A process that begins while the key service is away
/// accepts no record that grants access, and serves nothing; a running process has the keys.
pub async fn until_verifiable(state: &ClusterClient) -> anyhow::Result<()> {
    let mut is_told = false;
    loop {
        match state.read_authority().await {
            Err(error @ ClusterError::KeyService { .. }) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!("serving nothing until the key service answers: {error}");
                }
                tokio::time::sleep(KEY_SERVICE_PAUSE).await;
            }
            read => {
                if is_told {
                    tracing::info!("the key service answers");
                }
                return Ok(read?);
            }
        }
    }
}

/// Starts the export of traces; a process that cannot export serves nevertheless.
fn export_traces(open: &OpenCluster, process: &str) {
    let (kind, _) = process.split_once('.').unwrap_or((process, ""));
    let host = open.cluster.host_name();
    let source = Source {
        service: format!("atoll-{kind}"),
        instance: format!("{host}/{process}"),
        host,
        version: env!("CARGO_PKG_VERSION").into(),
    };
    if let Err(error) = atoll_traces::start(source) {
        tracing::warn!("{process} exports no traces: {error}");
    }
}

/// Starts the admin socket; a process without one serves nevertheless.
fn serve_admin_socket(open: &OpenCluster, process: &str) {
    atoll_metrics::register_process(process, env!("CARGO_PKG_VERSION"));
    atoll_security_log::register_metrics();
    let json = |text: serde_json::Result<String>| Reply {
        content_type: "application/json",
        text: text.expect("texts and numbers become JSON"),
    };
    let routes = Routes::default()
        .with(SLOW_ROUTE, move || json(serde_json::to_string(&slow_operations())))
        .with(AUDIT_ROUTE, move || json(serde_json::to_string(&atoll_audit::log_statuses())))
        .with(CLOCK_ROUTE, move || json(serde_json::to_string(&atoll_gateway::clock_ahead_ms())))
        .with(PG_COPIES_ROUTE, move || json(serde_json::to_string(&atoll_osd::copies_told())));
    let path = open.directory.admin_socket(process);
    if let Err(error) = atoll_admin_socket::serve_in_thread(&path, routes) {
        tracing::warn!("{process} has no metrics: its admin socket {} cannot be made: {error}", path.display());
    }
}

/// The usual soft limit of 1,024 descriptors is below our own limit of connections.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}
