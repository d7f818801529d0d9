//! Why a run could not be done.

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A setting that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The image could not be read or written.
    #[error(transparent)]
    Image(#[from] atoll_image::ImageError),
    /// The S3 endpoint could not be used.
    #[error("S3: {0}")]
    S3(String),
    /// The NBD server could not be used.
    #[error("NBD: {0}")]
    Nbd(String),
    /// Cluster state could not be read or changed.
    #[error("cluster state: {0}")]
    Cluster(String),
    /// The event loop failed.
    #[error("the event loop failed: {0}")]
    Loop(#[from] std::io::Error),
    /// The event loop could not be set up.
    #[error(transparent)]
    Reactor(#[from] atoll_reactor::ReactorError),
    /// A device or file could not be used.
    #[error("cannot use {}: {detail}", path.display())]
    Device {
        /// The file or block device.
        path: std::path::PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// The store failed or refused what it must take.
    #[error("store: {0}")]
    Store(String),
    /// fio could not be run or understood.
    #[error("fio: {0}")]
    Fio(String),
    /// Data was read that was never written there, or that is older than what was acknowledged.
    #[error("wrong data: {0}")]
    WrongData(String),
    /// A run that uses something up has used all of it; it ends, and what it measured counts.
    #[error("{0}")]
    NothingLeft(String),
    /// A process that takes part could not be started or failed.
    #[error("{what}: {detail}")]
    Process {
        /// Which one.
        what: String,
        /// How it ended, and its own words.
        detail: String,
    },
}
