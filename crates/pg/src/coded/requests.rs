//! Clients' reads and writes of an erasure-coded group, at the primary.

use std::collections::BTreeMap;

use atoll_base::operation::{KEPT_OBJECT_PREFIX, PG_META_OBJECT};
use atoll_base::{
    LogEntry, Mutation, ObjectName, ReadOutcome, ReadRequest, Refusal, RequestId, Touched, Transaction, Undo,
    Version, WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use super::fetch::{Fetch, Operation, Parts, Purpose};
use super::parts::{Part, assemble, cut};
use super::shape::Span;
use super::update::{ShardChange, Update};
use crate::actions::{Action, ClientId, ObjectView, WholeObject};
use crate::client_requests::Attempt;
use crate::group::{InFlight, Pg, PgState};
use crate::submissions::Submission;
use crate::waiting::{Waiting, WaitingRequest};

/// A read of data that waits for shards.
pub(crate) struct ClientRead {
    pub client: ClientId,
    pub sequence: u64,
    pub offset: u64,
    pub length: u32,
}

/// A write that waits for what it replaces.
pub(crate) struct ClientWrite {
    pub client: ClientId,
    pub id: RequestId,
    pub write: WriteRequest,
    update: Update,
    /// What was there, once it has come.
    old: Option<BTreeMap<u8, Part>>,
}

impl Pg {
    /// Whether requests for an object go through shards.
    pub(crate) fn is_coded(&self, object: &ObjectName) -> bool {
        self.coded.is_some() && object.as_str() != PG_META_OBJECT
    }

    /// Whether a read of data must wait for something under way.
    pub(crate) fn is_read_locked(&self, object: &ObjectName, offset: u64, length: u32) -> bool {
        let shape = self.coded.as_ref().expect("it is coded").shape;
        let span = shape.span(offset, u64::from(length));
        span.is_some_and(|span| self.is_locked(object, span, false))
    }

    /// Reads the shards that have a range.
    pub(crate) fn start_coded_read(&mut self, object: ObjectName, read: ClientRead, view: &impl ObjectView) {
        let Some(whole) = view.whole_object(self.id, &object) else {
            return self.reply_read(read.client, read.sequence, Err(Refusal::NoSuchObject), Bytes::new());
        };
        let shape = self.coded.as_ref().expect("it is coded").shape;
        let length = whole.object_bytes.saturating_sub(read.offset).min(u64::from(read.length));
        let mut wanted: BTreeMap<u8, Span> = BTreeMap::new();
        for piece in shape.pieces(read.offset, length) {
            let span = wanted.entry(piece.shard).or_insert(piece.span());
            *span = span.hull(&piece.span());
        }
        let lock = shape.span(read.offset, length).unwrap_or(Span { start: 0, end: 0 });
        let fetch = Fetch::new(whole, wanted);
        let operation = Operation { object, lock, is_write: false, fetch, purpose: Purpose::Read(read) };
        self.begin_operation(operation, view);
    }

    pub(super) fn answer_read(
        &mut self,
        read: ClientRead,
        object: ObjectName,
        whole: WholeObject,
        result: Result<Parts, String>,
        view: &impl ObjectView,
    ) {
        let ClientRead { client, sequence, offset, length } = read;
        if !self.may_read(view) {
            // Another primary may have gone on since the shards were asked for.
            let waiting = Waiting::Read(ReadRequest::Data { offset, length });
            return self.enqueue(WaitingRequest::new(client, sequence, object, waiting), view);
        }
        match result {
            Ok(parts) => {
                let shape = self.coded.as_ref().expect("it is coded").shape;
                let (data, seals) = assemble(shape, &whole, (offset, u64::from(length)), &parts);
                let outcome = ReadOutcome::Data { object_bytes: whole.object_bytes, seals };
                self.reply_read(client, sequence, Ok(outcome), data);
            }
            Err(detail) => self.reply_read(client, sequence, Err(Refusal::Corrupt { detail }), Bytes::new()),
        }
    }

    /// Starts a write whose conditions hold: at once, or when what it replaces has been read.
    pub(crate) fn start_coded_write(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        view: &impl ObjectView,
    ) -> Attempt {
        let shape = self.coded.as_ref().expect("it is coded").shape;
        let whole = view.whole_object(self.id, &write.object);
        let update = match Update::plan(shape, whole, &write.mutations, &write.payload) {
            Ok(update) => update,
            Err(refusal) => return self.refuse_write((client, id), write, refusal, view),
        };
        if self.is_locked(&write.object, update.locked_span(), true) {
            let object = write.object.clone();
            let request = WaitingRequest::new(client, id.sequence, object, Waiting::Write(id, write));
            return Attempt::MustWait(Box::new(request));
        }
        let wanted = update.wanted();
        let Some(whole) = whole.filter(|_| !wanted.is_empty()) else {
            return self.order_coded((client, id), write, update, &BTreeMap::new(), view);
        };
        let (object, lock) = (write.object.clone(), update.locked_span());
        let purpose = Purpose::Write(Box::new(ClientWrite { client, id, write, update, old: None }));
        let operation = Operation { object, lock, is_write: true, fetch: Fetch::new(whole, wanted), purpose };
        self.begin_operation(operation, view);
        Attempt::Done
    }

    pub(super) fn old_bytes_are_there(&mut self, id: u64, result: Result<Parts, String>, view: &impl ObjectView) {
        let operation = self.operation(id);
        let (whole, wanted) = (operation.fetch.whole, operation.fetch.wanted.clone());
        let Purpose::Write(write) = &mut operation.purpose else { unreachable!("only writes come here") };
        match result {
            Ok(parts) => {
                let old = wanted.iter().map(|(shard, span)| (*shard, cut(&parts[shard], *span, whole.seal_shape)));
                write.old = Some(old.collect());
                self.coded.as_mut().expect("it is coded").ready.push_back(id);
                self.order_ready(view);
            }
            Err(detail) => {
                let (client, sequence) = (write.client, write.id.sequence);
                self.coded.as_mut().expect("it is coded").operations.remove(&id);
                self.reply_written(client, sequence, Err(Refusal::Corrupt { detail }));
                self.start_waiting(view);
            }
        }
    }

    /// Gives writes whose old bytes are there their place in the history, as far as that can be now.
    pub(crate) fn order_ready(&mut self, view: &impl ObjectView) {
        let Some(coded) = &mut self.coded else { return };
        if coded.ready.is_empty() {
            return;
        }
        for id in std::mem::take(&mut coded.ready) {
            let Some(operation) = self.coded.as_ref().and_then(|coded| coded.operations.get(&id)) else {
                continue;
            };
            let object = operation.object.clone();
            if self.is_write_held_up(&object, view) {
                self.coded.as_mut().expect("it is coded").ready.push_back(id);
                continue;
            }
            let operations = &mut self.coded.as_mut().expect("it is coded").operations;
            let operation = operations.remove(&id).expect("looked at above");
            let Purpose::Write(write) = operation.purpose else { unreachable!("only writes become ready") };
            self.order_one_ready(*write, operation.fetch.whole, view);
        }
    }

    fn order_one_ready(&mut self, ready: ClientWrite, seen: WholeObject, view: &impl ObjectView) {
        let ClientWrite { client, id, write, mut update, old } = ready;
        let is_loaded = self.is_coded_write_loaded(&write, view);
        let whole = if is_loaded { view.whole_object(self.id, &write.object) } else { None };
        // Other writes of the object may have gone before; where this one writes nothing has changed.
        let is_as_seen = whole.is_some_and(|whole| WholeObject { version: seen.version, ..whole } == seen);
        let (Some(whole), true) = (whole, is_as_seen) else {
            let object = write.object.clone();
            return self
                .enqueue(WaitingRequest::new(client, id.sequence, object, Waiting::Write(id, write)), view);
        };
        update.set_old_version(whole.version);
        let old = old.expect("a write is ready when it has what it replaces");
        let attempt = match self.failed_condition(&write, view) {
            Some(refusal) => self.refuse_write((client, id), write, refusal, view),
            None => self.order_coded((client, id), write, update, &old, view),
        };
        if let Attempt::MustWait(request) = attempt {
            self.enqueue(*request, view);
        }
    }

    fn order_coded(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        update: Update,
        old: &BTreeMap<u8, Part>,
        view: &impl ObjectView,
    ) -> Attempt {
        let version = Version { epoch: self.record.epoch, sequence: self.last_sequence + 1 };
        let span = update.locked_span();
        let coded = self.coded.as_ref().expect("it is coded");
        let changes = update.finish(&coded.code, old, kept_name(self.id, version));
        let own = &changes[usize::from(self.record.shard_of(self.me).expect("a primary holds a shard"))];
        let (members, payload_bytes) = (&self.record.members, own.payload.len());
        let is_own = |mutation: &&Mutation| !matches!(mutation, Mutation::KeepAs { .. });
        let checked: Vec<Mutation> = own.mutations.iter().filter(is_own).cloned().collect();
        if let Err(refusal) = view.check_write(self.id, members, &write.object, &checked, payload_bytes) {
            return self.refuse_write((client, id), write, refusal, view);
        }
        let touched = Touched::by(&write.mutations);
        let entry = LogEntry {
            version,
            request: Some(id),
            object: write.object.clone(),
            touched: touched.clone(),
            undo: None,
        };
        let creates = !view.object_exists(self.id, &write.object);
        let (pg, object, payload_sealed) = (self.id, write.object, write.payload_sealed);
        let transaction = |shard: u8| {
            let ShardChange { mutations, payload, undo } = changes[usize::from(shard)].clone();
            let log = vec![LogEntry { undo: Some(undo), ..entry.clone() }];
            Transaction { pg, object: object.clone(), mutations, payload, payload_sealed, log }
        };
        let (epoch, committed) = (self.record.epoch, self.newest_committed());
        for member in self.others() {
            let transaction = transaction(self.record.shard_of(member).expect("members hold shards"));
            self.send(member, Message::Replicate { epoch, transaction, committed });
        }
        self.replicate_to_learners(|shard| transaction(shard.expect("learners of a coded group have shards")));
        self.coded.as_mut().expect("it is coded").told = committed;
        self.scrub_sees_write(&object);
        self.retries.record(id, Ok(()), version);
        let missing = self.record.members.iter().copied().collect();
        let asker = Some((client, id));
        let own = transaction(self.record.shard_of(self.me).expect("a primary holds a shard"));
        self.in_flight.push_back(InFlight { version, object, touched, creates, asker, missing, span: Some(span) });
        self.submit_undoable(Submission::Write { version }, own);
        Attempt::Done
    }

    /// A shard of an object is put right: writes that have read what was there read it again.
    pub(super) fn restart_writes(&mut self, object: &ObjectName) {
        let Some(coded) = &mut self.coded else { return };
        let of_object = |_: &u64, operation: &mut Operation| operation.is_write && operation.object == *object;
        let restarted: BTreeMap<u64, Operation> = coded.operations.extract_if(.., of_object).collect();
        coded.asked.retain(|_, asked| !restarted.contains_key(&asked.operation()));
        coded.ready.retain(|id| !restarted.contains_key(id));
        for operation in restarted.into_values() {
            self.begin_anew(operation);
        }
    }

    /// Operations end with the configuration. What clients asked for begins anew under the next one.
    pub(crate) fn abandon_operations(&mut self) {
        let Some(coded) = &mut self.coded else { return };
        coded.asked.clear();
        coded.ready.clear();
        for operation in std::mem::take(&mut coded.operations).into_values() {
            self.begin_anew(operation);
        }
    }

    /// What a client asked for waits again; the rest is told that nothing comes of it.
    fn begin_anew(&mut self, operation: Operation) {
        let request = match operation.purpose {
            Purpose::Read(ClientRead { client, sequence, offset, length }) => {
                let waiting = Waiting::Read(ReadRequest::Data { offset, length });
                WaitingRequest::new(client, sequence, operation.object, waiting)
            }
            Purpose::Write(write) => {
                let ClientWrite { client, id, write, .. } = *write;
                WaitingRequest::new(client, id.sequence, operation.object, Waiting::Write(id, write))
            }
            Purpose::Fill(fill) => {
                return self.actions.push_back(Action::ReadToFill { begins: fill.order.begins, bytes: 0 });
            }
            Purpose::Examine(_) => return,
        };
        self.waiting.push_front(request);
    }

    /// A client has sent a request again that waits for what it replaces: the answer goes there.
    pub(crate) fn take_over_operation(&mut self, client: ClientId, id: RequestId) -> bool {
        let operations = self.coded.iter_mut().flat_map(|coded| coded.operations.values_mut());
        for operation in operations {
            if let Purpose::Write(write) = &mut operation.purpose
                && write.id == id
            {
                write.client = client;
                return true;
            }
        }
        false
    }

    /// Whether an object is about to change, so that it cannot be copied now.
    pub(crate) fn is_about_to_change(&self, object: &ObjectName) -> bool {
        self.is_coded(object) && {
            let mut operations = self.coded.iter().flat_map(|coded| coded.operations.values());
            // Otherwise all members have what is in flight: they are level.
            let is_written = || self.in_flight.iter().any(|write| write.object == *object);
            self.state == PgState::Active && is_written()
                || operations.any(|operation| operation.is_write && operation.object == *object)
        }
    }

    /// How a fence, which clients set in the group's own object, is taken back.
    pub(crate) fn undo_of_fence(&self, write: &WriteRequest, view: &impl ObjectView) -> Option<Undo> {
        self.coded.as_ref()?;
        let back = |mutation: &Mutation| match mutation {
            Mutation::OmapSet { key, .. } => Some(match view.omap_value(self.id, &write.object, key) {
                Some(value) => Mutation::OmapSet { key: key.clone(), value },
                None => Mutation::OmapRemove { key: key.clone() },
            }),
            _ => None,
        };
        Some(Undo { mutations: write.mutations.iter().filter_map(back).collect(), payload: Bytes::new() })
    }
}

/// Under which name a shard is kept as it was before a write. Groups that came from one by splits
/// share their names.
fn kept_name(pg: atoll_base::PgId, version: Version) -> ObjectName {
    let name = format!("{KEPT_OBJECT_PREFIX}{:x}.{}", pg.index, version.sequence);
    ObjectName::new(&name).expect("the name is short")
}
