//! A data directory, and the cluster that it belongs to.

use std::sync::Arc;

use anyhow::Context;
use atoll_client::ClientConfig;
use atoll_cluster::ClusterClient;
use atoll_keys::{KeyRing, KeyService};
use atoll_node::{ClusterFile, DataDir, NodeError, ProcessesFile, check_identity};

use super::arguments::{DataArgument, OutputArguments};

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
            cluster: self.cluster.connect_options(),
            timeout_ms,
        })
    }

    pub fn keys(&self) -> anyhow::Result<Arc<dyn KeyService>> {
        Ok(Arc::new(KeyRing::open(&self.directory.key_service_file())?))
    }

    pub async fn connect(&self) -> anyhow::Result<ClusterClient> {
        let is_embedded = self.cluster.state_listen.is_some();
        if is_embedded && !self.is_daemon && ProcessesFile::running(&self.directory).is_none() {
            return Err(NodeError::NotRunning { path: self.directory.root().into() }.into());
        }
        let hint =
            format!("is the cluster running? start it with 'atoll up --data {}'", self.directory.root().display());
        let state = ClusterClient::connect(&self.cluster.connect_options()).await.context(hint)?;
        check_identity(&self.cluster, &state).await?;
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
