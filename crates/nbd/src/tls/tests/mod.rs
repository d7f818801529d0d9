//! A TLS client of the same library, in memory, against the server's channel.

mod channel;
mod identity;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_exports::Channel;
use bytes::BytesMut;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use super::{ChannelError, TlsChannel, TlsFiles, TlsIdentity};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes a certificate that the authority signs, and its key.
fn write_pair(authority: &Authority, certificate: &Path, key: &Path) {
    let own = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&own, authority).unwrap();
    std::fs::write(certificate, signed.pem()).unwrap();
    std::fs::write(key, own.serialize_pem()).unwrap();
}

/// A server's files in a directory of their own.
struct Files {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Files { directory: tempfile::tempdir().unwrap(), authority: authority() };
        files.renew(&files.authority);
        std::fs::write(files.path("clients.pem"), files.authority.pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn renew(&self, authority: &Authority) {
        write_pair(authority, &self.path("server.crt"), &self.path("server.key"));
    }

    fn names(&self, wants_clients: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.path("server.crt"),
            key: self.path("server.key"),
            client_authorities: wants_clients.then(|| self.path("clients.pem")),
        }
    }

    fn identity(&self, wants_clients: bool) -> TlsIdentity {
        TlsIdentity::load(self.names(wants_clients), false).unwrap()
    }

    /// A client's certificate of an authority.
    fn client_pair(&self, authority: &Authority) -> (PathBuf, PathBuf) {
        let pair = (self.path("client.crt"), self.path("client.key"));
        write_pair(authority, &pair.0, &pair.1);
        pair
    }
}

/// Both ends and the bytes between them.
struct Pair {
    client: ClientConnection,
    server: TlsChannel,
    to_server: Vec<u8>,
    records: BytesMut,
    /// Bytes that the client has received.
    at_client: Vec<u8>,
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

impl Pair {
    fn new(
        identity: &TlsIdentity,
        trusted: &Authority,
        version: &'static SupportedProtocolVersion,
        own: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(certificate).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
        };
        let mut client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        client.set_buffer_limit(None);
        let server = TlsChannel::new(identity.config().unwrap()).unwrap();
        Pair { client, server, to_server: Vec::new(), records: BytesMut::new(), at_client: Vec::new() }
    }

    /// A pair whose handshake is over.
    fn established(files: &Files, version: &'static SupportedProtocolVersion) -> Self {
        let mut pair = Pair::new(&files.identity(false), &files.authority, version, None);
        pair.exchange().unwrap();
        assert!(!pair.server.is_handshaking() && !pair.client.is_handshaking());
        pair
    }

    /// Takes the bytes that the client sends.
    fn client_writes(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.to_server).unwrap();
        }
    }

    /// Lets both ends talk until there is nothing left to say. The error is the client's own or the one that it
    /// receives.
    fn exchange(&mut self) -> Result<(), rustls::Error> {
        loop {
            self.client_writes();
            self.records.extend_from_slice(&std::mem::take(&mut self.to_server));
            let received = self.server.receive(&mut self.records);
            let answer = match &received {
                Ok(()) => self.server.take_records().unwrap(),
                Err(_) => self.server.close().unwrap(),
            };
            let is_quiet = answer.is_empty();
            self.client_reads(&answer)?;
            received.expect("the client is told when TLS fails");
            if is_quiet && !self.client.wants_write() {
                return Ok(());
            }
        }
    }

    fn client_reads(&mut self, mut records: &[u8]) -> Result<(), rustls::Error> {
        while !records.is_empty() {
            self.client.read_tls(&mut records).unwrap();
            self.client.process_new_packets()?;
            // It says WouldBlock when it has given everything.
            let _ = self.client.reader().read_to_end(&mut self.at_client);
        }
        Ok(())
    }

    /// The records of a message of the client, not on their way yet.
    fn client_seals(&mut self, content: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(content).unwrap();
        self.client_writes();
        std::mem::take(&mut self.to_server)
    }
}
