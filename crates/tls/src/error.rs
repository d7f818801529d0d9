//! Errors of certificates and keys.

use std::io;
use std::path::{Path, PathBuf};

/// Why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file or directory cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{} is not usable PEM: {detail}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// There are pairs, but not the one that is needed.
    #[error("there is no server.key with its server.crt in {}, for clients that name no host", directory.display())]
    NoDefault {
        /// The directory.
        directory: PathBuf,
    },
    /// There are more pairs than can be looked through at each handshake.
    #[error("{} has more than {pairs_max} certificates", directory.display())]
    TooMany {
        /// The directory.
        directory: PathBuf,
        /// The limit.
        pairs_max: usize,
    },
    /// Certificate and key do not fit, or are of a kind that is not supported.
    #[error("{} and {} cannot be used together: {source}", certificate.display(), key.display())]
    Unusable {
        /// The certificate chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
        /// Error of rustls.
        source: rustls::Error,
    },
    /// The authority of client certificates is none.
    #[error("{} cannot be the authority of client certificates: {detail}", path.display())]
    ClientAuthority {
        /// Its file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// rustls does not take the settings.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

impl TlsError {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> TlsError {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    }

    pub(crate) fn pem(path: &Path, detail: impl ToString) -> TlsError {
        TlsError::Pem { path: path.into(), detail: detail.to_string() }
    }

    pub(crate) fn client_authority(path: &Path, detail: impl ToString) -> TlsError {
        TlsError::ClientAuthority { path: path.into(), detail: detail.to_string() }
    }
}
