//! A data directory, and the cluster that it belongs to.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use atoll_audit::{Head, ProcessLog};
use atoll_client::ClientConfig;
use atoll_cluster::{ClusterClient, ConnectOptions};
use atoll_keys::{KeyRing, KeyService};
use atoll_node::{ClusterFile, DataDir, NodeError, ProcessesFile, check_identity};

use super::arguments::{DataArgument, OutputArguments};
use super::events::Author;

/// How long servers of images try an operation: a virtual machine's disk rather waits than fails.
pub const DISK_TIMEOUT_MS: u64 = 600_000;

/// How long commands wait for cluster state that can do without it.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

thread_local! {
    /// The connection to cluster state of the command that this thread runs.
    static CONNECTED: RefCell<Option<(ClusterClient, ConnectOptions)>> = const { RefCell::new(None) };
}

/// Notes the change of a command in the log of events, after the command has done it.
pub fn note_changes(author: &Author, words: impl Iterator<Item = String>) {
    let Some((client, options)) = CONNECTED.take() else { return };
    for why in client.left_out() {
        atoll_terminal::print_note!("atoll: left out: {why}");
    }
    if !client.has_changed_records() {
        return;
    }
    // The runtime in which the connection was made is over by now.
    let noted = tokio_runtime().and_then(|runtime| {
        runtime.block_on(async {
            let client = ClusterClient::connect(&options).await?;
            super::events::note_command(&client, author, words).await
        })
    });
    if let Err(error) = noted {
        atoll_terminal::print_note!("atoll: the log of events does not have this command: {error}");
    }
}

/// To be called when a command is over: cluster state hears of its lines in the audit log, if the command has asked cluster
/// state for something.
pub fn publish_heads(who: &ProcessLog, heads: &[Head]) {
    let options = CONNECTED.with_borrow(|connected| connected.as_ref().map(|(_, options)| options.clone()));
    let Some(options) = options.filter(|_| !heads.is_empty()) else { return };
    let published = tokio_runtime().and_then(|runtime| {
        runtime.block_on(async {
            let publish = async {
                let client = ClusterClient::connect(&options).await?;
                super::audit_heads::publish(&client, who, heads).await
            };
            Ok(tokio::time::timeout(CONNECT_LIMIT, publish).await??)
        })
    });
    if let Err(error) = published {
        atoll_terminal::print_note!("atoll: cluster state does not hear of this command's audit log: {error}");
    }
}

/// A data directory with its cluster's settings.
pub struct OpenCluster {
    pub directory: DataDir,
    pub cluster: ClusterFile,
    /// Daemons wait for cluster state; commands say at once when the cluster is not running.
    pub is_daemon: bool,
}

impl OpenCluster {
    pub fn open(data: &DataArgument) -> anyhow::Result<Self> {
        let directory = DataDir::new(&data.data);
        let cluster = directory.cluster()?;
        Ok(OpenCluster { directory, cluster, is_daemon: false })
    }

    /// A client of OSDs with the static key of this host's `client`, or its `gateway`.
    pub fn client_config(&self, key_holder: &str, timeout_ms: u64) -> anyhow::Result<ClientConfig> {
        Ok(ClientConfig {
            key: self.directory.static_key(key_holder)?,
            cluster: self.directory.connect_options(&self.cluster),
            timeout_ms,
        })
    }

    pub fn keys(&self) -> anyhow::Result<Arc<dyn KeyService>> {
        Ok(Arc::new(KeyRing::open(&self.directory.key_service_file())?))
    }

    /// The names of the processes that the supervisor of this host has started.
    pub fn processes(&self) -> anyhow::Result<Vec<String>> {
        let file = ProcessesFile::running(&self.directory).with_context(|| {
            format!("nothing runs here; 'atoll up --data {}' starts it", self.directory.root().display())
        })?;
        Ok(file.children.into_iter().map(|child| child.name).collect())
    }

    /// Connects, or gives up soon: for commands that can do without.
    pub async fn connect_soon(&self) -> anyhow::Result<ClusterClient> {
        let connected = tokio::time::timeout(CONNECT_LIMIT, self.connect()).await;
        connected
            .unwrap_or_else(|_| anyhow::bail!("no answer of cluster state within {} s", CONNECT_LIMIT.as_secs()))
    }

    pub async fn connect(&self) -> anyhow::Result<ClusterClient> {
        let is_embedded = self.cluster.state_listen.is_some();
        if is_embedded && !self.is_daemon && ProcessesFile::running(&self.directory).is_none() {
            return Err(NodeError::NotRunning { path: self.directory.root().into() }.into());
        }
        let hint =
            format!("is the cluster running? start it with 'atoll up --data {}'", self.directory.root().display());
        let options = self.directory.connect_options(&self.cluster);
        let state = ClusterClient::connect(&options).await.context(hint)?;
        check_identity(&self.cluster, &state).await?;
        if !self.is_daemon {
            CONNECTED.set(Some((state.clone(), self.cluster.connect_options())));
        }
        Ok(state)
    }
}

/// Runs a command that needs cluster state.
pub fn connected<T>(
    output: &OutputArguments,
    call: impl AsyncFnOnce(&OpenCluster, ClusterClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async { call(&open, open.connect().await?).await })
}

/// The runtime of cluster state and of S3.
pub fn tokio_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the tokio runtime")
}
