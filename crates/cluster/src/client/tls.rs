//! TLS to cluster state: the client's trusted authorities, and its own certificate.

use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Identity, TlsOptions};
use serde::{Deserialize, Serialize};

use super::{ClusterError, ConnectOptions};

const PLAIN: &str = "http://";
const ENCRYPTED: &str = "https://";

/// The PEM files of a TLS connection. They are read at each connect, so renewed ones are taken up
/// by the next process that starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsFiles {
    /// The certificate authority that signed the servers' certificates.
    pub ca: Option<PathBuf>,
    /// The client's certificate, for servers that demand one.
    pub certificate: Option<PathBuf>,
    /// The private key of the client's certificate.
    pub key: Option<PathBuf>,
    /// The name that the servers' certificates must have; otherwise the host of the endpoint.
    pub server_name: Option<String>,
}

/// Returns the TLS options of the etcd client, or nothing for plain HTTP.
pub(super) fn options(connect: &ConnectOptions) -> Result<Option<TlsOptions>, ClusterError> {
    let wrong = |cause: String| ClusterError::Options { endpoints: connect.endpoints.join(", "), cause };
    let endpoints = &connect.endpoints;
    if let Some(other) = endpoints.iter().find(|url| !url.starts_with(PLAIN) && !url.starts_with(ENCRYPTED)) {
        return Err(wrong(format!("{other} begins neither with {PLAIN} nor with {ENCRYPTED}")));
    }
    let is_encrypted = endpoints.iter().any(|url| url.starts_with(ENCRYPTED));
    if is_encrypted && endpoints.iter().any(|url| url.starts_with(PLAIN)) {
        return Err(wrong("either all endpoints are https or all are http".into()));
    }
    let TlsFiles { ca, certificate, key, server_name } = &connect.tls;
    if !is_encrypted {
        let is_unused = ca.is_none() && certificate.is_none() && key.is_none();
        return if is_unused { Ok(None) } else { Err(wrong("certificates are for https endpoints only".into())) };
    }
    let Some(ca) = ca else {
        return Err(wrong("https needs the certificate authority of the servers (--etcd-ca)".into()));
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read_pem(ca, "CERTIFICATE", &wrong)?));
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let certificate = read_pem(certificate, "CERTIFICATE", &wrong)?;
            tls = tls.identity(Identity::from_pem(certificate, read_pem(key, "PRIVATE KEY", &wrong)?));
        }
        (None, None) => {}
        _ => return Err(wrong("a client certificate needs its key and the other way round".into())),
    }
    if let Some(name) = server_name {
        tls = tls.domain_name(name.clone());
    }
    Ok(Some(tls))
}

fn read_pem(path: &Path, what: &str, wrong: &impl Fn(String) -> ClusterError) -> Result<Vec<u8>, ClusterError> {
    let bytes = std::fs::read(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    // The etcd client takes anything, and would then refuse every server without saying why.
    let marks = String::from_utf8_lossy(&bytes);
    let is_there = marks.lines().any(|line| line.starts_with("-----BEGIN") && line.contains(what));
    if is_there { Ok(bytes) } else { Err(wrong(format!("there is no PEM {what} in {}", path.display()))) }
}

/// Returns the remedy for a failed handshake, judged by the words of rustls; nothing if it is not about TLS.
pub(super) fn advice(cause: &str, endpoints: &[String]) -> Option<&'static str> {
    if endpoints.iter().all(|url| url.starts_with(PLAIN)) {
        return None;
    }
    let says = |words: &str| cause.contains(words);
    if says("UnknownIssuer") || says("BadSignature") {
        Some("it has a certificate of another authority than --etcd-ca names")
    } else if says("not valid for name") || says("NotValidForName") {
        Some("its certificate is for another name or address; use the one that is in the certificate")
    } else if says("certificate expired") || says("not valid yet") || says("Expired") {
        Some("its certificate is out of date; renew it, or set the clocks right")
    } else if says("invalid peer certificate") {
        Some("its certificate cannot be used")
    } else if says("fatal alert") && says("ertificate") {
        Some("it wants a client certificate of its own authority; give --etcd-cert and --etcd-key")
    } else if says("InvalidContentType") || says("corrupt message") {
        Some("it does not speak TLS; does it want http, or is it another port?")
    } else {
        None
    }
}

/// Returns the most likely cause when every attempt ended with a broken connection, until the time was over.
pub(super) fn advice_after_all(cause: &str, endpoints: &[String]) -> Option<&'static str> {
    let words =
        ["broken pipe", "connection closed", "connection reset", "frame with invalid size", "reset by peer"];
    if !words.iter().any(|words| cause.contains(words)) {
        return None;
    }
    Some(if endpoints.iter().all(|url| url.starts_with(PLAIN)) {
        "it cuts connections off at once; does it want https, or is it another port?"
    } else {
        // The alert that says so is often lost with the connection.
        "it cuts connections off after the handshake; does it want a client certificate of its own authority \
         (--etcd-cert, --etcd-key)?"
    })
}
