//! Membership: dropping members that are out of reach, taking over from a primary that is, adding
//! backfilled learners, moving to the target. Every change is a compare-and-swap of the PG's record
//! and raises its epoch.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::records::PgRecord;
use atoll_types::{Epoch, OsdId, Refusal};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView};
use crate::config::PgState;
use crate::group::Pg;
use crate::invariants;

/// Time for which a member must have been out of reach before the PG continues without it. Waiting for a
/// connection that comes back costs less than backfilling a member.
const GRACE_MS: u64 = 100;
/// The same for a member that this OSD has not reached since it started: when all start together,
/// some are slower.
const START_GRACE_MS: u64 = 3_000;
/// The same if too few members are left to serve. Others may continue without this OSD meanwhile.
const TOO_FEW_GRACE_MS: u64 = 10_000;
/// By how much later each next elector tries to take over, so that they do not all try at once.
const RANK_PAUSE_MS: u64 = 200;
/// How long a new primary that this OSD does not reach has to activate its configuration. Others
/// may reach it: without this pause, two OSDs that do not reach each other would depose each other
/// in turn, each before the other has served.
const NEW_PRIMARY_PATIENCE_MS: u64 = 1_000;
/// A proposal without an outcome after this time was lost, or another one won.
const PROPOSAL_PATIENCE_MS: u64 = 1_000;
/// Time without an outcome of its proposals after which a primary may be cut off from cluster state, and reports
/// that.
const UNDECIDED_PATIENCE_MS: u64 = 2_000;
/// How often it says that.
const STUCK_TOLD_EVERY_MS: u64 = 500;
/// For how long it counts.
const STUCK_COUNTS_MS: u64 = 1_500;
/// Time without a request for a promise after which a primary that this OSD reaches has not heard that it is
/// primary.
const UNAWARE_PATIENCE_MS: u64 = 2_000;
/// For how long it is then given no other epoch.
const PASSED_OVER_MS: u64 = 30_000;
/// For how long requests wait for a PG that is not active, before they are refused.
const INACTIVE_PATIENCE_MS: u64 = 2_000;

pub(crate) struct Membership {
    reachable: BTreeSet<OsdId>,
    /// Reachable OSDs that have said that their copy is incomplete.
    incomplete: BTreeSet<OsdId>,
    unreachable_since_ms: BTreeMap<OsdId, u64>,
    started_ms: u64,
    /// The epoch that this OSD proposed as primary since it started. It peers only under this one:
    /// under any other, messages of an earlier life of this OSD may be on their way.
    proposed: Option<Epoch>,
    /// The highest epoch that another member has said it promised. A lower one would get no answer from it.
    promised_by_others: Epoch,
    /// The newest configuration that this OSD knows to have been active.
    activated_epoch: Epoch,
    /// When this OSD heard of the epoch in force.
    epoch_since_ms: u64,
    /// When the proposal that is open was made.
    proposed_at_ms: Option<u64>,
    /// Since when no proposal has had an outcome.
    undecided_since_ms: Option<u64>,
    /// Time at which this primary last informed others that its proposals have no outcome.
    told_stuck_at_ms: Option<u64>,
    /// OSDs that have said so of theirs, and until when that counts.
    stuck_until_ms: BTreeMap<OsdId, u64>,
    /// Primaries that did nothing with an epoch, and until when none is given to them.
    passed_over_until_ms: BTreeMap<OsdId, u64>,
    /// The newest decision of an operator that this OSD has seen: earlier messages of the accepted copies are
    /// void.
    decided: Epoch,
    /// Since when the PG has been without an active primary here.
    inactive_since_ms: Option<u64>,
}

impl Membership {
    pub fn new(now_ms: u64) -> Self {
        Membership {
            reachable: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            unreachable_since_ms: BTreeMap::new(),
            started_ms: now_ms,
            proposed: None,
            promised_by_others: Epoch(0),
            activated_epoch: Epoch(0),
            epoch_since_ms: now_ms,
            proposed_at_ms: None,
            undecided_since_ms: None,
            told_stuck_at_ms: None,
            stuck_until_ms: BTreeMap::new(),
            passed_over_until_ms: BTreeMap::new(),
            decided: Epoch(0),
            inactive_since_ms: None,
        }
    }

