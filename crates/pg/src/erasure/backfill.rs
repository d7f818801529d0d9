//! Backfill of a learner's shard, computed from the shards of members.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{Mutation, ObjectName, ReadRequest, Seals, Touched, Transaction};
use bytes::Bytes;

use super::fetch::{Fetch, Operation, Purpose, ShardParts};
use super::parts::{Part, cut, is_all_zero};
use super::shape::Span;
use super::update::shard_of;
use crate::actions::{Action, Lookup, ObjectParts, ObjectView, Token, WholeObject};
use crate::config::CodeShape;
use crate::group::Pg;
use crate::own_object::change;

/// Bytes of a shard in one part, a multiple of all seal units. A client's request waits behind one
/// part at most.
const PART_BYTES: u64 = 512 << 10;

/// A part of a shard that a learner lacks.
pub(crate) struct ShardPartRequest {
    /// Identifies the read for [`Pg::object_read`].
    pub token: Token,
    pub shard: u8,
    pub object: ObjectName,
    pub touched: Touched,
    /// Where the part begins in the shard.
    pub from: u64,
    /// It is the first part of an object that [`Pg::backfill_next`] began.
    pub begins: bool,
}

/// A part of a learner's shard that waits for the shards of members.
pub(crate) struct ShardBackfill {
    pub request: ShardPartRequest,
    /// The spans to send, in order.
    spans: Vec<Span>,
    next: Option<u64>,
}

impl Pg {
    /// The number of objects that [`Pg::backfill_next`] began and whose [`Action::ReadForBackfill`] the
    /// shell has not taken yet.
    pub fn backfill_reads(&self) -> usize {
        let Some(erasure) = &self.erasure else { return 0 };
        let reading = erasure.operations.values().filter_map(|operation| match &operation.purpose {
            Purpose::ShardBackfill(part) => Some(part.request.begins),
            _ => None,
        });
        let loading = erasure.backfills_loading.values().map(|request| request.begins);
        let in_outbox =
            self.outbox.actions().map(|action| matches!(action, Action::ReadForBackfill { begins: true, .. }));
        reading.chain(loading).chain(in_outbox).filter(|begins| *begins).count()
    }

    /// Reads the shards that give a part of another one. The answer goes to [`Pg::object_read`].
    pub(crate) fn read_shard_part(&mut self, request: ShardPartRequest, view: &impl ObjectView) {
        let (token, object, from) = (request.token, request.object.clone(), request.from);
        if !view.is_read_loaded(self.config.id, &object, &ReadRequest::Stat) {
            let load = self.outbox.token();
            self.erasure.as_mut().expect("the PG is erasure-coded").backfills_loading.insert(load, request);
            let lookup = Lookup::Read { object, request: ReadRequest::Stat };
            return self.outbox.push(Action::Load { token: load, lookup });
        }
        let Some(whole) = view.whole_object(self.config.id, &object) else {
            self.outbox.push(Action::ReadForBackfill { begins: request.begins, bytes: 0 });
            let gone = change(self.config.id, object, vec![Mutation::Remove]);
            return self.object_read(token, Ok(ObjectParts { transactions: vec![gone], next: None }), view);
        };
        let shape = self.erasure.as_ref().expect("the PG is erasure-coded").shape;
        let ranges = touched_spans(shape, &whole, &request.touched);
        let left = || ranges.iter().filter(|span| span.end > from);
        let limit = left().next().map_or(from, |span| span.start.max(from) + PART_BYTES);
        let part = left().filter(|span| span.start < limit);
        let spans: Vec<Span> =
            part.map(|span| Span { start: span.start.max(from), end: span.end.min(limit) }).collect();
        let next = left().find(|span| span.end > limit).map(|span| span.start.max(limit));
        let hull = spans.iter().copied().reduce(|one, other| one.hull(&other));
        let wanted: BTreeMap<u8, Span> = hull.into_iter().map(|hull| (request.shard, hull)).collect();
        let part = ShardBackfill { request, spans, next };
        // No lock is needed: writes of an object wait while it is copied.
        let lock = Span { start: 0, end: 0 };
        let fetch = Fetch::new(whole, wanted);
        self.begin_operation(
            Operation { object, lock, is_write: false, fetch, purpose: Purpose::ShardBackfill(part) },
            view,
        );
    }

