//! Fetches spans of shards: from the members that hold them, or computed from other shards if a
//! shard has no member or its member cannot give it. A member's answer counts only if it passed the
//! checks of its store and has the length that the object's size calls for.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::{ObjectName, OsdId, ReadOutcome, Refusal};
use bytes::Bytes;

use super::Erasure;
use super::effects::Effect;
use super::in_place::InPlace;
use super::parts::Part;
use super::requests::{ClientRead, ClientWrite};
use super::scrub::Examination;
use super::shape::Span;
use crate::actions::{ObjectView, Token, WholeObject};
use crate::context::Context;
use crate::replication::log::Log;

/// Spans of shards, by shard.
pub(crate) type ShardParts = BTreeMap<u8, (Span, Part)>;

/// An operation that reads shards.
pub(crate) struct Operation {
    pub object: ObjectName,
    /// The span that writes must not touch meanwhile; if `is_write`, reads must not either.
    pub lock: Span,
    pub is_write: bool,
    pub fetch: Fetch,
    pub purpose: Purpose,
}

/// Why shards are read.
pub(crate) enum Purpose {
    Read(ClientRead),
    Write(Box<ClientWrite>),
    /// To backfill an OSD's shard.
    ShardBackfill(super::backfill::ShardBackfill),
    /// To rebuild a bad shard, or to verify parity.
    Examine(Examination),
}

/// A fetch under way.
pub(crate) struct Fetch {
    pub whole: WholeObject,
    pub wanted: BTreeMap<u8, Span>,
    /// Members whose shards are not to be used.
    pub excluded: BTreeSet<OsdId>,
    parts: ShardParts,
    /// Wanted shards are computed from others.
    is_rebuilding: bool,
    /// Answers still outstanding.
    missing: usize,
    /// A member's answer did not count.
    pub has_found_damage: bool,
    /// Which blocks could be overwritten in place, if that is asked.
    pub in_place: Option<InPlace>,
    /// A write of the same span follows, so members are to keep the read data.
    pub keeps: bool,
    /// The tags under which members have answered.
    pub tags: BTreeMap<OsdId, u64>,
}

/// A span of a shard that a member, perhaps this one, was asked for.
pub(crate) struct Asked {
    pub operation: u64,
    pub osd: OsdId,
    shard: u8,
    pub span: Span,
    pub asks_in_place: bool,
    pub keeps: bool,
}

impl Fetch {
    pub fn new(whole: WholeObject, wanted: BTreeMap<u8, Span>) -> Self {
        Fetch {
            whole,
            wanted,
            excluded: BTreeSet::new(),
            parts: ShardParts::new(),
            is_rebuilding: false,
            missing: 0,
            has_found_damage: false,
            in_place: None,
            keeps: false,
            tags: BTreeMap::new(),
        }
    }
}

impl Erasure {
    /// Returns true if a write in flight or an operation locks a span of an object.
    pub(super) fn is_locked(&self, object: &ObjectName, span: Span, for_write: bool, log: &Log) -> bool {
        let in_flight = log.in_flight().filter(|write| write.object == *object);
        let is_written = in_flight.filter_map(|write| write.span).any(|written| written.overlaps(&span));
        let mut operations = self.operations.values().filter(|operation| operation.object == *object);
        is_written
            || operations.any(|operation| (for_write || operation.is_write) && operation.lock.overlaps(&span))
    }

    /// Begins to fetch shards. The operation continues when they have come.
    pub(super) fn begin(&mut self, operation: Operation, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Token(id) = context.outbox.token();
        self.operations.insert(id, operation);
        self.fetch(id, context)
    }

    /// Asks for the wanted spans or, if a shard is not available, for as many others as give it.
    fn fetch(&mut self, id: u64, context: &Context<'_, impl ObjectView>) -> Effect {
        let Operation { object, fetch, .. } = operation(&mut self.operations, id);
        let counts =
            |osd: OsdId| !fetch.excluded.contains(&osd) && context.peering.fits(osd, context.config, context.log);
        let holder = |shard: u8| context.config.holder(shard, counts);
        let asks: Option<Vec<(u8, OsdId, Span)>> =
            fetch.wanted.iter().map(|(shard, span)| Some((*shard, holder(*shard)?, *span))).collect();
        let (asks, is_rebuilding) = match asks {
            Some(asks) => (asks, false),
            None => {
                let unit = fetch.whole.seal_shape.map_or(1, |(unit, _)| u64::from(unit));
                let hull = fetch.wanted.values().copied().reduce(|one, other| one.hull(&other));
                let hull = hull.expect("something is wanted").widened(unit);
                let sources = (0..self.shape.shards()).filter_map(|shard| Some((shard, holder(shard)?, hull)));
                // As many as it takes, unless each is asked something of its own.
                let limit = if fetch.in_place.is_some() { usize::MAX } else { self.shape.data.into() };
                (sources.take(limit).collect(), true)
            }
        };
        if is_rebuilding && asks.len() < usize::from(self.shape.data) {
            let bad: Vec<String> = fetch.excluded.iter().map(OsdId::to_string).collect();
            let detail = format!("'{object}': too few good shards are left (bad: {})", bad.join(", "));
            return self.end_fetch(id, Err(detail));
        }
        fetch.is_rebuilding = is_rebuilding;
        fetch.missing = asks.len();
        fetch.parts.clear();
        if asks.is_empty() {
            return self.fetched(id);
        }
        let (asks_in_place, keeps) = (fetch.in_place.is_some(), fetch.keeps);
        let asked = |(shard, osd, span)| Asked { operation: id, osd, shard, span, asks_in_place, keeps };
        let asked = asks.into_iter().map(asked);
        Effect::Ask { object: object.clone(), asked: asked.collect() }
    }

