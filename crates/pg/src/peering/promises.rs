//! Promises of an OSD to the primaries of a PG: to ignore lower epochs, and to help no new primary while a lease
//! binds it to the one before.

use std::collections::BTreeSet;

use atoll_types::limits::EPOCH_MAX;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, LogEntry, Mutation, OsdId, PgId, Refusal, Transaction};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::ObjectView;
use crate::config::{Configuration, PgState};
use crate::context::Context;
use crate::group::Pg;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::{
    BEFORE_KEY, BEHIND_KEY, DELETED_KEY, EPOCH_KEY, INCOMPLETE_KEY, MIXED_SHARDS, SHARD_KEY, behind_because,
    mark_of, own_change, own_object, set_before, set_epoch, set_shard,
};
use crate::peering::acceptance::Decision;
use crate::submissions::Submission;

/// Largest lead of cluster state's epochs over an OSD that is cut off from it: days of a PG that changes its
/// members all the time.
const EPOCHS_AHEAD_MAX: u64 = 1 << 20;
/// Least lead of the epochs of a cluster state that was put back over the promises of an OSD: they are raised by at
/// least twice as much.
const EPOCHS_RESTORED_MIN: u64 = 1 << 19;

/// Bytes of log entries in one answer: well below the control segment's limit.
const LOG_BYTES_PER_ANSWER: usize = 1 << 20;

pub(crate) struct Promises {
    /// The epoch promised: lower ones are not heeded.
    epoch: Epoch,
    /// The highest epoch whose promise is durable. Nothing is sent under a higher one.
    durable: Epoch,
    /// The first epoch promised since this OSD started.
    first_since_start: Option<Epoch>,
    /// Objects may differ from the history, so this copy does not prove which writes were acknowledged.
    is_torn: bool,
    /// The reason why the history, which the objects match, does not prove which writes were acknowledged.
    behind: Option<Incompleteness>,
    /// The epoch in which the PG was active elsewhere when this OSD deleted its copy; 0 if it has not.
    deleted_in: Epoch,
    /// The epoch promised before cluster state was put back, unless this copy was emptied since.
    before_restore: Option<Epoch>,
    /// This copy is about to match its history: no primary is answered before.
    holds_answers: bool,
    /// The primary that asked for the promise last, perhaps this OSD itself.
    asked_by: Option<OsdId>,
    /// True if that primary wants the log with the answer.
    wants_log: bool,
    /// The shard that this OSD holds, in an erasure-coded PG.
    shard: Option<u8>,
    /// The shard that this OSD holds as a member, according to the primary that asked last.
    wants_shard: Option<u8>,
    /// The primary that asked last has no answer yet.
    is_owed: bool,
    /// The primary that was answered last: it may serve reads under this OSD's lease. `None` before
    /// the first answer since the start, when it may be any OSD.
    answered: Option<OsdId>,
    has_answered: bool,
    /// No answer before this time of this OSD's clock, unless all of `bound_to` release it earlier.
    bound_until_ms: u64,
    /// OSDs that may serve reads under this OSD's lease and have not released it yet.
    bound_to: BTreeSet<OsdId>,
}

/// Effect of a promise on the PG after an event.
pub(crate) enum Effect {
    Nothing,
    /// The primary that asked last gets its answer; it may be this OSD.
    Answer {
        primary: OsdId,
        wants_log: bool,
    },
}

