//! The server's identity: certificate, key and the authority of its clients, read again when the files change.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// Larger files are refused; no chain of certificates is that long.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file has invalid content.
    #[error("{path}: {detail}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// Certificate and key do not fit, or are of a kind that is not supported.
    #[error("the certificate {certificate} cannot be used with the key {key}: {cause}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        cause: rustls::Error,
    },
    /// The peer did not keep to TLS, or is not who it should be.
    #[error(transparent)]
    Peer(#[from] rustls::Error),
    /// The peer's records do not fit the bounds of TLS.
    #[error("TLS records cannot be read: {0}")]
    Records(io::Error),
}

/// Files of PEM texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those between it and its authority, if there are any.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// Authorities of clients' certificates; one of them must have signed each. Without it clients need none.
    pub client_authorities: Option<PathBuf>,
}

/// The server's side of TLS as the files have it. Reading them may block.
pub struct TlsIdentity {
    files: TlsFiles,
    /// Stamps of the files when they were last read, successfully or not.
    stamps: Vec<Stamp>,
    config: Option<Arc<ServerConfig>>,
}

/// Changes when a file changes; `None` if it does not exist.
type Stamp = Option<(u64, u64, i64, i64)>;

impl TlsIdentity {
    /// Reads the files. If they may come later, it is no error that there is no certificate.
    pub(super) fn load(files: TlsFiles, may_come_later: bool) -> Result<Self, TlsError> {
        let stamps = files.stamps();
        let config = if may_come_later && !files.certificate.exists() { None } else { Some(files.read()?) };
        files.measure();
        Ok(TlsIdentity { files, stamps, config })
    }

    /// The configuration for new connections; `None` as long as there is no certificate.
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.clone()
    }

    /// Reads the files again if they have changed. Unusable files are logged once, and the previous content stays
    /// in use.
    pub fn refresh(&mut self) {
        let stamps = self.files.stamps();
        if self.stamps == stamps {
            return;
        }
        self.stamps = stamps;
        match self.files.read() {
            Ok(config) => {
                let path = self.files.certificate.display();
                tracing::info!("new NBD connections use the certificate that is in {path} now");
                self.config = Some(config);
                self.files.measure();
            }
            Err(error) if self.config.is_some() => {
                tracing::error!("{error}; new NBD connections use the previous certificate");
            }
            Err(error) => tracing::error!("{error}; NBD clients are not offered TLS"),
        }
    }
}

impl TlsFiles {
    /// Says in the metrics when the certificate ends.
    fn measure(&self) {
        let end = CertificateDer::pem_file_iter(&self.certificate).ok().and_then(|mut chain| {
            let first = chain.next()?.ok()?;
            let (_, parsed) = x509_parser::parse_x509_certificate(&first).ok()?;
            let name = self.certificate.file_name()?.to_string_lossy().into_owned();
            Some((name, parsed.validity().not_after.timestamp()))
        });
        atoll_metrics::tls::set_certificates(end.as_slice());
    }

    fn stamps(&self) -> Vec<Stamp> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_authorities.as_ref()];
        files.into_iter().flatten().map(|path| stamp(path)).collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider)
                    .build()
                    .map_err(|error| content(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|error| content(&self.key, format!("no usable private key: {error}")))?;
        let mut config = builder.with_single_cert(chain, key).map_err(|cause| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            cause,
        })?;
        // Connections are few and long, so there is nothing to gain from resuming, and a client that is
        // no longer trusted cannot come back by it.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|cause| TlsError::File { path: path.into(), cause })?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<_, _>>()
        .map_err(|error| content(path, format!("no usable PEM: {error}")))?;
    if chain.is_empty() { Err(content(path, "there is no PEM certificate in it")) } else { Ok(chain) }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| content(path, error))?;
    }
    Ok(store)
}

fn content(path: &Path, detail: impl ToString) -> TlsError {
    TlsError::Content { path: path.into(), detail: detail.to_string() }
}
