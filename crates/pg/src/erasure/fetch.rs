//! Fetches spans of shards: from the members that hold them, or computed from other shards if a
//! shard has no member or its member cannot give it. A member's answer counts only if it passed the
//! checks of its store and has the length that the object's size calls for.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::{ObjectName, OsdId, ReadOutcome, ReadRequest, Refusal};
use atoll_wire::Message;
use bytes::Bytes;

use super::parts::Part;
use super::requests::{ClientRead, ClientWrite};
use super::scrub::Examination;
use super::shape::Span;
use crate::actions::{ObjectView, Token, WholeObject};
use crate::group::Pg;
use crate::replication::reads::ReadPurpose;

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
}

/// A span of a shard that a member, perhaps this one, was asked for.
pub(crate) struct Asked {
    operation: u64,
    osd: OsdId,
    shard: u8,
    span: Span,
}

impl Asked {
    /// The operation that waits for the answer.
    pub fn operation(&self) -> u64 {
        self.operation
    }
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
        }
    }
}

impl Pg {
    /// Whether a write in flight or an operation locks a span of an object.
    pub(crate) fn is_locked(&self, object: &ObjectName, span: Span, for_write: bool) -> bool {
        let Some(erasure) = &self.erasure else { return false };
        let in_flight = self.log.in_flight().filter(|write| write.object == *object);
        let is_written = in_flight.filter_map(|write| write.span).any(|written| written.overlaps(&span));
        let mut operations = erasure.operations.values().filter(|operation| operation.object == *object);
        is_written
            || operations.any(|operation| (for_write || operation.is_write) && operation.lock.overlaps(&span))
    }

    /// Begins to fetch shards. The operation continues when they have come.
    pub(crate) fn begin_operation(&mut self, operation: Operation, view: &impl ObjectView) {
        let Token(id) = self.outbox.token();
        let erasure = self.erasure.as_mut().expect("only erasure-coded PGs have operations");
        erasure.operations.insert(id, operation);
        self.fetch(id, view);
    }

    /// Asks for the wanted spans or, if a shard is not available, for as many others as give it.
    fn fetch(&mut self, id: u64, view: &impl ObjectView) {
        let erasure = self.erasure.as_ref().expect("only erasure-coded PGs have operations");
        let shape = erasure.shape;
        let operation = &erasure.operations[&id];
        let object = operation.object.clone();
        let fetch = &operation.fetch;
        let holder = |shard: u8| self.holder(shard, &fetch.excluded);
        let asks: Option<Vec<(u8, OsdId, Span)>> =
            fetch.wanted.iter().map(|(shard, span)| Some((*shard, holder(*shard)?, *span))).collect();
        let (asks, is_rebuilding) = match asks {
            Some(asks) => (asks, false),
            None => {
                let unit = fetch.whole.seal_shape.map_or(1, |(unit, _)| u64::from(unit));
                let hull = fetch.wanted.values().copied().reduce(|one, other| one.hull(&other));
                let hull = hull.expect("something is wanted").widened(unit);
                let sources = (0..shape.shards()).filter_map(|shard| Some((shard, holder(shard)?, hull)));
                (sources.take(shape.data.into()).collect(), true)
            }
        };
        if is_rebuilding && asks.len() < usize::from(shape.data) {
            return self.fetch_failed(id, view);
        }
        let operation = self.operation(id);
        operation.fetch.is_rebuilding = is_rebuilding;
        operation.fetch.missing = asks.len();
        operation.fetch.parts.clear();
        if asks.is_empty() {
            return self.fetched(id, view);
        }
        for (shard, osd, span) in asks {
            self.ask_for_shard(Asked { operation: id, osd, shard, span }, object.clone(), view);
        }
    }

    pub(crate) fn operation(&mut self, id: u64) -> &mut Operation {
        let erasure = self.erasure.as_mut().expect("only erasure-coded PGs have operations");
        erasure.operations.get_mut(&id).expect("the operation is under way")
    }

