//! Exports of traces that their sender requests: clients' requests, and copies of writes that other OSDs lead.

use std::collections::BTreeMap;

use atoll_metrics::slow::{self, SlowOperation, SlowStep};
use atoll_metrics::traces::{self, Span};
use atoll_types::{Epoch, ObjectName, OsdId, PgId, RequestId, SharedTransaction, TraceContext, Version};

use crate::context::Context;

/// Clients' requests that are exported and were not answered.
#[derive(Default)]
pub(crate) struct TracedRequests {
    /// By connection and number.
    spans: BTreeMap<(u64, u64), (RequestId, Span)>,
    /// The same by the log's request ids.
    by_id: BTreeMap<RequestId, TraceContext>,
}

impl TracedRequests {
    /// A request has arrived that is a part of a span.
    pub fn arrived(&mut self, connection: u64, id: RequestId, part_of: TraceContext) {
        let span = Span::new(Some(part_of));
        self.spans.insert((connection, id.sequence), (id, span));
        self.by_id.insert(id, span.context);
    }

    pub fn contains(&self, connection: u64, number: u64) -> bool {
        self.spans.contains_key(&(connection, number))
    }

    /// The span of the request that a write of this OSD is for.
    pub fn span_of(&self, write: &SharedTransaction) -> Option<TraceContext> {
        if self.by_id.is_empty() {
            return None;
        }
        self.by_id.get(&write.log.last()?.request?).copied()
    }

    /// A request is answered.
    pub fn take(&mut self, connection: u64, number: u64) -> Option<Span> {
        let (id, span) = self.spans.remove(&(connection, number))?;
        self.by_id.remove(&id);
        Some(span)
    }

    /// A connection is gone.
    pub fn left(&mut self, connection: u64) {
        for (_, (id, _)) in self.spans.extract_if(.., |(of, _), _| *of == connection) {
            self.by_id.remove(&id);
        }
    }
}

/// Name of the spans of copies.
const REPLICATE: &str = "replicate";
/// Copies that are waited for; further ones are left out.
const COPIES_MAX: usize = 4_096;

/// A write that another OSD leads, until it is durable here.
struct TracedCopy {
    primary: OsdId,
    epoch: Epoch,
    span: Span,
    object: ObjectName,
    written_bytes: u64,
    arrived_us: u64,
    /// When it was given to the log.
    submitted_us: Option<u64>,
}

/// Copies of exported writes that are not durable here.
#[derive(Default)]
pub(crate) struct TracedCopies(BTreeMap<(PgId, Version), TracedCopy>);

impl TracedCopies {
    /// A write has come from its primary that is a part of a span.
    pub fn arrived(
        &mut self,
        primary: OsdId,
        epoch: Epoch,
        write: &SharedTransaction,
        part_of: TraceContext,
        now_us: u64,
    ) {
        let Some(entry) = write.log.last() else { return };
        if self.0.len() >= COPIES_MAX {
            return;
        }
        let copy = TracedCopy {
            primary,
            epoch,
            span: Span::new(Some(part_of)),
            object: write.object.clone(),
            written_bytes: write.payload.len() as u64,
            arrived_us: now_us,
            submitted_us: None,
        };
        self.0.insert((write.pg, entry.version), copy);
    }

    /// The PG has taken a write, and gives it to the log.
    pub fn submitted(&mut self, write: &SharedTransaction, now_us: u64) {
        if self.0.is_empty() {
            return;
        }
        let version = write.log.last().map(|entry| entry.version);
        if let Some(copy) = version.and_then(|version| self.0.get_mut(&(write.pg, version))) {
            copy.submitted_us = Some(now_us);
        }
    }

    /// The PG's history up to this version is durable here, and its primary of this epoch is informed.
    pub fn durable(&mut self, context: &Context, pg: PgId, epoch: Epoch, version: Version) {
        for copy in self.take_durable(pg, epoch, version) {
            let pool = context.map.pools.get(&pg.pool).map(|pool| pool.name.clone());
            let span = copy.span;
            let told = SlowOperation { pool, pg: Some(pg.to_string()), ..copy.told(context.now_us()) };
            traces::ended(told, Some(span), None, None);
        }
    }

    /// Copies taken under an older epoch may differ from the durable ones now.
    fn take_durable(&mut self, pg: PgId, epoch: Epoch, version: Version) -> Vec<TracedCopy> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let reached = (pg, Version::default())..=(pg, version);
        let taken = self.0.extract_if(reached, |_, _| true).map(|(_, copy)| copy);
        taken.filter(|copy| copy.epoch == epoch).collect()
    }

    /// The connection with a primary is lost: it asks again for everything that it waits for.
    pub fn lost(&mut self, primary: OsdId) {
        self.0.retain(|_, copy| copy.primary != primary);
    }
}

