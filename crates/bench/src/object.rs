//! Objects through an S3 endpoint, with signed requests over kept-alive connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::cpu::ProcessTimes;
use crate::random::Random;
use crate::report::{BenchError, BenchReport, Counts, Setting, report};

/// What to do with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectOperation {
    /// Upload them.
    Put,
    /// Download them.
    Get,
}

/// A run against an endpoint.
#[derive(Clone, Debug)]
pub struct ObjectBench {
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
    /// What to do.
    pub operation: ObjectOperation,
    /// Bytes per object.
    pub size_bytes: u64,
    /// Requests in flight at once.
    pub concurrency: u32,
    /// How long to measure.
    pub duration: Duration,
    /// Number of different keys.
    pub object_count: u64,
    /// Process ids of the servers.
    pub servers: Vec<u32>,
    /// What was on, for the report.
    pub protections: String,
}

const URL_LIFETIME: Duration = Duration::from_secs(3600);
const PAYLOADS: usize = 8;

struct Endpoint {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    bucket: Bucket,
    credentials: Credentials,
}

impl Endpoint {
    fn new(bench: &ObjectBench) -> Result<Self, BenchError> {
        let url =
            bench.endpoint.parse().map_err(|error| BenchError::S3(format!("{}: {error}", bench.endpoint)))?;
        let bucket = Bucket::new(url, UrlStyle::Path, bench.bucket.clone(), "us-east-1".to_owned())
            .map_err(|error| BenchError::S3(error.to_string()))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(bench)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let credentials = Credentials::new(bench.access_key.clone(), bench.secret_key.clone());
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

    async fn create_bucket(&self) -> Result<(), BenchError> {
        let url = self.bucket.create_bucket(&self.credentials).sign(URL_LIFETIME);
        let (status, body) = self.send(Method::PUT, url.to_string(), Bytes::new()).await?;
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        Err(unexpected("create the bucket", status, &body))
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<(), BenchError> {
        let url = self.bucket.put_object(Some(&self.credentials), key).sign(URL_LIFETIME);
        let (status, answer) = self.send(Method::PUT, url.to_string(), body).await?;
        if status.is_success() { Ok(()) } else { Err(unexpected("PUT", status, &answer)) }
    }

    async fn get(&self, key: &str, size_bytes: u64) -> Result<(), BenchError> {
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

fn client_config(bench: &ObjectBench) -> Result<ClientConfig, BenchError> {
    let wrong = |detail: String| BenchError::S3(format!("cannot use TLS: {detail}"));
    let mut roots = RootCertStore::empty();
    if let Some(path) = &bench.ca_file {
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

struct Run {
    endpoint: Endpoint,
    bench: ObjectBench,
    payloads: Vec<Bytes>,
    next: AtomicU64,
    deadline: Instant,
}

/// Runs the load on the current tokio runtime.
pub async fn run_object(bench: ObjectBench) -> Result<BenchReport, BenchError> {
    if bench.concurrency == 0 || bench.object_count == 0 {
        return Err(BenchError::Invalid("the concurrency and the number of objects must be above 0".into()));
    }
    let endpoint = Endpoint::new(&bench)?;
    endpoint.create_bucket().await?;
    let mut random = Random::new(11);
    let payloads = (0..PAYLOADS).map(|_| Bytes::from(random.fill(bench.size_bytes as usize))).collect();
    let mut run = Run { endpoint, bench, payloads, next: AtomicU64::new(0), deadline: Instant::now() };
    if run.bench.operation == ObjectOperation::Get {
        run = prefill(run).await?;
    }
    let own = [std::process::id()];
    let (servers_before, own_before) = (ProcessTimes::read(&run.bench.servers), ProcessTimes::read(&own));
    let started = Instant::now();
    run.deadline = started + run.bench.duration;
    let run = Arc::new(run);
    let workers: Vec<_> = (0..run.bench.concurrency).map(|_| tokio::spawn(worker(Arc::clone(&run)))).collect();
    let mut counts = Counts::new();
    for worker in workers {
        let (latencies, errors) = worker.await.map_err(|error| BenchError::S3(error.to_string()))?;
        latencies.into_iter().for_each(|latency| counts.done(latency));
        errors.into_iter().for_each(|error| counts.failed(error));
    }
    let elapsed = started.elapsed();
    let server_cpu_us = ProcessTimes::read(&run.bench.servers).us_since(&servers_before);
    let client_cpu_us = ProcessTimes::read(&own).us_since(&own_before);
    let operation = match run.bench.operation {
        ObjectOperation::Put => "put",
        ObjectOperation::Get => "get",
    };
    let setting = Setting {
        operation: operation.into(),
        size_bytes: run.bench.size_bytes,
        depth: run.bench.concurrency,
        protections: run.bench.protections.clone(),
    };
    Ok(report(setting, counts, elapsed, server_cpu_us, client_cpu_us))
}

/// Uploads every key that will be downloaded.
async fn prefill(run: Run) -> Result<Run, BenchError> {
    let run = Arc::new(run);
    let fill = |run: Arc<Run>| async move {
        loop {
            let number = run.next.fetch_add(1, Ordering::Relaxed);
            if number >= run.bench.object_count {
                return Ok::<(), BenchError>(());
            }
            run.endpoint.put(&run.key(number), run.payload(number)).await?;
        }
    };
    let workers: Vec<_> = (0..run.bench.concurrency).map(|_| tokio::spawn(fill(Arc::clone(&run)))).collect();
    for worker in workers {
        worker.await.map_err(|error| BenchError::S3(error.to_string()))??;
    }
    let run = Arc::into_inner(run).expect("all workers have ended");
    run.next.store(0, Ordering::Relaxed);
    Ok(run)
}

impl Run {
    fn key(&self, number: u64) -> String {
        format!("bench-{}-{:08}", self.bench.size_bytes, number % self.bench.object_count)
    }

    fn payload(&self, number: u64) -> Bytes {
        self.payloads[number as usize % PAYLOADS].clone()
    }
}

const ERRORS_PER_WORKER_MAX: usize = 100;

async fn worker(run: Arc<Run>) -> (Vec<Duration>, Vec<String>) {
    let (mut latencies, mut errors) = (Vec::new(), Vec::new());
    while Instant::now() < run.deadline && errors.len() < ERRORS_PER_WORKER_MAX {
        let number = run.next.fetch_add(1, Ordering::Relaxed);
        let key = run.key(number);
        let started = Instant::now();
        let result = match run.bench.operation {
            ObjectOperation::Put => run.endpoint.put(&key, run.payload(number)).await,
            ObjectOperation::Get => run.endpoint.get(&key, run.bench.size_bytes).await,
        };
        match result {
            Ok(()) => latencies.push(started.elapsed()),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (latencies, errors)
}
