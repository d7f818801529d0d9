//! What a gateway measures (docs/reference/metrics.md).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use atoll_audit::AuditLog;
use atoll_iam::Caller;
use atoll_metrics::slow::{self, SlowOperation, SlowStep};
use atoll_metrics::{Bounded, Counter, Family, Gauge, Labels, Latency, register};
use http::header::USER_AGENT;
use http::{HeaderValue, Method, Request, Uri};

use crate::audit::AuditRecord;
use crate::shell::Arrival;

/// The operation of requests that were refused before it was known which they are.
const NO_OPERATION: &str = "Unknown";

/// Names in the registry, one set for the process.
struct Registered {
    requests: Family<2, Counter>,
    duration: Family<1, Latency>,
    in_flight: Gauge,
    received_bytes: Counter,
    sent_bytes: Counter,
    buckets: Traffic,
    accounts: Traffic,
    connections: Gauge,
    key_cache_hits: Counter,
    key_cache_misses: Counter,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| {
    let key_cache_lookups: Family<1, Counter> = register(
        "atoll_s3_key_cache_lookups",
        "Keys that were there, and those that the key service was asked for",
        Family::default(),
    );
    let looked_up = |result: &str| key_cache_lookups.get_or_create_owned(&[("result", result.to_owned())]);
    Registered {
        requests: register("atoll_s3_requests", "Requests by their operation and HTTP status", Family::default()),
        duration: register(
            "atoll_s3_request_duration_seconds",
            "From a request's headers until the client has taken the answer",
            Family::default(),
        ),
        in_flight: register("atoll_s3_requests_in_flight", "Requests that are being served", Gauge::default()),
        received_bytes: register("atoll_s3_received_bytes", "Bytes of bodies of requests", Counter::default()),
        sent_bytes: register("atoll_s3_sent_bytes", "Bytes of bodies of answers", Counter::default()),
        buckets: Traffic {
            label: "bucket",
            requests: register("atoll_s3_bucket_requests", "Requests to a bucket", Family::default()),
            received_bytes: register(
                "atoll_s3_bucket_received_bytes",
                "Bytes of bodies of requests to a bucket",
                Family::default(),
            ),
            sent_bytes: register(
                "atoll_s3_bucket_sent_bytes",
                "Bytes of bodies of answers about a bucket",
                Family::default(),
            ),
            series: Mutex::default(),
        },
        accounts: Traffic {
            label: "account",
            requests: register("atoll_s3_account_requests", "Signed requests of an account", Family::default()),
            received_bytes: register(
                "atoll_s3_account_received_bytes",
                "Bytes of bodies of an account's requests",
                Family::default(),
            ),
            sent_bytes: register(
                "atoll_s3_account_sent_bytes",
                "Bytes of bodies of answers to an account",
                Family::default(),
            ),
            series: Mutex::default(),
        },
        connections: register("atoll_s3_connections", "Connections of clients", Gauge::default()),
        key_cache_hits: looked_up("hit"),
        key_cache_misses: looked_up("miss"),
    }
});

/// Makes the gateway's metrics known before there are requests.
pub(crate) fn register_all() {
    LazyLock::force(&REGISTERED);
}

/// A connection of a client, until it is dropped.
pub(crate) struct Connection;

impl Connection {
    pub(crate) fn open() -> Self {
        REGISTERED.connections.inc();
        Connection
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        REGISTERED.connections.dec();
    }
}

/// A key was looked up in the cache, and was there or not.
pub(crate) fn key_looked_up(is_there: bool) {
    let counter = if is_there { &REGISTERED.key_cache_hits } else { &REGISTERED.key_cache_misses };
    counter.inc();
}

/// What was asked for, and by whom.
struct Asked {
    method: Method,
    uri: Uri,
    arrival: Arrival,
    user_agent: Option<HeaderValue>,
}

