//! Events that every role handles: records and targets from cluster state, connections, time, and
//! messages of other OSDs.

use atoll_types::records::PgRecord;
use atoll_types::{Epoch, Mutation, OsdId, Refusal, SharedTransaction, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView};
use crate::backfill::Answer;
use crate::config::{PgState, PoolPolicy};
use crate::erasure::{Erasure, Replaced, Span};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::own_object;
use crate::peering::Peering;
use crate::peering::acceptance::Decision;
use crate::peering::promises::Promises;
use crate::primary_requests::{PrimaryRequest, Wanted};
use crate::replication::reads::{SpanAsker, SpanRead};
use crate::submissions::Submission;

impl Pg {
    /// Cluster state has this record of the PG now.
    pub fn set_record(&mut self, record: PgRecord, view: &impl ObjectView) {
        let age = |record: &PgRecord| (record.epoch, record.activated_epoch, record.pg_num);
        if age(&record) <= age(&self.config.record) {
            return;
        }
        let has_new_epoch = record.epoch > self.config.record.epoch;
        // Another primary may have proposed the same epoch. But then it was active, or it refused nothing.
        let goes_on = record.primary == self.config.record.primary
            && self.membership.proposed() == Some(record.epoch)
            && record.activated_epoch == self.config.record.activated_epoch;
        self.config.record = record;
        if has_new_epoch && !goes_on {
            // Another primary may have answered requests since that wait here.
            self.duplicates.begin_to_lead(self.config.record.epoch);
            self.refuse_waiting(&Refusal::NotPrimary);
        }
        self.membership.record_changed(&self.config.record, has_new_epoch, view.now_ms());
        self.follow_record_decision(view);
        self.promises.notice_lost_device(&self.config);
        if self.config.record.epoch > self.promises.epoch() {
            self.drop_staged();
        }
        if !self.config.is_primary() {
            if self.config.state != PgState::Member {
                self.step_down();
            }
        } else if has_new_epoch && self.config.state != PgState::Inactive {
            self.stop_serving();
        }
        self.advance(view);
        self.note_pg_num(view);
        self.start_waiting(view);
    }

    /// The members that the PG should have, the primary first, and the pool's policy.
    pub fn set_target(&mut self, target: Vec<OsdId>, policy: PoolPolicy, view: &impl ObjectView) {
        self.config.target = target;
        self.config.policy = policy;
        self.advance(view);
    }

    /// A connection to another OSD is ready.
    pub fn peer_up(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.membership.peer_up(osd);
        self.promises.ask_for_release(osd, self.config.id, &mut self.outbox);
        self.advance(view);
    }

    /// The connection to another OSD is lost, and everything that was in flight on it.
    pub fn peer_down(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.membership.peer_down(osd, view.now_ms());
        self.learners.remove(osd);
        self.reads.give_up(osd, &self.membership, &self.config, &mut self.outbox);
        if self.config.is_primary() && self.config.record.members.contains(&osd) {
            // Messages to it may be lost, so histories are compared again under a new epoch.
            self.restart_peering();
        }
        self.advance(view);
    }

    /// Some tens of milliseconds have passed, or a lease was renewed.
    pub fn tick(&mut self, view: &impl ObjectView) {
        match self.intake.take_refused() {
            Some(_) if self.leads() => self.restart_peering(),
            Some(leader) => {
                // The OSD that asked for a promise last may lead by now. The refused write may also
                // be from the time when this OSD led.
                let leader = self.promises.asked_by().unwrap_or(leader);
                let leader = if leader == self.config.me { self.config.record.primary } else { leader };
                // Before the promise is durable nothing may be said under it. A roll back ends with
                // the same message.
                if self.promises.is_durable() && !self.is_rolling_back() {
                    self.send_peer_info(leader, false, view);
                }
            }
            None => {}
        }
        self.with_promises(view, Promises::answer_if_released);
        self.with_erasure(view, Erasure::try_roll_back_again);
        self.move_staged_again(view);
        if let Some(erasure) = &mut self.erasure {
            erasure.pre_images.announce(&self.config, &self.log, &mut self.outbox);
        }
        self.delete_pre_images();
        self.note_quiet(view);
        self.continue_learners(view);
        self.advance(view);
        self.tell_if_stuck(view);
        self.refuse_after_long_waiting(view);
        self.delete_stray_copy(view);
        self.start_waiting(view);
    }

    /// Does the next step of this OSD's role. Safe to call at any time.
    pub(crate) fn advance(&mut self, view: &impl ObjectView) {
        if self.config.is_primary() {
            self.lead(view);
        } else {
            self.consider_takeover(view);
        }
    }

