//! Metrics of a gateway (docs/reference/metrics.md).

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use atoll_metrics::{Bounded, Counter, Family, Gauge, Labels, Latency, register};

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
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
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
});

/// Makes the gateway's metrics known before there are requests.
pub(crate) fn register_all() {
    LazyLock::force(&REGISTERED);
}

/// A request has come.
pub(crate) fn request_begun() {
    REGISTERED.in_flight.inc();
}

/// A request that is over.
pub(crate) struct Ended<'a> {
    pub operation: &'static str,
    /// A client that left before there was an answer got none.
    pub status: Option<u16>,
    pub duration: Duration,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Account of the signer.
    pub account: Option<&'a str>,
    pub bucket: Option<&'a str>,
}

/// A request is over.
pub(crate) fn request_ended(ended: &Ended<'_>) {
    let operation = ("operation", ended.operation.to_owned());
    let status = ended.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
    REGISTERED.in_flight.dec();
    REGISTERED.duration.get_or_create(std::array::from_ref(&operation)).observe(ended.duration);
    REGISTERED.requests.get_or_create(&[operation, ("status", status)]).inc();
    REGISTERED.received_bytes.inc_by(ended.received_bytes);
    REGISTERED.sent_bytes.inc_by(ended.sent_bytes);
    if let Some(account) = ended.account {
        REGISTERED.accounts.count(account, ended.received_bytes, ended.sent_bytes);
    }
    if let Some(bucket) = ended.bucket {
        REGISTERED.buckets.count(bucket, ended.received_bytes, ended.sent_bytes);
    }
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

/// Requests by bucket, or by account.
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