/// A request while it is served: travels in its extensions, so that whoever finds out what it is can say so. It is
/// measured when the last of its holders lets go of it.
pub(crate) struct Observed {
    started: Instant,
    operation: OnceLock<&'static str>,
    bucket: OnceLock<String>,
    caller: OnceLock<Arc<Caller>>,
    request_id: OnceLock<String>,
    audit: Option<AuditLog>,
    status: OnceLock<u16>,
    /// When the answer's head was there, in microseconds after the start.
    answered_us: OnceLock<u64>,
    asked: OnceLock<Asked>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Observed {
    /// A request has come; its record goes into the audit log, if there is one.
    pub(crate) fn begin(audit: Option<AuditLog>) -> Arc<Self> {
        REGISTERED.in_flight.inc();
        Arc::new(Observed {
            started: Instant::now(),
            audit,
            request_id: OnceLock::new(),
            operation: OnceLock::new(),
            bucket: OnceLock::new(),
            caller: OnceLock::new(),
            status: OnceLock::new(),
            answered_us: OnceLock::new(),
            asked: OnceLock::new(),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        })
    }

    /// Its operation; what was said first holds.
    pub(crate) fn is_of_operation(&self, operation: &'static str) {
        let _ = self.operation.set(operation);
    }

    /// The bucket, which exists, and that the request may do what it asks for: so names of series cannot be made
    /// up by strangers.
    pub(crate) fn is_of_bucket(&self, bucket: &str) {
        let _ = self.bucket.set(bucket.to_owned());
    }

    /// Who has signed it.
    pub(crate) fn is_of_caller(&self, caller: &Arc<Caller>) {
        let _ = self.caller.set(Arc::clone(caller));
    }

    /// What was asked for, and by whom.
    pub(crate) fn is_of<B>(&self, request: &Request<B>, arrival: Arrival) {
        let _ = self.asked.set(Asked {
            method: request.method().clone(),
            uri: request.uri().clone(),
            arrival,
            user_agent: request.headers().get(USER_AGENT).cloned(),
        });
    }

    pub(crate) fn has_request_id(&self, request_id: &str) {
        let _ = self.request_id.set(request_id.to_owned());
    }

    pub(crate) fn is_answered_with(&self, status: u16) {
        let _ = self.status.set(status);
        let _ = self.answered_us.set(self.started.elapsed().as_micros() as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What a client may take for its data is not ours: so many bytes in a microsecond are not slow.
const NOT_SLOW_BYTES_PER_US: u64 = 20;

impl Observed {
    /// Of a presigned URL the query is a secret.
    fn path(&self) -> &str {
        self.asked.get().map_or("", |asked| asked.uri.path())
    }

    fn audit(&self, duration: Duration, (received_bytes, sent_bytes): (u64, u64)) {
        let Some(log) = &self.audit else { return };
        let (asked, caller) = (self.asked.get(), self.caller.get());
        let duration_us = duration.as_micros() as u64;
        log.add(&AuditRecord {
            source: "s3",
            time_unix_ms: slow::begun_unix_ms(duration_us),
            request_id: self.request_id.get().map(|id| &id[..]),
            operation: self.operation.get().copied().unwrap_or(NO_OPERATION),
            method: asked.map(|asked| asked.method.as_str()),
            path: self.path(),
            bucket: self.bucket.get().map(|bucket| &bucket[..]),
            account: caller.map(|caller| &caller.account.id[..]),
            principal: caller.map(|caller| caller.arn()),
            access_key: caller.map(|caller| &caller.access_key[..]),
            client: asked.and_then(|asked| asked.arrival.client).map(|client| client.ip().to_string()),
            is_encrypted: asked.map(|asked| asked.arrival.is_encrypted),
            user_agent: asked.and_then(|asked| asked.user_agent.as_ref()?.to_str().ok()),
            status: self.status.get().copied(),
            received_bytes,
            sent_bytes,
            duration_us,
        });
    }

    fn record_if_slow(&self, duration: Duration, size_bytes: u64) {
        let duration_us = duration.as_micros() as u64;
        if !slow::is_slow(duration_us.saturating_sub(size_bytes / NOT_SLOW_BYTES_PER_US)) {
            return;
        }
        let client = self.asked.get().and_then(|asked| asked.arrival.client);
        let client = client.map(|client| client.ip().to_string());
        let status = self.status.get().copied();
        slow::record(SlowOperation {
            begun_unix_ms: slow::begun_unix_ms(duration_us),
            duration_us,
            kind: self.operation.get().copied().unwrap_or(NO_OPERATION).to_owned(),
            client: client.unwrap_or_default(),
            object: Some(self.path().to_owned()),
            size_bytes,
            error: match status {
                Some(status) if status >= 400 => Some(format!("status {status}")),
                Some(_) => None,
                None => Some("the client left".into()),
            },
            steps: self
                .answered_us
                .get()
                .map(|after_us| SlowStep { name: "answer begun".into(), after_us: *after_us })
                .into_iter()
                .collect(),
            ..SlowOperation::default()
        });
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        let operation = ("operation", self.operation.get().copied().unwrap_or(NO_OPERATION).to_owned());
        // A client that left before there was an answer got none.
        let status = self.status.get().map_or_else(|| "none".to_owned(), u16::to_string);
        let (received_bytes, sent_bytes) = (*self.received_bytes.get_mut(), *self.sent_bytes.get_mut());
        REGISTERED.in_flight.dec();
        self.audit(duration, (received_bytes, sent_bytes));
        self.record_if_slow(duration, received_bytes + sent_bytes);
        REGISTERED.duration.get_or_create(std::array::from_ref(&operation)).observe(duration);
        REGISTERED.requests.get_or_create(&[operation, ("status", status)]).inc();
        REGISTERED.received_bytes.inc_by(received_bytes);
        REGISTERED.sent_bytes.inc_by(sent_bytes);
        if let Some(caller) = self.caller.get() {
            REGISTERED.accounts.count(&caller.account.id, received_bytes, sent_bytes);
        }
        if let Some(bucket) = self.bucket.take() {
            REGISTERED.buckets.count(&bucket, received_bytes, sent_bytes);
        }
    }
}

/// Requests by what they are of: buckets, or accounts.
struct Traffic {
    label: &'static str,
    requests: Family<1, Counter>,
    received_bytes: Family<1, Counter>,
    sent_bytes: Family<1, Counter>,
    series: Mutex<Bounded<TrafficSeries>>,
}

impl Traffic {
    /// A request is over.
    fn count(&'static self, name: &str, received_bytes: u64, sent_bytes: u64) {
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let series = all.of(name, |name| TrafficSeries::new(self, name));
        series.requests.inc();
        series.received_bytes.inc_by(received_bytes);
        series.sent_bytes.inc_by(sent_bytes);
    }
}

/// The series of one bucket or account.
struct TrafficSeries {
    of: &'static Traffic,
    label: Labels<1>,
    requests: Counter,
    received_bytes: Counter,
    sent_bytes: Counter,
}

impl TrafficSeries {
    fn new(of: &'static Traffic, name: &str) -> Self {
        let label = [(of.label, name.to_owned())];
        TrafficSeries {
            of,
            requests: of.requests.get_or_create_owned(&label),
            received_bytes: of.received_bytes.get_or_create_owned(&label),
            sent_bytes: of.sent_bytes.get_or_create_owned(&label),
            label,
        }
    }
}

impl Drop for TrafficSeries {
    fn drop(&mut self) {
        for family in [&self.of.requests, &self.of.received_bytes, &self.of.sent_bytes] {
            family.remove(&self.label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        atoll_metrics::encode(atoll_metrics::TextFormat::OpenMetrics).unwrap()
    }

    #[test]
    fn a_request_is_measured_when_it_is_over() {
        let observed = Observed::begin(None);
        observed.is_of_operation("PutTestObject");
        observed.is_of_bucket("measured");
        observed.received(1_000);
        observed.sent(10);
        observed.is_answered_with(200);
        let held = Arc::clone(&observed);
        drop(observed);
        assert!(!text().contains("PutTestObject"), "a body is still being sent");
        drop(held);
        let text = text();
        for line in [
            r#"atoll_s3_requests_total{operation="PutTestObject",status="200"} 1"#,
            r#"atoll_s3_request_duration_seconds_count{operation="PutTestObject"} 1"#,
            r#"atoll_s3_bucket_received_bytes_total{bucket="measured"} 1000"#,
            r#"atoll_s3_bucket_sent_bytes_total{bucket="measured"} 10"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
