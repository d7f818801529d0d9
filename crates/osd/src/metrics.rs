//! Metrics of an OSD (docs/reference/metrics.md).

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use atoll_metrics::{Counter, Family, Gauge, Labels, Latency, register};
use atoll_store::{Device, PoolUsage, StoreUsage};
use atoll_types::PoolId;
use atoll_types::transports::Transport;

use crate::operation_kind::OperationKind;

/// Name of pools that cluster state does not know (yet).
const UNKNOWN_POOL: &str = "unknown";

/// Operations of one kind on one pool.
pub(crate) struct OfOperations {
    count: Counter,
    bytes: Counter,
    duration: Latency,
    /// By the reason.
    errors: RefCell<BTreeMap<&'static str, Counter>>,
    labels: Labels<2>,
}

impl OfOperations {
    fn error_labels(&self, error: &str) -> Labels<3> {
        let [operation, pool] = self.labels.clone();
        [operation, pool, label("error", error)]
    }
}

/// Clients' operations on one pool.
struct OfPool {
    /// By [`OperationKind`].
    operations: [OfOperations; 2],
    replication_duration: Latency,
    labels: Labels<1>,
    space: OnceCell<OfSpace>,
}

/// One pool's usage of the store.
struct OfSpace {
    used_bytes: Gauge,
    objects: Gauge,
}

impl OfSpace {
    fn of(labels: &Labels<1>) -> Self {
        OfSpace {
            used_bytes: REGISTERED.pool_used_bytes.get_or_create_owned(labels),
            objects: REGISTERED.pool_objects.get_or_create_owned(labels),
        }
    }
}

impl OfPool {
    /// The pool is gone: takes its series out of the registry.
    fn forget(self) {
        REGISTERED.replication_duration.remove(&self.labels);
        REGISTERED.pool_used_bytes.remove(&self.labels);
        REGISTERED.pool_objects.remove(&self.labels);
        for of_kind in self.operations {
            REGISTERED.operations.remove(&of_kind.labels);
            REGISTERED.operation_bytes.remove(&of_kind.labels);
            REGISTERED.operation_duration.remove(&of_kind.labels);
            for error in of_kind.errors.borrow().keys() {
                REGISTERED.operation_errors.remove(&of_kind.error_labels(error));
            }
        }
    }
}

/// Requests of one kind to one device.
struct OfDevice {
    count: Counter,
    bytes: Counter,
    duration: Latency,
}

/// Kind of a request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceOperation {
    Read,
    Write,
    Sync,
    Discard,
}

const DEVICE_OPERATIONS: [(DeviceOperation, &str); 4] = [
    (DeviceOperation::Read, "read"),
    (DeviceOperation::Write, "write"),
    (DeviceOperation::Sync, "sync"),
    (DeviceOperation::Discard, "discard"),
];

