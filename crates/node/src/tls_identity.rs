//! The certificates with which this host's servers show who they are, in `DIR/tls`: an authority of the cluster's
//! own, and a certificate that it has signed. An operator may put own files in their place; files that Atoll has
//! not made are never overwritten.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_coordinator::unix_ms;
use atoll_files::{Access, Held, Previous};
use atoll_keys::sha256;
use atoll_tls::Certificate;
use atoll_types::records::RECORD_FORMAT;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use serde::{Deserialize, Serialize};

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::json_files::{create_missing, read_json, write_json};

const DAY_S: u64 = 86_400;
const AUTHORITY_DAYS: u64 = 3_650;
/// Some clients accept nothing longer.
const SERVER_DAYS: u64 = 397;
const RENEW_DAYS: u64 = 30;
/// Time before its making from which a certificate is valid, because clocks differ.
const BACKDATE_S: u64 = 3_600;

/// `tls/made.json`: the directory's files that Atoll has made.
#[derive(Default, Serialize, Deserialize)]
struct Made {
    format: u32,
    /// Digest of `server.crt`: the present one, and while it is being replaced the previous one, too.
    server_sha256: Vec<String>,
    /// Digest of the `ca.crt` that has signed it.
    authority_sha256: String,
}

struct Files {
    authority: PathBuf,
    authority_key: PathBuf,
    server: PathBuf,
    server_key: PathBuf,
    made: PathBuf,
}

impl Files {
    fn of(directory: &DataDir) -> Self {
        let file = |name: &str| directory.tls().join(name);
        Files {
            authority: file("ca.crt"),
            authority_key: file("ca.key"),
            server: file("server.crt"),
            server_key: file("server.key"),
            made: file("made.json"),
        }
    }
}

/// Makes missing files, and renews the server's certificate if it ends soon or is for other names. Returns a note
/// for the operator.
pub(crate) fn ensure_identity(directory: &DataDir, cluster: &ClusterFile) -> Result<Option<String>, NodeError> {
    let files = Files::of(directory);
    let made: Made = if files.made.exists() { read_json(&files.made)? } else { Made::default() };
    let present = files.server.exists().then(|| read(&files.server)).transpose()?;
    let wanted = names(cluster);
    if let Some(present) = &present {
        if !made.server_sha256.contains(&digest(present)) {
            // The operator's own.
            return Ok(days_left(present).filter(|days| *days < RENEW_DAYS as i64).map(|days| {
                format!(
                    "the certificate {}, which Atoll has not made, ends in {days} days; put a new one in its place",
                    files.server.display()
                )
            }));
        }
        let authority = if files.authority.exists() { digest(&read(&files.authority)?) } else { String::new() };
        // A renewal of the key may have been cut short.
        let is_of_key = !files.server_key.exists() || is_for(present, &ensure_key(&files.server_key)?);
        if made.authority_sha256 == authority && is_current(present, &wanted) && is_of_key {
            return Ok(None);
        }
        if !files.authority_key.exists() && files.authority.exists() {
            return Ok(Some(format!(
                "the certificate {} ends soon or does not fit this host's names and authority any more, and {} is not \
                 there to sign another; put it back, or put a certificate of your own in its place",
                files.server.display(),
                files.authority_key.display()
            )));
        }
    }
    let had_authority = files.authority.exists();
    let (authority_pem, issuer) = ensure_authority(&files, cluster)?;
    let key = ensure_key(&files.server_key)?;
    let chain = sign(&authority_pem, &issuer, &key, &wanted, cluster).map_err(|detail| {
        NodeError::Invalid(format!(
            "{} and {} cannot sign a certificate: {detail}; remove both, or put a server.crt and server.key of your own \
             beside them",
            files.authority.display(),
            files.authority_key.display()
        ))
    })?;
    let server_sha256 = present.iter().map(|old| digest(old)).chain([digest(chain.as_bytes())]).collect();
    let authority_sha256 = digest(authority_pem.as_bytes());
    write_json(&files.made, &Made { format: RECORD_FORMAT, server_sha256, authority_sha256 })?;
    replace_server(&files.server, present.as_deref(), &chain)?;
    let is_another = !had_authority && cluster.is_founded && cluster.joined_by.is_none();
    Ok(is_another.then(|| {
        format!(
            "made a new authority of certificates, {}, because there was none: clients have to trust it in place of the old \
             one",
            files.authority.display()
        )
    }))
}

