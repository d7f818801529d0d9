//! Clients' reads and writes of an erasure-coded PG, at the primary.

use std::collections::BTreeMap;

use atoll_types::operation::{PRE_IMAGE_PREFIX, bits};
use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, OsdId, PreImage, ReadOutcome, ReadRequest, Refusal, RequestId,
    SharedTransaction, Touched, Transaction, Version, WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use super::Erasure;
use super::effects::Effect;
use super::fetch::{Fetch, Operation, Purpose, ShardParts};
use super::in_place::{InPlace, Space};
use super::parts::{Part, assemble, blocks_in_use, cut};
use super::shape::Span;
use super::update::{Basis, ShardChange, Update};
use crate::actions::{Action, ClientId, ObjectView, WholeObject};
use crate::config::Configuration;
use crate::context::Context;
use crate::group::Pg;
use crate::progress::{ReadTimes, SHARDS};
use crate::replication::admission::failed_condition;
use crate::replication::log::{InFlight, Log};
use crate::replication::ordering::{Attempt, mutations_looked_at};
use crate::replication::queue::{Waiting, WaitingRequest};
use crate::submissions::Submission;

/// A client's read of data that waits for shards.
pub(crate) struct ClientRead {
    pub client: ClientId,
    pub sequence: u64,
    pub offset: u64,
    pub length: u32,
    /// Only which blocks hold data is wanted.
    pub is_of_extents: bool,
    pub times: ReadTimes,
}

impl ClientRead {
    /// The read, if it is one of data.
    pub fn of((client, sequence): (ClientId, u64), request: &ReadRequest, times: ReadTimes) -> Option<Self> {
        let (offset, length, is_of_extents) = match *request {
            ReadRequest::Data { offset, length, .. } => (offset, length, false),
            ReadRequest::Extents { offset, length } => (offset, length, true),
            _ => return None,
        };
        Some(ClientRead { client, sequence, offset, length, is_of_extents, times })
    }

    fn request(&self) -> ReadRequest {
        let (offset, length) = (self.offset, self.length);
        if self.is_of_extents {
            ReadRequest::Extents { offset, length }
        } else {
            ReadRequest::checked_data(offset, length)
        }
    }
}

/// A client's write that waits for the old bytes.
pub(crate) struct ClientWrite {
    pub client: ClientId,
    pub id: RequestId,
    pub write: WriteRequest,
    update: Update,
    /// The old bytes, once they have come.
    old: Option<BTreeMap<u8, Part>>,
}

impl ClientWrite {
    pub(super) fn old_bytes_came(&mut self, fetch: &Fetch, parts: &ShardParts) {
        let wanted = fetch.wanted.iter();
        let old = wanted.map(|(shard, span)| (*shard, cut(&parts[shard], *span, fetch.whole.seal_shape)));
        self.old = Some(old.collect());
    }
}

impl Erasure {
    /// Returns true if a read of data must wait for a write of an overlapping span.
    pub fn is_read_locked(&self, object: &ObjectName, offset: u64, length: u32, log: &Log) -> bool {
        let span = self.shape.span(offset, u64::from(length));
        span.is_some_and(|span| self.is_locked(object, span, false, log))
    }

    /// Reads the shards that hold a range.
    fn read(
        &mut self,
        object: ObjectName,
        read: ClientRead,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let found = context.view.whole_object(context.config.id, &object);
        let whole = match found.and_then(|whole| whole.ok_or(Refusal::NoSuchObject)) {
            Ok(whole) => whole,
            Err(refusal) => {
                context.outbox.reply_read(read.client, read.sequence, Err(refusal), Bytes::new());
                return Effect::Nothing;
            }
        };
        let length = whole.object_bytes.saturating_sub(read.offset).min(u64::from(read.length));
        let mut wanted: BTreeMap<u8, Span> = BTreeMap::new();
        for piece in self.shape.pieces(read.offset, length) {
            let span = wanted.entry(piece.shard).or_insert(piece.span());
            *span = span.hull(&piece.span());
        }
        let lock = self.shape.span(read.offset, length).unwrap_or(Span { start: 0, end: 0 });
        let (fetch, purpose) = (Fetch::new(whole, wanted), Purpose::Read(read));
        self.begin(Operation { object, lock, is_write: false, fetch, purpose }, context)
    }