    pub(super) fn shard_part_fetched(
        &mut self,
        backfill: ShardBackfill,
        object: ObjectName,
        whole: WholeObject,
        result: Result<ShardParts, String>,
        view: &impl ObjectView,
    ) {
        let shape = self.erasure.as_ref().expect("the PG is erasure-coded").shape;
        let parts = result.iter().flat_map(|parts| parts.values());
        let bytes = parts.map(|(_, part)| part.data.len() as u64).sum();
        let ShardBackfill { request, spans, next } = backfill;
        self.outbox.push(Action::ReadForBackfill { begins: request.begins, bytes });
        let answer = result.map(|parts| {
            let mut mutations = Vec::new();
            if request.touched.whole && request.from == 0 {
                mutations.push(Mutation::Remove);
            }
            if request.from == 0 {
                mutations.push(shard_of(shape, whole.object_bytes, whole.seal_shape));
            }
            let mut payload = Vec::new();
            for span in &spans {
                let part = cut(&parts[&request.shard], *span, whole.seal_shape);
                add_part(*span, &part, whole.seal_shape, request.touched.whole, &mut mutations, &mut payload);
            }
            if next.is_none() {
                mutations.push(Mutation::SetVersion { version: whole.version });
            }
            let part = Transaction {
                payload: payload.into(),
                payload_sealed: whole.seal_shape.is_some(),
                ..change(self.config.id, object, mutations)
            };
            ObjectParts { transactions: vec![part], next }
        });
        self.object_read(request.token, answer, view);
    }
}

/// The spans of shards that contain the touched blocks, in order and disjoint.
fn touched_spans(shape: CodeShape, whole: &WholeObject, touched: &Touched) -> Vec<Span> {
    let there = Span { start: 0, end: shape.shard_bytes(whole.object_bytes) };
    if touched.whole {
        return if there.end > 0 { vec![there] } else { Vec::new() };
    }
    let unit = whole.seal_shape.map_or(BLOCK_BYTES as u64, |(unit, _)| u64::from(unit));
    let block = BLOCK_BYTES as u64;
    let ranges = touched.block_ranges.iter();
    let spans =
        ranges.filter_map(|(first, count)| shape.span(u64::from(*first) * block, u64::from(*count) * block));
    let mut spans: Vec<Span> = spans.filter_map(|span| span.widened(unit).intersection(&there)).collect();
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// Adds the mutations and the payload that write a span of a shard. Zeros become holes.
pub(super) fn add_part(
    span: Span,
    part: &Part,
    seal_shape: Option<(u32, u16)>,
    is_fresh: bool,
    mutations: &mut Vec<Mutation>,
    payload: &mut Vec<u8>,
) {
    let unit = seal_shape.map_or(BLOCK_BYTES, |(unit, _)| unit as usize);
    let width = seal_shape.map_or(0, |(_, width)| usize::from(width));
    let count = span.length().div_ceil(unit);
    let is_hole = |number: usize| {
        let data = &part.data[number * unit..((number + 1) * unit).min(part.data.len())];
        is_all_zero(data) && is_all_zero(&part.seals[number * width..(number + 1) * width])
    };
    let holes: Vec<bool> = (0..count).map(is_hole).collect();
    let mut first = 0;
    while first < count {
        let end = (first..count).find(|number| holes[*number] != holes[first]).unwrap_or(count);
        let bytes = first * unit..(end * unit).min(part.data.len());
        let offset = span.start + bytes.start as u64;
        if !holes[first] {
            let seals = seal_shape.map(|(unit_bytes, seal_bytes)| Seals {
                unit_bytes,
                seal_bytes,
                bytes: Bytes::copy_from_slice(&part.seals[first * width..end * width]),
            });
            mutations.push(Mutation::Write { offset, length: bytes.len() as u32, seals });
            payload.extend_from_slice(&part.data[bytes]);
        } else if !is_fresh {
            mutations.push(Mutation::Zero { offset, length: bytes.len() as u64 });
        }
        first = end;
    }
}
