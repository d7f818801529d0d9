//! The way to cluster state, which may not be there: an admin server serves all the same, and says so.

use std::time::Duration;

use atoll_cluster::ClusterClient;
use atoll_node::{ClusterFile, NodeError, check_identity};
use tokio::sync::OnceCell;

/// Who scrapes waits for ten seconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

pub(crate) struct ClusterState {
    cluster: ClusterFile,
    client: OnceCell<ClusterClient>,
}

impl ClusterState {
    pub fn new(cluster: ClusterFile) -> Self {
        ClusterState { cluster, client: OnceCell::new() }
    }

    /// The client; an error in words if there is none yet.
    pub async fn client(&self) -> Result<ClusterClient, String> {
        let connecting = self.client.get_or_try_init(|| async {
            let client = ClusterClient::connect(&self.cluster.connect_options()).await?;
            check_identity(&self.cluster, &client).await?;
            Ok::<_, NodeError>(client)
        });
        match tokio::time::timeout(CONNECT_LIMIT, connecting).await {
            Ok(Ok(client)) => Ok(client.clone()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", CONNECT_LIMIT.as_secs())),
        }
    }
}
