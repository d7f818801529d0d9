//! Objects through an S3 endpoint, with signed requests over kept-alive connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::error::BenchError;

/// Where objects are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectTarget {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    /// PEM file of the authority that an https endpoint's certificate is of.
    pub ca_file: Option<PathBuf>,
    /// Credentials.
    pub access_key: String,
    /// See `access_key`.
    pub secret_key: String,
    /// The bucket; it is made if it does not exist.
    pub bucket: String,
}

const URL_LIFETIME: Duration = Duration::from_secs(3600);

/// Sends signed requests over kept-alive connections.
pub(super) struct Endpoint {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    bucket: Bucket,
    credentials: Credentials,
}

impl Endpoint {
    pub fn new(target: &ObjectTarget) -> Result<Self, BenchError> {
        let url =
            target.endpoint.parse().map_err(|error| BenchError::S3(format!("{}: {error}", target.endpoint)))?;
        let bucket = Bucket::new(url, UrlStyle::Path, target.bucket.clone(), "us-east-1".to_owned())
            .map_err(|error| BenchError::S3(error.to_string()))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(target)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let credentials = Credentials::new(target.access_key.clone(), target.secret_key.clone());
        Ok(Endpoint { client, bucket, credentials })
    }

    async fn send(&self, method: Method, url: String, body: Bytes) -> Result<(StatusCode, Bytes), BenchError> {
        let request = Request::builder().method(method).uri(url).body(Full::new(body));
        let request = request.map_err(|error| BenchError::S3(error.to_string()))?;
        let response = self.client.request(request).await.map_err(|error| BenchError::S3(error.to_string()))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| BenchError::S3(error.to_string()))?;
        Ok((status, body.to_bytes()))
    }

    pub async fn create_bucket(&self) -> Result<(), BenchError> {
        let url = self.bucket.create_bucket(&self.credentials).sign(URL_LIFETIME);
        let (status, body) = self.send(Method::PUT, url.to_string(), Bytes::new()).await?;
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        Err(unexpected("create the bucket", status, &body))
    }

    pub async fn put(&self, key: &str, body: Bytes) -> Result<(), BenchError> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let (status, answer) = self.send(Method::PUT, url.to_string(), body).await?;
        if status.is_success() { Ok(()) } else { Err(unexpected("PUT", status, &answer)) }
    }

    pub async fn get(&self, key: &str, size_bytes: u64) -> Result<(), BenchError> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let (status, answer) = self.send(Method::GET, url.to_string(), Bytes::new()).await?;
        if !status.is_success() {
            return Err(unexpected("GET", status, &answer));
        }
        if answer.len() as u64 != size_bytes {
            return Err(BenchError::S3(format!("GET {key}: {} bytes instead of {size_bytes}", answer.len())));
        }
        Ok(())
    }
}

fn client_config(target: &ObjectTarget) -> Result<ClientConfig, BenchError> {
    let wrong = |detail: String| BenchError::S3(format!("cannot use TLS: {detail}"));
    let mut roots = RootCertStore::empty();
    if let Some(path) = &target.ca_file {
        let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|error| wrong(format!("{}: {error}", path.display())))?;
        roots.add_parsable_certificates(certificates);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn unexpected(what: &str, status: StatusCode, body: &Bytes) -> BenchError {
    BenchError::S3(format!("cannot {what}: {status}: {}", String::from_utf8_lossy(&body[..body.len().min(500)])))
}
