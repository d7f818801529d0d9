//! Clients' reads and writes, at the primary.

use atoll_base::limits::{PAYLOAD_BYTES_MAX, PG_IN_FLIGHT_MAX};
use atoll_base::operation::{FENCE_KEY_PREFIX, KEPT_OBJECT_PREFIX, PG_META_OBJECT};
use atoll_base::{
    BLOCK_BYTES, Condition, Epoch, LogEntry, Mutation, ObjectName, OsdId, ReadRequest, Refusal, RequestId,
    Touched, Transaction, Undo, Version, WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, Lookup, ObjectView};
use crate::coded::ClientRead;
use crate::group::{InFlight, Pg, PgState, ReadPurpose, meta_object};
use crate::retries::Known;
use crate::submissions::Submission;
use crate::waiting::{Waiting, WaitingRequest};

/// What became of an attempt to start a request.
pub(crate) enum Attempt {
    Done,
    MustWait(Box<WaitingRequest>),
}

impl Pg {
    /// A client wants to read.
    pub fn client_read(
        &mut self,
        client: ClientId,
        id: RequestId,
        object: ObjectName,
        request: ReadRequest,
        view: &impl ObjectView,
    ) {
        let sequence = id.sequence;
        if !self.is_primary() {
            return self.reply_read(client, sequence, Err(Refusal::NotPrimary), Bytes::new());
        }
        let checked = self.check_place(&object).and_then(|()| check_read(&request));
        if let Err(refusal) = checked {
            return self.reply_read(client, sequence, Err(refusal), Bytes::new());
        }
        self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Read(request)), view);
    }

    /// A client wants to write; `epoch` is the newest that it knew when it sent the request.
    pub fn client_write(
        &mut self,
        client: ClientId,
        id: RequestId,
        answered_below: u64,
        epoch: Epoch,
        request: WriteRequest,
        view: &impl ObjectView,
    ) {
        let sequence = id.sequence;
        if !self.is_primary() {
            return self.reply_written(client, sequence, Err(Refusal::NotPrimary));
        }
        if self.take_over_retry(client, id) {
            return;
        }
        if epoch < self.led_since {
            // Another primary led after it was sent, and may have refused another copy of it, of which
            // the history says nothing.
            return self.reply_written(client, sequence, Err(Refusal::NotPrimary));
        }
        self.retries.forget_below(id.session, answered_below);
        let checked = self
            .check_place(&request.object)
            .and_then(|()| self.check_clone_sources(&request))
            .and_then(|()| check_mutations(&request))
            .and_then(|()| request.check_size())
            .and_then(|()| check_meta_write(&request));
        if let Err(refusal) = checked {
            return self.reply_written(client, sequence, Err(refusal));
        }
        let object = request.object.clone();
        self.enqueue(WaitingRequest::new(client, sequence, object, Waiting::Write(id, request)), view);
    }

    /// Whether the request is known already; then it is answered, or will be, on this connection.
    fn take_over_retry(&mut self, client: ClientId, id: RequestId) -> bool {
        let askers = self.in_flight.iter_mut().filter_map(|write| write.asker.as_mut());
        if let Some(asker) = askers.into_iter().find(|(_, request)| *request == id) {
            asker.0 = client;
            return true;
        }
        let waiting = self.waiting.iter_mut().find(
            |waiting| matches!(&waiting.what, Waiting::Write(other, _) | Waiting::Refuse(other, ..) if *other == id),
        );
        if let Some(waiting) = waiting {
            waiting.client = client;
            return true;
        }
        if self.take_over_operation(client, id) {
            return true;
        }
        self.state == PgState::Active && self.answer_known(client, id)
    }

    /// Answers a request whose outcome is known.
    fn answer_known(&mut self, client: ClientId, id: RequestId) -> bool {
        let outcome = match self.retries.find(id) {
            Known::Nothing => return false,
            Known::Outcome(outcome) => outcome,
            Known::Stale => Err(Refusal::Invalid { detail: "this request was answered before".into() }),
        };
        self.reply_written(client, id.sequence, outcome);
        true
    }

    /// Whether what is committed here is the newest there is.
    pub(crate) fn may_read(&self, view: &impl ObjectView) -> bool {
        self.state == PgState::Active && self.holds_leases(view)
    }

    /// Whether all other members still help no other primary.
    fn holds_leases(&self, view: &impl ObjectView) -> bool {
        self.others().iter().all(|member| view.now_ms() < view.lease_held_until_ms(*member))
    }

    fn check_place(&self, object: &ObjectName) -> Result<(), Refusal> {
        if object.as_str().starts_with(KEPT_OBJECT_PREFIX) {
            return Err(Refusal::Invalid {
                detail: format!("names that begin with '{KEPT_OBJECT_PREFIX}' are the OSDs' own"),
            });
        }
        if self.has_place_for(object, self.pg_num()) {
            return Ok(());
        }
        if self.has_place_for(object, self.id.first_pg_num(self.policy.pg_num_first)) {
            // It went to a group that was split off; the client does not know of that yet.
            return Err(Refusal::NotPrimary);
        }
        Err(Refusal::Invalid { detail: format!("object '{object}' is not in placement group {}", self.id) })
    }

    fn check_places(&self, request: &WaitingRequest) -> Result<(), Refusal> {
        self.check_place(&request.object)?;
        match request.objects().find(|object| !self.has_place_for(object, self.pg_num())) {
            None => Ok(()),
            Some(source) => {
                let detail = format!("'{source}', which is to be cloned, is not in the same placement group");
                Err(Refusal::Invalid { detail })
            }
        }
    }

    fn check_clone_sources(&self, request: &WriteRequest) -> Result<(), Refusal> {
        for mutation in &request.mutations {
            if let Mutation::CloneFrom { source } = mutation
                && (request.object.as_str() == PG_META_OBJECT || source.as_str() == PG_META_OBJECT)
            {
                let detail = "a placement group's own object has no clones".into();
                return Err(Refusal::Invalid { detail });
            }
        }
        Ok(())
    }

    pub(crate) fn start(&mut self, request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        if self.state != PgState::Active {
            return Attempt::MustWait(Box::new(request));
        }
        // A first copy of it may have come to light in the log while it waited.
        if let Waiting::Write(id, _) = request.what
            && self.answer_known(request.client, id)
        {
            return Attempt::Done;
        }
        if let Err(refusal) = self.check_places(&request) {
            // It waited while the group was split, or clones what is in another group by now.
            self.refuse(request, refusal);
            return Attempt::Done;
        }
        let pg_num = self.pg_num_here(view);
        if pg_num > self.pg_num() && !request.objects().all(|object| self.has_place_for(object, pg_num)) {
            return Attempt::MustWait(Box::new(request));
        }
        if request.loading.is_some() {
            // One load at a time: asking again at every attempt would never come to an end.
            return Attempt::MustWait(Box::new(request));
        }
        match request.what {
            Waiting::Read(ref read) => {
                let must_wait = match *read {
                    ReadRequest::Data { offset, length } if self.is_coded(&request.object) => {
                        // A write that this OSD's store refused is with others, until they have taken it back.
                        self.history_broken.is_some() || self.is_read_locked(&request.object, offset, length)
                    }
                    _ => self.in_flight.iter().any(|write| write.shows_in(&request.object, read)),
                };
                if must_wait || !self.holds_leases(view) {
                    return Attempt::MustWait(Box::new(request));
                }
                if self.is_mending(&request.object) {
                    return Attempt::MustWait(Box::new(request));
                }
                // What is read of shards is loaded where it is read.
                let looks_at = if self.is_coded(&request.object) { &ReadRequest::Stat } else { read };
                if !view.is_read_loaded(self.id, &request.object, looks_at) {
                    let lookup = Lookup::Read { object: request.object.clone(), request: looks_at.clone() };
                    return self.load(request, lookup);
                }
                let WaitingRequest { client, sequence, object, what: Waiting::Read(read), .. } = request else {
                    unreachable!("matched above");
                };
                if let (true, ReadRequest::Data { offset, length }) = (self.is_coded(&object), &read) {
                    let (offset, length) = (*offset, *length);
                    self.start_coded_read(object, ClientRead { client, sequence, offset, length }, view);
                    return Attempt::Done;
                }
                let token = self.token();
                let purpose =
                    ReadPurpose::Client { client, sequence, object: object.clone(), request: read.clone() };
                self.reads.insert(token, purpose);
                self.actions.push_back(Action::Read { token, object, request: read });
                Attempt::Done
            }
            Waiting::Refuse(id, ref refusal, ref sources) => {
                // A fence is in the group's own object, everything else in this one and its source.
                let meta = matches!(refusal, Refusal::Fenced { .. }).then(meta_object);
                let rests_on = |object: &ObjectName| {
                    *object == request.object || Some(object) == meta.as_ref() || sources.contains(object)
                };
                if self.in_flight.iter().any(|write| rests_on(&write.object)) || !self.holds_leases(view) {
                    return Attempt::MustWait(Box::new(request));
                }
                let refusal = refusal.clone();
                if !refusal.is_retryable() {
                    // A copy of the request that comes later must not succeed.
                    let newest = Version { epoch: self.record.epoch, sequence: self.last_sequence };
                    self.retries.record(id, Err(refusal.clone()), newest);
                }
                self.refuse(request, refusal);
                Attempt::Done
            }
            Waiting::Write(..) => self.start_write(request, view),
        }
    }

    /// Whether no write can get its place in the history now.
    pub(crate) fn are_writes_held_up(&self, view: &impl ObjectView) -> bool {
        self.state != PgState::Active
            || self.in_flight.len() >= PG_IN_FLIGHT_MAX
            || !self.view_is_current()
            || self.history_broken.is_some()
            || !view.has_room(self.id)
            || self.is_splitting
    }

    /// Whether no write of an object can get its place in the history now.
    pub(crate) fn is_write_held_up(&self, object: &ObjectName, view: &impl ObjectView) -> bool {
        self.are_writes_held_up(view)
            // A fence would not be in the group that was split off.
            || object.as_str() == PG_META_OBJECT && self.pg_num_here(view) > self.pg_num()
            || self.learners.are_copying(object)
            || self.scrub_holds_write(object, view)
    }

    fn start_write(&mut self, request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        if self.is_write_held_up(&request.object, view) {
            return Attempt::MustWait(Box::new(request));
        }
        let Waiting::Write(_, write) = &request.what else { unreachable!("only writes come here") };
        let clones = write.mutations.iter().any(
            |mutation| matches!(mutation, Mutation::CloneFrom { source } if self.scrub_holds_write(source, view)),
        );
        if clones {
            return Attempt::MustWait(Box::new(request));
        }
        let looks_at = self.mutations_looked_at(write);
        if !view.is_write_loaded(self.id, &request.object, &write.conditions, looks_at) {
            let lookup = Lookup::Write {
                object: request.object.clone(),
                conditions: write.conditions.clone(),
                mutations: looks_at.to_vec(),
            };
            return self.load(request, lookup);
        }
        let WaitingRequest { client, object, what: Waiting::Write(id, write), .. } = request else {
            unreachable!("looked at above");
        };
        if self.is_coded(&object) {
            return match self.failed_condition(&write, view) {
                Some(refusal) => self.refuse_write((client, id), write, refusal, view),
                None => self.start_coded_write((client, id), write, view),
            };
        }
        let refusal = self.failed_condition(&write, view).or_else(|| {
            let (members, payload_bytes) = (&self.record.members, write.payload.len());
            view.check_write(self.id, members, &object, &write.mutations, payload_bytes).err()
        });
        if let Some(refusal) = refusal {
            return self.refuse_write((client, id), write, refusal, view);
        }
        let creates = !view.object_exists(self.id, &object);
        let undo = self.undo_of_fence(&write, view);
        self.order(Some((client, id)), write, creates, undo);
        Attempt::Done
    }

    /// Refuses a write that has not begun, when all that the refusal rests on is committed.
    pub(crate) fn refuse_write(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        refusal: Refusal,
        view: &impl ObjectView,
    ) -> Attempt {
        let sources = write.mutations.iter().filter_map(Mutation::clone_source).cloned().collect();
        let refuse = Waiting::Refuse(id, refusal, sources);
        self.start(WaitingRequest::new(client, id.sequence, write.object, refuse), view)
    }

    /// Of a write's mutations, those that look at more than the object as a whole. What is written to
    /// shards is elsewhere in them than in the object; the store loads it when it takes the write.
    fn mutations_looked_at<'a>(&self, write: &'a WriteRequest) -> &'a [Mutation] {
        match &write.mutations[..] {
            [Mutation::CloneFrom { .. }] => &write.mutations,
            _ if self.is_coded(&write.object) => &[],
            _ => &write.mutations,
        }
    }

    pub(crate) fn is_coded_write_loaded(&self, write: &WriteRequest, view: &impl ObjectView) -> bool {
        view.is_write_loaded(self.id, &write.object, &write.conditions, self.mutations_looked_at(write))
    }

    pub(crate) fn failed_condition(&self, write: &WriteRequest, view: &impl ObjectView) -> Option<Refusal> {
        let exists = || view.object_exists(self.id, &write.object);
        let value = |key: &Bytes| view.omap_value(self.id, &write.object, key);
        for (index, condition) in write.conditions.iter().enumerate() {
            let holds = match condition {
                Condition::ObjectExists => exists(),
                Condition::ObjectAbsent => !exists(),
                Condition::OmapExists { key } => value(key).is_some(),
                Condition::OmapAbsent { key } => value(key).is_none(),
                Condition::OmapEquals { key, value: expected } => value(key).as_ref() == Some(expected),
                Condition::PgNum { pg_num } => *pg_num == self.pg_num(),
                Condition::NotFenced { name, generation } => {
                    let fence = self.fence(name, view);
                    if fence > *generation {
                        return Some(Refusal::Fenced { generation: fence });
                    }
                    true
                }
            };
            if !holds {
                return Some(Refusal::ConditionFailed { index: index as u16 });
            }
        }
        None
    }

    fn fence(&self, name: &Bytes, view: &impl ObjectView) -> u64 {
        let key = [FENCE_KEY_PREFIX, name].concat();
        let value = view.omap_value(self.id, &meta_object(), &key);
        value.and_then(|value| Some(u64::from_be_bytes(value[..].try_into().ok()?))).unwrap_or(0)
    }

    /// Gives a write its place in the history and has every member make it durable.
    pub(crate) fn order(
        &mut self,
        asker: Option<(ClientId, RequestId)>,
        write: WriteRequest,
        creates: bool,
        undo: Option<Undo>,
    ) {
        let version = Version { epoch: self.record.epoch, sequence: self.last_sequence + 1 };
        let touched = Touched::by(&write.mutations);
        let request = asker.map(|(_, request)| request);
        let entry = LogEntry { version, request, object: write.object.clone(), touched: touched.clone(), undo };
        let transaction = Transaction {
            pg: self.id,
            object: write.object.clone(),
            mutations: write.mutations,
            payload: write.payload,
            payload_sealed: write.payload_sealed,
            log: vec![entry],
        };
        for member in self.others() {
            let message = Message::Replicate {
                epoch: self.record.epoch,
                transaction: transaction.clone(),
                committed: self.newest_committed(),
            };
            self.send(member, message);
        }
        self.replicate_to_learners(|_| transaction.clone());
        self.scrub_sees_write(&write.object);
        if let Some(request) = request {
            self.retries.record(request, Ok(()), version);
        }
        let missing = self.record.members.iter().copied().collect();
        self.in_flight.push_back(InFlight {
            version,
            object: write.object,
            touched,
            creates,
            asker,
            missing,
            span: None,
        });
        self.submit(Submission::Write { version }, transaction);
    }

    /// The newest write that all members have.
    pub(crate) fn newest_committed(&self) -> Version {
        let sequence = self.in_flight.front().map_or(self.last_sequence, |write| write.version.sequence - 1);
        Version { epoch: self.record.epoch, sequence }
    }

    /// A member has everything up to `version` durable.
    pub(crate) fn acknowledged(&mut self, member: OsdId, version: Version, view: &impl ObjectView) {
        for write in self.in_flight.iter_mut().take_while(|write| write.version <= version) {
            write.missing.remove(&member);
        }
        // While a member is away nothing is answered: the next peering decides.
        if self.state != PgState::Active {
            return;
        }
        let mut any_done = false;
        while self.in_flight.front().is_some_and(|write| write.missing.is_empty()) {
            let done = self.in_flight.pop_front().expect("looked at above");
            self.reply_write(&done, Ok(()));
            any_done = true;
        }
        if any_done {
            let committed = self.newest_committed();
            self.forget_undo(committed);
            self.start_waiting(view);
        }
        if self.is_splitting && self.in_flight.is_empty() {
            self.advance(view);
        }
    }

    /// This OSD's store did not take a write, so it took none behind it. Other members may have:
    /// peering decides, and the log tells a retry what became of it.
    pub(crate) fn abandon(&mut self, version: Version) {
        let first = self.in_flight.partition_point(|write| write.version < version);
        for write in self.in_flight.split_off(first) {
            if let Some((_, request)) = write.asker {
                self.retries.forget(request);
            }
            let refusal = self.inactive();
            self.reply_write(&write, Err(refusal));
        }
    }
}

