//! Identities of hosts for each other in TLS: the keys of their admin servers' certificates, in cluster state. The
//! signer of a certificate, its names and its end do not count.

use std::fmt::Debug;
use std::sync::Arc;

use atoll_keys::sha256;
use atoll_node::DataDir;
use atoll_tls::Certificate;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::ALPN;

/// SHA-256 of the public key that the other side has shown to have, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostKey(pub String);

impl HostKey {
    /// Returns the key of a certificate; none if it cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<HostKey> {
        Some(HostKey(hex::encode(sha256(&Certificate::from_der(certificate)?.public_key))))
    }
}

fn chain(directory: &DataDir) -> Result<Vec<CertificateDer<'static>>, String> {
    let path = directory.tls().join("server.crt");
    let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("{}: {error}", path.display()))
}

/// The key of this host's certificate, for its record.
pub(crate) fn own_key_sha256(directory: &DataDir) -> Option<String> {
    Some(HostKey::of(chain(directory).ok()?.first()?)?.0)
}

/// How this host asks another one, which has this key.
pub(super) fn client_config(directory: &DataDir, expected: HostKey) -> Result<ClientConfig, String> {
    let path = directory.tls().join("server.key");
    let key = PrivateKeyDer::from_pem_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = ServerKey { expected, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    let config = builder.with_client_auth_cert(chain(directory)?, key);
    let mut config = config.map_err(|error| format!("{}: {error}", path.display()))?;
    config.alpn_protocols = vec![ALPN.into()];
    Ok(config)
}

/// How this host's admin server answers other hosts: as it does otherwise, and the other side must show a key. Whether
/// that is one of a host is not looked at here. Nothing is resumed, so that it is shown each time.
pub(crate) fn server_config(otherwise: &ServerConfig) -> Result<ServerConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
    let builder = builder.with_client_cert_verifier(Arc::new(AnyKey { provider }));
    let mut config = builder.with_cert_resolver(Arc::clone(&otherwise.cert_resolver));
    config.alpn_protocols = vec![ALPN.into()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The server must have this key.
#[derive(Debug)]
struct ServerKey {
    expected: HostKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if HostKey::of(certificate).as_ref() == Some(&self.expected) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The client must have the key that it shows, whichever that is.
#[derive(Debug)]
struct AnyKey {
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match HostKey::of(certificate) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use atoll_tls::{Tls, TlsSettings};
    use tempfile::TempDir;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// A data directory of a host with a certificate of its own.
    fn host() -> (TempDir, DataDir) {
        let made = tempfile::tempdir().unwrap();
        let directory = DataDir::new(made.path());
        std::fs::create_dir(directory.tls()).unwrap();
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.tls().join("server.crt"), pair.cert.pem()).unwrap();
        std::fs::write(directory.tls().join("server.key"), pair.signing_key.serialize_pem()).unwrap();
        (made, directory)
    }

    fn key_of(directory: &DataDir) -> HostKey {
        HostKey(own_key_sha256(directory).unwrap())
    }

    /// Makes the handshake; gives the key that the server has seen.
    async fn shake_hands(server: &DataDir, client: ClientConfig) -> Result<HostKey, String> {
        let settings = TlsSettings { certificates: server.tls(), client_authority: None, only_version_13: false };
        let tls = Tls::load(settings).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&tls.current()).unwrap()));
        let connector = TlsConnector::from(Arc::new(client));
        let (near, far) = tokio::io::duplex(64 << 10);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let (accepted, connected) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
        connected.map_err(|error| error.to_string())?;
        let stream = accepted.map_err(|error| error.to_string())?;
        let shown = stream.get_ref().1.peer_certificates().unwrap();
        Ok(HostKey::of(&shown[0]).unwrap())
    }

    #[tokio::test]
    async fn hosts_know_each_other_by_their_keys() {
        let ((_one, asks), (_other, answers)) = (host(), host());
        let config = client_config(&asks, key_of(&answers)).unwrap();
        assert_eq!(shake_hands(&answers, config).await, Ok(key_of(&asks)));
    }

    #[tokio::test]
    async fn a_server_with_another_key_is_none_of_the_host() {
        let ((_one, asks), (_other, answers)) = (host(), host());
        let config = client_config(&asks, key_of(&asks)).unwrap();
        let refused = shake_hands(&answers, config).await.unwrap_err();
        assert!(refused.contains("ApplicationVerificationFailure"), "{refused}");
    }

    #[tokio::test]
    async fn who_shows_no_key_is_refused() {
        let (_made, answers) = host();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = ServerKey { expected: key_of(&answers), provider: Arc::clone(&provider) };
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![ALPN.into()];
        let refused = shake_hands(&answers, config).await.unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    }

    #[tokio::test]
    async fn hosts_are_not_spoken_to_in_another_protocol() {
        let ((_one, asks), (_other, answers)) = (host(), host());
        let mut config = client_config(&asks, key_of(&answers)).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let refused = shake_hands(&answers, config).await;
        assert!(refused.is_err());
    }
}