    /// Redirects the answer to a write that waits for old bytes to another connection. False if it
    /// does not wait.
    pub fn take_over(&mut self, client: ClientId, id: RequestId) -> bool {
        let mut writes = self.operations.values_mut().filter_map(|operation| match &mut operation.purpose {
            Purpose::Write(write) => Some(write),
            _ => None,
        });
        writes.find(|write| write.id == id).map(|write| write.client = client).is_some()
    }

    /// Returns the times of a client's request that reads shards, and the OSDs that have not sent theirs.
    pub fn of_client(&self, client: ClientId, sequence: u64) -> Option<(ReadTimes, Vec<OsdId>)> {
        let of_operation = |purpose: &Purpose| match purpose {
            Purpose::Read(read) => (read.client == client && read.sequence == sequence).then_some(read.times),
            Purpose::Write(write) => {
                (write.client == client && write.id.sequence == sequence).then(ReadTimes::default)
            }
            _ => None,
        };
        let mut operations = self.operations.iter();
        let (id, times) = operations.find_map(|(id, operation)| Some((*id, of_operation(&operation.purpose)?)))?;
        let asked = self.asked.values().filter(|asked| asked.operation == id);
        Some((times, asked.map(|asked| asked.osd).collect()))
    }

    /// Returns true if a write of an object is pending, so that its shards cannot be read for a learner.
    pub fn is_about_to_change(&self, object: &ObjectName, config: &Configuration, log: &Log) -> bool {
        // While the PG peers, members with the same head have all writes in flight.
        let is_written = || config.is_active() && log.writes(object);
        let mut operations = self.operations.values();
        config.is_erasure_coded(object)
            && (is_written() || operations.any(|operation| operation.is_write && operation.object == *object))
    }

    /// Takes the writes of an object that have read old bytes, or are about to.
    fn take_writes(&mut self, object: &ObjectName) -> BTreeMap<u64, Operation> {
        let of_object = |_: &u64, operation: &mut Operation| operation.is_write && operation.object == *object;
        let taken: BTreeMap<u64, Operation> = self.operations.extract_if(.., of_object).collect();
        self.asked.retain(|_, asked| !taken.contains_key(&asked.operation));
        self.ready.retain(|id| !taken.contains_key(id));
        taken
    }

    fn take_operations(&mut self) -> BTreeMap<u64, Operation> {
        self.asked.clear();
        self.ready.clear();
        std::mem::take(&mut self.operations)
    }
}

impl Pg {
    /// Reads the shards that hold a range.
    pub(crate) fn start_shard_read(&mut self, object: ObjectName, read: ClientRead, view: &impl ObjectView) {
        self.with_erasure(view, |erasure, context| erasure.read(object, read, context));
    }

    pub(super) fn answer_read(
        &mut self,
        read: ClientRead,
        object: ObjectName,
        whole: WholeObject,
        result: Result<ShardParts, String>,
        view: &impl ObjectView,
    ) {
        let ClientRead { client, sequence, offset, length, is_of_extents, times } = read;
        if !self.may_read(view) {
            // Another primary may have taken over since the shards were asked for.
            let waiting = Waiting::Read(read.request());
            return self.enqueue(WaitingRequest::new(client, sequence, object, waiting), view);
        }
        self.tell_read((client, sequence), &times, SHARDS, view);
        match result {
            Ok(parts) => {
                let (data, seals) = assemble(self.erasure().shape, &whole, (offset, u64::from(length)), &parts);
                let (object_bytes, version) = (whole.object_bytes, whole.version);
                if is_of_extents {
                    let blocks = bits(&blocks_in_use(&data, seals.as_ref()));
                    let outcome = ReadOutcome::Extents { object_bytes, version, blocks };
                    return self.outbox.reply_read(client, sequence, Ok(outcome), Bytes::new());
                }
                let outcome = ReadOutcome::Data { object_bytes, version, seals };
                self.outbox.reply_read(client, sequence, Ok(outcome), data);
            }
            Err(detail) => {
                self.outbox.reply_read(client, sequence, Err(Refusal::Corrupt { detail }), Bytes::new())
            }
        }
    }

