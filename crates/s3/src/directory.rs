//! Where buckets, users and pools are written down: small records in cluster state.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_iam::Identities;
use atoll_types::identities::AccessKeyRecord;
use atoll_types::records::{BucketRecord, PoolRecord};

/// Why a call to the directory failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DirectoryError {
    /// Cluster state cannot be reached or did not answer in time.
    #[error("cluster state is not available: {0}")]
    Unavailable(String),
    /// A record in cluster state cannot be read.
    #[error("record '{name}' in cluster state is damaged: {detail}")]
    Malformed {
        /// Which record.
        name: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// The records of buckets and users, and of pools as far as new buckets need them. Every call goes to
/// cluster state; the gateway does its own caching on the data path.
#[async_trait]
pub trait BucketDirectory: Send + Sync + 'static {
    /// The bucket of this name.
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError>;

    /// All buckets, ordered by name.
    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError>;

    /// Writes the record if no bucket has its name; otherwise returns the one that has.
    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError>;

    /// Puts `new` in the place of `old`, of the same name, if that is still the record; whether it was.
    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError>;

    /// Removes the record if it is still exactly this one; whether it was.
    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError>;

    /// The pool of this name.
    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError>;

    /// All identities, as they are known now.
    fn identities(&self) -> Arc<Identities>;

    /// The user with this access key.
    async fn user(&self, access_key: &str) -> Result<Option<AccessKeyRecord>, DirectoryError>;
}
