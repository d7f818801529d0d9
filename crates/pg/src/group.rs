//! The state of a placement group on one OSD, and the events that every role handles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::records::PgRecord;
use atoll_base::{
    Epoch, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, RequestId, Touched, Transaction, Version,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, Token};
use crate::coded::{Coded, Span, kept_clones};
use crate::conflicts::read_sees;
use crate::copies::CopyRead;
use crate::learners::{Answer, Learners};
use crate::membership::Membership;
use crate::peering::Peering;
use crate::promises::Promises;
use crate::purge::Purge;
use crate::retries::Retries;
use crate::scrub::Scrub;
use crate::submissions::Submission;
use crate::waiting::WaitingRequest;

/// What a group does, as this OSD sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgState {
    /// Another OSD is the primary; this one is a member, or holds a copy that is not one.
    Member,
    /// This OSD is the primary; it waits for members that it cannot reach, or for cluster state to
    /// accept a new configuration.
    Inactive,
    /// This OSD is the primary and brings all members level.
    Peering,
    /// This OSD is the primary and fills others, but there are too few members to serve.
    Recovering,
    /// This OSD is the primary and serves.
    Active,
}

/// What the pool says about its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPolicy {
    /// Placement groups that there should be in the pool.
    pub pg_num: u32,
    /// Placement groups that the pool was made with.
    pub pg_num_first: u32,
    /// Copies that there should be.
    pub size: u32,
    /// Copies without which nothing is served.
    pub min_size: u32,
    /// Whether OSDs that are not members yet are filled.
    pub may_backfill: bool,
    /// How objects are cut into shards, if the pool is erasure-coded.
    pub shape: Option<CodeShape>,
}

/// How objects of an erasure-coded pool are cut into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeShape {
    /// Data shards.
    pub data: u8,
    /// Parity shards.
    pub parity: u8,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

/// A write that not all members have made durable yet.
pub(crate) struct InFlight {
    pub version: Version,
    pub object: ObjectName,
    pub touched: Touched,
    /// The object did not exist before.
    pub creates: bool,
    /// Who wants the answer to which request; nobody if the group itself wrote.
    pub asker: Option<(ClientId, RequestId)>,
    /// Members, this one included, that have not acknowledged yet.
    pub missing: BTreeSet<OsdId>,
    /// In an erasure-coded group, where in the shards it writes.
    pub span: Option<Span>,
}

impl InFlight {
    /// Whether a read would show something of this write.
    pub fn shows_in(&self, object: &ObjectName, read: &ReadRequest) -> bool {
        self.object == *object && (self.creates || read_sees(read, &self.touched))
    }
}

/// Why something was read from the store.
pub(crate) enum ReadPurpose {
    Client {
        client: ClientId,
        sequence: u64,
        object: ObjectName,
        request: ReadRequest,
    },
    /// For something under way at this primary.
    Shard {
        tag: u64,
    },
    /// For a primary whose own copy is damaged.
    Copy {
        primary: OsdId,
        epoch: Epoch,
        tag: u64,
    },
}

/// One placement group on one OSD.
pub struct Pg {
    pub(crate) id: PgId,
    pub(crate) me: OsdId,
    pub(crate) policy: PoolPolicy,
    /// The members that the group should have, the primary first.
    pub(crate) target: Vec<OsdId>,
    pub(crate) record: PgRecord,
    pub(crate) state: PgState,
    pub(crate) promises: Promises,
    pub(crate) membership: Membership,
    pub(crate) peering: Peering,
    pub(crate) learners: Learners,
    pub(crate) purge: Purge,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) waiting: VecDeque<WaitingRequest>,
    pub(crate) retries: Retries,
    pub(crate) submissions: BTreeMap<Token, Submission>,
    pub(crate) reads: BTreeMap<Token, ReadPurpose>,
    /// Reads for other members that wait until what they look at is loaded.
    pub(crate) copies_loading: BTreeMap<Token, (ReadPurpose, ObjectName, ReadRequest)>,
    pub(crate) copy_reads: BTreeMap<u64, CopyRead>,
    /// Lists of this OSD's objects that a primary wants, with the question's epoch and tag.
    pub(crate) lists_for_primary: BTreeMap<Token, (OsdId, Epoch, u64)>,
    /// Objects that a primary wants examined or sent, with the question's epoch and tag.
    pub(crate) scrubs_for_primary: BTreeMap<Token, (OsdId, Epoch, u64)>,
    pub(crate) wanted_by: BTreeMap<Token, (OsdId, Epoch, u64)>,
    pub(crate) scrub: Option<Scrub>,
    /// What only an erasure-coded group has.
    pub(crate) coded: Option<Coded>,
    /// The epoch since which no other OSD has led the group, as long as this one does.
    pub(crate) led_since: Epoch,
    /// The group is to be split, so that no write begins.
    pub(crate) is_splitting: bool,
    /// Sequence of the newest write submitted to the store.
    pub(crate) last_sequence: u64,
    /// The store did not take a part of the history; whoever leads the group must know, so that
    /// histories are compared anew.
    pub(crate) history_broken: Option<OsdId>,
    /// A part of this filling was not taken, so that nothing behind it may count.
    pub(crate) broken_sync: Option<(Epoch, u64)>,
    pub(crate) actions: VecDeque<Action>,
    /// Submissions that the shell has not taken yet; until then the view does not show them.
    submissions_not_taken: usize,
    next_token: u64,
}