impl Promises {
    pub fn find(pg: PgId, view: &impl ObjectView) -> Self {
        let keys = [EPOCH_KEY, SHARD_KEY, INCOMPLETE_KEY, BEHIND_KEY, DELETED_KEY, BEFORE_KEY];
        let found = keys.map(|key| view.omap_value(pg, &own_object(), key));
        let is_cold = |value: &Result<_, Refusal>| *value == Err(Refusal::Busy);
        invariants::own_object_is_loaded(pg, !found.iter().any(is_cold));
        // Without its own object this copy is as good as lost.
        let is_unreadable = found.iter().any(Result::is_err);
        let [promised, shard, incomplete, behind, deleted, before] = found.map(Result::ok).map(Option::flatten);
        // The PG was split off here, from a copy that did not have the whole history.
        let is_left_over = promised.is_none() && view.pg_num(pg).is_some();
        // Nor does a promise count that nobody can have asked for.
        let promise = |value: &Bytes| Some(Epoch(u64::from_be_bytes(value[..].try_into().ok()?)));
        let epoch = promised.as_ref().and_then(promise).filter(|epoch| epoch.0 <= EPOCH_MAX);
        let is_damaged = is_unreadable || promised.is_some() && epoch.is_none();
        let epoch = epoch.unwrap_or(Epoch(0));
        let shard = shard.and_then(|value| value.first().copied());
        Promises {
            epoch,
            durable: epoch,
            first_since_start: None,
            is_torn: incomplete.is_some() || is_left_over || is_damaged,
            behind: behind.map(|value| behind_because(&value)),
            deleted_in: deleted.as_ref().and_then(promise).unwrap_or(Epoch(0)),
            before_restore: before.as_ref().and_then(promise),
            holds_answers: false,
            asked_by: None,
            shard,
            wants_shard: None,
            wants_log: false,
            is_owed: false,
            answered: None,
            has_answered: false,
            bound_until_ms: view.lease_granted_until_ms(None),
            bound_to: BTreeSet::new(),
        }
    }

    /// The epoch promised.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if this OSD has run since it promised this epoch. It has all writes that it acknowledged
    /// meanwhile: no device forgets while its OSD runs.
    pub fn runs_since(&self, epoch: Epoch) -> bool {
        self.first_since_start.is_some_and(|first| first <= epoch)
    }

    /// The primary that asked for the promise last, perhaps this OSD itself.
    pub fn asked_by(&self) -> Option<OsdId> {
        self.asked_by
    }

    /// Returns true if objects of this copy may be missing or old.
    pub fn is_incomplete(&self) -> bool {
        self.incompleteness().is_some()
    }

    /// Why this copy does not count, if it does not.
    pub fn incompleteness(&self) -> Option<Incompleteness> {
        if self.is_torn { Some(Incompleteness::Torn) } else { self.behind }
    }

    /// The shard that this OSD holds, in an erasure-coded PG.
    pub fn shard(&self) -> Option<u8> {
        self.shard
    }

    /// Holds answers back until the copy matches its history, or releases them.
    pub fn hold_answers(&mut self, holds: bool) {
        self.holds_answers = holds;
    }

    /// Returns true if answers are held back.
    pub fn holds_answers(&self) -> bool {
        self.holds_answers
    }

    /// This copy does not count.
    pub fn note_incomplete(&mut self, why: Incompleteness) {
        match why {
            Incompleteness::Torn => self.is_torn = true,
            why => self.behind = self.behind.or(Some(why)),
        }
    }

    /// An operator has decided about this copy in this epoch. It counts if that `accepts` it.
    pub fn decided(&mut self, epoch: Epoch, accepts: bool) {
        invariants::decision_is_followed_once(self.epoch, epoch);
        self.epoch = epoch;
        self.is_owed = false;
        if accepts {
            (self.is_torn, self.behind, self.deleted_in) = (false, None, Epoch(0));
        }
    }

    /// The copy is deleted, so it is not incomplete any more. The PG was active elsewhere in this epoch.
    pub fn forget_copy(&mut self, active_elsewhere: Epoch) {
        (self.is_torn, self.behind) = (false, None);
        self.shard = None;
        self.deleted_in = active_elsewhere;
    }

    pub fn is_durable(&self) -> bool {
        self.durable == self.epoch
    }

    /// Returns true if a primary waits for an answer, perhaps this OSD itself.
    pub fn owes_answer(&self) -> bool {
        self.is_owed
    }

    /// Returns the reason why the answer waits, in words.
    pub fn waits_for(&self) -> String {
        let asked_by = self.asked_by.map_or("itself".into(), |osd| osd.to_string());
        if !self.is_durable() {
            return format!("its promise of epoch {} to {asked_by} is not durable", self.epoch.0);
        }
        if self.holds_answers {
            return format!("it owes {asked_by} an answer, and its copy is not finished");
        }
        format!("it owes {asked_by} an answer, and leases bind it to {:?}", self.bound_to)
    }

