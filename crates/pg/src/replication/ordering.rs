//! From the queue into the history: when a request can start, the version that a write gets, and
//! the acknowledgements that complete it.

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{
    LogEntry, Mutation, ObjectName, OsdId, PreImage, ReadRequest, Refusal, RequestId, SharedTransaction, Touched,
    Transaction, Version, WriteRequest,
};
use atoll_wire::Message;

use crate::actions::{Action, ClientId, Examined, Lookup, ObjectView};
use crate::config::Configuration;
use crate::erasure::{ClientRead, pre_image_of_fence};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::own_object;
use crate::replication::admission::{check_places, failed_condition};
use crate::replication::log::InFlight;
use crate::replication::queue::{Waiting, WaitingRequest};
use crate::replication::reads::ReadPurpose;
use crate::submissions::Submission;

/// The outcome of an attempt to start a request.
pub(crate) enum Attempt {
    Done,
    MustWait(Box<WaitingRequest>),
}

impl Pg {
    /// Returns true if a read may be answered: this OSD is the active primary, and no other can be.
    pub fn may_read(&self, view: &impl ObjectView) -> bool {
        self.config.is_active() && self.config.holds_leases(view)
    }

    /// Starts a request if it can start now.
    pub(crate) fn start(&mut self, mut request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        if !self.config.is_active() {
            return Attempt::MustWait(Box::new(request));
        }
        // The history may show now that an earlier copy of it was done.
        if let Waiting::Write(id, _) = request.what
            && self.answer_known(request.client, id)
        {
            return Attempt::Done;
        }
        if let Some(known) = request.known.take()
            && !self.duplicates.know_all_after(known)
        {
            // Or not: it may be older than what is known here.
            self.refuse(request, Refusal::OutcomeUnknown);
            return Attempt::Done;
        }
        if let Err(refusal) = check_places(&request, &self.config) {
            // The PG was split while it waited: its object, or one that it clones, is in another
            // PG.
            self.refuse(request, refusal);
            return Attempt::Done;
        }
        let pg_num = self.config.pg_num_here(view);
        if pg_num > self.config.pg_num()
            && !request.objects().all(|object| self.config.has_place_for(object, pg_num))
        {
            return Attempt::MustWait(Box::new(request));
        }
        if request.loading.is_some() {
            // One load at a time: loading again at every attempt would never end.
            return Attempt::MustWait(Box::new(request));
        }
        match request.what {
            Waiting::Read(_) => self.start_read(request, view),
            Waiting::Refuse(..) => self.start_refusal(request, view),
            // Members may have a write that this store refused, until histories have been compared: it may be done yet.
            Waiting::Write(id, write) => match self.refusals.verdict(id).filter(|_| self.intake.is_whole()) {
                Some(refusal) => self.refuse_write((request.client, id), write, refusal, view),
                None => self.start_write(WaitingRequest { what: Waiting::Write(id, write), ..request }, view),
            },
        }
    }

    fn start_read(&mut self, request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        let Waiting::Read(read) = &request.what else { unreachable!("only reads come here") };
        if let ReadRequest::ObjectList { pg_num: Some(pg_num), .. } = read
            && *pg_num != self.config.pg_num_here(view)
        {
            // A split that is not known to all yet would hide objects from one list and the other.
            self.refuse(request, Refusal::ConditionFailed { index: 0 });
            return Attempt::Done;
        }
        let must_wait = match *read {
            ReadRequest::Data { offset, length, .. } | ReadRequest::Extents { offset, length }
                if self.config.is_erasure_coded(&request.object) =>
            {
                // Members may have a write that this OSD's store refused, until they roll it back.
                let erasure = self.erasure.as_ref();
                !self.intake.is_whole()
                    || erasure
                        .is_some_and(|erasure| erasure.is_read_locked(&request.object, offset, length, &self.log))
            }
            _ => self.log.shows_in(&request.object, read),
        };
        // A split that was just ordered moves objects that the view still shows.
        let is_split_unseen = self.is_splitting && !self.outbox.view_is_current();
        if must_wait || is_split_unseen || !self.config.holds_leases(view) {
            return Attempt::MustWait(Box::new(request));
        }
        if self.is_rewriting(&request.object) {
            return Attempt::MustWait(Box::new(request));
        }
        // A read of shards' data needs only the object's size here. Each shard's metadata is loaded where
        // the shard is read. Everything else is read from this copy.
        let looks_at = match read {
            ReadRequest::Data { .. } | ReadRequest::Extents { .. }
                if self.config.is_erasure_coded(&request.object) =>
            {
                &ReadRequest::Stat
            }
            read => read,
        };
        if !view.is_read_loaded(self.config.id, &request.object, looks_at) {
            let lookup = Lookup::Read { object: request.object.clone(), request: looks_at.clone() };
            return request.load(lookup, view.now_us(), &mut self.outbox);
        }
        invariants::read_begins_under_leases(self.may_read(view));
        let WaitingRequest { client, sequence, object, what: Waiting::Read(read), mut times, .. } = request else {
            unreachable!("looked at above");
        };
        times.started_us = view.now_us();
        if self.config.is_erasure_coded(&object)
            && let Some(read) = ClientRead::of((client, sequence), &read, times)
        {
            self.start_shard_read(object, read, view);
            return Attempt::Done;
        }
        let token = self.outbox.token();
        let began_at = self.log.newest(self.config.record.epoch);
        let purpose = ReadPurpose::Client {
            client,
            sequence,
            object: object.clone(),
            request: read.clone(),
            times,
            began_at,
        };
        self.reads.begin(token, purpose);
        self.outbox.push(Action::Read { token, object, request: read });
        Attempt::Done
    }

