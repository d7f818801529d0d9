//! Metrics of servers of images (docs/reference/metrics.md).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;

use atoll_metrics::{Bounded, Counter, Family, Gauge, Labels, Latency, register};

use crate::requests::Running;

/// Names in the registry, one set for the process.
struct Registered {
    operations: Family<2, Counter>,
    bytes: Family<2, Counter>,
    duration: Family<2, Latency>,
    errors: Family<2, Counter>,
    image_connections: Family<1, Gauge>,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    operations: register("atoll_image_operations", "Requests of clients that were answered", Family::default()),
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
});

/// Makes these metrics known before there are clients.
pub fn register_all() {
    LazyLock::force(&REGISTERED);
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operation {
    Read,
    Write,
    Trim,
    WriteZeroes,
    Flush,
    BlockStatus,
    Compare,
    CompareAndWrite,
}

/// Their names, in the same order.
pub(crate) const OPERATIONS: [&str; 8] =
    ["read", "write", "trim", "write-zeroes", "flush", "block-status", "compare", "compare-and-write"];

struct OfOperation {
    labels: Labels<2>,
    count: Counter,
    bytes: Counter,
    duration: Latency,
    errors: Counter,
}

/// The series of an image, or of a snapshot.
pub(crate) struct Series {
    operations: [OfOperation; OPERATIONS.len()],
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

impl Series {
    /// The image, or the snapshot.
    pub fn image(&self) -> &str {
        let [(_, image)] = &self.label;
        image
    }

    /// An operation was answered.
    pub fn answered(&self, operation: Operation, bytes: u64, duration_us: u64, has_failed: bool) {
        let of_operation = &self.operations[operation as usize];
        of_operation.count.inc();
        of_operation.duration.observe_us(duration_us);
        if has_failed {
            of_operation.errors.inc();
        } else {
            of_operation.bytes.inc_by(bytes);
        }
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
pub struct ImageMetrics {
    series: Rc<Series>,
    /// In words.
    client: Rc<str>,
}

impl ImageMetrics {
    /// For a client, in words.
    pub fn of(image: &str, client: &str) -> Self {
        let series =
            IMAGES.with_borrow_mut(|images| Rc::clone(images.of(image, |image| Rc::new(Series::new(image)))));
        series.connections.inc();
        ImageMetrics { series, client: client.into() }
    }

    /// Starts the measurement of a request; the result is for its answer.
    pub fn begin(&self, operation: Operation, offset: u64, bytes: u64) -> Running {
        Running::begin(Rc::clone(&self.series), Rc::clone(&self.client), operation, offset, bytes)
    }
}

impl Drop for ImageMetrics {
    fn drop(&mut self) {
        self.series.connections.dec();
    }
}