    /// Binds this OSD for as long as the primary that it answered may rely on it.
    fn bind(&mut self, me: OsdId, new_primary: OsdId, active_members: &[OsdId], view: &impl ObjectView) {
        match self.answered {
            Some(old) if old == new_primary => return,
            Some(old) => {
                self.bound_until_ms = self.bound_until_ms.max(view.lease_granted_until_ms(Some(old)));
                self.bound_to.insert(old);
            }
            // Before this OSD started it may have answered any of them.
            None if !self.has_answered => self.bound_to.extend(active_members),
            None => {}
        }
        self.answered = None;
        self.bound_to.remove(&me);
        self.bound_to.remove(&new_primary);
    }

    /// Every member of an active configuration has durably promised its epoch. If this OSD was one
    /// and has no such promise, it has lost its device, and everything acknowledged with it.
    pub fn notice_lost_device(&mut self, config: &Configuration) {
        let record = &config.record;
        if record.last_active_members.contains(&config.me) && self.epoch < record.activated_epoch {
            self.note_incomplete(Incompleteness::LacksPromise);
        }
        self.notice_older_state(config.me, config.electors(), record.activated_epoch);
    }

    /// A copy that was deleted because the PG was active elsewhere says nothing to a cluster state that does not
    /// know of that, because it was put back from an older snapshot.
    fn notice_older_state(&mut self, me: OsdId, electors: &[OsdId], active_epoch: Epoch) {
        if electors.contains(&me) && active_epoch < self.deleted_in {
            self.note_incomplete(Incompleteness::Deleted);
        }
    }

    /// The epoch in which the PG was active elsewhere when this OSD deleted its copy; 0 if it has not.
    pub fn deleted_in(&self) -> Epoch {
        self.deleted_in
    }

    /// The epoch promised before cluster state was put back, if `epoch` is one of a cluster state that was.
    fn before(&self, epoch: Epoch) -> Option<Epoch> {
        let is_raised = epoch.0 >= self.epoch.0.saturating_add(EPOCHS_RESTORED_MIN);
        if is_raised { Some(self.epoch) } else { self.before_restore }
    }

    /// Returns true if this OSD was no member when the PG was active in an epoch that cluster state, which was put back
    /// and has come to `epoch`, does not know: it has not promised it.
    pub fn has_missed(&self, elsewhere: Epoch, epoch: Epoch) -> bool {
        self.before(epoch).is_some_and(|before| before < elsewhere)
    }

    /// Returns true if this OSD's copy is as the record expects it: complete, and of the listed shard. An elector
    /// may have been backfilled with another shard and never have become a member with it.
    pub fn is_copy_usable(&self, config: &Configuration) -> bool {
        let listed = config.policy.shape.and_then(|_| config.record.shard_of(config.me));
        let is_of_other_shard = self.shard.is_some_and(|held| listed.is_some_and(|shard| shard != held));
        !self.is_incomplete() && !self.holds_answers && !is_of_other_shard
    }

    /// Makes a promise, unless it is made already, and answers when it may.
    fn promise(
        &mut self,
        epoch: Epoch,
        primary: OsdId,
        active_members: &[OsdId],
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        self.asked_by = Some(primary);
        self.is_owed = true;
        self.first_since_start.get_or_insert(epoch);
        if epoch == self.epoch {
            return self.answer_if_released(context);
        }
        self.bind(context.config.me, primary, active_members, context.view);
        invariants::promises_only_rise(self.epoch, epoch);
        let before = self.before(epoch);
        let is_first_after_restore = before != self.before_restore;
        self.before_restore = before;
        self.epoch = epoch;
        for osd in &self.bound_to {
            self.ask_for_release(*osd, context.config.id, context.outbox);
        }
        let mut mutations = vec![set_epoch(epoch)];
        mutations.extend(before.filter(|_| is_first_after_restore).map(set_before));
        let is_own = primary == context.config.me;
        let wanted = if is_own { context.config.record.shard_of(primary) } else { self.wants_shard };
        if let (Some(shard), None) = (wanted, self.shard) {
            // Without a note of its shard a complete copy has no objects yet. An incomplete one may
            // have some of another shard, from before a split that the member was told of late.
            let shard = if self.is_incomplete() { MIXED_SHARDS } else { shard };
            self.shard = Some(shard);
            mutations.push(set_shard(shard));
        }
        mutations.extend(self.incompleteness().map(mark_of));
        context.outbox.submit(Submission::Promise { epoch }, own_change(context.config.id, mutations));
        Effect::Nothing
    }

