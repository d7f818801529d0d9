//! Pairs of certificate and key in a directory, and which of them a client gets.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::error::TlsError;
use crate::files::{read_certificates, read_key};

/// The pair for clients that name no host, or one that no other pair is for.
const DEFAULT_PAIR: &str = "server";
/// The authority's own pair, which is not for clients.
const AUTHORITY_PAIR: &str = "ca";
/// All are looked through at each handshake.
const PAIRS_MAX: usize = 256;

/// The pairs of a directory.
#[derive(Debug)]
pub(crate) struct Pairs {
    default: Arc<CertifiedKey>,
    others: Vec<Arc<CertifiedKey>>,
}

impl Pairs {
    /// Reads each `NAME.crt` with its `NAME.key`.
    pub(crate) fn read(directory: &Path, provider: &CryptoProvider) -> Result<Self, TlsError> {
        let mut default = None;
        let mut others = Vec::new();
        for key_file in key_files(directory)? {
            let pair = Arc::new(read_pair(&key_file, provider)?);
            if key_file.file_stem().is_some_and(|name| name == DEFAULT_PAIR) {
                default = Some(pair);
            } else {
                others.push(pair);
            }
        }
        let default = default.ok_or_else(|| TlsError::NoDefault { directory: directory.into() })?;
        Ok(Pairs { default, others })
    }
}

impl ResolvesServerCert for Pairs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fits = |pair: &&Arc<CertifiedKey>| {
            pair.key.choose_scheme(schemes).is_some() && name.as_ref().is_some_and(|name| is_for(pair, name))
        };
        Some(self.others.iter().find(fits).unwrap_or(&self.default).clone())
    }
}

fn is_for(pair: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = pair.cert.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

/// The keys of all pairs, in the order of their names.
pub(crate) fn key_files(directory: &Path) -> Result<Vec<PathBuf>, TlsError> {
    let entries = fs::read_dir(directory).map_err(TlsError::file(directory))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_pair = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "key")
            && path.file_stem().is_some_and(|name| name != AUTHORITY_PAIR)
    };
    let mut files: Vec<PathBuf> = paths.filter(is_pair).collect();
    files.sort();
    if files.len() > PAIRS_MAX {
        return Err(TlsError::TooMany { directory: directory.into(), pairs_max: PAIRS_MAX });
    }
    Ok(files)
}

fn read_pair(key_file: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let chain_file = key_file.with_extension("crt");
    let chain = read_certificates(&chain_file)?;
    let key = read_key(key_file)?;
    CertifiedKey::from_der(chain, key, provider).map_err(|source| TlsError::Unusable {
        certificate: chain_file,
        key: key_file.into(),
        source,
    })
}
