//! Content of a certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Parts of a certificate that decide its choice, check and renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Holder, as its DER encoding.
    pub subject: Vec<u8>,
    /// Signer, as its DER encoding.
    pub issuer: Vec<u8>,
    /// Public key with its algorithm, as its DER encoding.
    pub public_key: Vec<u8>,
    /// End of its validity, in seconds of Unix time.
    pub end_unix_s: i64,
    /// True if it may sign others.
    pub is_authority: bool,
    /// DNS names and addresses that it is for; `None` if it does not list them in a readable form.
    pub names: Option<BTreeSet<String>>,
}

impl Certificate {
    /// Reads a certificate from its DER encoding. Signatures are not verified.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        Some(Certificate {
            subject: parsed.subject().as_raw().to_vec(),
            issuer: parsed.issuer().as_raw().to_vec(),
            public_key: parsed.public_key().raw.to_vec(),
            end_unix_s: parsed.validity().not_after.timestamp(),
            is_authority: parsed.is_ca(),
            names: names(&parsed),
        })
    }

    /// Reads the first certificate of a PEM text.
    pub fn first_of_pem(pem: &[u8]) -> Option<Self> {
        Self::from_der(&blocks(pem).next()?.contents)
    }

    /// Reads all certificates of a PEM text. Unreadable ones are left out.
    pub fn all_of_pem(pem: &[u8]) -> Vec<Self> {
        blocks(pem).filter_map(|block| Self::from_der(&block.contents)).collect()
    }

    /// Returns true if it names itself as its signer, as roots do.
    pub fn is_root(&self) -> bool {
        self.issuer == self.subject
    }
}

fn blocks(pem: &[u8]) -> impl Iterator<Item = Pem> {
    Pem::iter_from_buffer(pem).filter_map(Result::ok).filter(|block| block.label == "CERTIFICATE")
}

fn names(certificate: &X509Certificate<'_>) -> Option<BTreeSet<String>> {
    let extension = certificate.subject_alternative_name().ok()??;
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress([a, b, c, d]) => Some(IpAddr::from([*a, *b, *c, *d]).to_string()),
        GeneralName::IPAddress(bytes) => <[u8; 16]>::try_from(*bytes).ok().map(|ip| IpAddr::from(ip).to_string()),
        _ => None,
    };
    Some(extension.value.general_names.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_its_names_its_key_and_its_signer() {
        let pair = rcgen::generate_simple_self_signed(["a.example".to_owned(), "192.0.2.1".into()]).unwrap();
        let found = Certificate::from_der(pair.cert.der()).unwrap();
        assert_eq!(found.names, Some(BTreeSet::from(["a.example".to_owned(), "192.0.2.1".into()])));
        assert_eq!(found.public_key, rcgen::PublicKeyData::subject_public_key_info(&pair.signing_key));
        assert!(found.is_root() && !found.is_authority);
        let text = format!("{}\n{}", pair.signing_key.serialize_pem(), pair.cert.pem().repeat(2));
        assert_eq!(Certificate::first_of_pem(text.as_bytes()), Some(found.clone()));
        assert_eq!(Certificate::all_of_pem(text.as_bytes()), [found.clone(), found]);
        assert_eq!(Certificate::first_of_pem(b"no PEM"), None);
    }
}
