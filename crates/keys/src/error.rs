//! Errors of keys and key services.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KeyError {
    /// An authentication tag does not fit: the wrapped key, its context or the wrapping key is another.
    #[error("{what} does not authenticate: it was changed, moved, or sealed with another key")]
    NotAuthentic {
        /// The secret being opened.
        what: String,
    },
    /// A wrapped key or a setting does not have the form that it must have.
    #[error("{what} is malformed: {detail}")]
    Malformed {
        /// The file or value being read.
        what: String,
        /// The reason.
        detail: String,
    },
    /// The key-management service does not have the key that a wrapped key names.
    #[error(
        "the key-management service has no key '{key_id}': it was destroyed, or this is not the key file of this cluster"
    )]
    NoSuchKey {
        /// The key asked for.
        key_id: String,
    },
    /// A key file could not be read or written.
    #[error("key file {}: {source}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::sync::Arc<std::io::Error>,
    },
    /// This cannot name a key.
    #[error("'{name}' cannot name a key: use 1 to 64 letters, digits, '-', '_' and '.', not beginning with '.'")]
    BadKeyName {
        /// The name.
        name: String,
    },
    /// The key-management service did not answer, or cannot now.
    #[error("the key service at {service} does not answer: {detail}")]
    ServiceUnavailable {
        /// Its address.
        service: String,
        /// The attempt and its result.
        detail: String,
    },
    /// The key-management service refused.
    #[error("the key service at {service} refused: {detail}; look at the token or role, and its policy")]
    ServiceRefused {
        /// Its address.
        service: String,
        /// The service's answer.
        detail: String,
    },
}

impl KeyError {
    pub(crate) fn key_file(path: &std::path::Path, source: std::io::Error) -> Self {
        KeyError::KeyFile { path: path.into(), source: std::sync::Arc::new(source) }
    }
}