    /// Asks a former primary to release this OSD, if a lease binds it to that one.
    pub fn ask_for_release(&self, osd: OsdId, pg: PgId, outbox: &mut Outbox) {
        if self.bound_to.contains(&osd) {
            outbox.send(osd, Message::Fenced { pg, epoch: self.epoch });
        }
    }

    fn is_durable_up_to(&mut self, epoch: Epoch, context: &mut Context<'_, impl ObjectView>) -> Effect {
        self.durable = self.durable.max(epoch);
        self.answer_if_released(context)
    }

    /// A former primary has released this OSD.
    fn released(&mut self, from: OsdId, epoch: Epoch, context: &mut Context<'_, impl ObjectView>) -> Effect {
        if epoch == self.epoch && self.bound_to.remove(&from) {
            return self.answer_if_released(context);
        }
        Effect::Nothing
    }

    /// Answers the primary that asked last, once the promise is durable and no lease binds this
    /// OSD.
    pub fn answer_if_released(&mut self, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let is_bound = context.view.now_ms() < self.bound_until_ms && !self.bound_to.is_empty();
        if !self.is_owed || !self.is_durable() || is_bound || self.holds_answers {
            return Effect::Nothing;
        }
        invariants::answer_rests_on_a_durable_promise(self.is_durable(), is_bound);
        invariants::answer_rests_on_a_finished_copy(self.holds_answers);
        self.is_owed = false;
        let primary = self.asked_by.unwrap_or(context.config.me);
        self.answered = Some(primary);
        self.has_answered = true;
        self.bound_to.clear();
        Effect::Answer { primary, wants_log: self.wants_log }
    }

    /// Notes the writes to its own object by a primary that backfills this OSD: the mark that the copy is
    /// incomplete, and its shard.
    pub fn note_completeness(&mut self, transaction: &Transaction) {
        if transaction.object != own_object() {
            return;
        }
        for mutation in &transaction.mutations {
            match mutation {
                // Then all its keys are gone, and others come.
                Mutation::Remove => {
                    (self.behind, self.deleted_in, self.before_restore) = (None, Epoch(0), None);
                }
                Mutation::OmapSet { key, .. } if key[..] == *INCOMPLETE_KEY => self.is_torn = true,
                Mutation::OmapRemove { key } if key[..] == *INCOMPLETE_KEY => self.is_torn = false,
                Mutation::OmapRemove { key } if key[..] == *BEHIND_KEY => self.behind = None,
                Mutation::OmapSet { key, value } if key[..] == *SHARD_KEY => {
                    self.shard = value.first().copied();
                }
                _ => {}
            }
        }
    }
}