/// Gives this host's servers another private key, and a certificate for it, both at once valid for clients that know the
/// authority. Processes take them up by themselves. Returns the certificate's file.
pub fn renew_identity(directory: &DataDir, cluster: &ClusterFile) -> Result<PathBuf, NodeError> {
    let files = Files::of(directory);
    let made: Made = if files.made.exists() { read_json(&files.made)? } else { Made::default() };
    let present = read(&files.server)?;
    if !made.server_sha256.contains(&digest(&present)) {
        return Err(NodeError::Invalid(format!(
            "{} is not made by Atoll, which replaces no others; put a new pair in its place yourself",
            files.server.display()
        )));
    }
    let (authority_pem, issuer) = ensure_authority(&files, cluster)?;
    let key = KeyPair::generate().map_err(|error| NodeError::Invalid(error.to_string()))?;
    let chain = sign(&authority_pem, &issuer, &key, &names(cluster), cluster).map_err(NodeError::Invalid)?;
    let server_sha256 = vec![digest(&present), digest(chain.as_bytes())];
    let authority_sha256 = digest(authority_pem.as_bytes());
    write_json(&files.made, &Made { format: RECORD_FORMAT, server_sha256, authority_sha256 })?;
    // Until both are there, processes keep the pair that they have.
    let held = Held::open(&files.server_key).map_err(NodeError::file(&files.server_key))?;
    held.replace(key.serialize_pem().as_bytes(), Access::Owner, Previous::Destroyed)
        .map_err(NodeError::file(&files.server_key))?;
    replace_server(&files.server, Some(&present), &chain)?;
    Ok(files.server)
}

/// Puts a certificate in the place of this one, unless an operator has put his own there meanwhile.
fn replace_server(path: &Path, present: Option<&[u8]>, chain: &str) -> Result<(), NodeError> {
    let held = Held::open(path).map_err(NodeError::file(path))?;
    if held.bytes() != present {
        return Err(NodeError::Invalid(format!("{} was changed meanwhile; it stays as it is", path.display())));
    }
    held.replace(chain.as_bytes(), Access::Everybody, Previous::Kept).map_err(NodeError::file(path))
}

/// Returns the authority that clients of this host's servers need to know, if `DIR/tls` has it: every client may
/// trust an operator's certificate.
pub fn authority_file(directory: &DataDir) -> Option<PathBuf> {
    let files = Files::of(directory);
    let subject = Certificate::first_of_pem(&fs::read(&files.authority).ok()?)?.subject;
    let chain = Certificate::all_of_pem(&fs::read(&files.server).ok()?);
    let is_issued = chain.iter().any(|certificate| certificate.issuer == subject);
    is_issued.then(|| std::path::absolute(&files.authority).ok()).flatten()
}

/// Returns the authority's certificate, and the issuer with its key.
fn ensure_authority(
    files: &Files,
    cluster: &ClusterFile,
) -> Result<(String, Issuer<'static, KeyPair>), NodeError> {
    if files.authority.exists() && !files.authority_key.exists() {
        return Err(NodeError::Invalid(format!(
            "there is no certificate {}, and {} cannot sign one because {} is missing; put it there, or server.crt and \
             server.key, or remove {}",
            files.server.display(),
            files.authority.display(),
            files.authority_key.display(),
            files.authority.display()
        )));
    }
    let key = ensure_key(&files.authority_key)?;
    if !files.authority.exists() {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, "Atoll");
        let id = cluster.cluster_id.get(..8).unwrap_or_default();
        parameters.distinguished_name.push(DnType::CommonName, format!("Atoll cluster {id}"));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut parameters, now_s() + AUTHORITY_DAYS * DAY_S);
        let certificate = parameters
            .self_signed(&key)
            .map_err(|error| NodeError::Invalid(format!("cannot make {}: {error}", files.authority.display())))?;
        create_missing(&files.authority, certificate.pem().as_bytes(), Access::Everybody)?;
    }
    let pem = String::from_utf8(read(&files.authority)?);
    let pem = pem.map_err(|error| malformed(&files.authority, error))?;
    let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(|error| malformed(&files.authority, error))?;
    Ok((pem, issuer))
}

/// A key stays the same for good: so it fits its certificate at every moment.
fn ensure_key(path: &Path) -> Result<KeyPair, NodeError> {
    if !path.exists() {
        let made = KeyPair::generate();
        let key = made.map_err(|error| NodeError::Invalid(format!("cannot make {}: {error}", path.display())))?;
        create_missing(path, key.serialize_pem().as_bytes(), Access::Owner)?;
    }
    let pem = String::from_utf8(read(path)?).map_err(|error| malformed(path, error))?;
    KeyPair::from_pem(&pem).map_err(|error| malformed(path, error))
}

