//! Clients' operations in flight: their kind and begin, and the delays of those that are slow or traced.

use std::collections::BTreeMap;

use atoll_metrics::slow::{self, IN_FLIGHT_MAX, SlowOperation, SlowStep};
use atoll_metrics::traces::{self, Span};
use atoll_pending::Pending;
use atoll_pg::{Progress, Reached};
use atoll_types::{ObjectName, OsdId, PgId, RequestId, SharedTransaction, TraceContext};

use crate::clients::ClientTraffic;
use crate::metrics::Metrics;
use crate::operation_kind::OperationKind;
use crate::traced::TracedRequests;

/// An operation that was not answered.
#[derive(Debug)]
pub(crate) struct Operation {
    pub kind: OperationKind,
    pub pg: PgId,
    pub object: ObjectName,
    /// Data that came with it.
    pub written_bytes: u64,
    pub arrived_us: u64,
    /// True if its client opens sealed data itself.
    pub opens_seals: bool,
}

/// How an operation was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// Data that goes with the answer.
    pub read_bytes: u64,
    /// Why it was refused.
    pub error: Option<&'static str>,
}

/// A write that took long to become durable.
#[derive(Debug)]
pub(crate) struct Late {
    pub ordered_us: u64,
    /// Members that were late. When each had it durable, in microseconds, in the order of time.
    pub members: Vec<(OsdId, u64)>,
    /// When all had it.
    pub durable_us: u64,
}

impl Late {
    /// Returns the stages of the write.
    pub fn reached(self) -> Vec<Reached> {
        let Late { ordered_us, members, durable_us } = self;
        // Otherwise a member left while the write waited for it, and those that stayed agreed on the history.
        let is_by_peering = members.last().is_none_or(|(_, us)| *us != durable_us);
        let peered = is_by_peering.then(|| ("its PG peered again".to_owned(), durable_us));
        let durable = members.into_iter().map(|(member, us)| (format!("durable on {member}"), us));
        std::iter::once(("ordered".to_owned(), ordered_us)).chain(durable).chain(peered).collect()
    }
}

/// By connection, and by the number of the request. A client sends a request again under its number when its PG has
/// moved away and back: then the time counts from the last one.
#[derive(Default)]
pub(crate) struct Operations {
    in_flight: BTreeMap<u64, Pending<Operation>>,
    in_flight_count: usize,
    /// Stages of some of them, with their times: few take long.
    noted: BTreeMap<(u64, u64), Vec<Reached>>,
    /// Those that are exported as traces.
    traced: TracedRequests,
}

/// An answered operation for a report because it was slow or is traced.
pub(crate) struct Told {
    pub operation: Operation,
    duration_us: u64,
    reached: Vec<Reached>,
    is_slow: bool,
    /// Its span, if its client exports it.
    span: Option<Span>,
}

impl Told {
    /// Reports it, with its stages.
    pub fn tell(self, answered: Answered, asker: (String, Option<String>)) {
        let Told { operation, duration_us, reached, is_slow, span } = self;
        let told = SlowOperation {
            size_bytes: operation.written_bytes + answered.read_bytes,
            error: answered.error.map(ToOwned::to_owned),
            steps: steps(&operation, reached, answered.error.is_some(), duration_us),
            ..told(&operation, duration_us, asker)
        };
        traces::ended(told, span, None, is_slow.then_some(slow::Ring::Identified));
    }
}

impl Operations {
    pub fn len(&self) -> usize {
        self.in_flight_count
    }

    pub fn arrived(&mut self, connection: u64, number: u64, operation: Operation) {
        let before = self.in_flight.entry(connection).or_default().insert(number, operation);
        self.in_flight_count += usize::from(before.is_none());
    }

    /// An operation that has arrived is a part of a span of its client, which is exported.
    pub fn note_span(&mut self, connection: u64, id: RequestId, span: TraceContext) {
        if traces::is_on() {
            self.traced.arrived(connection, id, span);
        }
    }

    /// Returns true if the client of an operation opens sealed data itself.
    pub fn opens_seals(&self, connection: u64, number: u64) -> bool {
        let operation = self.in_flight.get(&connection).and_then(|operations| operations.get(number));
        operation.is_some_and(|operation| operation.opens_seals)
    }

