//! What a learner of an erasure-coded group lacks of an object, computed from the shards of others.

use std::collections::BTreeMap;

use atoll_base::{BLOCK_BYTES, Mutation, ObjectName, ReadRequest, Seals, Touched, Transaction};
use bytes::Bytes;

use super::fetch::{Fetch, Operation, Parts, Purpose};
use super::parts::{Part, cut, is_all_zero};
use super::shape::Span;
use super::update::shard_of;
use crate::actions::{Action, Lookup, ObjectParts, ObjectView, Token, WholeObject};
use crate::group::{CodeShape, Pg};

/// Bytes of a shard in one part, a multiple of all seal units: clients' requests wait behind it.
const PART_BYTES: u64 = 512 << 10;

/// A part of a shard that a learner lacks.
pub(crate) struct FillOrder {
    /// The read that the copy waits for.
    pub token: Token,
    pub shard: u8,
    pub object: ObjectName,
    pub touched: Touched,
    /// Where the part begins in the shard.
    pub from: u64,
    /// It is the first part of an object that the shell has asked for.
    pub begins: bool,
}

/// A copy of an object that waits for a part of its shard.
pub(crate) struct Fill {
    pub order: FillOrder,
    /// The ranges that are to be sent, in order.
    spans: Vec<Span>,
    next: Option<u64>,
}

impl Pg {
    /// Objects begun by [`Pg::copy_next`] of which [`Action::ReadToFill`] has not told yet.
    pub fn reads_to_fill(&self) -> usize {
        let Some(coded) = &self.coded else { return 0 };
        let fills = coded.operations.values().filter_map(|operation| match &operation.purpose {
            Purpose::Fill(fill) => Some(fill.order.begins),
            _ => None,
        });
        let loading = coded.fills_loading.values().map(|order| order.begins);
        let told = self.actions.iter().map(|action| matches!(action, Action::ReadToFill { begins: true, .. }));
        fills.chain(loading).chain(told).filter(|begins| *begins).count()
    }

    /// Reads what gives a part of a shard; the answer comes as [`Pg::sync_ready`] from itself.
    pub(crate) fn read_shard_part(&mut self, order: FillOrder, view: &impl ObjectView) {
        let (token, object, from) = (order.token, order.object.clone(), order.from);
        if !view.is_read_loaded(self.id, &object, &ReadRequest::Stat) {
            let load = self.token();
            self.coded.as_mut().expect("it is coded").fills_loading.insert(load, order);
            let lookup = Lookup::Read { object, request: ReadRequest::Stat };
            return self.actions.push_back(Action::Load { token: load, lookup });
        }
        let Some(whole) = view.whole_object(self.id, &object) else {
            self.actions.push_back(Action::ReadToFill { begins: order.begins, bytes: 0 });
            let gone = Transaction { object, ..self.own_change(vec![Mutation::Remove]) };
            return self.sync_ready(token, Ok(ObjectParts { transactions: vec![gone], next: None }), view);
        };
        let shape = self.coded.as_ref().expect("it is coded").shape;
        let ranges = touched_spans(shape, &whole, &order.touched);
        let left = || ranges.iter().filter(|span| span.end > from);
        let limit = left().next().map_or(from, |span| span.start.max(from) + PART_BYTES);
        let part = left().filter(|span| span.start < limit);
        let spans: Vec<Span> =
            part.map(|span| Span { start: span.start.max(from), end: span.end.min(limit) }).collect();
        let next = left().find(|span| span.end > limit).map(|span| span.start.max(limit));
        let hull = spans.iter().copied().reduce(|one, other| one.hull(&other));
        let wanted: BTreeMap<u8, Span> = hull.into_iter().map(|hull| (order.shard, hull)).collect();
        let fill = Fill { order, spans, next };
        // Writes keep off by themselves: the object is being copied.
        let lock = Span { start: 0, end: 0 };
        let fetch = Fetch::new(whole, wanted);
        self.begin_operation(
            Operation { object, lock, is_write: false, fetch, purpose: Purpose::Fill(fill) },
            view,
        );
    }

    pub(super) fn shard_is_there(
        &mut self,
        fill: Fill,
        object: ObjectName,
        whole: WholeObject,
        result: Result<Parts, String>,
        view: &impl ObjectView,
    ) {
        let shape = self.coded.as_ref().expect("it is coded").shape;
        let parts = result.iter().flat_map(|parts| parts.values());
        let bytes = parts.map(|(_, part)| part.data.len() as u64).sum();
        self.actions.push_back(Action::ReadToFill { begins: fill.order.begins, bytes });
        let answer = result.map(|parts| {
            let mut mutations = Vec::new();
            if fill.order.touched.whole && fill.order.from == 0 {
                mutations.push(Mutation::Remove);
            }
            if fill.order.from == 0 {
                mutations.push(shard_of(shape, whole.object_bytes, whole.seal_shape));
            }
            let mut payload = Vec::new();
            for span in &fill.spans {
                let part = cut(&parts[&fill.order.shard], *span, whole.seal_shape);
                add_part(*span, &part, whole.seal_shape, fill.order.touched.whole, &mut mutations, &mut payload);
            }
            if fill.next.is_none() {
                mutations.push(Mutation::SetVersion { version: whole.version });
            }
            let part = Transaction {
                object,
                payload: payload.into(),
                payload_sealed: whole.seal_shape.is_some(),
                ..self.own_change(mutations)
            };
            ObjectParts { transactions: vec![part], next: fill.next }
        });
        self.sync_ready(fill.order.token, answer, view);
    }
}

/// The spans of shards that what was touched is in, in order and disjoint.
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

/// What makes a span of a shard what it should be; what is all zeros takes no space.
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
