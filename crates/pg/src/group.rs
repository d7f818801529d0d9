//! The state of a placement group on one member, and the events that every role handles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::records::PgRecord;
use atoll_base::{
    Epoch, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, RequestId, Touched, Transaction, Version,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ClientId, ObjectView, Token};
use crate::client_requests::WaitingRequest;
use crate::conflicts::read_sees;
use crate::peering::Peering;
use crate::retries::Retries;
use crate::sync::SyncJob;

/// What a group does, as this member sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PgState {
    /// Another member is the primary.
    Member,
    /// This member is the primary; it waits for members that it cannot reach, or for cluster
    /// state to accept a new epoch. Committed data can be read if the group was active before.
    Inactive,
    /// This member is the primary and brings all members level.
    Peering,
    /// This member is the primary and serves.
    Active,
}

/// A write that not all members have made durable yet.
pub(crate) struct InFlight {
    pub version: Version,
    pub object: ObjectName,
    pub touched: Touched,
    /// The object did not exist before.
    pub creates: bool,
    /// Who wants the answer, and its request's sequence.
    pub client: ClientId,
    pub request: RequestId,
    /// Members, this one included, that have not acknowledged yet.
    pub missing: BTreeSet<OsdId>,
}

impl InFlight {
    /// Whether a read would show something of this write.
    pub fn shows_in(&self, object: &ObjectName, read: &ReadRequest) -> bool {
        self.object == *object && (self.creates || read_sees(read, &self.touched))
    }
}

/// Why something was submitted to the store.
pub(crate) enum Submission {
    /// A client's write, at the primary.
    Write { version: Version },
    /// A client's write, at another member.
    Replica { primary: OsdId, epoch: Epoch, version: Version },
    /// The promise not to heed lower epochs.
    Promise { epoch: Epoch, asked_by: Option<OsdId> },
    /// What this member lacked.
    Sync { from: OsdId, epoch: Epoch, is_last: bool },
    /// A damaged block written anew.
    Repair,
}

/// Why something was read from the store.
pub(crate) enum ReadPurpose {
    Client {
        client: ClientId,
        sequence: u64,
        object: ObjectName,
        request: ReadRequest,
    },
    /// For a primary whose own copy is damaged.
    Copy {
        primary: OsdId,
        epoch: Epoch,
        tag: u64,
    },
}

/// A read of a damaged range that goes from copy to copy.
pub(crate) struct CopyRead {
    /// The epoch under which it was asked for; the answer repeats it.
    pub epoch: Epoch,
    pub client: ClientId,
    pub sequence: u64,
    pub object: ObjectName,
    pub offset: u64,
    pub length: u32,
    pub damaged_blocks: Vec<u32>,
    pub copies_left: Vec<OsdId>,
}

/// One placement group on one member.
pub struct Pg {
    pub(crate) id: PgId,
    pub(crate) me: OsdId,
    pub(crate) pg_num: u32,
    pub(crate) record: PgRecord,
    pub(crate) state: PgState,
    /// Lower epochs are not heeded; durable before anything is said under it.
    pub(crate) promised: Epoch,
    /// The epoch that this member proposed as primary since it started.
    pub(crate) proposed: Option<Epoch>,
    pub(crate) reachable: BTreeSet<OsdId>,
    pub(crate) peering: Peering,
    pub(crate) sync_jobs: BTreeMap<OsdId, SyncJob>,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) waiting: VecDeque<WaitingRequest>,
    pub(crate) retries: Retries,
    /// Whether this member was the active primary since it started; then its committed data may
    /// be read while it waits for members.
    pub(crate) was_active: bool,
    pub(crate) submissions: BTreeMap<Token, Submission>,
    pub(crate) reads: BTreeMap<Token, ReadPurpose>,
    /// Reads for other members that wait until what they look at is loaded.
    pub(crate) copies_loading: BTreeMap<Token, (ReadPurpose, ObjectName, ReadRequest)>,
    pub(crate) copy_reads: BTreeMap<u64, CopyRead>,
    /// Sequence of the newest write submitted to the store.
    pub(crate) last_sequence: u64,
    /// The store did not take a part of the history; whoever leads the group must know, so that
    /// histories are compared anew.
    history_broken: Option<OsdId>,
    pub(crate) actions: VecDeque<Action>,
    /// Submissions that the shell has not taken yet; until then the view does not show them.
    submissions_not_taken: usize,
    next_token: u64,
}

/// The key in a group's own object under which a member keeps its promise not to heed lower epochs.
pub const EPOCH_KEY: &[u8] = b"epoch";

pub(crate) fn meta_object() -> ObjectName {
    ObjectName::new(PG_META_OBJECT).expect("the name is short")
}

