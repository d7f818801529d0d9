//! Errors of a data directory and its processes.

use std::io;
use std::path::PathBuf;

use atoll_admin::AdminError;
use atoll_client::ClientError;
use atoll_cluster::ClusterError;
use atoll_files::PrivacyError;
use atoll_keys::KeyError;
use atoll_types::record_json::RecordError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A refusal of the cluster.
    #[error(transparent)]
    Admin(AdminError),
    /// The data directory is not its owner's alone.
    #[error(transparent)]
    NotPrivate(#[from] PrivacyError),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file does not have the form that it must have.
    #[error("{} is damaged: {detail}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// A file is of a later release, or has invalid content.
    #[error("cannot read {}: {reason}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: RecordError,
    },
    /// A secret that exists once is gone.
    #[error(
        "{} is missing: {what}. Put it back ('atoll key restore FILE' from a backup, or a copy of another host){remedy}", path.display()
    )]
    Lost {
        /// Its file.
        path: PathBuf,
        /// The data that depends on it.
        what: String,
        /// Another remedy, as the end of the sentence.
        remedy: String,
    },
    /// The embedded cluster state is gone.
    #[error(
        "{} is missing: it has all records of the cluster's images, buckets, keys and PGs, and is not recreated \
         over existing data. Put it back ('atoll state restore FILE' from a snapshot, or a copy of the \
         directory)", path.display()
    )]
    LostState {
        /// Its file.
        path: PathBuf,
    },
    /// The server of cluster state ends as often as it is started.
    #[error("cluster state cannot be served. {} says:\n{said}", log.display())]
    StateEnds {
        /// The server's log.
        log: PathBuf,
        /// Its last lines.
        said: String,
    },
    /// The key service's file is another cluster's.
    #[error(
        "{} is not the key file of this cluster: it has the keys {found}, and {expected}. Put the right one back ('atoll \
         key restore FILE' from a backup, or a copy of another host)", path.display()
    )]
    ForeignKeyFile {
        /// The file.
        path: PathBuf,
        /// Ids of the keys that it has.
        found: String,
        /// Keys and the secrets that they wrapped.
        expected: String,
    },
    /// The file with the S3 credentials of the first user is gone.
    #[error("{} is not there; 'atoll up' makes it again from cluster state", path.display())]
    NoCredentials {
        /// The file.
        path: PathBuf,
    },
    /// There is no cluster in the directory.
    #[error("there is no cluster in {}; start one with 'atoll up --data {}'", path.display(), path.display())]
    NoCluster {
        /// The directory.
        path: PathBuf,
    },
    /// The cluster of this directory is running already.
    #[error("the cluster in {} is running already (process {process_id}); stop it with 'atoll down --data {}'", path.display(), path.display())]
    Running {
        /// The directory.
        path: PathBuf,
        /// The supervisor.
        process_id: u32,
    },
    /// The cluster of this directory is not running.
    #[error("the cluster in {} is not running; start it with 'atoll up --data {}'", path.display(), path.display())]
    NotRunning {
        /// The directory.
        path: PathBuf,
    },
    /// A choice that cannot be had.
    #[error("{0}")]
    Invalid(String),
    /// The cluster did not become healthy in time.
    #[error("the cluster is not healthy after {seconds} s: {detail}; see the logs in {}", logs.display())]
    NotHealthy {
        /// How long was waited.
        seconds: u64,
        /// The missing part.
        detail: String,
        /// Where the logs are.
        logs: PathBuf,
    },
    /// An OSD's device could not be made or taken.
    #[error(transparent)]
    Device(#[from] atoll_osd::DeviceError),
    /// An OSD's device was not formatted.
    #[error(transparent)]
    Format(#[from] atoll_osd::FormatError),
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Keys.
    #[error(transparent)]
    Crypto(#[from] KeyError),
    /// Objects.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl NodeError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> NodeError {
        let path = path.into();
        move |source| NodeError::File { path, source }
    }
}
