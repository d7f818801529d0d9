//! Why something could not be measured, or a report not be made.

/// Why something could not be measured, or a report not be made.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A setting that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A run could not be done.
    #[error(transparent)]
    Bench(#[from] atoll_bench::BenchError),
    /// An image could not be read or written.
    #[error(transparent)]
    Image(#[from] atoll_image::ImageError),
    /// Cluster state could not be read or changed.
    #[error("cluster state: {0}")]
    Cluster(String),
    /// The event loop could not be set up.
    #[error(transparent)]
    Reactor(#[from] atoll_reactor::ReactorError),
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// A file of results or a matrix could not be read or written.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Why, and what to do.
        detail: String,
    },
    /// A process that takes part could not be started or failed.
    #[error("{what}: {detail}")]
    Process {
        /// Which one.
        what: String,
        /// How it ended, and its own words.
        detail: String,
    },
}