    /// Starts a write whose conditions hold: at once, or after the old bytes have been read.
    pub(crate) fn start_shard_write(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        view: &impl ObjectView,
    ) -> Attempt {
        let erasure = self.erasure();
        let planned = view
            .whole_object(self.config.id, &write.object)
            .and_then(|whole| Ok((whole, Update::plan(erasure.shape, whole, &write.mutations, &write.payload)?)));
        let (whole, mut update) = match planned {
            Ok(planned) => planned,
            Err(refusal) => return self.refuse_write((client, id), write, refusal, view),
        };
        if erasure.is_locked(&write.object, update.locked_span(), true, &self.log) {
            return must_wait((client, id), write);
        }
        let asks_in_place = self.must_ask_for_places(&update, view);
        if asks_in_place && self.pre_image_shares_blocks(&write.object) {
            return must_wait((client, id), write);
        }
        if !asks_in_place && self.may_leave_to_members(&update, &write.object) {
            update.leave_to_members(self.own_shard());
        }
        let wanted = update.wanted();
        let Some(whole) = whole.filter(|_| !wanted.is_empty()) else {
            let (old, tags) = (BTreeMap::new(), BTreeMap::new());
            return self.order_shard_write((client, id), write, (update, &old, tags), None, view);
        };
        let (object, lock, keeps) = (write.object.clone(), update.locked_span(), update.is_left_to_members());
        let purpose = Purpose::Write(Box::new(ClientWrite { client, id, write, update, old: None }));
        let mut fetch = Fetch::new(whole, wanted);
        fetch.in_place = asks_in_place.then(InPlace::default);
        fetch.keeps = keeps;
        let operation = Operation { object, lock, is_write: true, fetch, purpose };
        if asks_in_place {
            self.forget_pre_images_everywhere();
        }
        self.with_erasure(view, |erasure, context| erasure.begin(operation, context));
        Attempt::Done
    }

    /// Orders writes whose old bytes have come, as far as that is possible now.
    pub(crate) fn order_ready(&mut self, view: &impl ObjectView) {
        let Some(erasure) = &mut self.erasure else { return };
        for id in std::mem::take(&mut erasure.ready) {
            let Some(operation) = self.erasure().operations.get(&id) else { continue };
            let object = operation.object.clone();
            let is_held_up = self.is_write_held_up(&object, view);
            let erasure = self.erasure.as_mut().expect("looked at above");
            if is_held_up {
                erasure.ready.push_back(id);
                continue;
            }
            let operation = erasure.operations.remove(&id).expect("looked at above");
            let Purpose::Write(write) = operation.purpose else { unreachable!("only writes become ready") };
            self.order_one_ready(*write, operation.fetch, view);
        }
    }

    fn order_one_ready(&mut self, ready: ClientWrite, fetch: Fetch, view: &impl ObjectView) {
        let ClientWrite { client, id, write, mut update, old } = ready;
        let (seen, in_place) = (fetch.whole, fetch.in_place);
        if fetch.has_found_damage {
            self.erasure.as_mut().expect("the PG is erasure-coded").suspect(write.object.clone());
        }
        let (pg, looks_at) = (self.config.id, mutations_looked_at(&write, &self.config));
        let conditions = self.fences.needed_of(&write.conditions, &self.outbox);
        let is_loaded = view.is_write_loaded(pg, &write.object, conditions, looks_at);
        let whole = if is_loaded { view.whole_object(pg, &write.object).ok().flatten() } else { None };
        // Other writes of the object may have come first. They did not touch the span of this one,
        // but may have changed the object's size or seals.
        let is_as_seen = whole.is_some_and(|whole| WholeObject { version: seen.version, ..whole } == seen);
        // A damaged shard cannot be read by its member, and a learner has nothing to read.
        let is_as_seen =
            is_as_seen && (!update.is_left_to_members() || self.may_leave_to_members(&update, &write.object));
        let (Some(whole), true) = (whole, is_as_seen) else {
            let object = write.object.clone();
            return self
                .enqueue(WaitingRequest::new(client, id.sequence, object, Waiting::Write(id, write)), view);
        };
        update.set_old_version(whole.version);
        let old = old.expect("a write is ready when it has the old bytes");
        let attempt = match failed_condition(&write, &self.config, &mut self.fences, view) {
            Some(refusal) => self.refuse_write((client, id), write, refusal, view),
            None => self.order_shard_write((client, id), write, (update, &old, fetch.tags), in_place, view),
        };
        if let Attempt::MustWait(request) = attempt {
            self.enqueue(*request, view);
        }
    }

