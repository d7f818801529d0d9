//! Clients' operations in flight: what they are, since when, and what held up those that are slow.

use std::collections::BTreeMap;

use atoll_metrics::slow::{self, SlowOperation, SlowStep};
use atoll_types::{ObjectName, OsdId, PgId};

use crate::metrics::Metrics;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Read,
    Write,
}

/// An operation that was not answered.
#[derive(Debug)]
pub(crate) struct Operation {
    pub kind: OperationKind,
    pub pg: PgId,
    pub object: ObjectName,
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

/// Members that were late with a write.
#[derive(Debug)]
pub(crate) struct Late {
    pub ordered_us: u64,
    /// When each had it durable, in microseconds, in the order of time.
    pub members: Vec<(OsdId, u64)>,
    /// When all had it.
    pub durable_us: u64,
}

/// By connection and number. A client sends a request again under its number when its PG has moved away and back:
/// then the time counts from the last one.
#[derive(Default)]
pub(crate) struct Operations {
    in_flight: BTreeMap<(u64, u64), Operation>,
    /// Of some of them: few are late.
    late: BTreeMap<(u64, u64), Late>,
}

impl Operations {
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub fn arrived(&mut self, connection: u64, number: u64, operation: Operation) {
        self.in_flight.insert((connection, number), operation);
    }

    pub fn took_long(&mut self, connection: u64, number: u64, late: Late) {
        // Its client may have left meanwhile.
        if self.in_flight.contains_key(&(connection, number)) {
            self.late.insert((connection, number), late);
        }
    }

    /// An operation was answered and the answer sent. Gives it back, with its time in microseconds, if it was slow.
    pub fn done(
        &mut self,
        request: (u64, u64),
        answered: &Answered,
        now_us: u64,
        metrics: &Metrics,
    ) -> Option<(Operation, u64)> {
        let operation = self.in_flight.remove(&request)?;
        let bytes = operation.written_bytes + answered.read_bytes;
        let duration_us = now_us.saturating_sub(operation.arrived_us);
        metrics.operation_done(operation.pg.pool, operation.kind, bytes, duration_us, answered.error);
        if slow::is_slow(duration_us) {
            return Some((operation, duration_us));
        }
        self.late.remove(&request);
        None
    }

    /// Keeps a slow operation, with where its time went.
    pub fn record_slow(
        &mut self,
        request: (u64, u64),
        operation: Operation,
        answered: Answered,
        duration_us: u64,
        (client, pool): (String, Option<String>),
    ) {
        let late = self.late.remove(&request);
        slow::record(SlowOperation {
            begun_unix_ms: slow::begun_unix_ms(duration_us),
            duration_us,
            kind: match operation.kind {
                OperationKind::Read => "read".into(),
                OperationKind::Write => "write".into(),
            },
            client,
            object: Some(operation.object.as_str().to_owned()),
            pool,
            pg: Some(operation.pg.to_string()),
            size_bytes: operation.written_bytes + answered.read_bytes,
            error: answered.error.map(ToOwned::to_owned),
            steps: steps(&operation, late, duration_us),
        });
    }

    /// A connection is gone; nobody waits for its answers.
    pub fn left(&mut self, connection: u64) {
        let of_connection = (connection, 0)..=(connection, u64::MAX);
        let keys: Vec<_> = self.in_flight.range(of_connection).map(|(key, _)| *key).collect();
        for key in keys {
            self.in_flight.remove(&key);
            self.late.remove(&key);
        }
    }
}

/// What a slow operation had reached when. A write whose members were all in time has spent its time before it was
/// ordered.
fn steps(operation: &Operation, late: Option<Late>, duration_us: u64) -> Vec<SlowStep> {
    let Some(Late { ordered_us, members, durable_us }) = late else {
        let name = match operation.kind {
            OperationKind::Write => "waited in its PG, then ordered and durable on all members at once",
            OperationKind::Read => "waited in its PG and for the device",
        };
        return vec![SlowStep { name: name.into(), after_us: duration_us }];
    };
    let after = |us: u64| us.saturating_sub(operation.arrived_us);
    let ordered = SlowStep { name: "ordered".into(), after_us: after(ordered_us) };
    // Otherwise a member left while the write waited for it, and those that stayed agreed on the history.
    let is_by_peering = members.last().is_none_or(|(_, us)| *us != durable_us);
    let peered =
        is_by_peering.then(|| SlowStep { name: "its PG peered anew".into(), after_us: after(durable_us) });
    let durable = members
        .into_iter()
        .map(|(member, us)| SlowStep { name: format!("durable on {member}"), after_us: after(us) });
    std::iter::once(ordered).chain(durable).chain(peered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::PoolId;

    fn write() -> Operation {
        Operation {
            kind: OperationKind::Write,
            pg: PgId { pool: PoolId(1), index: 2 },
            object: ObjectName::new("object").unwrap(),
            written_bytes: 4096,
            arrived_us: 1_000_000,
        }
    }

    #[test]
    fn nothing_is_kept_of_a_connection_that_is_gone() {
        let late = || Late { ordered_us: 1_030_000, members: vec![(OsdId(2), 1_100_000)], durable_us: 1_100_000 };
        let mut operations = Operations::default();
        operations.arrived(1, 7, write());
        operations.took_long(1, 7, late());
        assert_eq!((operations.len(), operations.late.len()), (1, 1));
        operations.left(1);
        operations.took_long(1, 7, late());
        assert_eq!((operations.len(), operations.late.len()), (0, 0));
    }

    #[test]
    fn steps_count_from_the_arrival() {
        let operation = write();
        let told = |durable_us| {
            let members = vec![(OsdId(2), 1_100_000), (OsdId(0), 1_400_000)];
            let late = Late { ordered_us: 1_030_000, members, durable_us };
            let steps = steps(&operation, Some(late), 900_000).into_iter();
            steps.map(|step| format!("{} {}", step.name, step.after_us)).collect::<Vec<_>>()
        };
        let in_time = ["ordered 30000", "durable on osd.2 100000", "durable on osd.0 400000"];
        assert_eq!(told(1_400_000), in_time);
        let peered = [&in_time[..], &["its PG peered anew 900000"]].concat();
        assert_eq!(told(1_900_000), peered, "another member was waited for until it was gone");
    }
}