    pub fn is_traced(&self, connection: u64, number: u64) -> bool {
        self.traced.contains(connection, number)
    }

    /// The span of the operation that a write of this OSD is for, if it is exported.
    pub fn span_of(&self, write: &SharedTransaction) -> Option<TraceContext> {
        self.traced.span_of(write)
    }

    /// Notes the stages of an operation that is answered next, because it took long.
    pub fn took_long(&mut self, connection: u64, number: u64, reached: Vec<Reached>) {
        // Its client may have left meanwhile.
        if self.in_flight.get(&connection).is_some_and(|operations| operations.get(number).is_some()) {
            self.noted.insert((connection, number), reached);
        }
    }

    /// An operation was answered and the answer sent. Returns it if it is to be reported.
    pub fn done(
        &mut self,
        request: (u64, u64),
        answered: &Answered,
        now_us: u64,
        metrics: &Metrics,
        client: Option<&ClientTraffic>,
    ) -> Option<Told> {
        let operation = self.in_flight.get_mut(&request.0)?.remove(request.1)?;
        self.in_flight_count -= 1;
        let bytes = operation.written_bytes + answered.read_bytes;
        let duration_us = now_us.saturating_sub(operation.arrived_us);
        metrics.operation_done(operation.pg.pool, operation.kind, bytes, duration_us, answered.error);
        client.inspect(|client| client.done(operation.kind, bytes));
        let (is_slow, span) = (slow::is_slow(duration_us), self.traced.take(request.0, request.1));
        let reached = self.noted.remove(&request).unwrap_or_default();
        (is_slow || span.is_some()).then_some(Told { operation, duration_us, reached, is_slow, span })
    }

    /// The oldest of those that have taken long already, with connection and number.
    pub fn slow_in_flight(&self, now_us: u64) -> Vec<((u64, u64), &Operation)> {
        let is_slow = |operation: &Operation| slow::is_slow(now_us.saturating_sub(operation.arrived_us));
        let of_connections = self.in_flight.iter().flat_map(|(connection, operations)| {
            operations.iter().map(|(number, operation)| ((*connection, number), operation))
        });
        let mut found: Vec<_> = of_connections.filter(|(_, operation)| is_slow(operation)).collect();
        found.sort_by_key(|(_, operation)| operation.arrived_us);
        found.truncate(IN_FLIGHT_MAX);
        found
    }

    /// A connection is gone, and with it the receiver of its answers.
    pub fn left(&mut self, connection: u64) {
        let operations = self.in_flight.remove(&connection).unwrap_or_default();
        self.in_flight_count -= operations.len();
        self.noted.retain(|(of, _), _| *of != connection);
        self.traced.left(connection);
    }
}

/// Returns the fields that every report of an operation has.
fn told(operation: &Operation, duration_us: u64, (client, pool): (String, Option<String>)) -> SlowOperation {
    SlowOperation {
        begun_unix_ms: slow::begun_unix_ms(duration_us),
        duration_us,
        kind: operation.kind.name().into(),
        client,
        object: Some(operation.object.as_str().to_owned()),
        pool,
        pg: Some(operation.pg.to_string()),
        ..SlowOperation::default()
    }
}

/// A slow operation in flight. Without progress its PG has answered it.
pub(crate) fn in_flight(
    operation: &Operation,
    progress: Option<Progress>,
    now_us: u64,
    asker: (String, Option<String>),
) -> SlowOperation {
    let duration_us = now_us.saturating_sub(operation.arrived_us);
    let answered = || Progress { reached: Vec::new(), waits_for: "its answer to be sent".into() };
    let Progress { reached, waits_for } = progress.unwrap_or_else(answered);
    SlowOperation {
        size_bytes: operation.written_bytes,
        steps: since_arrival(operation, reached),
        waits_for: Some(waits_for),
        ..told(operation, duration_us, asker)
    }
}

