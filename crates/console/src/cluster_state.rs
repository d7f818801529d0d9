//! The way to cluster state, which may not be there: an admin server serves all the same, and says so.

use std::time::Duration;

use atoll_admin::AdminError;
use atoll_cluster::{ClusterClient, ClusterError};
use atoll_node::{ClusterFile, DataDir, NodeError, check_identity};
use tokio::sync::OnceCell;

/// A scrape waits for ten seconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// Time for which cluster state's last answer about operators, tokens and hosts counts while it does not answer.
/// It is needed most during problems, and removed rights must not count for ever.
pub(crate) const UNCONFIRMED_MAX: Duration = Duration::from_secs(600);

pub(crate) struct ClusterState {
    directory: DataDir,
    cluster: ClusterFile,
    client: OnceCell<ClusterClient>,
}

impl ClusterState {
    pub fn new(directory: DataDir, cluster: ClusterFile) -> Self {
        ClusterState { directory, cluster, client: OnceCell::new() }
    }

    /// The client; an error in words if there is none yet.
    pub async fn client(&self) -> Result<ClusterClient, String> {
        let connecting = self.client.get_or_try_init(|| async {
            let client = ClusterClient::connect(&self.directory.connect_options(&self.cluster)).await?;
            check_identity(&self.cluster, &client).await?;
            Ok::<_, NodeError>(client)
        });
        match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
            Ok(Ok(client)) => Ok(client.clone()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(no_answer(CONNECT_LIMIT)),
        }
    }

    /// Reads there within a time; a failure is an error in words.
    pub async fn read<T, E: ToString, F: Future<Output = Result<T, E>>>(
        &self,
        limit: Duration,
        read: impl FnOnce(ClusterClient) -> F,
    ) -> Result<T, String> {
        let read = async { read(self.client().await?).await.map_err(|error| error.to_string()) };
        tokio::time::timeout(limit, read).await.unwrap_or_else(|_| Err(no_answer(limit)))
    }
}

/// Takes a refused record for an absent one, which grants no access, and logs the cause.
pub(crate) fn absent_if_refused<T>(found: Result<Option<T>, AdminError>) -> Result<Option<T>, AdminError> {
    match found {
        Err(AdminError::Cluster(error @ ClusterError::Untrusted { .. })) => {
            tracing::error!("it grants no access: {error}");
            Ok(None)
        }
        found => found,
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs())
}
