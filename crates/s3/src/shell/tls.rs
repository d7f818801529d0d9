//! TLS of a listener, by rustls with aws-lc: its files, and reloading them.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_rustls::rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::certificates::{Certificates, key_files, read_certificates};

/// How often the files are looked at.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
pub(super) const ALPN_HTTP_2: &[u8] = b"h2";
const ALPN_HTTP_1: &[u8] = b"http/1.1";

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
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> TlsError {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    }
}

/// Files and options of a listener's TLS.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// Directory with a `NAME.crt` and `NAME.key` for each certificate. A client gets the one whose names fit
    /// the host that it asks for, or else `server`.
    pub certificates: PathBuf,
    /// The authority of client certificates, if they are wanted.
    pub client_authority: Option<ClientAuthority>,
    /// True if TLS 1.2 is refused, too.
    pub only_version_13: bool,
}

/// Authority of client certificates.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// PEM file of one or more certificates.
    pub file: PathBuf,
    /// True if clients without a certificate are refused. One that is shown is checked in any case.
    pub is_required: bool,
}

/// Version of each file at its last reading, by the file system.
type Stamps = BTreeMap<PathBuf, Option<(u64, u64, i64, i64, i64)>>;

/// The TLS of a listener, following its files: new handshakes use the current ones, open connections stay.
#[derive(Debug)]
pub struct Tls {
    settings: TlsSettings,
    current: Mutex<Arc<ServerConfig>>,
    seen: Mutex<Stamps>,
}

impl Tls {
    /// Reads all files.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let seen = stamps(&settings);
        let current = server_config(&settings)?;
        measure(&settings);
        Ok(Tls { settings, current: Mutex::new(current), seen: Mutex::new(seen) })
    }

    /// For the next handshake.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads all files again. Unusable files are logged, and the previous ones stay in use.
    pub fn reload(&self) {
        // Before they are read: what changes meanwhile is then noticed the next time.
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = stamps(&self.settings);
        match server_config(&self.settings) {
            Ok(config) => {
                measure(&self.settings);
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = config;
                tracing::info!("reloaded the certificates in {}", self.settings.certificates.display());
            }
            Err(error) => tracing::error!("{error}; new connections still get the certificates of before"),
        }
    }

    /// Reads the files again whenever they change; never ends.
    pub async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_PAUSE).await;
            let tls = self.clone();
            let look = tokio::task::spawn_blocking(move || {
                let has_changed =
                    stamps(&tls.settings) != *tls.seen.lock().unwrap_or_else(PoisonError::into_inner);
                if has_changed {
                    tls.reload();
                }
            });
            if let Err(error) = look.await {
                tracing::error!(%error, "cannot look at certificates");
            }
        }
    }
}

/// Says in the metrics when the certificates end.
fn measure(settings: &TlsSettings) {
    let keys = key_files(&settings.certificates).unwrap_or_default();
    let ends = keys.iter().filter_map(|key| {
        let chain = key.with_extension("crt");
        let certificates = read_certificates(&chain).ok()?;
        let (_, parsed) = x509_parser::parse_x509_certificate(certificates.first()?).ok()?;
        Some((chain.file_name()?.to_string_lossy().into_owned(), parsed.validity().not_after.timestamp()))
    });
    atoll_metrics::tls::set_certificates(&ends.collect::<Vec<_>>());
}

fn stamps(settings: &TlsSettings) -> Stamps {
    let keys = key_files(&settings.certificates).unwrap_or_default();
    let chains: Vec<PathBuf> = keys.iter().map(|key| key.with_extension("crt")).collect();
    let authority = settings.client_authority.as_ref().map(|authority| authority.file.clone());
    let stamp = |path: &Path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec(), data.ctime_nsec()))
    };
    keys.into_iter().chain(chains).chain(authority).map(|path| (path.clone(), stamp(&path))).collect()
}

/// A fresh configuration has fresh keys for session tickets, so that no client resumes a session of an authority
/// that is not trusted any more.
fn server_config(settings: &TlsSettings) -> Result<Arc<ServerConfig>, TlsError> {
    const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
    let versions = if settings.only_version_13 { &BOTH[..1] } else { BOTH };
    let provider = Arc::new(default_provider());
    let certificates = Certificates::read(&settings.certificates, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
    let builder = match &settings.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(client_roots(&authority.file)?), provider);
            if !authority.is_required {
                verifier = verifier.allow_unauthenticated();
            }
            let wrong = |error: VerifierBuilderError| TlsError::ClientAuthority {
                path: authority.file.clone(),
                detail: error.to_string(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(wrong)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![ALPN_HTTP_2.into(), ALPN_HTTP_1.into()];
    config.ticketer = Ticketer::new()?;
    Ok(Arc::new(config))
}

fn client_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let wrong =
            |error: rustls::Error| TlsError::ClientAuthority { path: path.into(), detail: error.to_string() };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}