/// The key in a group's own object under which an OSD keeps its promise not to heed lower epochs.
pub const EPOCH_KEY: &[u8] = b"epoch";
/// The key there that says that objects are missing or old: the history is ahead of the data.
pub const INCOMPLETE_KEY: &[u8] = b"incomplete";

pub(crate) fn meta_object() -> ObjectName {
    ObjectName::new(PG_META_OBJECT).expect("the name is short")
}

impl Pg {
    /// A group as this OSD finds it after a start: what its store holds, and the record in cluster
    /// state. What the store keeps for the group is looked up at once, so the shell has loaded the
    /// group's own object ([`PG_META_OBJECT`]) before. Without a store's entry for the promise the
    /// OSD has never been a member, or has lost its device.
    pub fn new(
        id: PgId,
        me: OsdId,
        policy: PoolPolicy,
        target: Vec<OsdId>,
        record: PgRecord,
        view: &impl ObjectView,
    ) -> Self {
        let mut pg = Pg {
            id,
            me,
            policy,
            target,
            state: if record.primary == me { PgState::Inactive } else { PgState::Member },
            record,
            promises: Promises::find(id, view),
            membership: Membership::new(view.now_ms()),
            peering: Peering::default(),
            learners: Learners::default(),
            purge: Purge::default(),
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            retries: Retries::default(),
            submissions: BTreeMap::new(),
            reads: BTreeMap::new(),
            copies_loading: BTreeMap::new(),
            copy_reads: BTreeMap::new(),
            lists_for_primary: BTreeMap::new(),
            scrubs_for_primary: BTreeMap::new(),
            wanted_by: BTreeMap::new(),
            scrub: None,
            coded: policy.shape.map(|shape| Coded::new(shape, kept_clones(id, view))),
            led_since: Epoch::default(),
            is_splitting: false,
            last_sequence: view.head(id).sequence,
            history_broken: None,
            broken_sync: None,
            actions: VecDeque::new(),
            submissions_not_taken: 0,
            next_token: 1,
        };
        pg.notice_lost_device();
        pg.advance(view);
        pg
    }

    /// The group's name.
    pub fn id(&self) -> PgId {
        self.id
    }

    /// What the group does.
    pub fn state(&self) -> &PgState {
        &self.state
    }

    /// The record in force, as far as this OSD knows.
    pub fn record(&self) -> &PgRecord {
        &self.record
    }

    /// The OSDs that are being filled to become members, with the objects that each still lacks,
    /// as far as that is known.
    pub fn learners(&self) -> impl Iterator<Item = (OsdId, Option<usize>)> {
        self.learners.progress()
    }

    /// Objects that are being copied to those OSDs, of which some was sent and not all has arrived.
    pub fn objects_on_their_way(&self) -> usize {
        self.learners.objects_on_their_way()
    }

    /// Copies that there should be.
    pub fn size(&self) -> usize {
        self.policy.size as usize
    }

    /// Whether the members are those that the group should have.
    pub fn is_on_target(&self) -> bool {
        self.record.members == self.target && self.target.first() == Some(&self.record.primary)
    }