    /// The epoch that this OSD proposed as primary since it started.
    pub fn proposed(&self) -> Option<Epoch> {
        self.proposed
    }

    /// The next peering needs a new epoch.
    pub fn forget_proposed(&mut self) {
        self.proposed = None;
    }

    /// Another member has promised this epoch.
    pub fn note_promised(&mut self, epoch: Epoch) {
        self.promised_by_others = self.promised_by_others.max(epoch);
    }

    /// An OSD's proposals have no outcome.
    fn note_stuck(&mut self, osd: OsdId, now_ms: u64) {
        self.stuck_until_ms.insert(osd, now_ms + STUCK_COUNTS_MS);
    }

    /// Returns true if an OSD has reported lately that its proposals have no outcome.
    pub fn is_stuck(&self, osd: OsdId, now_ms: u64) -> bool {
        self.stuck_until_ms.get(&osd).is_some_and(|until_ms| now_ms < *until_ms)
    }

    /// Returns true if an OSD should not be made primary now, because it may not hear of it.
    pub fn is_passed_over(&self, osd: OsdId, now_ms: u64) -> bool {
        self.is_stuck(osd, now_ms)
            || self.passed_over_until_ms.get(&osd).is_some_and(|until_ms| now_ms < *until_ms)
    }

    /// Returns true if this OSD has to report that now.
    fn begin_to_tell_stuck(&mut self, now_ms: u64) -> bool {
        let has_waited = |since_ms: u64| now_ms >= since_ms + UNDECIDED_PATIENCE_MS;
        let is_stuck = self.was_proposing(now_ms) && self.undecided_since_ms.is_some_and(has_waited);
        let is_due = self.told_stuck_at_ms.is_none_or(|told_ms| now_ms >= told_ms + STUCK_TOLD_EVERY_MS);
        if is_stuck && is_due {
            self.told_stuck_at_ms = Some(now_ms);
        }
        is_stuck && is_due
    }

    /// Returns true if a proposal is open.
    pub fn is_proposing(&self, now_ms: u64) -> bool {
        self.proposed_at_ms.is_some_and(|at_ms| now_ms < at_ms + PROPOSAL_PATIENCE_MS)
    }

    /// Returns true if a proposal is open, or would have been made again by now if it were still wanted.
    fn was_proposing(&self, now_ms: u64) -> bool {
        self.proposed_at_ms.is_some_and(|at_ms| now_ms < at_ms + 2 * PROPOSAL_PATIENCE_MS)
    }

    /// Returns true if a proposal made under the record in force may still win.
    pub fn has_undecided_proposal(&self) -> bool {
        self.proposed_at_ms.is_some()
    }

    /// Opens a proposal, unless one is open.
    pub fn begin_proposal(&mut self, now_ms: u64) -> bool {
        let may_begin = !self.is_proposing(now_ms);
        if may_begin {
            // What is proposed again and again has waited since the first time.
            if !self.was_proposing(now_ms) {
                self.undecided_since_ms = Some(now_ms);
            }
            self.proposed_at_ms = Some(now_ms);
        }
        may_begin
    }

    pub fn record_changed(&mut self, record: &PgRecord, has_new_epoch: bool, now_ms: u64) {
        self.proposed_at_ms = None;
        (self.undecided_since_ms, self.told_stuck_at_ms) = (None, None);
        // It is primary by its own proposal, or by that of one who has not heard of it for long enough.
        self.stuck_until_ms.remove(&record.primary);
        if has_new_epoch {
            self.epoch_since_ms = now_ms;
        }
        if let Some(accepted) = record.accepted.as_ref().filter(|accepted| accepted.epoch > self.decided) {
            self.decided = accepted.epoch;
            self.incomplete.retain(|osd| accepted.head_of(*osd).is_none());
        }
        if record.activated_epoch > self.activated_epoch {
            // A member of an active configuration has been backfilled since it said otherwise. The record
            // that said so may have been missed.
            self.activated_epoch = record.activated_epoch;
            self.incomplete.retain(|osd| !record.last_active_members.contains(osd));
        }
    }

    pub fn peer_up(&mut self, osd: OsdId) {
        self.reachable.insert(osd);
        self.unreachable_since_ms.remove(&osd);
    }