    fn start_refusal(&mut self, request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        let Waiting::Refuse(id, refusal, others) = &request.what else { unreachable!("only refusals come here") };
        // A fence is in the PG's own object; everything else rests on this object and those that it looks at.
        let meta = matches!(refusal, Refusal::Fenced { .. }).then(own_object);
        let rests_on = |object: &ObjectName| {
            *object == request.object || Some(object) == meta.as_ref() || others.contains(object)
        };
        if self.log.in_flight().any(|write| rests_on(&write.object)) || !self.config.holds_leases(view) {
            return Attempt::MustWait(Box::new(request));
        }
        invariants::read_begins_under_leases(self.may_read(view));
        let (id, refusal) = (*id, refusal.clone());
        if !refusal.is_retryable() {
            // A copy of the request that comes later must not succeed.
            let newest = Version { epoch: self.config.record.epoch, sequence: self.log.last_sequence() };
            self.duplicates.refuse(id, refusal.clone(), newest);
        }
        self.refuse(request, refusal);
        Attempt::Done
    }

    /// Returns true if no write can be ordered now.
    pub(crate) fn are_writes_held_up(&self, view: &impl ObjectView) -> bool {
        !self.config.is_active()
            || self.log.is_full()
            || !self.outbox.view_is_current()
            || !self.intake.is_whole()
            || !view.has_room(self.config.id)
            || self.is_splitting
    }

    /// Returns true if no write of an object can be ordered now.
    pub(crate) fn is_write_held_up(&self, object: &ObjectName, view: &impl ObjectView) -> bool {
        self.are_writes_held_up(view)
            // The new PG would not get a fence that is set after the split.
            || object.as_str() == PG_META_OBJECT && self.config.is_split_under_way(view)
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
        if self.config.is_erasure_coded(&request.object) {
            return self.start_loaded_shard_write(request, view);
        }
        let conditions = self.fences.needed_of(&write.conditions, &self.outbox);
        let (members, payload_bytes) = (&self.config.record.members, write.payload.len());
        let examined = view.examine_write(
            self.config.id,
            members,
            &request.object,
            conditions,
            &write.mutations,
            payload_bytes,
        );
        let Some(Examined { exists, check }) = examined else {
            let mutations = write.mutations.clone();
            return request.load_write(mutations, view, &mut self.outbox);
        };
        let WaitingRequest { client, what: Waiting::Write(id, write), .. } = request else {
            unreachable!("looked at above");
        };
        let failed = failed_condition(&write, &self.config, &mut self.fences, view);
        if let Some(refusal) = failed.or(check.err()) {
            return self.refuse_write((client, id), write, refusal, view);
        }
        let pre_image = match pre_image_of_fence(&write, &self.config, view) {
            Ok(pre_image) => pre_image,
            Err(refusal) => return self.refuse_write((client, id), write, refusal, view),
        };
        self.order(Some((client, id)), write, !exists, pre_image, view.now_us());
        Attempt::Done
    }

    /// Starts a write of an erasure-coded object, once the metadata that it looks at is in memory.
    fn start_loaded_shard_write(&mut self, request: WaitingRequest, view: &impl ObjectView) -> Attempt {
        let Waiting::Write(_, write) = &request.what else { unreachable!("only writes come here") };
        let looks_at = mutations_looked_at(write, &self.config);
        let conditions = self.fences.needed_of(&write.conditions, &self.outbox);
        if !view.is_write_loaded(self.config.id, &request.object, conditions, looks_at) {
            let looks_at = looks_at.to_vec();
            return request.load_write(looks_at, view, &mut self.outbox);
        }
        let WaitingRequest { client, what: Waiting::Write(id, write), .. } = request else {
            unreachable!("looked at above");
        };
        match failed_condition(&write, &self.config, &mut self.fences, view) {
            Some(refusal) => self.refuse_write((client, id), write, refusal, view),
            None => self.start_shard_write((client, id), write, view),
        }
    }