    /// The next thing to do. When there is nothing, call [`Pg::proceed`].
    pub fn next_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if matches!(action, Some(Action::Submit { .. })) {
            self.submissions_not_taken -= 1;
        }
        action
    }

    /// Starts what waited for earlier submissions to show in the view.
    pub fn proceed(&mut self, view: &impl ObjectView) {
        assert!(self.actions.is_empty(), "the shell takes all actions first");
        self.go_on_with_roll_back(view);
        self.start_learning(view);
        self.order_ready(view);
        self.start_waiting(view);
        self.go_on_with_scrub(view);
    }

    /// Whether the view shows everything submitted.
    pub(crate) fn view_is_current(&self) -> bool {
        self.submissions_not_taken == 0
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.record.primary == self.me
    }

    /// Whether this OSD is the primary, and has not promised an epoch that its record does not have
    /// yet: then another one leads.
    pub(crate) fn leads(&self) -> bool {
        self.is_primary() && self.promises.epoch <= self.record.epoch
    }

    pub(crate) fn others(&self) -> Vec<OsdId> {
        self.record.members.iter().copied().filter(|member| *member != self.me).collect()
    }

    pub(crate) fn send(&mut self, to: OsdId, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }

    pub(crate) fn warn(&mut self, text: String) {
        self.actions.push_back(Action::Warn { text: format!("pg {}: {text}", self.id) });
    }

    pub(crate) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    pub(crate) fn submit(&mut self, purpose: Submission, transaction: Transaction) {
        let token = self.token();
        let transaction = match transaction.reset_head() {
            Some(head) => {
                self.last_sequence = head.sequence;
                self.with_kept_removed(head, transaction)
            }
            None => transaction,
        };
        if let Some(entry) = transaction.log.last() {
            self.last_sequence = entry.version.sequence;
        }
        self.submissions.insert(token, purpose);
        self.submissions_not_taken += 1;
        self.actions.push_back(Action::Submit { token, transaction });
    }

    /// A change of the group's own object.
    pub(crate) fn own_change(&self, mutations: Vec<Mutation>) -> Transaction {
        Transaction {
            pg: self.id,
            object: meta_object(),
            mutations,
            payload: Bytes::new(),
            payload_sealed: false,
            log: Vec::new(),
        }
    }

    // ---- events -----------------------------------------------------------------------------

    /// Cluster state says that this is the group's record now.
    pub fn set_record(&mut self, record: PgRecord, view: &impl ObjectView) {
        let age = |record: &PgRecord| (record.epoch, record.activated_epoch, record.pg_num);
        if age(&record) <= age(&self.record) {
            return;
        }
        let has_new_epoch = record.epoch > self.record.epoch;
        let goes_on = record.primary == self.record.primary && self.membership.proposed == Some(record.epoch);
        self.record = record;
        if has_new_epoch && !goes_on {
            // What came before may have been answered by another primary since.
            self.led_since = self.record.epoch;
            self.refuse_waiting(&Refusal::NotPrimary);
        }
        self.membership.record_changed(&self.record, has_new_epoch, view.now_ms());
        self.notice_lost_device();
        if !self.is_primary() {
            if self.state != PgState::Member {
                self.step_down();
            }
        } else if has_new_epoch && self.state != PgState::Inactive {
            self.stop_serving();
        }
        self.advance(view);
        self.start_waiting(view);
    }

    /// The members that the group should have, the primary first, and what its pool says.
    pub fn set_target(&mut self, target: Vec<OsdId>, policy: PoolPolicy, view: &impl ObjectView) {
        self.target = target;
        self.policy = policy;
        self.advance(view);
    }

    /// A connection to another OSD is ready.
    pub fn peer_up(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.membership.peer_up(osd);
        self.ask_for_release(osd);
        self.advance(view);
    }

    /// The connection to another OSD is lost, with whatever was in flight on it.
    pub fn peer_down(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.membership.peer_down(osd, view.now_ms());
        self.learners.remove(osd);
        self.give_up_copy_reads(osd);
        if self.is_primary() && self.record.members.contains(&osd) {
            // What was sent may be lost, so everything is compared anew under a new epoch.
            self.restart_peering();
        }
        self.advance(view);
    }

    /// Some tens of milliseconds have passed, or a lease was renewed.
    pub fn tick(&mut self, view: &impl ObjectView) {
        match self.history_broken.take() {
            Some(_) if self.leads() => self.restart_peering(),
            Some(leader) => {
                // Another may lead by now: the one that asked last. What could not be taken may also be
                // from when this OSD led itself.
                let leader = self.promises.asked_by.unwrap_or(leader);
                let leader = if leader == self.me { self.record.primary } else { leader };
                // Nothing is said under a promise that is not durable, and who takes something back says what
                // is here when that is done.
                if self.promises.is_durable() && !self.is_taking_back() {
                    self.tell_what_is_here(leader, false, view);
                }
            }
            None => {}
        }
        self.answer_when_released(view);
        self.try_roll_back_again(view);
        self.tell_committed();
        self.remove_kept(1);
        self.go_on_with_learners(view);
        self.advance(view);
        self.refuse_after_long_waiting(view);
        self.purge(view);
        self.start_waiting(view);
    }

    /// Does whatever the group's role calls for. Safe to call at any time.
    pub(crate) fn advance(&mut self, view: &impl ObjectView) {
        if self.is_primary() {
            self.lead(view);
        } else {
            self.consider_takeover(view);
        }
    }

    /// A message from another OSD.
    pub fn message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::Replicate { epoch, transaction, committed } => {
                self.replicate(from, epoch, transaction, committed);
            }
            Message::ReplicateAck { epoch, version, .. } => {
                if epoch == self.record.epoch && self.is_primary() {
                    self.acknowledged(from, version, view);
                }
            }
            Message::RollBack { epoch, head, .. } => self.asked_to_roll_back(epoch, head, view),
            Message::Committed { epoch, version, .. } => {
                if epoch == self.promises.epoch {
                    self.forget_undo(version);
                }
            }
            Message::PeerQuery { epoch, active_epoch, active_members, wants_log, shard, .. } => {
                self.promises.wants_shard = shard;
                self.asked(from, epoch, (active_epoch, &active_members), wants_log, view);
            }
            Message::PeerInfo { epoch, head, is_complete, log, shard, .. } => {
                self.peer_info(from, epoch, Answer { head, is_complete, log, shard }, view);
            }
            Message::Fenced { epoch, .. } => self.fenced(from, epoch),
            Message::FencedAck { epoch, .. } => self.released(from, epoch, view),
            Message::PeerSync { epoch, tag, transaction } => {
                if epoch == self.promises.epoch && self.broken_sync != Some((epoch, tag)) {
                    self.note_completeness(&transaction);
                    self.submit(Submission::Sync { from, epoch, tag }, transaction);
                }
            }
            Message::PeerSynced { epoch, tag, .. } => {
                if !self.scrub_synced(from, epoch, tag, view) {
                    self.learner_synced(from, epoch, tag, view);
                }
            }
            Message::ScrubQuery { epoch, tag, object, deep, .. } => {
                self.scrub_asked(from, epoch, tag, object, deep);
            }
            Message::ScrubReply { epoch, tag, finding, .. } => self.scrub_reply(from, epoch, tag, finding, view),
            Message::ObjectWanted { epoch, tag, object, .. } => self.object_wanted(from, epoch, tag, object),
            Message::ObjectPart { epoch, tag, transaction } => self.object_part(from, epoch, tag, transaction),
            Message::ObjectsQuery { epoch, tag, after, .. } => {
                if epoch == self.promises.epoch {
                    let token = self.token();
                    self.lists_for_primary.insert(token, (from, epoch, tag));
                    self.actions.push_back(Action::ListObjects { token, after });
                }
            }
            Message::ObjectsReply { epoch, tag, objects, more, .. } => {
                self.learner_listed(from, epoch, tag, objects, more, view);
            }
            Message::CopyRead { epoch, tag, object, offset, length, .. } => {
                // Under any epoch: the primary checks what it gets, and every read has an answer.
                let purpose = ReadPurpose::Copy { primary: from, epoch, tag };
                self.read_when_loaded(purpose, object, ReadRequest::Data { offset, length }, view);
            }
            Message::CopyReply { epoch, tag, result, payload, .. } => {
                self.copy_reply(epoch, tag, result, payload, view);
            }
            Message::Read { .. }
            | Message::Write { .. }
            | Message::ReadReply { .. }
            | Message::WriteReply { .. }
            | Message::Ping { .. }
            | Message::Pong { .. } => {}
        }
    }

    fn replicate(&mut self, from: OsdId, epoch: Epoch, transaction: Transaction, committed: Version) {
        let [entry] = &transaction.log[..] else { return };
        let version = entry.version;
        // A gap means that messages were lost with a connection; the next peering closes it.
        let follows = version.sequence == self.last_sequence + 1 && self.history_broken.is_none();
        if epoch == self.promises.epoch && follows {
            self.submit_undoable(Submission::Replica { primary: from, epoch, version }, transaction);
            self.forget_undo(committed);
        }
    }

    /// Another OSD is the primary now.
    fn step_down(&mut self) {
        self.state = PgState::Member;
        self.stop_serving();
        self.disown_in_flight();
        self.refuse_waiting(&Refusal::NotPrimary);
    }

    /// Another OSD goes on with the history, perhaps without what is in flight here, and this one
    /// may lead again before it hears of that. What clients wait for they ask anew: a retry is
    /// recognised by the log, wherever it goes.
    pub(crate) fn disown_in_flight(&mut self) {
        self.retries.forget_successes();
        for write in std::mem::take(&mut self.in_flight) {
            self.reply_write(&write, Err(Refusal::NotPrimary));
        }
    }

    /// Ends whatever rests on the configuration that was in force.
    fn stop_serving(&mut self) {
        if self.is_primary() {
            self.state = PgState::Inactive;
        }
        self.peering = Peering::default();
        self.learners.clear();
        self.scrub = None;
        self.is_splitting = false;
        self.abandon_operations();
    }

    /// Has the group compare histories anew under a new epoch.
    pub(crate) fn restart_peering(&mut self) {
        self.stop_serving();
        self.membership.proposed = None;
    }
}