impl Pg {
    /// A group as this member finds it after a start: what its store holds, and the record in
    /// cluster state. The promise is looked up at once, so the shell has loaded the group's own
    /// object ([`PG_META_OBJECT`]) before.
    pub fn new(id: PgId, me: OsdId, pg_num: u32, record: PgRecord, view: &impl ObjectView) -> Self {
        let promised = view.omap_value(id, &meta_object(), EPOCH_KEY);
        let promised = promised.and_then(|value| Some(u64::from_be_bytes(value[..].try_into().ok()?)));
        let state = if record.primary == me { PgState::Inactive } else { PgState::Member };
        let mut pg = Pg {
            id,
            me,
            pg_num,
            record,
            state,
            promised: Epoch(promised.unwrap_or(0)),
            proposed: None,
            reachable: BTreeSet::new(),
            peering: Peering::default(),
            sync_jobs: BTreeMap::new(),
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            retries: Retries::default(),
            was_active: false,
            submissions: BTreeMap::new(),
            reads: BTreeMap::new(),
            copies_loading: BTreeMap::new(),
            copy_reads: BTreeMap::new(),
            last_sequence: view.head(id).sequence,
            history_broken: None,
            actions: VecDeque::new(),
            submissions_not_taken: 0,
            next_token: 1,
        };
        pg.advance_peering(view);
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

    /// The record in force, as far as this member knows.
    pub fn record(&self) -> &PgRecord {
        &self.record
    }

    /// The next thing to do. When there is nothing, call [`Pg::proceed`].
    pub fn next_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if matches!(action, Some(Action::Submit { .. })) {
            self.submissions_not_taken -= 1;
        }
        action
    }

    /// Starts requests that waited for earlier submissions to show in the view.
    pub fn proceed(&mut self, view: &impl ObjectView) {
        assert!(self.actions.is_empty(), "the shell takes all actions first");
        if self.state == PgState::Active {
            self.start_waiting(view);
        }
    }

    /// Whether the view shows everything submitted.
    pub(crate) fn view_is_current(&self) -> bool {
        self.submissions_not_taken == 0
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.record.primary == self.me
    }

    pub(crate) fn others(&self) -> Vec<OsdId> {
        self.record.members.iter().copied().filter(|member| *member != self.me).collect()
    }

    pub(crate) fn unreachable(&self) -> Vec<OsdId> {
        self.others().into_iter().filter(|member| !self.reachable.contains(member)).collect()
    }

    pub(crate) fn send(&mut self, to: OsdId, message: Message) {
        self.actions.push_back(Action::Send { to, message });
    }

    pub(crate) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    pub(crate) fn submit(&mut self, purpose: Submission, transaction: Transaction) {
        let token = self.token();
        if let Some(entry) = transaction.log.last() {
            self.last_sequence = entry.version.sequence;
        }
        self.submissions.insert(token, purpose);
        self.submissions_not_taken += 1;
        self.actions.push_back(Action::Submit { token, transaction });
    }

    /// Makes the promise not to heed lower epochs durable.
    pub(crate) fn submit_promise(&mut self, epoch: Epoch, asked_by: Option<OsdId>) {
        self.promised = epoch;
        self.stop_older_syncs(epoch);
        let value = Bytes::copy_from_slice(&epoch.0.to_be_bytes());
        let mutations = vec![Mutation::OmapSet { key: Bytes::from_static(EPOCH_KEY), value }];
        let transaction = Transaction {
            pg: self.id,
            object: meta_object(),
            mutations,
            payload: Bytes::new(),
            payload_sealed: false,
            log: Vec::new(),
        };
        self.submit(Submission::Promise { epoch, asked_by }, transaction);
    }

    // ---- events -----------------------------------------------------------------------------

    /// Cluster state says that this is the group's record now.
    pub fn set_record(&mut self, record: PgRecord, view: &impl ObjectView) {
        let is_newer = (record.epoch, record.activated_epoch) > (self.record.epoch, self.record.activated_epoch);
        if !is_newer {
            return;
        }
        self.record = record;
        if !self.is_primary() {
            self.state = PgState::Member;
            self.refuse_waiting();
        }
        self.advance_peering(view);
    }

    /// A connection to another OSD is ready.
    pub fn peer_up(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.reachable.insert(osd);
        self.advance_peering(view);
    }

    /// The connection to another OSD is lost, with whatever was in flight on it.
    pub fn peer_down(&mut self, osd: OsdId) {
        self.reachable.remove(&osd);
        self.sync_jobs.remove(&osd);
        self.give_up_copy_reads(osd);
        if self.is_primary() && self.record.members.contains(&osd) {
            // What was sent may be lost, so everything is compared anew under a new epoch.
            self.restart_peering();
        }
    }