    fn ask_for_shard(&mut self, asked: Asked, object: ObjectName, view: &impl ObjectView) {
        let Token(tag) = self.outbox.token();
        let (osd, offset, length) = (asked.osd, asked.span.start, asked.span.length() as u32);
        self.erasure.as_mut().expect("the PG is erasure-coded").asked.insert(tag, asked);
        if osd == self.config.me {
            let request = ReadRequest::Data { offset, length };
            return self.read_when_loaded(ReadPurpose::Shard { tag }, object, request, view);
        }
        let (pg, epoch) = (self.config.id, self.config.record.epoch);
        self.outbox.send(osd, Message::CopyRead { pg, epoch, tag, object, offset, length });
    }

    /// A member has answered. False if it was asked for something else.
    pub(crate) fn shard_read(
        &mut self,
        tag: u64,
        answer: Result<(ReadOutcome, Bytes), Refusal>,
        view: &impl ObjectView,
    ) -> bool {
        let Some(erasure) = &mut self.erasure else { return false };
        let Some(Asked { operation: id, osd, shard, span }) = erasure.asked.remove(&tag) else { return false };
        let shape = erasure.shape;
        let Some(operation) = erasure.operations.get_mut(&id) else { return true };
        let fetch = &mut operation.fetch;
        match check(answer, span, shape.shard_bytes(fetch.whole.object_bytes), fetch.whole.seal_shape) {
            Ok(part) => {
                fetch.parts.insert(shard, (span, part));
                fetch.missing -= 1;
                if fetch.missing == 0 {
                    self.fetched(id, view);
                }
            }
            Err(cause) => {
                fetch.excluded.insert(osd);
                fetch.has_found_damage = true;
                let text = format!("shard {shard} of '{}' on {osd}: {cause}; using the others", operation.object);
                erasure.asked.retain(|_, asked| asked.operation != id);
                self.outbox.warn(text);
                self.fetch(id, view);
            }
        }
        true
    }

    /// All answers have come.
    fn fetched(&mut self, id: u64, view: &impl ObjectView) {
        let erasure = self.erasure.as_mut().expect("only erasure-coded PGs have operations");
        let fetch = &mut erasure.operations.get_mut(&id).expect("the operation is under way").fetch;
        let mut parts = std::mem::take(&mut fetch.parts);
        if fetch.is_rebuilding {
            rebuild(&erasure.code, &fetch.wanted, &mut parts);
        }
        self.continue_operation(id, Ok(parts), view);
    }

    /// Too few shards are available.
    fn fetch_failed(&mut self, id: u64, view: &impl ObjectView) {
        let operation = self.operation(id);
        let excluded: Vec<String> = operation.fetch.excluded.iter().map(OsdId::to_string).collect();
        let detail =
            format!("'{}': too few good shards are left (bad: {})", operation.object, excluded.join(", "));
        self.continue_operation(id, Err(detail), view);
    }

    fn continue_operation(&mut self, id: u64, result: Result<ShardParts, String>, view: &impl ObjectView) {
        let erasure = self.erasure.as_mut().expect("only erasure-coded PGs have operations");
        let operation = erasure.operations.get(&id).expect("the operation is under way");
        let (object, is_damaged) = (operation.object.clone(), operation.fetch.has_found_damage);
        if matches!(operation.purpose, Purpose::Write(_)) {
            self.old_bytes_fetched(id, result, view);
        } else {
            let operation = erasure.operations.remove(&id).expect("looked at above");
            match operation.purpose {
                Purpose::Read(read) => {
                    self.answer_read(read, operation.object, operation.fetch.whole, result, view)
                }
                Purpose::ShardBackfill(part) => {
                    self.shard_part_fetched(part, operation.object, operation.fetch.whole, result, view)
                }
                Purpose::Examine(examination) => {
                    self.continue_examination(examination, operation.object, operation.fetch, result, view);
                }
                Purpose::Write(_) => unreachable!("looked at above"),
            }
            self.start_waiting(view);
        }
        if is_damaged {
            self.repair_for_backfill(object);
        }
    }
}

/// The span of a shard in a member's answer, if the answer counts.
fn check(
    answer: Result<(ReadOutcome, Bytes), Refusal>,
    span: Span,
    shard_bytes: u64,
    seal_shape: Option<(u32, u16)>,
) -> Result<Part, String> {
    let (object_bytes, seals, data) = match answer {
        Ok((ReadOutcome::Data { object_bytes, seals }, data)) => (object_bytes, seals, data),
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