    pub fn peer_down(&mut self, osd: OsdId, now_ms: u64) {
        if self.reachable.remove(&osd) {
            self.incomplete.remove(&osd);
            self.unreachable_since_ms.insert(osd, now_ms);
        }
    }

    pub fn is_reachable(&self, osd: OsdId) -> bool {
        self.reachable.contains(&osd)
    }

    pub fn note_incomplete(&mut self, osd: OsdId) {
        self.incomplete.insert(osd);
    }

    /// A member has been backfilled since it said that it was incomplete.
    pub fn note_complete(&mut self, osd: OsdId) {
        self.incomplete.remove(&osd);
    }

    /// Returns true if the PG had no active primary at the last tick.
    pub fn counts_inactivity(&self) -> bool {
        self.inactive_since_ms.is_some()
    }

    /// Returns the time from which the PG may continue without an OSD.
    fn given_up_at_ms(&self, osd: OsdId, enough_are_left: bool) -> u64 {
        let since_ms = self.unreachable_since_ms.get(&osd).copied();
        match (since_ms, enough_are_left) {
            _ if self.incomplete.contains(&osd) => 0,
            (Some(since_ms), true) => since_ms + GRACE_MS,
            (None, true) => self.started_ms + START_GRACE_MS,
            (since_ms, false) => since_ms.unwrap_or(self.started_ms) + TOO_FEW_GRACE_MS,
        }
    }
}

impl Pg {
    /// Returns true if an OSD can be reached and its copy is complete.
    pub(crate) fn is_usable(&self, osd: OsdId) -> bool {
        if osd == self.config.me {
            return self.promises.is_copy_usable(&self.config);
        }
        self.membership.is_reachable(osd) && !self.membership.incomplete.contains(&osd)
    }

    /// At the primary: does the next step of the state.
    pub(crate) fn lead(&mut self, view: &impl ObjectView) {
        if !self.promises.is_copy_usable(&self.config) {
            self.config.state = PgState::Inactive;
            if self.staged.is_whole() {
                return;
            }
            // Another elector must lead, and has to hear that.
            return self.tell_electors(view);
        }
        let all_usable = self.config.record.members.iter().all(|member| self.is_usable(*member));
        match self.config.state {
            PgState::Active if all_usable => return self.move_towards_target(view),
            // The operator may lower min_size: then there are enough copies after all.
            PgState::Recovering if all_usable && !self.has_more_electors() && !self.config.may_serve() => {
                return self.move_towards_target(view);
            }
            PgState::Recovering => self.restart_peering(),
            PgState::Active | PgState::Peering if !all_usable => self.restart_peering(),
            PgState::Member => self.config.state = PgState::Inactive,
            _ => {}
        }
        // With a higher epoch promised, cluster state has gone on, and a newer record will come.
        let is_current = self.promises.epoch() <= self.config.record.epoch;
        if all_usable && is_current && self.membership.proposed == Some(self.config.record.epoch) {
            return self.peer(view);
        }
        self.propose_without_lost(view);
    }

    /// Returns true if an elector can be reached that is not a member and would add a copy. One that is being
    /// backfilled becomes a member by that, perhaps with another shard.
    fn has_more_electors(&self) -> bool {
        let members = &self.config.record.members;
        let adds = |elector: &OsdId| {
            self.config.copies_on(members.iter().chain([elector])) > self.config.copies_on(members)
        };
        let is_candidate = |elector: &OsdId| !members.contains(elector) && !self.learners.contains(*elector);
        let mut others = self.config.electors().iter().filter(|elector| is_candidate(elector));
        others.any(|elector| self.is_usable(*elector) && adds(elector))
    }

    /// Returns true if this primary may backfill others now.
    pub(crate) fn may_backfill_now(&self) -> bool {
        // Others may have a write that this OSD's store refused. Until they have rolled it back,
        // their shards do not fit this one.
        let has_refused_writes = self.erasure.is_some() && !self.intake.is_whole();
        !has_refused_writes && matches!(self.config.state, PgState::Active | PgState::Recovering)
    }

    fn tell_electors(&mut self, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        for elector in self.config.electors().to_vec() {
            if elector != self.config.me {
                self.send_peer_info(elector, false, view);
            }
        }
    }

