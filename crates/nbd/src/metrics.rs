//! Metrics of an NBD server beside those of all image servers (docs/reference/metrics.md).

use std::sync::LazyLock;

use atoll_exports::Operation;
use atoll_metrics::{Gauge, register};

use crate::protocol::RequestKind;

static CONNECTIONS: LazyLock<Gauge> =
    LazyLock::new(|| register("atoll_nbd_connections", "Connections of NBD clients", Gauge::default()));

/// Makes the server's metrics known before there are clients.
pub(crate) fn register_all() {
    atoll_exports::register_all();
    LazyLock::force(&CONNECTIONS);
}

pub(crate) fn set_connections(count: usize) {
    CONNECTIONS.set(count as i64);
}

/// Returns the kind of a request, its offset and its bytes.
pub(crate) fn operation(kind: &RequestKind) -> (Operation, u64, u64) {
    match kind {
        RequestKind::Read { offset, length } => (Operation::Read, *offset, u64::from(*length)),
        RequestKind::Write { offset, data, .. } => (Operation::Write, *offset, data.len() as u64),
        RequestKind::Trim { offset, length, .. } => (Operation::Trim, *offset, u64::from(*length)),
        RequestKind::WriteZeroes { offset, length, .. } => (Operation::WriteZeroes, *offset, u64::from(*length)),
        RequestKind::Flush => (Operation::Flush, 0, 0),
        RequestKind::BlockStatus { offset, .. } => (Operation::BlockStatus, *offset, 0),
    }
}
