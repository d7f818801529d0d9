//! Metrics of an NVMe target beside those of all image servers (docs/reference/metrics.md).

use std::sync::LazyLock;

use atoll_exports::Operation;
use atoll_metrics::{Gauge, register};

use crate::protocol::{ByteRange, IoKind};

static CONNECTIONS: LazyLock<Gauge> =
    LazyLock::new(|| register("atoll_nvme_connections", "Connections of NVMe hosts", Gauge::default()));
static CONTROLLERS: LazyLock<Gauge> =
    LazyLock::new(|| register("atoll_nvme_controllers", "Controllers of NVMe hosts", Gauge::default()));

/// Makes the target's metrics known before there are hosts.
pub(crate) fn register_all() {
    atoll_exports::register_all();
    LazyLock::force(&CONNECTIONS);
    LazyLock::force(&CONTROLLERS);
}

pub(crate) fn set_connections(count: usize) {
    CONNECTIONS.set(count as i64);
}

pub(crate) fn set_controllers(count: usize) {
    CONTROLLERS.set(count as i64);
}

/// Returns the kind of a command, its offset and its bytes.
pub(crate) fn operation(kind: &IoKind) -> (Operation, u64, u64) {
    match kind {
        IoKind::Read(ByteRange { offset, length }) => (Operation::Read, *offset, *length),
        IoKind::Write { offset, data } => (Operation::Write, *offset, data.len() as u64),
        IoKind::Flush => (Operation::Flush, 0, 0),
        IoKind::Compare { offset, expected } => (Operation::Compare, *offset, expected.len() as u64),
        IoKind::CompareAndWrite { offset, data, .. } => (Operation::CompareAndWrite, *offset, data.len() as u64),
        IoKind::WriteZeroes(ByteRange { offset, length }) => (Operation::WriteZeroes, *offset, *length),
        IoKind::Trim(ranges) => {
            let offset = ranges.first().map_or(0, |range| range.offset);
            (Operation::Trim, offset, ranges.iter().map(|range| range.length).sum())
        }
    }
}