    fn order_shard_write(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        (update, old, tags): (Update, &BTreeMap<u8, Part>, BTreeMap<OsdId, u64>),
        in_place: Option<InPlace>,
        view: &impl ObjectView,
    ) -> Attempt {
        self.check_order(&write.object);
        let version = self.log.next_version(self.config.record.epoch);
        let (span, replaced) = (update.locked_span(), update.span);
        let (may_stay_in_place, clones) = (update.may_stay_in_place(), update.clones_pre_image());
        let creates = update.creates();
        let changes = update.finish(&self.erasure().code, old, pre_image_name(self.config.id, version));
        if let Err(refusal) = self.check_shards(&write, &changes, view) {
            return self.refuse_write((client, id), write, refusal, view);
        }
        match self.space_for(&write, may_stay_in_place, &changes, in_place.as_ref(), view) {
            Space::Enough => {}
            Space::Unknown => return must_wait((client, id), write),
            Space::Lacking(osd) => {
                return self.refuse_write((client, id), write, Refusal::NoSpace { osd }, view);
            }
        }
        self.blocks_are_shared_by(&write, clones);
        let (epoch, committed) = (self.config.record.epoch, self.newest_committed());
        let touched = Touched::by(&write.mutations).for_log();
        let entry = LogEntry {
            version,
            request: Some(id),
            object: write.object.clone(),
            touched: touched.clone(),
            committed_sequence: committed.sequence,
            pre_image: None,
        };
        let (pg, object, payload_sealed) = (self.config.id, write.object, write.payload_sealed);
        let transaction = |shard: u8| {
            let ShardChange { mutations, payload, pre_image, .. } = changes[usize::from(shard)].clone();
            let log = vec![LogEntry { pre_image: Some(pre_image), ..entry.clone() }];
            SharedTransaction::from(Transaction {
                pg,
                object: object.clone(),
                mutations,
                payload,
                payload_sealed,
                log,
            })
        };
        let told = (epoch, committed, self.duplicates.answered_below(id.session));
        for member in self.config.others() {
            let shard = self.config.record.shard_of(member).expect("members hold shards");
            let (basis, tag) = (changes[usize::from(shard)].basis, tags.get(&member).copied().unwrap_or(0));
            let message = message_of(transaction(shard), told, basis, (replaced, tag));
            self.outbox.send(member, message);
        }
        let for_learner = |shard: Option<u8>| transaction(shard.expect("learners have shards here"));
        self.learners.replicate(for_learner, told, &mut self.outbox);
        self.erasure.as_mut().expect("looked at above").pre_images.are_announced(committed);
        self.scrub_sees_write(&object);
        let missing = self.config.record.members.clone();
        let client_request = Some((client, id));
        let own = transaction(self.own_shard());
        self.log.order(InFlight {
            version,
            object,
            touched,
            creates,
            client_request,
            missing,
            span: Some(span),
            ordered_us: view.now_us(),
            late: Vec::new(),
        });
        self.submit_with_pre_image(Submission::Write { version }, own);
        Attempt::Done
    }

