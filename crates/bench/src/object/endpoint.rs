//! Objects through an S3 endpoint, with signed requests over kept-alive connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
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

use super::body::{Check, ObjectBody};
use super::listing::Page;
use crate::error::BenchError;

/// Where objects are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectTarget {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
    /// PEM file of the authority that an https endpoint's certificate is of; without one, the
    /// authorities that this host trusts.
    pub ca_file: Option<PathBuf>,
    /// Credentials.
    pub access_key: String,
    /// See `access_key`.
    pub secret_key: String,
    /// The bucket; it is made if it does not exist.
    pub bucket: String,
    /// Where its data is if it is made: a pool of an Atoll cluster.
    pub pool: Option<String>,
    /// The region that requests are signed for.
    pub region: String,
}

/// The most that is read of an answer that is not an object.
const ANSWER_BYTES_MAX: usize = 8 << 20;
const URL_LIFETIME: Duration = Duration::from_secs(3600);

/// Sends signed requests over kept-alive connections.
pub(super) struct Endpoint {
    client: Client<HttpsConnector<HttpConnector>, ObjectBody>,
    bucket: Bucket,
    credentials: Credentials,
}

impl Endpoint {
    pub fn new(target: &ObjectTarget) -> Result<Self, BenchError> {
        let url =
            target.endpoint.parse().map_err(|error| BenchError::S3(format!("{}: {error}", target.endpoint)))?;
        let bucket = Bucket::new(url, UrlStyle::Path, target.bucket.clone(), target.region.clone())
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

    async fn send(&self, method: Method, url: String, body: ObjectBody) -> Result<Response<Incoming>, BenchError> {
        let request = Request::builder().method(method).uri(url).body(body);
        let request = request.map_err(|error| BenchError::S3(error.to_string()))?;
        self.client.request(request).await.map_err(|error| BenchError::S3(with_causes(&error)))
    }

    /// Sends a request whose answer is small.
    /// How long an object is, if it is there.
    pub async fn size_bytes(&self, key: &str) -> Result<Option<u64>, BenchError> {
        let url = self.bucket.head_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let response = self.send(Method::HEAD, url.to_string(), ObjectBody::empty()).await?;
        let length = response.headers().get(hyper::header::CONTENT_LENGTH);
        let length = length.filter(|_| response.status().is_success()).and_then(|text| text.to_str().ok());
        Ok(length.and_then(|text| text.parse().ok()))
    }

    async fn ask(&self, method: Method, url: String, body: ObjectBody) -> Result<(StatusCode, Bytes), BenchError> {
        let response = self.send(method, url, body).await?;
        let status = response.status();
        Ok((status, answer(response).await?))
    }

    /// Makes the bucket if need be; `pool` is the location in a service of several places.
    pub async fn create_bucket(&self, pool: Option<&str>) -> Result<(), BenchError> {
        let url = self.bucket.create_bucket(&self.credentials).sign(URL_LIFETIME);
        let configuration = pool.map_or_else(ObjectBody::empty, |pool| {
            let pool = quick_xml::escape::escape(pool);
            let namespace = "http://s3.amazonaws.com/doc/2006-03-01/";
            ObjectBody::text(format!(
                "<CreateBucketConfiguration xmlns=\"{namespace}\"><LocationConstraint>{pool}</LocationConstraint>\
                 </CreateBucketConfiguration>"
            ))
        });
        let (status, body) = self.ask(Method::PUT, url.to_string(), configuration).await?;
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        Err(unexpected("create the bucket", status, &body))
    }

    pub async fn put(&self, key: &str, body: ObjectBody) -> Result<(), BenchError> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let (status, answer) = self.ask(Method::PUT, url.to_string(), body).await?;
        if status.is_success() { Ok(()) } else { Err(unexpected("PUT", status, &answer)) }
    }

    /// Reads an object, which must have this size; with a check, returns which PUT it is of.
    pub async fn get(&self, key: &str, size_bytes: u64, check: Option<Check>) -> Result<Option<u64>, BenchError> {
        let url = self.bucket.get_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let response = self.send(Method::GET, url.to_string(), ObjectBody::empty()).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(unexpected("GET", status, &answer(response).await?));
        }
        let (mut body, mut check, mut received) = (response.into_body(), check, 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| BenchError::S3(with_causes(&error)))?;
            let Some(data) = frame.data_ref() else { continue };
            received += data.len() as u64;
            if let Some(check) = &mut check {
                check.take(data)?;
            }
        }
        if received != size_bytes {
            return Err(BenchError::WrongData(format!("GET {key}: {received} bytes instead of {size_bytes}")));
        }
        check.map(Check::finish).transpose()
    }

    /// Names that begin so, behind one of them.
    pub async fn list(&self, prefix: &str, behind: &str, keys_max: usize) -> Result<Page, BenchError> {
        // The library's own LIST comes with a second XML library; a GET of the bucket itself is the same.
        let mut list = self.bucket.get_object(Some(&self.credentials), "");
        let query = list.query_mut();
        query.insert("list-type", "2");
        query.insert("prefix", prefix);
        query.insert("start-after", behind);
        query.insert("max-keys", keys_max.to_string());
        let url = list.sign(URL_LIFETIME);
        let (status, answer) = self.ask(Method::GET, url.to_string(), ObjectBody::empty()).await?;
        if status.is_success() { Page::parse(&answer) } else { Err(unexpected("LIST", status, &answer)) }
    }

    pub async fn delete(&self, key: &str) -> Result<(), BenchError> {
        let url = self.bucket.delete_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let (status, answer) = self.ask(Method::DELETE, url.to_string(), ObjectBody::empty()).await?;
        if status.is_success() { Ok(()) } else { Err(unexpected("DELETE", status, &answer)) }
    }
}

async fn answer(response: Response<Incoming>) -> Result<Bytes, BenchError> {
    let limited = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
    let collected = limited.collect().await.map_err(|error| BenchError::S3(error.to_string()))?;
    Ok(collected.to_bytes())
}

/// Why a request failed is said by the causes of hyper's error only.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn client_config(target: &ObjectTarget) -> Result<ClientConfig, BenchError> {
    let wrong = |detail: String| BenchError::S3(format!("cannot use TLS: {detail}"));
    let mut roots = RootCertStore::empty();
    if let Some(path) = &target.ca_file {
        let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = certificates.map_err(|error| wrong(format!("{}: {error}", path.display())))?;
        roots.add_parsable_certificates(certificates);
    } else if target.endpoint.starts_with("https:") {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn unexpected(what: &str, status: StatusCode, body: &Bytes) -> BenchError {
    BenchError::S3(format!("cannot {what}: {status}: {}", String::from_utf8_lossy(&body[..body.len().min(500)])))
}
