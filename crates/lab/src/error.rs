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
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// A file of results or a matrix could not be read or written.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// The cause and the remedy.
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
