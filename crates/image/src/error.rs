//! What can go wrong with images.

use atoll_client::ClientError;
use atoll_cluster::ClusterError;
use atoll_keys::KeyError;
use atoll_seal::SealError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such image.
    #[error("there is no image '{0}'; see 'atoll image ls'")]
    NoSuchImage(String),
    /// There is one already.
    #[error("there is an image '{0}' already")]
    AlreadyExists(String),
    /// A name, size or range that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// Another writer holds the image.
    #[error("image '{name}' is in use by {purpose} (process {process_id} on {host}); stop it first")]
    InUse {
        /// The image.
        name: String,
        /// The holder's host.
        host: String,
        /// The holder's process.
        process_id: u32,
        /// What the holder is.
        purpose: String,
    },
    /// This writer has lost the image: its lease ran out, or another writer has taken over.
    #[error("this writer has lost image '{0}': its lease ran out or another writer took over; attach again")]
    Lost(String),
    /// Its key was destroyed on purpose.
    #[error(
        "the key of image '{0}' was destroyed; what is in it cannot be read any more. 'atoll image rm' removes it"
    )]
    KeyDestroyed(String),
    /// An object could not be read or written.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Cluster state could not be read or changed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A key does not open, or its key service does not answer.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A sealed block does not open.
    #[error(transparent)]
    Seal(#[from] SealError),
}

impl ImageError {
    /// Whether the cluster is out of space.
    pub fn is_no_space(&self) -> bool {
        match self {
            ImageError::Client(error) => matches!(error.refusal(), Some(atoll_types::Refusal::NoSpace { .. })),
            _ => false,
        }
    }
}