    /// A second or so has passed: try again what may have failed quietly.
    pub fn tick(&mut self, view: &impl ObjectView) {
        match self.history_broken.take() {
            Some(leader) if leader == self.me => self.restart_peering(),
            Some(leader) => {
                let head = view.head(self.id);
                self.send(leader, Message::PeerInfo { pg: self.id, epoch: self.promised, head });
            }
            None => {}
        }
        self.peering.may_propose_again = true;
        self.retry_failed_syncs();
        self.advance_peering(view);
        self.start_waiting(view);
    }

    /// A message from another member.
    pub fn message(&mut self, from: OsdId, message: Message, view: &impl ObjectView) {
        match message {
            Message::Replicate { epoch, transaction } => self.replicate(from, epoch, transaction),
            Message::ReplicateAck { epoch, version, .. } => {
                if epoch == self.record.epoch && self.is_primary() {
                    self.acknowledged(from, version, view);
                }
            }
            Message::PeerQuery { epoch, .. } => {
                // A primary that asks under an epoch no lower than promised has been elected by
                // cluster state, even if this member's own view of the record lags.
                if epoch >= self.promised && self.record.members.contains(&from) {
                    self.submit_promise(epoch, Some(from));
                }
            }
            Message::PeerInfo { epoch, head, .. } => self.peer_info(from, epoch, head, view),
            Message::PeerFetch { epoch, after, .. } => {
                if epoch == self.promised {
                    self.start_sync(from, epoch, after, view);
                }
            }
            Message::PeerSync { epoch, transaction, is_last } => {
                if epoch == self.promised {
                    self.submit(Submission::Sync { from, epoch, is_last }, transaction);
                }
            }
            Message::PeerSynced { epoch, head, .. } => self.peer_synced(from, epoch, head, view),
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

    fn replicate(&mut self, from: OsdId, epoch: Epoch, transaction: Transaction) {
        let [entry] = &transaction.log[..] else { return };
        let version = entry.version;
        // A gap means that messages were lost with a connection; the next peering closes it.
        let follows = version.sequence == self.last_sequence + 1 && self.history_broken.is_none();
        if epoch == self.promised && follows {
            self.submit(Submission::Replica { primary: from, epoch, version }, transaction);
        }
    }

    /// A submission is durable.
    pub fn committed(&mut self, token: Token, view: &impl ObjectView) {
        match self.submissions.remove(&token).expect("commits belong to submissions") {
            Submission::Write { version } => self.acknowledged(self.me, version, view),
            Submission::Replica { primary, epoch, version } => {
                // The shell fills in whether the device is full.
                let ack = Message::ReplicateAck { pg: self.id, epoch, version, is_full: false };
                self.send(primary, ack);
            }
            Submission::Promise { epoch, asked_by: Some(primary) } => {
                if epoch == self.promised {
                    let head = view.head(self.id);
                    self.send(primary, Message::PeerInfo { pg: self.id, epoch, head });
                }
            }
            Submission::Promise { epoch, asked_by: None } => {
                self.peering.own_promise = Some(epoch);
                self.advance_peering(view);
            }
            Submission::Sync { from, epoch, is_last } => {
                let head = view.head(self.id);
                self.send(from, Message::PeerSynced { pg: self.id, epoch, head });
                if is_last && self.is_primary() {
                    self.peering.fetching_from = None;
                    self.advance_peering(view);
                }
            }
            Submission::Repair => {}
        }
    }

    /// The store did not take a submission.
    pub fn submit_failed(&mut self, token: Token, cause: &str, view: &impl ObjectView) {
        let leader = match self.submissions.remove(&token).expect("answers belong to submissions") {
            Submission::Repair => {
                let text = format!("pg {}: {} could not repair a damaged block: {cause}", self.id, self.me);
                return self.actions.push_back(Action::Warn { text });
            }
            _ if self.is_primary() => self.me,
            Submission::Replica { primary, .. } => primary,
            Submission::Sync { from, .. } => from,
            Submission::Promise { asked_by, .. } => asked_by.unwrap_or(self.me),
            Submission::Write { .. } => self.me,
        };
        // What follows cannot be taken either: the store refuses a gap.
        self.last_sequence = view.head(self.id).sequence;
        if self.history_broken.replace(leader).is_none() {
            let text = format!(
                "pg {}: the store of {} did not take a write ({cause}); the group waits until it does",
                self.id, self.me
            );
            self.actions.push_back(Action::Warn { text });
        }
    }

    /// Has the group compare histories anew under a new epoch.
    pub(crate) fn restart_peering(&mut self) {
        self.state = PgState::Inactive;
        self.proposed = None;
        self.peering = Peering::default();
        self.sync_jobs.clear();
        self.refuse_waiting();
    }

    pub(crate) fn inactive(&self) -> Refusal {
        let unreachable: Vec<String> = self.unreachable().iter().map(OsdId::to_string).collect();
        let detail = if unreachable.is_empty() {
            "members are being brought level".into()
        } else {
            format!("waiting for {}", unreachable.join(", "))
        };
        Refusal::Inactive { detail }
    }
}