    /// A message from another OSD.
    pub fn message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        if self.promises.asked_by() == Some(from) {
            self.stray.heard_from_primary(view.now_ms());
        }
        match message {
            Message::Replicate { .. }
            | Message::Overwrite { .. }
            | Message::ReplicateAck { .. }
            | Message::RollBack { .. }
            | Message::Committed { .. } => {
                self.replication_message(from, message, view);
            }
            Message::PeerQuery { .. }
            | Message::PeerInfo { .. }
            | Message::Fenced { .. }
            | Message::FencedAck { .. }
            | Message::Undecided { .. } => {
                self.peering_message(from, message, view);
            }
            Message::PeerPush { .. }
            | Message::PeerPushed { .. }
            | Message::ObjectsQuery { .. }
            | Message::ObjectsReply { .. } => {
                self.backfill_message(from, message, view);
            }
            Message::ScrubQuery { .. }
            | Message::ScrubReply { .. }
            | Message::ObjectWanted { .. }
            | Message::ObjectPart { .. } => {
                self.scrub_message(from, message, view);
            }
            Message::CopyRead { epoch, tag, object, offset, length, asks_in_place, keeps, .. } => {
                // Under any epoch: the primary checks what it gets, and every read has an answer.
                let asker = SpanAsker::Primary { primary: from, epoch, tag, keeps };
                self.read_span(SpanRead { asker, object, offset, length, asks_in_place }, view);
            }
            Message::CopyReply { epoch, tag, result, in_place, payload, .. } => {
                self.copy_reply(epoch, tag, result, (in_place, payload), view);
            }
            Message::Read { .. }
            | Message::Write { .. }
            | Message::ReadReply { .. }
            | Message::WriteReply { .. }
            | Message::Ping { .. }
            | Message::Pong { .. }
            | Message::Traced { .. } => {}
        }
    }

    fn replication_message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::Replicate { epoch, transaction, committed, answered_below } => {
                if self.follows(from, epoch) {
                    self.note_answered(&transaction, answered_below);
                    self.replicate(from, epoch, transaction, committed, view);
                }
            }
            Message::Overwrite {
                epoch,
                transaction,
                committed,
                answered_below,
                offset,
                length,
                tag,
                is_difference,
            } => {
                if self.follows(from, epoch) {
                    self.note_answered(&transaction, answered_below);
                    let replaced = Replaced { span: Span::of(offset, length), is_difference };
                    self.overwrite((from, epoch), transaction, committed, (replaced, tag), view);
                }
            }
            Message::ReplicateAck { epoch, version, .. } => {
                if epoch == self.config.record.epoch && self.config.is_primary() {
                    self.refusals.takes(from);
                    self.acknowledged(from, version, view);
                }
            }
            Message::RollBack { epoch, head, .. } => {
                if self.follows(from, epoch) {
                    self.with_erasure(view, |erasure, context| erasure.begin_roll_back(head, context));
                }
            }
            Message::Committed { epoch, version, .. } => {
                if self.follows(from, epoch) {
                    self.log.note_committed(version.sequence);
                    self.forget_pre_images(version);
                }
            }
            _ => unreachable!("dispatched by kind"),
        }
    }

    fn peering_message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::PeerQuery {
                epoch,
                active_epoch,
                active_members,
                wants_log,
                shard,
                accepted_epoch,
                accepted_head,
                elsewhere_epoch,
                ..
            } => {
                let decision = Decision { epoch: accepted_epoch, head: accepted_head };
                self.config.elsewhere = self.config.elsewhere.max(elsewhere_epoch);
                self.asked(from, epoch, (active_epoch, &active_members), (wants_log, shard), decision, view);
            }
            Message::PeerInfo {
                epoch,
                head,
                committed_sequence,
                since_epoch,
                is_complete,
                log,
                shard,
                unreadable,
                elsewhere_epoch: elsewhere,
                ..
            } => {
                let answer = Answer {
                    head,
                    committed_sequence,
                    since_epoch,
                    is_complete,
                    log,
                    shard,
                    unreadable,
                    elsewhere,
                };
                self.peer_info(from, epoch, answer, view);
            }
            Message::Fenced { epoch, .. } => self.fenced(from, epoch),
            Message::FencedAck { epoch, .. } => self.released(from, epoch, view),
            Message::Undecided { epoch, .. } => self.primary_is_stuck(from, epoch, view),
            _ => unreachable!("dispatched by kind"),
        }
    }

    fn backfill_message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::PeerPush { epoch, tag, transaction } => {
                // While a stray copy is deleted nothing may be added to it.
                let is_wanted = self.follows(from, epoch) && !self.stray.has_begun() && !self.staged.is_whole();
                if is_wanted && self.intake.begin_part(epoch, tag) {
                    if self.is_split_again(&transaction, view) {
                        return self.intake.break_backfill(epoch, tag);
                    }
                    invariants::backfill_is_of_the_promised_epoch(self.promises.epoch(), epoch);
                    self.promises.note_completeness(&transaction);
                    if transaction.object == own_object() && transaction.mutations.contains(&Mutation::Remove) {
                        self.config.pg_num_noted = 0;
                    }
                    if self.note_staged(&transaction, (from, epoch, tag)) {
                        return self.submit(Submission::Staged { from, epoch, tag }, transaction);
                    }
                    if let Some(head) = transaction.reset_head() {
                        // A backfill begins, so writes up to `head` need no pre-images: if they had to
                        // be rolled back, the copy would be backfilled again.
                        self.forget_pre_images(head);
                        self.delete_pre_images();
                    }
                    self.submit(Submission::Push { from, epoch, tag }, transaction);
                }
            }
            Message::PeerPushed { epoch, tag, .. } => {
                if !self.scrub_pushed(from, epoch, tag, view) {
                    self.learner_pushed(from, epoch, tag, view);
                }
            }
            Message::ObjectsQuery { epoch, tag, after, .. } => {
                if self.follows(from, epoch) {
                    let request = PrimaryRequest { primary: from, epoch, tag };
                    let token = self.primary_requests.begin(Wanted::List, request, &mut self.outbox);
                    self.outbox.push(Action::ListObjects { token, after });
                }
            }
            Message::ObjectsReply { epoch, tag, objects, more, .. } => {
                self.learner_listed(from, epoch, tag, objects, more, view);
            }
            _ => unreachable!("dispatched by kind"),
        }
    }

    fn scrub_message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::ScrubQuery { epoch, tag, object, deep, .. } => {
                self.scrub_asked(from, epoch, tag, object, deep);
            }
            Message::ScrubReply { epoch, tag, finding, .. } => self.scrub_reply(from, epoch, tag, finding, view),
            Message::ObjectWanted { epoch, tag, object, .. } => self.object_wanted(from, epoch, tag, object),
            Message::ObjectPart { epoch, tag, transaction } => {
                self.object_part(from, epoch, tag, transaction, view)
            }
            _ => unreachable!("dispatched by kind"),
        }
    }

    /// Returns true if a message comes from the primary that this OSD follows: the one that asked for the promise
    /// in force.
    pub(crate) fn follows(&self, from: OsdId, epoch: Epoch) -> bool {
        epoch == self.promises.epoch() && self.promises.asked_by() == Some(from)
    }

    /// Notes the primary's knowledge of the answers that the client of a write has.
    fn note_answered(&mut self, transaction: &SharedTransaction, answered_below: u64) {
        if let Some(request) = transaction.log.last().and_then(|entry| entry.request) {
            self.duplicates.note_answered(request.session, answered_below);
        }
    }

    fn replicate(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        transaction: SharedTransaction,
        committed: Version,
        view: &impl ObjectView,
    ) {
        let [entry] = &transaction.log[..] else { return };
        let version = entry.version;
        if !self.takes_write(epoch, version) || self.is_split_again(&transaction, view) {
            return;
        }
        let write = (from, epoch, transaction);
        if let Some((primary, epoch, transaction)) = self.behind_overwrites(write) {
            self.submit_with_pre_image(Submission::Replica { primary, epoch, version }, transaction);
        }
        self.log.note_committed(committed.sequence);
        self.forget_pre_images(committed);
    }

    /// Returns true if a write of the primary that this OSD follows is the next of the history. A gap means that
    /// messages were lost with a connection; the next peering closes it.
    pub(crate) fn takes_write(&self, epoch: Epoch, version: Version) -> bool {
        let overwrites = self.erasure.as_ref().map(|erasure| &erasure.overwrites);
        let last = overwrites.and_then(|overwrites| overwrites.last_sequence(epoch));
        // What waits from other epochs is void and takes no room.
        let has_room = last.is_none() || overwrites.is_none_or(|overwrites| !overwrites.are_full());
        let is_next = version.sequence == last.unwrap_or(self.log.last_sequence()) + 1;
        is_next && has_room && self.intake.is_whole() && !self.stray.has_begun() && !self.staged.is_whole()
    }

    /// Another OSD is the primary now.
    fn step_down(&mut self) {
        self.config.state = PgState::Member;
        self.stop_serving();
        self.disown_in_flight();
        self.refuse_waiting(&Refusal::NotPrimary);
    }

    /// Another OSD continues the history, perhaps without the writes in flight here, and this OSD may lead again
    /// before it hears of that. Clients get an error that asks for a retry: the next primary recognises retries by
    /// the history.
    pub(crate) fn disown_in_flight(&mut self) {
        for write in self.log.take_in_flight() {
            self.reply_in_flight(&write, Err(Refusal::Undecided));
        }
    }

    /// Ends everything that is valid only in the configuration that was in force.
    fn stop_serving(&mut self) {
        if self.config.is_primary() {
            self.config.state = PgState::Inactive;
        }
        self.peering = Peering::default();
        self.learners.clear();
        self.scrub = None;
        self.is_splitting = false;
        self.abandon_operations();
    }

    /// Makes the members compare histories again, under a new epoch.
    pub(crate) fn restart_peering(&mut self) {
        self.stop_serving();
        self.membership.forget_proposed();
    }
}
