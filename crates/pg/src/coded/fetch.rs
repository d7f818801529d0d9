//! Getting spans of shards: from the members that hold them, or computed from others if a shard has
//! no member, or its member cannot give it. What a member says counts only if it passed the checks of
//! its own store and has the length that the object's size calls for.

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::{ObjectName, OsdId, ReadOutcome, ReadRequest, Refusal};
use atoll_wire::Message;
use bytes::Bytes;

use super::parts::Part;
use super::requests::{ClientRead, ClientWrite};
use super::scrub::Examination;
use super::shape::Span;
use crate::actions::{ObjectView, Token, WholeObject};
use crate::group::{Pg, ReadPurpose};

/// What a fetch brings: spans of shards.
pub(crate) type Parts = BTreeMap<u8, (Span, Part)>;

/// Something that reads shards.
pub(crate) struct Operation {
    pub object: ObjectName,
    /// What others keep off, and whether reads do, too.
    pub lock: Span,
    pub is_write: bool,
    pub fetch: Fetch,
    pub purpose: Purpose,
}

/// What the shards are read for.
pub(crate) enum Purpose {
    Read(ClientRead),
    Write(Box<ClientWrite>),
    /// To fill a shard that an OSD lacks.
    Fill(super::filling::Fill),
    /// To rebuild a bad shard, or to see whether parity fits.
    Examine(Examination),
}

/// Spans of shards on their way.
pub(crate) struct Fetch {
    pub whole: WholeObject,
    pub wanted: BTreeMap<u8, Span>,
    /// Members whose shards are not to be used.
    pub excluded: BTreeSet<OsdId>,
    parts: Parts,
    /// Wanted shards have to be computed from others.
    is_rebuilding: bool,
    missing: usize,
    /// A member gave something else than it should have.
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
    /// For which operation.
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
            parts: Parts::new(),
            is_rebuilding: false,
            missing: 0,
            has_found_damage: false,
        }
    }
}

impl Pg {
    /// Whether something under way keeps others off a span of an object.
    pub(crate) fn is_locked(&self, object: &ObjectName, span: Span, for_write: bool) -> bool {
        let Some(coded) = &self.coded else { return false };
        let in_flight = self.in_flight.iter().filter(|write| write.object == *object);
        let is_written = in_flight.filter_map(|write| write.span).any(|written| written.overlaps(&span));
        let mut operations = coded.operations.values().filter(|operation| operation.object == *object);
        is_written
            || operations.any(|operation| (for_write || operation.is_write) && operation.lock.overlaps(&span))
    }

    /// Begins to read shards. The operation goes on when they are there.
    pub(crate) fn begin_operation(&mut self, operation: Operation, view: &impl ObjectView) {
        let Token(id) = self.token();
        let coded = self.coded.as_mut().expect("only coded groups have operations");
        coded.operations.insert(id, operation);
        self.fetch(id, view);
    }

    /// Asks for everything that is wanted or, if some of it cannot be had, for what gives it.
    fn fetch(&mut self, id: u64, view: &impl ObjectView) {
        let coded = self.coded.as_ref().expect("only coded groups have operations");
        let shape = coded.shape;
        let operation = &coded.operations[&id];
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
        let coded = self.coded.as_mut().expect("only coded groups have operations");
        coded.operations.get_mut(&id).expect("the operation is under way")
    }

    fn ask_for_shard(&mut self, asked: Asked, object: ObjectName, view: &impl ObjectView) {
        let Token(tag) = self.token();
        let (osd, offset, length) = (asked.osd, asked.span.start, asked.span.length() as u32);
        self.coded.as_mut().expect("it is coded").asked.insert(tag, asked);
        if osd == self.me {
            let request = ReadRequest::Data { offset, length };
            return self.read_when_loaded(ReadPurpose::Shard { tag }, object, request, view);
        }
        let (pg, epoch) = (self.id, self.record.epoch);
        self.send(osd, Message::CopyRead { pg, epoch, tag, object, offset, length });
    }

    /// A member has answered. False if it was asked for something else.
    pub(crate) fn shard_read(
        &mut self,
        tag: u64,
        answer: Result<(ReadOutcome, Bytes), Refusal>,
        view: &impl ObjectView,
    ) -> bool {
        let Some(coded) = &mut self.coded else { return false };
        let Some(Asked { operation: id, osd, shard, span }) = coded.asked.remove(&tag) else { return false };
        let shape = coded.shape;
        let Some(operation) = coded.operations.get_mut(&id) else { return true };
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
                coded.asked.retain(|_, asked| asked.operation != id);
                self.warn(text);
                self.fetch(id, view);
            }
        }
        true
    }

    /// Everything is there.
    fn fetched(&mut self, id: u64, view: &impl ObjectView) {
        let coded = self.coded.as_mut().expect("only coded groups have operations");
        let fetch = &mut coded.operations.get_mut(&id).expect("the operation is under way").fetch;
        let mut parts = std::mem::take(&mut fetch.parts);
        if fetch.is_rebuilding {
            rebuild(&coded.code, &fetch.wanted, &mut parts);
        }
        self.go_on_with_operation(id, Ok(parts), view);
    }

    /// Fewer shards than it takes can be had.
    fn fetch_failed(&mut self, id: u64, view: &impl ObjectView) {
        let operation = self.operation(id);
        let excluded: Vec<String> = operation.fetch.excluded.iter().map(OsdId::to_string).collect();
        let detail =
            format!("'{}': too few good shards are left (bad: {})", operation.object, excluded.join(", "));
        self.go_on_with_operation(id, Err(detail), view);
    }

    fn go_on_with_operation(&mut self, id: u64, result: Result<Parts, String>, view: &impl ObjectView) {
        let coded = self.coded.as_mut().expect("only coded groups have operations");
        let operation = coded.operations.get(&id).expect("the operation is under way");
        let (object, is_damaged) = (operation.object.clone(), operation.fetch.has_found_damage);
        if matches!(operation.purpose, Purpose::Write(_)) {
            self.old_bytes_are_there(id, result, view);
        } else {
            let operation = coded.operations.remove(&id).expect("looked at above");
            match operation.purpose {
                Purpose::Read(read) => {
                    self.answer_read(read, operation.object, operation.fetch.whole, result, view)
                }
                Purpose::Fill(fill) => {
                    self.shard_is_there(fill, operation.object, operation.fetch.whole, result, view)
                }
                Purpose::Examine(examination) => {
                    self.go_on_with_examination(examination, operation.object, operation.fetch, result, view);
                }
                Purpose::Write(_) => unreachable!("looked at above"),
            }
            self.start_waiting(view);
        }
        if is_damaged {
            self.repair_for_filling(object);
        }
    }
}

/// What a member's answer holds, if it is a span of a shard as it must be.
fn check(
    answer: Result<(ReadOutcome, Bytes), Refusal>,
    span: Span,
    shard_bytes: u64,
    seal_shape: Option<(u32, u16)>,
) -> Result<Part, String> {
    let (object_bytes, seals, data) = match answer {
        Ok((ReadOutcome::Data { object_bytes, seals }, data)) => (object_bytes, seals, data),
        Ok(_) => return Err("an answer to another question".into()),
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

/// Computes wanted shards that are not there from those that are, which all have one span.
fn rebuild(code: &atoll_ec::Code, wanted: &BTreeMap<u8, Span>, parts: &mut Parts) {
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