/// Names in the registry, one set for the process.
struct Registered {
    operations: Family<2, Counter>,
    operation_bytes: Family<2, Counter>,
    operation_duration: Family<2, Latency>,
    operation_errors: Family<3, Counter>,
    replication_duration: Family<1, Latency>,
    in_flight: Gauge,
    waiting: Gauge,
    waiting_max: Gauge,
    size_bytes: Gauge,
    used_bytes: Gauge,
    full: Gauge,
    objects: Gauge,
    pool_used_bytes: Family<1, Gauge>,
    pool_objects: Family<1, Gauge>,
    pgs: Family<1, Gauge>,
    corrupt_blocks: Counter,
    log_size_bytes: Gauge,
    log_used_bytes: Gauge,
    checkpoints: Counter,
    metadata_memory_bytes: Gauge,
    pending_memory_bytes: Gauge,
    metadata_pages: Gauge,
    metadata_page_lookups: Family<1, Counter>,
    device_operations: Family<2, Counter>,
    device_bytes: Family<2, Counter>,
    device_duration: Family<2, Latency>,
    recovery_read_bytes: Counter,
    scrubs: Family<1, Counter>,
    scrub_damaged_objects: Counter,
    links: Family<2, Gauge>,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    operations: register("atoll_osd_operations", "Operations of clients that were answered", Family::default()),
    operation_bytes: register("atoll_osd_operation_bytes", "Data that clients read and wrote", Family::default()),
    operation_duration: register(
        "atoll_osd_operation_duration_seconds",
        "From the arrival of a client's operation to its answer",
        Family::default(),
    ),
    operation_errors: register(
        "atoll_osd_operation_errors",
        "Operations that were refused, by the reason",
        Family::default(),
    ),
    replication_duration: register(
        "atoll_osd_replication_duration_seconds",
        "From the ordering of a client's write to when all members have it durable",
        Family::default(),
    ),
    in_flight: register(
        "atoll_osd_operations_in_flight",
        "Operations of clients that are not answered yet",
        Gauge::default(),
    ),
    waiting: register(
        "atoll_osd_pg_waiting_operations",
        "Operations of clients that wait in PGs that this OSD leads",
        Gauge::default(),
    ),
    waiting_max: register(
        "atoll_osd_pg_waiting_operations_max",
        "The same, of the PG in which most wait",
        Gauge::default(),
    ),
    size_bytes: register("atoll_osd_size_bytes", "Space for data and metadata", Gauge::default()),
    used_bytes: register("atoll_osd_used_bytes", "Space in use", Gauge::default()),
    full: register("atoll_osd_full", "Whether it takes no new data", Gauge::default()),
    objects: register("atoll_osd_objects", "Objects", Gauge::default()),
    pool_used_bytes: register(
        "atoll_osd_pool_used_bytes",
        "Space that the objects of a pool take",
        Family::default(),
    ),
    pool_objects: register("atoll_osd_pool_objects", "Objects of a pool", Family::default()),
    pgs: register("atoll_osd_pgs", "PGs that it leads, by their state", Family::default()),
    corrupt_blocks: register("atoll_osd_corrupt_blocks", "Damaged blocks that were met", Counter::default()),
    log_size_bytes: register("atoll_osd_log_size_bytes", "Size of the write-ahead log", Gauge::default()),
    log_used_bytes: register(
        "atoll_osd_log_used_bytes",
        "Part of the log that is needed until the next checkpoint",
        Gauge::default(),
    ),
    checkpoints: register("atoll_osd_checkpoints", "Checkpoints that were made", Counter::default()),
    metadata_memory_bytes: register(
        "atoll_osd_metadata_memory_bytes",
        "Memory that metadata takes",
        Gauge::default(),
    ),
    pending_memory_bytes: register(
        "atoll_osd_pending_memory_bytes",
        "Memory of data that is in the log and not at its place yet",
        Gauge::default(),
    ),
    metadata_pages: register("atoll_osd_metadata_pages", "Pages of metadata, in memory or not", Gauge::default()),
    metadata_page_lookups: register(
        "atoll_osd_metadata_page_lookups",
        "Looks at pages of metadata, by whether they were in memory",
        Family::default(),
    ),
    device_operations: register("atoll_osd_device_operations", "Requests to devices", Family::default()),
    device_bytes: register("atoll_osd_device_bytes", "Bytes read from and written to devices", Family::default()),
    device_duration: register(
        "atoll_osd_device_operation_duration_seconds",
        "How long devices took",
        Family::default(),
    ),
    recovery_read_bytes: register(
        "atoll_osd_recovery_read_bytes",
        "Bytes read for other OSDs in recovery and backfill",
        Counter::default(),
    ),
    scrubs: register("atoll_osd_scrubs", "Scrubs of PGs that it leads", Family::default()),
    scrub_damaged_objects: register(
        "atoll_osd_scrub_damaged_objects",
        "Objects that scrubs found damaged",
        Counter::default(),
    ),
    links: register("atoll_osd_links", "Connections by kind of peer", Family::default()),
});

fn label(name: &'static str, value: &str) -> (&'static str, String) {
    (name, value.to_owned())
}

