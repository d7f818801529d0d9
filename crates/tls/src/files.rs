//! PEM files: their content, and how a change of them is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificate::Certificate;
use crate::error::TlsError;

/// Larger files are refused; no chain of certificates is that long.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Version of a file, by the file system: it changes when the file changes. `None` if there is no such file.
pub(crate) type Stamp = Option<(u64, u64, i64, i64, i64)>;

/// Returns the version of a file.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let data = fs::metadata(path).ok()?;
    Some((data.ino(), data.len(), data.mtime(), data.mtime_nsec(), data.ctime_nsec()))
}

/// Reads all certificates of a PEM file; at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_file(path)?).collect();
    let all = all.map_err(|error| TlsError::pem(path, error))?;
    if all.is_empty() { Err(TlsError::pem(path, "there is no certificate in it")) } else { Ok(all) }
}

/// Reads the private key of a PEM file.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read_file(path)?).map_err(|error| TlsError::pem(path, error))
}

/// Reads the authorities of client certificates.
pub(crate) fn read_client_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::client_authority(path, error))?;
    }
    Ok(roots)
}

/// Returns the name of a chain's file and when its first certificate ends, for the metrics.
pub(crate) fn read_end(chain: &Path) -> Option<(String, i64)> {
    let certificates = read_certificates(chain).ok()?;
    let certificate = Certificate::from_der(certificates.first()?)?;
    Some((chain.file_name()?.to_string_lossy().into_owned(), certificate.end_unix_s))
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let length_bytes = fs::metadata(path).map_err(TlsError::file(path))?.len();
    if length_bytes > FILE_BYTES_MAX {
        return Err(TlsError::pem(path, format!("it has {length_bytes} bytes")));
    }
    fs::read(path).map_err(TlsError::file(path))
}
