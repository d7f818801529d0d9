//! Where buckets, identities and pools are written down: small records in cluster state.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_iam::Identities;
use atoll_iam::operations::{Answer, IamError, Outcome};
use atoll_types::identities::LastUsedRecord;
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
        /// The reason.
        detail: String,
    },
    /// The pool or the account of a new bucket was removed meanwhile. Nothing was written.
    #[error("{0} was removed meanwhile")]
    Gone(String),
    /// A record in cluster state was not written by a holder of the cluster's keys, so it grants no access.
    #[error("record '{name}' in cluster state is refused: {cause}")]
    Refused {
        /// Key of the record.
        name: String,
        /// Fault of its signature.
        cause: String,
    },
}

/// Why identities were not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    /// The operation does not fit the present identities.
    #[error(transparent)]
    Refused(#[from] IamError),
    /// The records could not be read or written.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

/// An operation on identities. It may be tried several times, on identities that others have changed meanwhile.
pub type IdentityOperation<'a> = dyn Fn(&Identities) -> Result<Outcome, IamError> + Send + Sync + 'a;

/// The records of buckets and identities, and of pools as far as new buckets need them. Every call that waits
/// goes to cluster state; the gateway does its own caching on the data path.
#[async_trait]
pub trait BucketDirectory: Send + Sync + 'static {
    /// The bucket of this name.
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError>;

    /// Returns true if cluster state answers and no bucket of this name was heard of: at most moments ago there was
    /// none.
    fn is_unheard_bucket(&self, _name: &str) -> bool {
        false
    }

    /// The same of an access key.
    fn is_unheard_access_key(&self, _access_key: &str) -> bool {
        false
    }

    /// All buckets, ordered by name.
    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError>;

    /// Writes the record if no bucket has its name; otherwise returns the one that has. [`DirectoryError::Gone`] if its
    /// pools or its owner's account are not there any more.
    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError>;

    /// Puts `new` in the place of `old`, of the same name, if that is still the record; whether it was.
    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError>;

    /// Removes the record if it is still exactly this one; whether it was.
    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError>;

    /// The pool of this name.
    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError>;

    /// All identities as they were heard of last: at most moments old while cluster state answers.
    fn identities(&self) -> Arc<Identities>;

    /// Time since cluster state has confirmed that the copy of identities is complete.
    fn unconfirmed_for(&self) -> Duration;

    /// The cluster's time, in milliseconds since the Unix epoch: never later than its writer's clock. `None` if it
    /// was never written.
    fn cluster_unix_ms(&self) -> Option<u64> {
        None
    }

    /// Identities that have this access key, if it was made so shortly ago that [`BucketDirectory::identities`] may
    /// not have it yet; `None` if there is no such key.
    async fn identities_with(&self, access_key: &str) -> Result<Option<Arc<Identities>>, DirectoryError>;

    /// All identities with every change that was made before the call; those that were heard of last while
    /// cluster state does not answer.
    async fn current_identities(&self) -> Result<Arc<Identities>, DirectoryError>;

    /// Does an operation, with all its changes or none of them. After that [`BucketDirectory::identities`] has them.
    async fn change_identities(&self, operation: &IdentityOperation<'_>) -> Result<Answer, ChangeError>;

    /// When an access key was last used, as far as it was noted.
    async fn last_used(&self, access_key: &str) -> Result<Option<LastUsedRecord>, DirectoryError>;

    /// Notes when an access key was last used.
    async fn note_last_use(&self, access_key: &str, record: &LastUsedRecord) -> Result<(), DirectoryError>;
}