impl TracedCopy {
    fn told(self, now_us: u64) -> SlowOperation {
        let since = |us: u64| us.saturating_sub(self.arrived_us);
        let duration_us = since(now_us);
        let submitted_us = self.submitted_us.map_or(duration_us, since);
        let step = |name: &str, since_us, after_us| SlowStep { name: name.into(), after_us, since_us };
        SlowOperation {
            begun_unix_ms: slow::begun_unix_ms(duration_us),
            duration_us,
            kind: REPLICATE.into(),
            client: self.primary.to_string(),
            object: Some(self.object.as_str().to_owned()),
            size_bytes: self.written_bytes,
            steps: vec![step("given to the log", 0, submitted_us), step("durable", submitted_us, duration_us)],
            ..SlowOperation::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::{LogEntry, PoolId, Touched, Transaction};
    use bytes::Bytes;

    const PG: PgId = PgId { pool: PoolId(1), index: 2 };
    const PARENT: TraceContext = TraceContext { trace_id: [7; 16], span_id: [8; 8] };

    fn version(sequence: u64) -> Version {
        Version { epoch: Epoch(3), sequence }
    }

    fn write(sequence: u64, request: Option<RequestId>) -> SharedTransaction {
        let object = ObjectName::new("object").unwrap();
        let touched = Touched { whole: true, block_ranges: Vec::new(), omap_keys: Vec::new() };
        let entry = LogEntry {
            version: version(sequence),
            request,
            object: object.clone(),
            touched,
            committed_sequence: 0,
            pre_image: None,
        };
        let (mutations, payload, payload_sealed) = (Vec::new(), Bytes::from_static(b"12345"), false);
        Transaction { pg: PG, object, mutations, payload, payload_sealed, log: vec![entry] }.into()
    }

    #[test]
    fn a_write_is_of_the_span_of_its_request_until_that_is_answered() {
        let mut requests = TracedRequests::default();
        let id = |sequence| RequestId { session: 5, sequence };
        assert_eq!(requests.span_of(&write(1, Some(id(1)))), None);
        requests.arrived(9, id(1), PARENT);
        requests.arrived(10, id(2), PARENT);
        assert!(requests.contains(9, 1) && !requests.contains(9, 2));
        let span = requests.span_of(&write(1, Some(id(1)))).unwrap();
        assert!(span.trace_id == PARENT.trace_id && span.span_id != PARENT.span_id);
        let of_other_client = RequestId { session: 6, sequence: 1 };
        assert_eq!(requests.span_of(&write(2, Some(of_other_client))), None);
        assert_eq!(requests.span_of(&write(3, None)), None);
        let taken = requests.take(9, 1).unwrap();
        assert_eq!((taken.context, taken.parent_id), (span, Some(PARENT.span_id)));
        assert_eq!(requests.span_of(&write(1, Some(id(1)))), None);
        requests.left(10);
        assert!(requests.spans.is_empty() && requests.by_id.is_empty());
    }

    #[test]
    fn a_copy_is_told_when_it_is_durable_under_the_epoch_of_its_primary() {
        let mut copies = TracedCopies::default();
        for sequence in 1..=4 {
            copies.arrived(OsdId(1), Epoch(3), &write(sequence, None), PARENT, 1_000);
        }
        copies.submitted(&write(1, None), 1_200);
        let [first] = &copies.take_durable(PG, Epoch(3), version(1))[..] else { panic!("the first is durable") };
        assert_eq!(first.span.parent_id, Some(PARENT.span_id));
        let told = TracedCopy { object: first.object.clone(), ..*first }.told(1_500);
        let steps: Vec<_> = told.steps.iter().map(|step| (&step.name[..], step.since_us, step.after_us)).collect();
        assert_eq!(steps, [("given to the log", 0, 200), ("durable", 200, 500)]);
        assert_eq!((told.kind.as_str(), told.client.as_str(), told.size_bytes), ("replicate", "osd.1", 5));
        assert!(copies.take_durable(PG, Epoch(4), version(2)).is_empty(), "it was of another primary");
        assert_eq!(copies.take_durable(PG, Epoch(3), version(3)).len(), 1);
        copies.lost(OsdId(0));
        assert_eq!(copies.0.len(), 1);
        copies.lost(OsdId(1));
        assert!(copies.0.is_empty());
    }
}