    /// A member has answered.
    pub(super) fn answered(
        &mut self,
        (tag, Asked { operation: id, osd, shard, span, .. }): (u64, Asked),
        answer: Result<(ReadOutcome, Bytes), Refusal>,
        blocks_in_place: u32,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let Some(Operation { object, fetch, .. }) = self.operations.get_mut(&id) else { return Effect::Nothing };
        match check(answer, span, self.shape.shard_bytes(fetch.whole.object_bytes), fetch.whole.seal_shape) {
            Ok(part) => {
                fetch.parts.insert(shard, (span, part));
                fetch.tags.insert(osd, tag);
                if let Some(in_place) = &mut fetch.in_place {
                    in_place.insert(shard, span, blocks_in_place);
                }
                fetch.missing -= 1;
                if fetch.missing == 0 { self.fetched(id) } else { Effect::Nothing }
            }
            Err(cause) => {
                fetch.excluded.insert(osd);
                fetch.has_found_damage = true;
                let text = format!("shard {shard} of '{object}' on {osd}: {cause}; using the others");
                self.asked.retain(|_, asked| asked.operation != id);
                context.outbox.warn(text);
                self.fetch(id, context)
            }
        }
    }

    /// All answers have come.
    fn fetched(&mut self, id: u64) -> Effect {
        let Fetch { wanted, parts, is_rebuilding, .. } = &mut operation(&mut self.operations, id).fetch;
        let mut parts = std::mem::take(parts);
        if *is_rebuilding {
            rebuild(&self.code, wanted, &mut parts);
        }
        self.end_fetch(id, Ok(parts))
    }

    fn end_fetch(&mut self, id: u64, result: Result<ShardParts, String>) -> Effect {
        let Operation { object, fetch, purpose, .. } = operation(&mut self.operations, id);
        if let (Purpose::Write(write), Ok(parts)) = (purpose, &result) {
            write.old_bytes_came(fetch, parts);
            self.ready.push_back(id);
            return Effect::OrderReady { damaged: fetch.has_found_damage.then(|| object.clone()) };
        }
        let operation = self.operations.remove(&id).expect("the operation is under way");
        Effect::End { operation: Box::new(operation), result }
    }
}

fn operation(operations: &mut BTreeMap<u64, Operation>, id: u64) -> &mut Operation {
    operations.get_mut(&id).expect("the operation is under way")
}

/// The span of a shard in a member's answer, if the answer counts.
pub(super) fn check(
    answer: Result<(ReadOutcome, Bytes), Refusal>,
    span: Span,
    shard_bytes: u64,
    seal_shape: Option<(u32, u16)>,
) -> Result<Part, String> {
    let (object_bytes, seals, data) = match answer {
        Ok((ReadOutcome::Data { object_bytes, seals, .. }, data)) => (object_bytes, seals, data),
        Ok(_) => return Err("an answer of another kind".into()),
        Err(refusal) => return Err(refusal.to_string()),
    };
    if object_bytes != shard_bytes || data.len() != span.length() {
        return Err(format!("{object_bytes} bytes, and it should have {shard_bytes}"));
    }
    let seals = match (seals, seal_shape) {
        (Some(seals), Some(shape)) if (seals.unit_bytes, seals.seal_bytes) == shape => seals.bytes,
        (None, None) => Bytes::new(),
        _ => return Err("seals of another shape than the object's".into()),
    };
    let units = seal_shape.map_or(0, |(unit_bytes, seal_bytes)| {
        let unit = u64::from(unit_bytes);
        (span.end.div_ceil(unit) - span.start / unit) as usize * usize::from(seal_bytes)
    });
    if seals.len() != units {
        return Err(format!("{} bytes of seals for {} of data", seals.len(), data.len()));
    }
    Ok(Part { data, seals })
}

/// Computes the wanted shards that are missing from the others. All have the same span.
fn rebuild(code: &atoll_ec::Code, wanted: &BTreeMap<u8, Span>, parts: &mut ShardParts) {
    let lost: Vec<u8> = wanted.keys().copied().filter(|shard| !parts.contains_key(shard)).collect();
    let Some(span) = parts.values().next().map(|(span, _)| *span) else { return };
    let numbers: Vec<usize> = lost.iter().map(|shard| usize::from(*shard)).collect();
    let compute = |pick: fn(&Part) -> &Bytes| -> Vec<Bytes> {
        let there: Vec<(usize, &[u8])> =
            parts.iter().map(|(shard, (_, part))| (usize::from(*shard), &pick(part)[..])).collect();
        let length = there[0].1.len();
        let mut output: Vec<Vec<u8>> = lost.iter().map(|_| vec![0; length]).collect();
        let mut slices: Vec<&mut [u8]> = output.iter_mut().map(|bytes| &mut bytes[..]).collect();
        code.reconstruct(&there, &numbers, &mut slices).expect("as many shards were asked for as it takes");
        output.into_iter().map(Bytes::from).collect()
    };
    let (data, seals) = (compute(|part| &part.data), compute(|part| &part.seals));
    for ((shard, data), seals) in lost.into_iter().zip(data).zip(seals) {
        parts.insert(shard, (span, Part { data, seals }));
    }
}
