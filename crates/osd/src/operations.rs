//! Clients' operations in flight: what they are and since when, for metrics.

use std::collections::BTreeMap;

use atoll_types::PgId;

use crate::metrics::Metrics;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Read,
    Write,
}

/// An operation that was not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub kind: OperationKind,
    pub pg: PgId,
    /// Data that came with it.
    pub written_bytes: u64,
    pub arrived_us: u64,
}

/// How an operation was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// Data that goes with the answer.
    pub read_bytes: u64,
    /// Why it was refused.
    pub error: Option<&'static str>,
}

/// By connection and number. A client sends a request again under its number when its PG has moved away and back:
/// then the time counts from the last one.
#[derive(Default)]
pub(crate) struct Operations(BTreeMap<(u64, u64), Operation>);

impl Operations {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn arrived(&mut self, connection: u64, number: u64, operation: Operation) {
        self.0.insert((connection, number), operation);
    }

    /// An operation was answered and the answer sent.
    pub fn done(&mut self, (connection, number): (u64, u64), answered: Answered, now_us: u64, metrics: &Metrics) {
        let Some(operation) = self.0.remove(&(connection, number)) else { return };
        let bytes = operation.written_bytes + answered.read_bytes;
        let duration_us = now_us.saturating_sub(operation.arrived_us);
        metrics.operation_done(operation.pg.pool, operation.kind, bytes, duration_us, answered.error);
    }

    /// A connection is gone; nobody waits for its answers.
    pub fn left(&mut self, connection: u64) {
        let of_connection: Vec<_> =
            self.0.range((connection, 0)..=(connection, u64::MAX)).map(|(key, _)| *key).collect();
        for key in of_connection {
            self.0.remove(&key);
        }
    }
}