    /// Refuses a write, once everything that the refusal rests on is committed.
    pub(crate) fn refuse_write(
        &mut self,
        (client, id): (ClientId, RequestId),
        write: WriteRequest,
        refusal: Refusal,
        view: &impl ObjectView,
    ) -> Attempt {
        let others = write.other_objects().cloned().collect();
        let refuse = Waiting::Refuse(id, refusal, others);
        self.start(WaitingRequest::new(client, id.sequence, write.object, refuse), view)
    }

    /// Checks the invariants when a write of an object is ordered.
    pub(crate) fn check_order(&self, object: &ObjectName) {
        invariants::write_is_ordered_while_active(self.config.is_active(), self.outbox.view_is_current());
        invariants::object_stays_while_it_is_copied(object, self.learners.are_copying(object));
    }

    /// Orders a write: appends it to the history and has every member make it durable.
    pub(crate) fn order(
        &mut self,
        client_request: Option<(ClientId, RequestId)>,
        write: WriteRequest,
        creates: bool,
        pre_image: Option<PreImage>,
        now_us: u64,
    ) {
        self.check_order(&write.object);
        let version = self.log.next_version(self.config.record.epoch);
        let (epoch, committed) = (self.config.record.epoch, self.newest_committed());
        // The PG's own object is never copied as a whole: parts of it are each member's own.
        let touched = match write.object == own_object() {
            true => Touched::by(&write.mutations),
            false => Touched::by(&write.mutations).for_log(),
        };
        let request = client_request.map(|(_, request)| request);
        let entry = LogEntry {
            version,
            request,
            object: write.object.clone(),
            touched: touched.clone(),
            committed_sequence: committed.sequence,
            pre_image,
        };
        let transaction = SharedTransaction::from(Transaction {
            pg: self.config.id,
            object: write.object.clone(),
            mutations: write.mutations,
            payload: write.payload,
            payload_sealed: write.payload_sealed,
            log: vec![entry],
        });
        let answered_below = request.map_or(0, |request| self.duplicates.answered_below(request.session));
        for member in self.config.others() {
            let message =
                Message::Replicate { epoch, transaction: transaction.clone(), committed, answered_below };
            self.outbox.send(member, message);
        }
        let told = (epoch, committed, answered_below);
        self.learners.replicate(|_| transaction.clone(), told, &mut self.outbox);
        self.scrub_sees_write(&write.object);
        let missing = self.config.record.members.clone();
        self.log.order(InFlight {
            version,
            object: write.object,
            touched,
            creates,
            client_request,
            missing,
            span: None,
            ordered_us: now_us,
            late: Vec::new(),
        });
        self.submit_write(Submission::Write { version }, transaction);
    }

    /// The newest write that all members have.
    pub(crate) fn newest_committed(&self) -> Version {
        self.log.newest_committed(self.config.record.epoch)
    }

    /// A member has everything up to `version` durable.
    pub(crate) fn acknowledged(&mut self, member: OsdId, version: Version, view: &impl ObjectView) {
        self.log.acknowledge(member, version, view);
        // While a member is away nothing is answered; the next peering decides.
        if !self.config.is_active() {
            return;
        }
        let mut any_done = false;
        while let Some(mut done) = self.log.pop_committed() {
            invariants::write_is_answered_when_durable(done.version, &done.missing);
            self.tell_durable(&mut done);
            self.reply_in_flight(&done, Ok(()));
            any_done = true;
        }
        if any_done {
            let committed = self.newest_committed();
            self.forget_pre_images(committed);
            self.start_waiting(view);
        }
        if self.is_splitting && self.log.has_none_in_flight() {
            self.advance(view);
        }
    }

    /// This OSD's store refused a write, and with it all later ones. Other members may have them:
    /// peering decides, and a retry finds the outcome in the log.
    pub(crate) fn abandon(&mut self, version: Version) {
        for write in self.log.take_from(version) {
            self.reply_in_flight(&write, Err(Refusal::Undecided));
        }
    }
}

/// The mutations of a write for which metadata must be loaded. Offsets in a shard differ from
/// offsets in the object, so for shards the store loads it when it takes the write.
pub(crate) fn mutations_looked_at<'a>(write: &'a WriteRequest, config: &Configuration) -> &'a [Mutation] {
    match &write.mutations[..] {
        [Mutation::CloneFrom { .. }] => &write.mutations,
        _ if config.is_erasure_coded(&write.object) => &[],
        _ => &write.mutations,
    }
}
