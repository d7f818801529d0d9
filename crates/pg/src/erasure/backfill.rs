//! Backfill of a learner's shard, computed from the shards of members.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{Mutation, ObjectName, PgId, ReadRequest, Seals, Touched, Transaction};
use bytes::Bytes;

use super::Erasure;
use super::effects::Effect;
use super::fetch::{Fetch, Operation, Purpose, ShardParts};
use super::parts::{Part, cut, is_all_zero};
use super::shape::Span;
use super::update::shard_of;
use crate::actions::{Action, Lookup, ObjectParts, ObjectView, Token, WholeObject};
use crate::config::CodeShape;
use crate::context::Context;
use crate::group::Pg;
use crate::outbox::Outbox;
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
    /// Reads a part of a learner's shard.
    pub(crate) fn read_shard_part(&mut self, request: ShardPartRequest, view: &impl ObjectView) {
        self.with_erasure(view, |erasure, context| erasure.read_part(request, context));
    }

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
}

impl Erasure {
    /// Reads the shards that give a part of another one. The answer goes to [`Pg::object_read`].
    pub(super) fn read_part(
        &mut self,
        request: ShardPartRequest,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let (pg, object) = (context.config.id, request.object.clone());
        if !context.view.is_read_loaded(pg, &object, &ReadRequest::Stat) {
            let load = context.outbox.token();
            self.backfills_loading.insert(load, request);
            let lookup = Lookup::Read { object, request: ReadRequest::Stat };
            context.outbox.push(Action::Load { token: load, lookup });
            return Effect::Nothing;
        }
        let whole = match context.view.whole_object(pg, &object) {
            Ok(Some(whole)) => whole,
            found => {
                context.outbox.push(Action::ReadForBackfill { begins: request.begins, bytes: 0 });
                let gone =
                    ObjectParts { transactions: vec![change(pg, object, vec![Mutation::Remove])], next: None };
                let part = found.map(|_| gone).map_err(|refusal| refusal.to_string());
                return Effect::PartRead { token: request.token, part };
            }
        };
        let part = ShardBackfill::plan(request, &whole, self.shape);
        let hull = part.spans.iter().copied().reduce(|one, other| one.hull(&other));
        let wanted: BTreeMap<u8, Span> = hull.into_iter().map(|hull| (part.request.shard, hull)).collect();
        // No lock is needed: writes of an object wait while it is copied.
        let lock = Span { start: 0, end: 0 };
        let (fetch, purpose) = (Fetch::new(whole, wanted), Purpose::ShardBackfill(part));
        self.begin(Operation { object, lock, is_write: false, fetch, purpose }, context)
    }
}

impl ShardBackfill {
    fn plan(request: ShardPartRequest, whole: &WholeObject, shape: CodeShape) -> Self {
        let from = request.from;
        let ranges = touched_spans(shape, whole, &request.touched);
        let left = || ranges.iter().filter(|span| span.end > from);
        let limit = left().next().map_or(from, |span| span.start.max(from) + PART_BYTES);
        let part = left().filter(|span| span.start < limit);
        let spans = part.map(|span| Span { start: span.start.max(from), end: span.end.min(limit) }).collect();
        let next = left().find(|span| span.end > limit).map(|span| span.start.max(limit));
        ShardBackfill { request, spans, next }
    }

    /// The shards have come, or cannot: the part for the learner.
    pub fn answer(
        self,
        object: ObjectName,
        whole: &WholeObject,
        result: Result<ShardParts, String>,
        shape: CodeShape,
        pg: PgId,
        outbox: &mut Outbox,
    ) -> Result<ObjectParts, String> {
        let ShardBackfill { request, spans, next } = self;
        let parts = result.iter().flat_map(|parts| parts.values());
        let bytes = parts.map(|(_, part)| part.data.len() as u64).sum();
        outbox.push(Action::ReadForBackfill { begins: request.begins, bytes });
        let parts = result?;
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
            ..change(pg, object, mutations)
        };
        Ok(ObjectParts { transactions: vec![part], next })
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
