//! Errors of the files that have the state, and the identity that they give a server.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Raised when the layout of these tables changes.
pub const FORMAT: i64 = 1;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Files and directories.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Some process has it open.
    #[error("{path} is in use by another process: stop that one first, or choose another directory")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The content of the file differs from the written one.
    #[error("{path} is damaged: {detail}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// Both files are damaged.
    #[error("{first}; and so is its copy: {second}. {remedy}")]
    BothDamaged {
        /// The one.
        first: Box<DiskError>,
        /// The other.
        second: Box<DiskError>,
        /// The remedy.
        remedy: String,
    },
    /// The database's own complaint.
    #[error("{path}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// Error of redb.
        source: Box<redb::Error>,
    },
    /// Written by a later release.
    #[error("{path} has format {found}, this release knows {FORMAT}: use the release that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
}

impl DiskError {
    pub(super) fn of(path: &Path, error: redb::Error) -> Self {
        use redb::Error::{Io, LockPoisoned, PreviousIo};
        let is_of_the_system = match &error {
            Io(source) => !is_of_content(source.kind()),
            PreviousIo | LockPoisoned(_) => true,
            // Tables that are not there, another version: nothing that was written.
            _ => false,
        };
        match is_of_the_system {
            true => DiskError::Database { path: path.into(), source: Box::new(error) },
            false => DiskError::Damaged { path: path.into(), detail: error.to_string() },
        }
    }

    /// Returns true if a repetition cannot help: another file does, or another release.
    pub fn is_lasting(&self) -> bool {
        self.is_damage() || matches!(self, DiskError::Format { .. })
    }

    pub(super) fn is_damage(&self) -> bool {
        matches!(self, DiskError::Damaged { .. } | DiskError::BothDamaged { .. })
    }

    pub(super) fn is_absence(&self) -> bool {
        matches!(self, DiskError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

/// Returns true for redb's errors about bytes that are not its own.
fn is_of_content(kind: std::io::ErrorKind) -> bool {
    matches!(kind, std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

/// Drawn once, when the file is made; every answer's header carries both.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub cluster: u64,
    pub member: u64,
}

impl Identity {
    pub(super) fn random() -> Result<Self, DiskError> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(|source| DiskError::Io { path: "/dev/urandom".into(), source })?;
        let (cluster, member) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte));
        Ok(Identity { cluster: number(cluster), member: number(member) })
    }
}
