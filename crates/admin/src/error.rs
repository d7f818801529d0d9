//! Why a change was not made.

use std::future::Future;

use atoll_authority::SigningError;
use atoll_cluster::ClusterError;
use atoll_iam::operations::IamError;
use atoll_image::ImageError;
use atoll_keys::KeyError;
use atoll_types::{OsdId, PgId};

/// Why a question was not answered, or a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The key service.
    #[error(transparent)]
    Crypto(#[from] KeyError),
    /// An image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An operation on identities.
    #[error(transparent)]
    Iam(#[from] IamError),
    /// There is no such account.
    #[error("there is no account '{0}'; 'atoll account ls' names all accounts")]
    NoSuchAccount(String),
    /// There is no such managed policy.
    #[error(
        "account '{account}' has no managed policy '{policy}'; 'atoll policy ls' names them, and those that are always there"
    )]
    NoSuchPolicy {
        /// The name of the account.
        account: String,
        /// The policy.
        policy: String,
    },
    /// There is no such OSD.
    #[error("there is no {0} in the cluster; 'atoll osd ls' names all OSDs")]
    NoSuchOsd(OsdId),
    /// There is no such pool.
    #[error("there is no pool '{0}'; 'atoll pool ls' names all pools")]
    NoSuchPool(String),
    /// There is no such PG.
    #[error("there is no PG {0}; 'atoll pg ls' lists all PGs")]
    NoSuchPg(PgId),
    /// The PG has not been created yet.
    #[error("PG {0} has not been created yet; see 'atoll health'")]
    PgNotMade(PgId),
    /// There is no such bucket.
    #[error("there is no bucket '{0}'")]
    NoSuchBucket(String),
    /// There is no such key.
    #[error("there is no key '{0}'; 'atoll key ls' lists all keys")]
    NoSuchKey(String),
    /// It makes no sense, or would do harm; the text has the reason and the remedy.
    #[error("{0}")]
    Refused(String),
}

impl AdminError {
    pub(crate) fn refused<T>(text: impl Into<String>) -> Result<T, AdminError> {
        Err(AdminError::Refused(text.into()))
    }
}

/// Tries again when another process has changed the same records meanwhile.
pub(crate) async fn retried<T, F: Future<Output = Result<T, AdminError>>>(
    attempt: impl Fn() -> F,
) -> Result<T, AdminError> {
    let is_conflict = |error: &_| matches!(error, AdminError::Cluster(ClusterError::Conflict { .. }));
    atoll_cluster::retried(is_conflict, attempt).await
}

impl From<SigningError> for AdminError {
    fn from(error: SigningError) -> Self {
        match error {
            SigningError::Cluster(error) => AdminError::Cluster(error),
            SigningError::Keys(error) => AdminError::Crypto(error),
            other => AdminError::Refused(other.to_string()),
        }
    }
}
