//! TLS of an HTTP listener, by rustls with aws-lc: its files, and reloading them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use crate::error::TlsError;
use crate::files::{Stamp, read_client_roots, read_end, stamp};
use crate::pairs::{Pairs, key_files};

/// How often the files are looked at.
const LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Name of HTTP/2 in the handshake (RFC 9113, section 3.2).
pub const ALPN_HTTP_2: &[u8] = b"h2";
const ALPN_HTTP_1: &[u8] = b"http/1.1";

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

/// Version of each file at its last reading.
type Stamps = BTreeMap<PathBuf, Stamp>;

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
    let ends = keys.iter().filter_map(|key| read_end(&key.with_extension("crt")));
    atoll_metrics::tls::set_certificates(&ends.collect::<Vec<_>>());
}

fn stamps(settings: &TlsSettings) -> Stamps {
    let keys = key_files(&settings.certificates).unwrap_or_default();
    let chains: Vec<PathBuf> = keys.iter().map(|key| key.with_extension("crt")).collect();
    let authority = settings.client_authority.as_ref().map(|authority| authority.file.clone());
    keys.into_iter().chain(chains).chain(authority).map(|path| (path.clone(), stamp(&path))).collect()
}

/// A fresh configuration has fresh keys for session tickets, so that no client resumes a session of an authority
/// that is not trusted any more.
fn server_config(settings: &TlsSettings) -> Result<Arc<ServerConfig>, TlsError> {
    const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
    let versions = if settings.only_version_13 { &BOTH[..1] } else { BOTH };
    let provider = Arc::new(default_provider());
    let certificates = Pairs::read(&settings.certificates, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
    let builder = match &settings.client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(read_client_roots(&authority.file)?);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            if !authority.is_required {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(|error| TlsError::client_authority(&authority.file, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(certificates));
    config.alpn_protocols = vec![ALPN_HTTP_2.into(), ALPN_HTTP_1.into()];
    config.ticketer = Ticketer::new()?;
    Ok(Arc::new(config))
}
