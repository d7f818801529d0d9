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
        /// The reason and the remedy.
        detail: String,
    },
    /// The store failed or refused valid work.
    #[error("store: {0}")]
    Store(String),
    /// fio could not be run or understood.
    #[error("fio: {0}")]
    Fio(String),
    /// Read data was never written there, or is older than acknowledged data.
    #[error("wrong data: {0}")]
    WrongData(String),
    /// A run has used up its supply; it ends, and its measurements count.
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
