//! Errors of images.

use atoll_client::ClientError;
use atoll_cluster::ClusterError;
use atoll_keys::KeyError;
use atoll_seal::SealError;
use atoll_types::PoolId;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is no such image.
    #[error("there is no image '{0}'; see 'atoll image ls'")]
    NoSuchImage(String),
    /// There is no such pool any more.
    #[error("there is no pool {0} any more; see 'atoll pool ls'")]
    NoSuchPool(PoolId),
    /// There is no such image in the trash.
    #[error("there is no image '{0}' in the trash; see 'atoll image trash ls'")]
    NotInTrash(String),
    /// There is one already.
    #[error("there is an image '{0}' already")]
    AlreadyExists(String),
    /// A name or a size that no image can have.
    #[error("{0}")]
    Unfit(String),
    /// An operation that is not possible in the image's present state; the text has the reason.
    #[error("{0}")]
    Invalid(String),
    /// Others have changed its record with every attempt.
    #[error("others change image '{0}' all the time; try again")]
    Contended(String),
    /// Another writer holds the image.
    #[error("image '{name}' is in use by {purpose} (process {process_id} on {host}); stop it first")]
    InUse {
        /// The image.
        name: String,
        /// The holder's host.
        host: String,
        /// The holder's process.
        process_id: u32,
        /// The holder's purpose.
        purpose: String,
    },
    /// This writer has lost the image: its lease ran out, or another writer has taken over.
    #[error("this writer has lost image '{0}': its lease ran out or another writer took over; attach again")]
    Lost(String),
    /// Cluster state has not answered for so long that this reader's data may be removed or changed by now.
    #[error(
        "'{0}' cannot be read now: cluster state has not answered for so long that it may have been removed or \
         changed; reading resumes when cluster state answers"
    )]
    CutOff(String),
    /// Data that a reader needs has vanished.
    #[error("object {object} of image {image_id} is gone: it was removed while it was read")]
    Vanished {
        /// The id of the image.
        image_id: String,
        /// The number of the object.
        object: u64,
    },
    /// The writer has gone over to another place, where the same is to be done again.
    #[error("image '{0}' was moved meanwhile")]
    Moved(String),
    /// Its key was destroyed on purpose.
    #[error("the key of image '{0}' was destroyed; its data cannot be read any more. 'atoll image rm' removes it")]
    KeyDestroyed(String),
    /// Work on all its objects was begun and is not done.
    #[error("{work} image '{name}' is not done; {remedy}")]
    Unfinished {
        /// The image.
        name: String,
        /// The interrupted work.
        work: &'static str,
        /// How to bring it to its end.
        remedy: String,
    },
    /// The image is being moved to another pool.
    #[error(
        "image '{name}' is being moved, and {percent} % are done; this can be done afterwards ('atoll image migrate' with \
         the same pool waits for it)"
    )]
    Moving {
        /// The image.
        name: String,
        /// How much of it is done.
        percent: u64,
    },
    /// There is no such snapshot.
    #[error("there is no snapshot '{snapshot}' of image '{name}'; see 'atoll image snap ls {name}'")]
    NoSuchSnapshot {
        /// The image.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The image has snapshots.
    #[error(
        "image '{name}' has {count} snapshots; remove them first ('atoll image snap rm {name} --all'), or put it into \
         the trash with them ('atoll image trash mv {name}')"
    )]
    HasSnapshots {
        /// The image.
        name: String,
        /// How many.
        count: usize,
    },
    /// Other images are clones of a snapshot.
    #[error(
        "snapshot '{snapshot}' of image '{name}' has clones, which need it; flatten or remove them first ('atoll image \
         info {name}' names them)"
    )]
    HasClones {
        /// The image.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// It is only to be read.
    #[error("'{0}' can only be read: it is a snapshot, or 'atoll image access' says so; a clone can be written")]
    ReadOnly(String),
    /// The image's PGs do not answer.
    #[error(
        "the placement groups of image '{name}' do not all answer within {} s; 'atoll health' says why", .limit.as_secs()
    )]
    NotServing {
        /// The image.
        name: String,
        /// How long was waited.
        limit: std::time::Duration,
    },
    /// A stream of changes could not be read or written.
    #[error(transparent)]
    Stream(#[from] crate::StreamError),
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
    /// Returns true if data did not open with its seal.
    pub(crate) fn is_not_authentic(&self) -> bool {
        matches!(self, ImageError::Seal(SealError::NotAuthentic { .. }))
    }

    /// Returns true if an object was not there any more.
    pub(crate) fn is_vanished(&self) -> bool {
        matches!(self, ImageError::Vanished { .. })
    }

    /// Returns true if the request may have been carried out, or still may be.
    pub(crate) fn is_undecided(&self) -> bool {
        matches!(self, ImageError::Client(ClientError::TimedOut { .. } | ClientError::OutcomeUnknown { .. }))
    }

    /// Returns true if a record of cluster state is refused: no holder of the cluster's keys has written it.
    pub fn is_refused_record(&self) -> bool {
        matches!(self, ImageError::Cluster(ClusterError::Untrusted { .. }))
    }

    /// Returns true if the cluster is out of space.
    pub fn is_no_space(&self) -> bool {
        match self {
            ImageError::Client(error) => matches!(error.refusal(), Some(atoll_types::Refusal::NoSpace { .. })),
            _ => false,
        }
    }
}