impl Pg {
    /// Hands an event to the promises, and carries out its effect.
    pub(crate) fn with_promises<V: ObjectView>(
        &mut self,
        view: &V,
        event: impl FnOnce(&mut Promises, &mut Context<'_, V>) -> Effect,
    ) {
        let Pg { promises, config, log, peering, outbox, .. } = self;
        let mut context = Context { config, log, peering, outbox, view };
        match event(promises, &mut context) {
            Effect::Nothing => {}
            Effect::Answer { primary, .. } if primary == self.config.me => {
                self.peering.own_promise = Some(self.promises.epoch);
                if self.promises.runs_since(self.config.record.activated_epoch) {
                    self.peering.witnesses.insert(primary);
                }
                self.advance(view);
            }
            Effect::Answer { primary, wants_log } => self.send_peer_info(primary, wants_log, view),
        }
    }

    /// A primary asks for the promise.
    pub(crate) fn asked(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        (active_epoch, active_members): (Epoch, &[OsdId]),
        (wants_log, wants_shard): (bool, Option<u8>),
        decision: Decision,
        view: &impl ObjectView,
    ) {
        self.promises.wants_shard = wants_shard;
        // Cluster state has accepted the epoch of a query, even if this OSD's record lags.
        if epoch < self.promises.epoch {
            // Only a later epoch will do. Its primary may not know of the one that was promised.
            let (pg, epoch) = (self.config.id, self.promises.epoch);
            return self.outbox.send(from, Message::Fenced { pg, epoch });
        }
        if epoch > self.credible_epoch() {
            // A promise of it would keep out every primary that cluster state knows.
            let known = self.config.record.epoch.0;
            return self
                .outbox
                .warn(format!("{from} asks for a promise of epoch {}, and {known} is known", epoch.0));
        }
        if decision.epoch <= epoch {
            self.follow_decision(decision, view);
        }
        if active_members.contains(&self.config.me) && self.promises.epoch < active_epoch {
            self.promises.note_incomplete(Incompleteness::LacksPromise);
        }
        // Of a PG that was never active, as this cluster state knows it, all members are electors.
        let this_one = [self.config.me];
        let electors = if active_epoch == Epoch(0) { &this_one[..] } else { active_members };
        self.promises.notice_older_state(self.config.me, electors, active_epoch);
        let is_elector = electors.contains(&self.config.me) && decision.epoch == Epoch(0);
        let elsewhere = self.config.elsewhere;
        if is_elector && elsewhere > active_epoch && self.promises.has_missed(elsewhere, epoch) {
            self.promises.note_incomplete(Incompleteness::Outdated);
        }
        self.promises.wants_log = wants_log;
        self.promise(epoch, from, active_members, view);
    }

    /// Promises an epoch, unless that is promised already, and ends everything that a higher one forbids.
    pub(crate) fn promise(
        &mut self,
        epoch: Epoch,
        primary: OsdId,
        active_members: &[OsdId],
        view: &impl ObjectView,
    ) {
        self.stray.stop();
        if epoch != self.promises.epoch {
            self.drop_staged();
            if primary != self.config.me && self.config.is_primary() && epoch > self.config.record.epoch {
                // Another OSD leads by cluster state, and this one has yet to see that record.
                self.restart_peering();
                self.disown_in_flight();
            }
            // The new primary decides what is rolled back.
            self.end_roll_back();
        }
        self.with_promises(view, |promises, context| promises.promise(epoch, primary, active_members, context));
    }

    /// The highest epoch that cluster state may have come to since this OSD heard of it last.
    fn credible_epoch(&self) -> Epoch {
        Epoch(self.config.record.epoch.max(self.promises.epoch).0.saturating_add(EPOCHS_AHEAD_MAX))
    }

    pub(crate) fn promise_is_durable(&mut self, epoch: Epoch, view: &impl ObjectView) {
        self.with_promises(view, |promises, context| promises.is_durable_up_to(epoch, context));
    }

    pub(crate) fn send_peer_info(&mut self, primary: OsdId, wants_log: bool, view: &impl ObjectView) {
        let mut log = if wants_log { newest_of(view.log(self.config.id)) } else { Vec::new() };
        log.iter_mut().for_each(|entry| entry.pre_image = None);
        let shard = self.promises.shard;
        let (epoch, head) = (self.promises.epoch, view.head(self.config.id));
        let is_complete = self.promises.is_copy_usable(&self.config);
        let (pg, unreadable) = (self.config.id, self.intake.take_unreadable());
        let committed_sequence = self.log.committed_sequence();
        // It answers a query, so it has promised an epoch.
        let since_epoch = self.promises.first_since_start.unwrap_or(epoch);
        let info = Message::PeerInfo {
            pg,
            epoch,
            head,
            committed_sequence,
            since_epoch,
            is_complete,
            log,
            shard,
            unreadable,
            elsewhere_epoch: self.promises.deleted_in(),
        };
        self.outbox.send(primary, info);
    }

    /// Another member has promised a higher epoch to another primary.
    pub(crate) fn fenced(&mut self, from: OsdId, epoch: Epoch) {
        // If cluster state does not come to that epoch by itself, this primary goes beyond it.
        self.membership.note_promised(epoch.min(self.credible_epoch()));
        if epoch > self.config.record.epoch && self.config.is_primary() && self.config.state != PgState::Inactive {
            // Another primary was elected. Its record is on the way.
            self.restart_peering();
        }
        self.outbox.send(from, Message::FencedAck { pg: self.config.id, epoch });
    }

    /// A former primary has released this OSD.
    pub(crate) fn released(&mut self, from: OsdId, epoch: Epoch, view: &impl ObjectView) {
        self.with_promises(view, |promises, context| promises.released(from, epoch, context));
    }
}

fn newest_of(mut log: Vec<LogEntry>) -> Vec<LogEntry> {
    let mut bytes = 0;
    let fits = log.iter().rev().take_while(|entry| {
        bytes += entry.encoded_bytes_bound();
        bytes <= LOG_BYTES_PER_ANSWER
    });
    let count = fits.count();
    log.split_off(log.len() - count)
}
