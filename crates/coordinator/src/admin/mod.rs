//! Changes that operators make. Each is one transaction that takes effect as a whole or not at all,
//! and that is tried anew if somebody else changed the same records meanwhile. What follows from it
//! is done by the placement groups' primaries and by the coordinator.

pub mod osds;
pub mod peer_keys;
pub mod pools;
pub mod whole;

use std::future::Future;

use atoll_base::OsdId;
use atoll_cluster::ClusterError;

const ATTEMPTS_MAX: usize = 16;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// There is no such OSD.
    #[error("there is no {0} in the cluster; 'atoll osd ls' names all OSDs")]
    NoSuchOsd(OsdId),
    /// There is no such pool.
    #[error("there is no pool '{0}'; 'atoll pool ls' names all pools")]
    NoSuchPool(String),
    /// It makes no sense, or would do harm; the text says why and what to do.
    #[error("{0}")]
    Refused(String),
}

impl AdminError {
    fn refused<T>(text: impl Into<String>) -> Result<T, AdminError> {
        Err(AdminError::Refused(text.into()))
    }
}

/// Tries anew what met somebody else's change.
async fn retried<T, F: Future<Output = Result<T, AdminError>>>(attempt: impl Fn() -> F) -> Result<T, AdminError> {
    let mut attempts = 1;
    loop {
        match attempt().await {
            Err(AdminError::Cluster(ClusterError::Conflict { .. })) if attempts < ATTEMPTS_MAX => attempts += 1,
            outcome => return outcome,
        }
    }
}