/// The metrics of an OSD, at hand without a lock where they are often counted.
pub(crate) struct Metrics {
    by_pool: BTreeMap<PoolId, OfPool>,
    unknown_pool: OnceCell<OfPool>,
    /// By [`DEVICE_OPERATIONS`].
    data_device: [OfDevice; DEVICE_OPERATIONS.len()],
    /// The same, if the log has a device of its own.
    log_device: Option<[OfDevice; DEVICE_OPERATIONS.len()]>,
    pg_states: BTreeSet<String>,
}

impl Metrics {
    pub fn new(has_log_device: bool) -> Self {
        let of_device = |device| {
            DEVICE_OPERATIONS.map(|(_, operation)| {
                let labels = [label("device", device), label("operation", operation)];
                OfDevice {
                    count: REGISTERED.device_operations.get_or_create_owned(&labels),
                    bytes: REGISTERED.device_bytes.get_or_create_owned(&labels),
                    duration: REGISTERED.device_duration.get_or_create_owned(&labels),
                }
            })
        };
        Metrics {
            by_pool: BTreeMap::new(),
            unknown_pool: OnceCell::new(),
            data_device: of_device("data"),
            log_device: has_log_device.then(|| of_device("log")),
            pg_states: BTreeSet::new(),
        }
    }

