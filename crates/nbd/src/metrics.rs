//! What an NBD server measures (docs/reference/metrics.md).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Instant;

use atoll_metrics::slow::{self, SlowOperation, SlowStep};
use atoll_metrics::{Bounded, Counter, Family, Gauge, Labels, Latency, register};

use crate::protocol::RequestKind;

/// Names in the registry, one set for the process.
struct Registered {
    operations: Family<2, Counter>,
    bytes: Family<2, Counter>,
    duration: Family<2, Latency>,
    errors: Family<2, Counter>,
    image_connections: Family<1, Gauge>,
    connections: Gauge,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    operations: register(
        "atoll_image_operations",
        "Requests of NBD clients that were answered",
        Family::default(),
    ),
    bytes: register(
        "atoll_image_operation_bytes",
        "Bytes that clients read, wrote, trimmed and zeroed",
        Family::default(),
    ),
    duration: register(
        "atoll_image_operation_duration_seconds",
        "From the arrival of a request to its answer",
        Family::default(),
    ),
    errors: register("atoll_image_operation_errors", "Requests that failed or were refused", Family::default()),
    image_connections: register("atoll_image_connections", "Connections that use an image", Family::default()),
    connections: register("atoll_nbd_connections", "Connections of NBD clients", Gauge::default()),
});

/// Makes the server's metrics known before there are clients.
pub(crate) fn register_all() {
    LazyLock::force(&REGISTERED);
}

pub(crate) fn set_connections(count: usize) {
    REGISTERED.connections.set(count as i64);
}

const OPERATIONS: [&str; 6] = ["read", "write", "trim", "write-zeroes", "flush", "block-status"];

/// The place in [`OPERATIONS`], the offset and the bytes of a request.
fn operation(kind: &RequestKind) -> (usize, u64, u64) {
    match kind {
        RequestKind::Read { offset, length } => (0, *offset, u64::from(*length)),
        RequestKind::Write { offset, data, .. } => (1, *offset, data.len() as u64),
        RequestKind::Trim { offset, length, .. } => (2, *offset, u64::from(*length)),
        RequestKind::WriteZeroes { offset, length, .. } => (3, *offset, u64::from(*length)),
        RequestKind::Flush => (4, 0, 0),
        RequestKind::BlockStatus { offset, .. } => (5, *offset, 0),
    }
}

struct OfOperation {
    labels: Labels<2>,
    count: Counter,
    bytes: Counter,
    duration: Latency,
    errors: Counter,
}

/// The series of an image, or of a snapshot.
struct Series {
    operations: [OfOperation; 6],
    label: Labels<1>,
    connections: Gauge,
}

impl Series {
    fn new(image: &str) -> Self {
        let label = [("image", image.to_owned())];
        let operations = OPERATIONS.map(|operation| {
            let [image] = label.clone();
            let labels = [image, ("operation", operation.to_owned())];
            OfOperation {
                count: REGISTERED.operations.get_or_create_owned(&labels),
                bytes: REGISTERED.bytes.get_or_create_owned(&labels),
                duration: REGISTERED.duration.get_or_create_owned(&labels),
                errors: REGISTERED.errors.get_or_create_owned(&labels),
                labels,
            }
        });
        let connections = REGISTERED.image_connections.get_or_create_owned(&label);
        Series { operations, label, connections }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        for OfOperation { labels, .. } in &self.operations {
            REGISTERED.operations.remove(labels);
            REGISTERED.bytes.remove(labels);
            REGISTERED.duration.remove(labels);
            REGISTERED.errors.remove(labels);
        }
        REGISTERED.image_connections.remove(&self.label);
    }
}

thread_local! {
    static IMAGES: RefCell<Bounded<Rc<Series>>> = RefCell::default();
}

/// The metrics of an image for one connection that uses it, until it is dropped.
pub(crate) struct ImageMetrics(Rc<Series>);

impl ImageMetrics {
    pub fn of(image: &str) -> Self {
        let series =
            IMAGES.with_borrow_mut(|images| Rc::clone(images.of(image, |image| Rc::new(Series::new(image)))));
        series.connections.inc();
        ImageMetrics(series)
    }

    /// A request has come; what is to be said when it is answered.
    pub fn begin(&self, kind: &RequestKind) -> Running {
        let (operation, offset, bytes) = operation(kind);
        Running { series: Rc::clone(&self.0), operation, bytes, offset, started: Instant::now() }
    }
}

impl Drop for ImageMetrics {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// A request that is not answered yet.
pub(crate) struct Running {
    series: Rc<Series>,
    operation: usize,
    bytes: u64,
    offset: u64,
    started: Instant,
}

impl Running {
    /// It is answered; `begun_us` is how long it waited until it could begin, and `error` why it failed.
    pub fn answered(self, error: Option<&str>, begun_us: u64, client: impl FnOnce() -> String) {
        let of_operation = &self.series.operations[self.operation];
        let duration_us = self.started.elapsed().as_micros() as u64;
        of_operation.count.inc();
        of_operation.duration.observe_us(duration_us);
        let _ = match error {
            None => of_operation.bytes.inc_by(self.bytes),
            Some(_) => of_operation.errors.inc(),
        };
        if slow::is_slow(duration_us) {
            let [(_, image)] = &self.series.label;
            slow::record(SlowOperation {
                begun_unix_ms: slow::begun_unix_ms(duration_us),
                duration_us,
                kind: OPERATIONS[self.operation].into(),
                client: client(),
                object: Some(format!("{image} at {}", self.offset)),
                size_bytes: self.bytes,
                error: error.map(ToOwned::to_owned),
                steps: vec![SlowStep { name: "begun".into(), after_us: begun_us }],
                ..SlowOperation::default()
            });
        }
    }

    /// How long ago it came, in microseconds.
    pub fn waited_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }
}