/// A certificate for the server, and its chain.
fn sign(
    authority_pem: &str,
    issuer: &Issuer<'_, KeyPair>,
    key: &KeyPair,
    names: &BTreeSet<String>,
    cluster: &ClusterFile,
) -> Result<String, String> {
    let authority = Certificate::first_of_pem(authority_pem.as_bytes());
    let authority = authority.ok_or("there is no certificate of an authority in it")?;
    if !authority.is_authority {
        return Err("it is not the certificate of an authority".into());
    }
    let authority_end_s = u64::try_from(authority.end_unix_s).unwrap_or(0);
    if authority_end_s <= now_s() {
        return Err("the authority's certificate has expired".into());
    }
    let all: Vec<String> = names.iter().cloned().collect();
    let mut parameters = CertificateParams::new(all).map_err(|error| error.to_string())?;
    parameters.distinguished_name.push(DnType::OrganizationName, "Atoll");
    parameters.distinguished_name.push(DnType::CommonName, cluster.host_name());
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    set_validity(&mut parameters, authority_end_s.min(now_s() + SERVER_DAYS * DAY_S));
    let certificate = parameters.signed_by(key, issuer).map_err(|error| error.to_string())?;
    // Clients know the roots only.
    Ok(certificate.pem() + if authority.is_root() { "" } else { authority_pem })
}

fn set_validity(parameters: &mut CertificateParams, end_s: u64) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + Duration::from_secs(now_s() - BACKDATE_S);
    parameters.not_after = epoch + Duration::from_secs(end_s);
}

/// Returns all names and addresses of this host.
fn names(cluster: &ClusterFile) -> BTreeSet<String> {
    let system = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut names: BTreeSet<String> =
        ["localhost".to_owned(), system.trim().to_lowercase(), cluster.host_name().to_lowercase()].into();
    names.extend(cluster.tls_names.iter().map(|name| name.to_lowercase()));
    let admin_listen = cluster.admin_listen();
    let listeners = cluster.nbd_listen.iter().chain([&cluster.s3_listen, &cluster.s3_tls_listen]);
    let listeners = listeners.chain(&admin_listen).filter_map(|text| Some(text.parse::<SocketAddr>().ok()?.ip()));
    let own = ["127.0.0.1", "::1"].iter().filter_map(|text| text.parse().ok());
    let addresses = own.chain(listeners).chain(cluster.listen).chain(cluster.advertise);
    names.extend(addresses.filter(|address| !address.is_unspecified()).map(|address| address.to_string()));
    names.retain(|name| name.parse::<IpAddr>().is_ok() || is_dns_name(name));
    names
}

/// Returns true if a certificate can be for this name. Hosts may be called by others.
pub fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
        (1..=63).contains(&label.len()) && label.chars().all(is_allowed)
    };
    name.len() <= 253 && name.strip_prefix("*.").unwrap_or(name).split('.').all(is_label)
}

/// How long a certificate lasts, less than 0 if it has ended; none if there is none.
fn days_left(pem: &[u8]) -> Option<i64> {
    let end_s = Certificate::first_of_pem(pem)?.end_unix_s;
    Some((end_s - now_s() as i64).div_euclid(DAY_S as i64))
}

/// Returns true if a certificate is for this key.
fn is_for(pem: &[u8], key: &KeyPair) -> bool {
    Certificate::first_of_pem(pem).is_some_and(|found| found.public_key == key.subject_public_key_info())
}

/// Returns true if a certificate of ours is for these names and lasts a while.
fn is_current(pem: &[u8], wanted: &BTreeSet<String>) -> bool {
    let names = Certificate::first_of_pem(pem).and_then(|certificate| certificate.names);
    names.as_ref() == Some(wanted) && days_left(pem).is_some_and(|days| days >= RENEW_DAYS as i64)
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}

fn read(path: &Path) -> Result<Vec<u8>, NodeError> {
    fs::read(path).map_err(NodeError::file(path))
}

fn malformed(path: &Path, error: impl ToString) -> NodeError {
    NodeError::Malformed { path: path.into(), detail: error.to_string() }
}

fn now_s() -> u64 {
    unix_ms() / 1_000
}

#[cfg(test)]
mod tests;