    /// These are the pools now.
    pub fn set_pools<'a>(&mut self, pools: impl Iterator<Item = (PoolId, &'a str)>) {
        let mut gone = std::mem::take(&mut self.by_pool);
        for (pool, name) in pools {
            let kept = gone.remove(&pool).unwrap_or_else(|| of_pool(name));
            self.by_pool.insert(pool, kept);
        }
        for of_pool in gone.into_values() {
            of_pool.forget();
        }
    }

    fn of(&self, pool: PoolId) -> &OfPool {
        let unknown = || self.unknown_pool.get_or_init(|| of_pool(UNKNOWN_POOL));
        self.by_pool.get(&pool).unwrap_or_else(unknown)
    }

    /// A client's operation is answered.
    pub fn operation_done(
        &self,
        pool: PoolId,
        kind: OperationKind,
        bytes: u64,
        duration_us: u64,
        error: Option<&'static str>,
    ) {
        let metrics = &self.of(pool).operations[kind as usize];
        metrics.count.inc();
        metrics.bytes.inc_by(bytes);
        metrics.duration.observe_us(duration_us);
        if let Some(error) = error {
            let new = || REGISTERED.operation_errors.get_or_create_owned(&metrics.error_labels(error));
            metrics.errors.borrow_mut().entry(error).or_insert_with(new).inc();
        }
    }

    /// Counts a client's write that all members have made durable, and the time since it was ordered.
    pub fn replicated(&self, pool: PoolId, duration_us: u64) {
        self.of(pool).replication_duration.observe_us(duration_us);
    }

    /// A request to a device is complete.
    pub fn device_done(&self, device: Device, operation: DeviceOperation, bytes: u64, duration_us: u64) {
        let of_device = if device == Device::Log { self.log_device.as_ref() } else { None };
        let metrics = &of_device.unwrap_or(&self.data_device)[operation as usize];
        metrics.count.inc();
        metrics.bytes.inc_by(bytes);
        metrics.duration.observe_us(duration_us);
    }

    /// A scrub is over.
    pub fn scrubbed(is_deep: bool, damaged_objects: u64) {
        let kind = if is_deep { "deep-scrub" } else { "scrub" };
        REGISTERED.scrubs.get_or_create(&[label("kind", kind)]).inc();
        REGISTERED.scrub_damaged_objects.inc_by(damaged_objects);
    }

    /// How the store is.
    pub fn set_usage(usage: &StoreUsage, is_full: bool) {
        let set = |gauge: &Gauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        set(&REGISTERED.size_bytes, usage.total_bytes);
        set(&REGISTERED.used_bytes, usage.used_bytes);
        set(&REGISTERED.full, u64::from(is_full));
        set(&REGISTERED.objects, usage.object_count);
        set(&REGISTERED.log_size_bytes, usage.log_size_bytes);
        set(&REGISTERED.log_used_bytes, usage.log_used_bytes);
        set(&REGISTERED.metadata_memory_bytes, usage.metadata_memory_bytes);
        set(&REGISTERED.pending_memory_bytes, usage.pending_memory_bytes);
        set(&REGISTERED.metadata_pages, u64::from(usage.metadata_page_count));
        let looks = [("hit", usage.metadata_page_hit_count), ("miss", usage.metadata_page_miss_count)];
        for (result, count) in looks {
            raise(&REGISTERED.metadata_page_lookups.get_or_create(&[label("result", result)]), count);
        }
        raise(&REGISTERED.corrupt_blocks, usage.corrupt_block_count);
        raise(&REGISTERED.checkpoints, usage.checkpoint_count);
    }

    /// Sets the usage of the store by each pool. Pools that are being removed count as unknown.
    pub fn set_pool_usage(&self, usage: &BTreeMap<PoolId, PoolUsage>) {
        let set = |of_pool: &OfPool, usage: PoolUsage| {
            let space = of_pool.space.get_or_init(|| OfSpace::of(&of_pool.labels));
            space.used_bytes.set(i64::try_from(usage.used_bytes).unwrap_or(i64::MAX));
            space.objects.set(i64::try_from(usage.object_count).unwrap_or(i64::MAX));
        };
        for (pool, of_pool) in &self.by_pool {
            set(of_pool, usage.get(pool).copied().unwrap_or_default());
        }
        let others = usage.iter().filter(|(pool, _)| !self.by_pool.contains_key(pool));
        let unknown = others.fold(PoolUsage::default(), |sum, (_, usage)| PoolUsage {
            used_bytes: sum.used_bytes + usage.used_bytes,
            object_count: sum.object_count + usage.object_count,
        });
        if unknown != PoolUsage::default() || self.unknown_pool.get().is_some() {
            set(self.unknown_pool.get_or_init(|| of_pool(UNKNOWN_POOL)), unknown);
        }
    }

    /// How many bytes have been read for other OSDs since the start.
    pub fn set_recovery_read_bytes(bytes: u64) {
        raise(&REGISTERED.recovery_read_bytes, bytes);
    }

    /// Operations that wait in PGs: all of them, and those of the PG that has most.
    pub fn set_waiting(sum: usize, max: usize) {
        REGISTERED.waiting.set(sum as i64);
        REGISTERED.waiting_max.set(max as i64);
    }

    /// How many of the PGs that this OSD leads are in each state.
    pub fn set_pg_states(&mut self, states: &BTreeMap<String, u32>) {
        self.pg_states.extend(states.keys().cloned());
        for state in &self.pg_states {
            let count = states.get(state).copied().unwrap_or(0);
            REGISTERED.pgs.get_or_create(&[label("state", state)]).set(i64::from(count));
        }
    }

    /// How many connections there are to a kind of peer over a transport.
    pub fn set_links(peer: &'static str, transport: Transport, count: usize) {
        let labels = [label("peer", peer), label("transport", transport.name())];
        REGISTERED.links.get_or_create(&labels).set(count as i64);
    }

    /// How many operations wait for their answers.
    pub fn set_in_flight(count: usize) {
        REGISTERED.in_flight.set(count as i64);
    }
}

fn of_pool(pool: &str) -> OfPool {
    let operations = ["read", "write"].map(|operation| {
        let labels = [label("operation", operation), label("pool", pool)];
        OfOperations {
            count: REGISTERED.operations.get_or_create_owned(&labels),
            bytes: REGISTERED.operation_bytes.get_or_create_owned(&labels),
            duration: REGISTERED.operation_duration.get_or_create_owned(&labels),
            errors: RefCell::default(),
            labels,
        }
    });
    let labels = [label("pool", pool)];
    let replication_duration = REGISTERED.replication_duration.get_or_create_owned(&labels);
    OfPool { operations, replication_duration, labels, space: OnceCell::new() }
}

/// Sets a counter to a value that was counted elsewhere.
fn raise(counter: &Counter, value: u64) {
    counter.inner().store(value, std::sync::atomic::Ordering::Relaxed);
}