    /// Proposes an epoch with the usable members and electors, once the others may be given up.
    fn propose_without_lost(&mut self, view: &impl ObjectView) {
        let mut known = self.config.record.members.clone();
        known
            .extend(self.config.electors().iter().filter(|elector| !self.config.record.members.contains(elector)));
        let (usable, lost): (Vec<OsdId>, Vec<OsdId>) = known.iter().partition(|osd| self.is_usable(**osd));
        // A PG with too few members to serve can still backfill others. All that was acknowledged
        // stays with the electors.
        let are_enough = self.config.copies_on(&usable) >= self.config.policy.min_size as usize;
        let must_wait = |osd: &OsdId| view.now_ms() < self.membership.given_up_at_ms(*osd, are_enough);
        let sources = usable.iter().filter(|osd| self.config.electors().contains(osd));
        let has_source = self.config.copies_on(sources) >= self.config.copies_needed();
        if !has_source || lost.iter().any(must_wait) {
            return;
        }
        self.propose(usable, self.config.me, view);
    }

    /// At a member: takes over if the primary has been out of reach for long enough.
    pub(crate) fn consider_takeover(&mut self, view: &impl ObjectView) {
        let primary = self.config.record.primary;
        let is_unaware = self.is_primary_unaware(view);
        let is_stuck = |osd: OsdId| self.membership.is_stuck(osd, view.now_ms()) || osd == primary && is_unaware;
        if self.is_usable(primary) && !is_stuck(primary) || !self.is_usable(self.config.me) {
            return;
        }
        let may_lead = |elector: &&OsdId| self.is_usable(**elector) && !is_stuck(**elector);
        let candidates = self.config.electors().iter().filter(may_lead);
        let Some(rank) = candidates.clone().position(|elector| *elector == self.config.me) else { return };
        let is_new = self.config.record.activated_epoch < self.config.record.epoch
            && !self.membership.is_reachable(primary);
        let patience_ms = if is_new { NEW_PRIMARY_PATIENCE_MS } else { 0 };
        // It has waited for long enough itself.
        let given_up_at_ms = if is_stuck(primary) { 0 } else { self.membership.given_up_at_ms(primary, true) };
        let from_ms = (self.membership.epoch_since_ms + patience_ms).max(given_up_at_ms);
        let at_ms = from_ms + rank as u64 * RANK_PAUSE_MS;
        if view.now_ms() >= at_ms {
            if is_unaware {
                let until_ms = view.now_ms() + PASSED_OVER_MS;
                self.membership.passed_over_until_ms.insert(primary, until_ms);
            }
            self.propose_without_lost(view);
        }
    }

    /// At a member: whether the primary has had time to ask for a promise of the epoch in force, and has not.
    pub(crate) fn is_primary_unaware(&self, view: &impl ObjectView) -> bool {
        self.awaits_query() && view.now_ms() >= self.membership.epoch_since_ms + UNAWARE_PATIENCE_MS
    }

    /// At a member: whether the primary has yet to ask for a promise of the epoch in force.
    pub(crate) fn awaits_query(&self) -> bool {
        self.config.record.members.contains(&self.config.me) && self.promises.epoch() < self.config.record.epoch
    }

    /// At a primary that serves nothing: informs others if cluster state does not answer it. They may reach that,
    /// and would wait for this OSD, which they reach.
    pub(crate) fn tell_if_stuck(&mut self, view: &impl ObjectView) {
        let stands_still = self.config.is_primary() && !self.config.is_active();
        if !stands_still || !self.membership.begin_to_tell_stuck(view.now_ms()) {
            return;
        }
        let (pg, epoch) = (self.config.id, self.config.record.epoch);
        for elector in self.config.electors().to_vec() {
            if elector != self.config.me {
                self.outbox.send(elector, Message::Undecided { pg, epoch });
            }
        }
    }

    /// An OSD reports that cluster state does not answer it. It may be primary by a record that it does not know.
    pub(crate) fn primary_is_stuck(&mut self, from: OsdId, epoch: Epoch, view: &impl ObjectView) {
        if epoch <= self.config.record.epoch {
            self.membership.note_stuck(from, view.now_ms());
            self.advance(view);
        }
    }

    /// An elector has a newer head, so it must lead.
    pub(crate) fn hand_over(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.propose(self.config.record.members.clone(), osd, view);
    }