/// Returns the stages of a slow operation. Of one that was in time once it had left its PG's queue nothing is
/// noted: it has spent its time there.
fn steps(operation: &Operation, reached: Vec<Reached>, is_refused: bool, duration_us: u64) -> Vec<SlowStep> {
    if reached.is_empty() {
        let name = match operation.kind {
            _ if is_refused => "waited in its PG, then refused",
            OperationKind::Write => "waited in its PG, then ordered and durable on all members at once",
            OperationKind::Read => "waited in its PG, then read at once",
        };
        return vec![SlowStep { name: name.into(), after_us: duration_us, since_us: 0 }];
    }
    since_arrival(operation, reached)
}

/// A read does one thing after the other. A write waits for all its members at once, from when it is ordered.
fn since_arrival(operation: &Operation, reached: Vec<Reached>) -> Vec<SlowStep> {
    let mut since_us = 0;
    let step = |(place, (name, us)): (usize, Reached)| {
        let step = SlowStep { name, after_us: us.saturating_sub(operation.arrived_us), since_us };
        if place == 0 || operation.kind == OperationKind::Read {
            since_us = step.after_us;
        }
        step
    };
    reached.into_iter().enumerate().map(step).collect()
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
            opens_seals: false,
        }
    }

    #[test]
    fn nothing_is_kept_of_a_connection_that_is_gone() {
        let noted = || vec![("ordered".to_owned(), 1_030_000)];
        let mut operations = Operations::default();
        operations.arrived(1, 7, write());
        operations.took_long(1, 7, noted());
        assert_eq!((operations.len(), operations.noted.len()), (1, 1));
        operations.left(1);
        operations.took_long(1, 7, noted());
        assert_eq!((operations.len(), operations.noted.len()), (0, 0));
    }

    #[test]
    fn the_oldest_in_flight_are_told_with_what_they_wait_for() {
        let mut operations = Operations::default();
        for number in 0..2 * IN_FLIGHT_MAX as u64 {
            operations.arrived(1, number, Operation { arrived_us: 1_000_000 - number, ..write() });
        }
        let quick = Operation { arrived_us: 1_090_000, ..write() };
        operations.arrived(2, 0, quick);
        let now_us = 1_100_000;
        let found = operations.slow_in_flight(now_us);
        assert_eq!(found.len(), IN_FLIGHT_MAX);
        assert_eq!(found[0].0, (1, 2 * IN_FLIGHT_MAX as u64 - 1), "the oldest is first");
        assert!(found.iter().all(|((connection, _), _)| *connection == 1), "the other is not slow yet");

        let reached = vec![("ordered".to_owned(), 1_030_000)];
        let progress = Progress { reached, waits_for: "osd.2 to have it durable".into() };
        let told = in_flight(&write(), Some(progress), 1_500_000, ("a client".into(), None));
        assert_eq!(told.duration_us, 500_000);
        assert_eq!(told.steps, [SlowStep { name: "ordered".into(), after_us: 30_000, since_us: 0 }]);
        assert_eq!(told.waits_for.as_deref(), Some("osd.2 to have it durable"));
    }

    #[test]
    fn steps_count_from_the_arrival() {
        let operation = write();
        let told = |durable_us| {
            let members = vec![(OsdId(2), 1_100_000), (OsdId(0), 1_400_000)];
            let late = Late { ordered_us: 1_030_000, members, durable_us };
            let steps = steps(&operation, late.reached(), false, 900_000).into_iter();
            steps.map(|step| format!("{} {}-{}", step.name, step.since_us, step.after_us)).collect::<Vec<_>>()
        };
        let in_time = ["ordered 0-30000", "durable on osd.2 30000-100000", "durable on osd.0 30000-400000"];
        assert_eq!(told(1_400_000), in_time);
        let peered = [&in_time[..], &["its PG peered again 30000-900000"]].concat();
        assert_eq!(told(1_900_000), peered, "another member was waited for until it was gone");

        let read = Operation { kind: OperationKind::Read, ..write() };
        let reached = vec![("device asked".to_owned(), 1_010_000), ("device answered".to_owned(), 1_200_000)];
        let since: Vec<u64> = steps(&read, reached, false, 300_000).iter().map(|step| step.since_us).collect();
        assert_eq!(since, [0, 10_000], "one after the other");
        assert_eq!(steps(&read, Vec::new(), true, 300_000)[0].name, "waited in its PG, then refused");
    }
}