    /// Checks that no store would refuse its shard's part of a write for its content. All shards of an object have
    /// one size and one shape of seals, so this copy represents the others. A write that one shard takes and
    /// another does not would have to be rolled back, and come again with the client's next attempt.
    fn check_shards(
        &self,
        write: &WriteRequest,
        changes: &[ShardChange],
        view: &impl ObjectView,
    ) -> Result<(), Refusal> {
        let own = usize::from(self.own_shard());
        let is_seen = |mutation: &&Mutation| !matches!(mutation, Mutation::ClonePreImage { .. });
        for (shard, change) in changes.iter().enumerate() {
            // The parts of a single small overwrite differ only in their bytes.
            if shard != own && write.mutations.len() == 1 && change.mutations.len() <= 1 {
                continue;
            }
            let checked: Vec<Mutation> = change.mutations.iter().filter(is_seen).cloned().collect();
            match view.check_write(self.config.id, &[], &write.object, &checked, change.payload.len()) {
                // Space is a matter of each member and its shard.
                Ok(()) | Err(Refusal::NoSpace { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// The shard that this primary holds.
    fn own_shard(&self) -> u8 {
        self.config.record.shard_of(self.config.me).expect("a primary holds a shard")
    }

    /// Returns true if members may read the replaced data of a write themselves: each shard has a healthy member,
    /// as far as is known, and no other OSD needs the write.
    fn may_leave_to_members(&self, update: &Update, object: &ObjectName) -> bool {
        let (erasure, held) = (self.erasure(), &self.config.record.shards);
        let has_all_shards = (0..erasure.shape.shards()).all(|shard| held.contains(&shard));
        update.can_be_read_by_members()
            && has_all_shards
            && !self.learners.are_any()
            && !erasure.suspects.contains(object)
    }

    /// A write that is ordered now may have members share blocks with a clone.
    fn blocks_are_shared_by(&mut self, write: &WriteRequest, clones_pre_image: bool) {
        let Some(erasure) = &mut self.erasure else { return };
        let cloned = write.mutations.iter().filter_map(Mutation::clone_source);
        cloned.chain(clones_pre_image.then_some(&write.object)).for_each(|object| erasure.forget_in_place(object));
    }

    /// A shard of an object is repaired: writes that have read old bytes read them again.
    pub(crate) fn restart_writes(&mut self, object: &ObjectName) {
        let restarted = self.erasure.as_mut().map(|erasure| erasure.take_writes(object)).unwrap_or_default();
        restarted.into_values().for_each(|operation| self.begin_again(operation));
    }

    /// Ends all operations with the configuration. Clients' requests begin again under the next
    /// one.
    pub(crate) fn abandon_operations(&mut self) {
        let abandoned = self.erasure.as_mut().map(Erasure::take_operations).unwrap_or_default();
        abandoned.into_values().for_each(|operation| self.begin_again(operation));
    }

    /// Puts a client's request back into the queue. A backfill reports to the shell that its read was given up.
    fn begin_again(&mut self, operation: Operation) {
        let request = match operation.purpose {
            Purpose::Read(read) => {
                let waiting = Waiting::Read(read.request());
                WaitingRequest::new(read.client, read.sequence, operation.object, waiting)
            }
            Purpose::Write(write) => {
                let ClientWrite { client, id, write, .. } = *write;
                WaitingRequest::new(client, id.sequence, operation.object, Waiting::Write(id, write))
            }
            Purpose::ShardBackfill(part) => {
                return self.outbox.push(Action::ReadForBackfill { begins: part.request.begins, bytes: 0 });
            }
            Purpose::Examine(_) => return,
        };
        self.queue.push_first(request);
    }
}

/// Returns a member's message for a write that replaces a span of its shard, which it was asked for under this
/// tag.
fn message_of(
    transaction: SharedTransaction,
    (epoch, committed, answered_below): (Epoch, Version, u64),
    basis: Basis,
    (replaced, tag): (Span, u64),
) -> Message {
    let is_difference = match basis {
        Basis::Whole => return Message::Replicate { epoch, transaction, committed, answered_below },
        Basis::NewBytes => false,
        Basis::Difference => true,
    };
    let (offset, length) = (replaced.start, replaced.length() as u32);
    Message::Overwrite { epoch, transaction, committed, answered_below, offset, length, tag, is_difference }
}

fn must_wait((client, id): (ClientId, RequestId), write: WriteRequest) -> Attempt {
    let object = write.object.clone();
    Attempt::MustWait(Box::new(WaitingRequest::new(client, id.sequence, object, Waiting::Write(id, write))))
}

/// The pre-image of a fence, which a client sets in the PG's own object.
pub(crate) fn pre_image_of_fence(
    write: &WriteRequest,
    config: &Configuration,
    view: &impl ObjectView,
) -> Result<Option<PreImage>, Refusal> {
    if config.policy.shape.is_none() {
        return Ok(None);
    }
    let keys = write.mutations.iter().filter_map(|mutation| match mutation {
        Mutation::OmapSet { key, .. } => Some(key),
        _ => None,
    });
    let back = |key: &Bytes| {
        let value = view.omap_value(config.id, &write.object, key)?;
        Ok(match value {
            Some(value) => Mutation::OmapSet { key: key.clone(), value },
            None => Mutation::OmapRemove { key: key.clone() },
        })
    };
    let mutations = keys.map(back).collect::<Result<_, Refusal>>()?;
    Ok(Some(PreImage { mutations, payload: Bytes::new() }))
}

/// The name of a write's pre-image clone. It contains the PG's index, because clones of a PG must
/// not be taken for those of one that was split off it.
fn pre_image_name(pg: atoll_types::PgId, version: Version) -> ObjectName {
    let name = format!("{PRE_IMAGE_PREFIX}{:x}.{}", pg.index, version.sequence);
    ObjectName::new(&name).expect("the name is short")
}
