//! The directory in cluster state.

use async_trait::async_trait;
use atoll_base::records::{BucketRecord, UserRecord};
use atoll_cluster::{ClusterClient, ClusterError, keys};

use crate::directory::{BucketDirectory, DirectoryError};

/// Buckets and users as records in cluster state.
pub struct EtcdDirectory {
    cluster: ClusterClient,
}

impl EtcdDirectory {
    /// A directory over an open connection.
    pub fn new(cluster: ClusterClient) -> Self {
        EtcdDirectory { cluster }
    }
}

fn error(error: ClusterError) -> DirectoryError {
    match error {
        ClusterError::Decode { key, .. } => {
            DirectoryError::Malformed { name: key, detail: "it is not the JSON of such a record".into() }
        }
        other => DirectoryError::Unavailable(other.to_string()),
    }
}

#[async_trait]
impl BucketDirectory for EtcdDirectory {
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        let found = self.cluster.get(&keys::bucket(name)).await.map_err(error)?;
        Ok(found.map(|(record, _)| record))
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError> {
        let listing = self.cluster.list::<BucketRecord>(keys::BUCKETS).await.map_err(error)?;
        Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect())
    }

    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError> {
        match self.cluster.create(&keys::bucket(&record.name), record).await {
            Ok(_) => Ok(None),
            Err(ClusterError::AlreadyExists { .. }) => self.bucket(&record.name).await,
            // Whether the record was written is not known: look.
            Err(unclear @ ClusterError::Unclear { .. }) => match self.bucket(&record.name).await? {
                Some(found) if found == *record => Ok(None),
                Some(found) => Ok(Some(found)),
                None => Err(error(unclear)),
            },
            Err(other) => Err(error(other)),
        }
    }

    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError> {
        let key = keys::bucket(&record.name);
        let found = self.cluster.get::<BucketRecord>(&key).await.map_err(error)?;
        let Some((_, revision)) = found.filter(|(found, _)| found == record) else { return Ok(false) };
        match self.cluster.delete_if(&key, revision).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Conflict { .. }) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    async fn user(&self, access_key: &str) -> Result<Option<UserRecord>, DirectoryError> {
        let found = self.cluster.get(&keys::user(access_key)).await.map_err(error)?;
        Ok(found.map(|(record, _)| record))
    }
}