fn check_read(request: &ReadRequest) -> Result<(), Refusal> {
    let problem = match request {
        ReadRequest::Data { offset, .. } if !offset.is_multiple_of(BLOCK_BYTES as u64) => "an unaligned read",
        ReadRequest::Data { offset, .. } if *offset > atoll_base::limits::OBJECT_BYTES_MAX => {
            "a read beyond the largest object"
        }
        ReadRequest::Data { length, .. } if *length as usize > PAYLOAD_BYTES_MAX => {
            "a read of more than one payload"
        }
        ReadRequest::OmapList { limit: 0, .. } => "a list of no entries",
        _ => return Ok(()),
    };
    Err(Refusal::Invalid { detail: problem.into() })
}

fn check_mutations(request: &WriteRequest) -> Result<(), Refusal> {
    if request.mutations.iter().all(Mutation::is_for_clients) {
        return Ok(());
    }
    Err(Refusal::Invalid { detail: "a mutation that only members may send each other".into() })
}

/// Clients may set fences in the group's own object, upwards only, and nothing else.
fn check_meta_write(write: &WriteRequest) -> Result<(), Refusal> {
    if write.object.as_str() != PG_META_OBJECT {
        return Ok(());
    }
    let is_fence = match (&write.conditions[..], &write.mutations[..]) {
        (
            [Condition::NotFenced { name, generation }]
            | [Condition::NotFenced { name, generation }, Condition::PgNum { .. }],
            [Mutation::OmapSet { key, value }],
        ) => key.strip_prefix(FENCE_KEY_PREFIX) == Some(&name[..]) && value[..] == generation.to_be_bytes(),
        _ => false,
    };
    if is_fence {
        return Ok(());
    }
    Err(Refusal::Invalid { detail: "clients may only set fences in a placement group's own object".into() })
}
