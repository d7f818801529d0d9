//! The server's identity: certificate, key and the authority of its clients, read again when the files change.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::error::TlsError;
use crate::files::{Stamp, read_certificates, read_client_roots, read_end, read_key, stamp};

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

impl TlsIdentity {
    /// Reads the files. If they may come later, it is no error that there is no certificate.
    pub fn load(files: TlsFiles, may_come_later: bool) -> Result<Self, TlsError> {
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
                tracing::info!("new connections use the certificate that is in {path} now");
                self.config = Some(config);
                self.files.measure();
            }
            Err(error) if self.config.is_some() => {
                tracing::error!("{error}; new connections use the previous certificate");
            }
            Err(error) => tracing::error!("{error}; clients are not offered TLS"),
        }
    }
}

impl TlsFiles {
    /// Says in the metrics when the certificate ends.
    fn measure(&self) {
        atoll_metrics::tls::set_certificates(read_end(&self.certificate).as_slice());
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
                let roots = Arc::new(read_client_roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                let verifier = verifier.map_err(|error| TlsError::client_authority(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = (read_certificates(&self.certificate)?, read_key(&self.key)?);
        let mut config = builder.with_single_cert(chain, key).map_err(|source| TlsError::Unusable {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        })?;
        // Connections are few and long, so there is nothing to gain from resuming, and a client that is
        // no longer trusted cannot come back by it.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}