    /// Proposes the same members under a new epoch, so that no earlier proposal can win.
    pub(crate) fn outdate_proposals(&mut self, view: &impl ObjectView) {
        self.propose(self.config.record.members.clone(), self.config.me, view);
    }

    fn propose(&mut self, members: Vec<OsdId>, primary: OsdId, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        let known = self.config.record.epoch.max(self.promises.epoch()).max(self.membership.promised_by_others);
        let epoch = Epoch(known.0 + 1);
        if primary == self.config.me {
            self.membership.proposed = Some(epoch);
        }
        let shards = self.learners.shards_of(&members, &self.config);
        let record = PgRecord { epoch, members, primary, shards, ..self.config.record.clone() };
        invariants::proposal_raises_the_epoch(epoch, self.config.record.epoch, self.promises.epoch());
        invariants::proposal_keeps_what_was_acknowledged(&self.config, &record.members);
        let is_ready = |osd: OsdId| self.learners.ready().any(|ready| ready == osd);
        invariants::proposal_adds_only_complete_copies(&self.config, &record.members, is_ready);
        invariants::record_is_well_formed(&record, self.config.policy.shape.map(|shape| shape.shards()));
        let (expected, record) = (Box::new(self.config.record.clone()), Box::new(record));
        self.outbox.push(Action::Propose { expected, record, split_off: None });
    }

    /// Puts into cluster state that all members have the same history.
    pub(crate) fn propose_activation(&mut self, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        let record = PgRecord {
            activated_epoch: self.config.record.epoch,
            last_active_members: self.config.record.members.clone(),
            last_active_shards: self.config.record.shards.clone(),
            accepted: None,
            ..self.config.record.clone()
        };
        // A member that was backfilled meanwhile has the split in its history and lacks the new PG. Once
        // it is an elector it may lead, so cluster state must have the split by then.
        self.propose_with_split(record, view);
    }

    /// While active or recovering: backfills targets that are no members, makes members of those
    /// that are complete, and drops members that are not on target.
    fn move_towards_target(&mut self, view: &impl ObjectView) {
        if self.config.is_active() && self.split(view) || !self.may_backfill_now() {
            return;
        }
        self.update_learners(view);
        let ready: Vec<OsdId> = self.learners.ready().collect();
        if !ready.is_empty() {
            return self.propose([&self.config.record.members[..], &ready].concat(), self.config.me, view);
        }
        let members = &self.config.record.members;
        let has_all_targets =
            !self.config.target.is_empty() && self.config.target.iter().all(|osd| members.contains(osd));
        if !has_all_targets {
            return;
        }
        if let Some(surplus) = self.config.surplus_member() {
            let rest = members.iter().copied().filter(|member| *member != surplus).collect();
            return self.propose(rest, self.config.me, view);
        }
        let wanted = self.config.members_wanted();
        let may_lead = |osd: &&OsdId| !self.membership.is_passed_over(**osd, view.now_ms());
        let Some(primary) = wanted.iter().find(may_lead).copied() else { return };
        if wanted != *members || self.config.record.primary != primary {
            self.propose(wanted, primary, view);
        }
    }

    /// Requests wait for a while, because a fail-over is short. Then they are refused.
    pub(crate) fn refuse_after_long_waiting(&mut self, view: &impl ObjectView) {
        if self.config.is_active() || !self.config.is_primary() {
            self.membership.inactive_since_ms = None;
            return;
        }
        let since_ms = *self.membership.inactive_since_ms.get_or_insert(view.now_ms());
        if view.now_ms() >= since_ms + INACTIVE_PATIENCE_MS {
            self.refuse_waiting(&self.inactive());
        }
    }

    pub(crate) fn inactive(&self) -> Refusal {
        let missing = self.config.record.members.iter().filter(|member| !self.is_usable(**member));
        let missing: Vec<String> = missing.map(OsdId::to_string).collect();
        let detail = if !self.config.may_serve() {
            let (members, min_size) = (self.config.record.members.len(), self.config.policy.min_size);
            format!("{members} copies of the {min_size} that the pool's min_size asks for")
        } else if missing.is_empty() {
            "members are peering".into()
        } else {
            format!("waiting for {}", missing.join(", "))
        };
        Refusal::Inactive { detail }
    }
}
