//! A certificate authority for one test.

use std::path::{Path, PathBuf};

use atoll_cluster::TlsFiles;
use etcd_client::{Certificate, Identity, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// PEM files of an authority, of a server at 127.0.0.1, and of a client.
pub struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    pub fn new(directory: &Path) -> Certificates {
        let mut authority = CertificateParams::new([]).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let certificates = Certificates { directory: directory.to_owned() };
        std::fs::write(certificates.path("ca.pem"), authority.pem()).unwrap();
        for (name, usage) in
            [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
        {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
            // etcd asks itself as a client, with the server's certificate.
            params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
            let certificate = params.signed_by(&key, &authority).unwrap();
            std::fs::write(certificates.path(&format!("{name}.pem")), certificate.pem()).unwrap();
            std::fs::write(certificates.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        certificates
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn server_pem(&self) -> (Vec<u8>, Vec<u8>) {
        (self.read("server.pem"), self.read("server.key"))
    }

    pub fn client_files(&self) -> TlsFiles {
        TlsFiles {
            ca: Some(self.path("ca.pem")),
            certificate: Some(self.path("client.pem")),
            key: Some(self.path("client.key")),
            server_name: None,
        }
    }

    pub fn etcd_client_options(&self) -> TlsOptions {
        TlsOptions::new()
            .ca_certificate(Certificate::from_pem(self.read("ca.pem")))
            .identity(Identity::from_pem(self.read("client.pem"), self.read("client.key")))
    }

    /// For an etcd that wants client certificates.
    pub fn etcd_arguments(&self) -> Vec<String> {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        let files = files.map(|(option, name)| format!("--{option}={}", self.path(name).display()));
        files.into_iter().chain(["--client-cert-auth".to_owned()]).collect()
    }
}
