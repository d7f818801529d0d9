//! TLS of the listener, by rustls with aws-lc.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The PEM text cannot be read.
    #[error("the {what} is not usable PEM: {detail}")]
    Pem {
        /// Certificate chain or private key.
        what: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// Certificate and key do not fit, or are of a kind that is not supported.
    #[error("certificate and key cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
}

/// The TLS configuration for a certificate chain and its private key, both as PEM.
pub fn tls_server_config(certificates_pem: &[u8], key_pem: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates_pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Pem { what: "certificate chain", detail: error.to_string() })?;
    if chain.is_empty() {
        return Err(TlsError::Pem { what: "certificate chain", detail: "there is no certificate in it".into() });
    }
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|error| TlsError::Pem { what: "private key", detail: error.to_string() })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
