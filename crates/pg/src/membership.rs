//! Who shall be a member: dropping those that cannot be reached, taking over from a primary that
//! cannot, adding those that have been filled, moving to where the group should be. Every change is
//! a compare-and-swap of the group's record and raises its epoch.

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::records::PgRecord;
use atoll_base::{Epoch, OsdId, Refusal};

use crate::actions::{Action, ObjectView};
use crate::group::{Pg, PgState};

/// For how long a member must have been out of reach before the group goes on without it. A
/// connection that comes back at once costs less than filling a member.
const GRACE_MS: u64 = 100;
/// The same for one that has not been seen since this OSD started: when all start together, some
/// are slower.
const START_GRACE_MS: u64 = 3_000;
/// The same if too few are left to serve. Others may go on without this OSD meanwhile.
const TOO_FEW_GRACE_MS: u64 = 10_000;
/// By how much later each next member tries to take over, so that they do not all try at once.
const RANK_PAUSE_MS: u64 = 200;
/// For how long a new primary that this OSD does not reach may bring its configuration into force.
/// Others may reach it: two that do not reach each other would else depose each other by turns, each
/// before the other has served.
const NEW_PRIMARY_PATIENCE_MS: u64 = 1_000;
/// A proposal that has led to nothing for so long was lost, or somebody else's won.
const PROPOSAL_PATIENCE_MS: u64 = 1_000;
/// For how long requests wait for a group that is not active, before their clients are told.
const INACTIVE_PATIENCE_MS: u64 = 2_000;

pub(crate) struct Membership {
    reachable: BTreeSet<OsdId>,
    /// Reachable OSDs that have said that their data is behind their history.
    incomplete: BTreeSet<OsdId>,
    unreachable_since_ms: BTreeMap<OsdId, u64>,
    started_ms: u64,
    /// The epoch that this OSD proposed as primary since it started: only under such a one it
    /// peers, because under any other it may have lived before.
    pub proposed: Option<Epoch>,
    /// When this OSD heard of the epoch in force.
    epoch_since_ms: u64,
    /// When a proposal was made that is still open.
    proposed_at_ms: Option<u64>,
    /// Since when the group has been without an active primary here.
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
            epoch_since_ms: now_ms,
            proposed_at_ms: None,
            inactive_since_ms: None,
        }
    }

    /// Whether a proposal is open.
    pub fn is_proposing(&self, now_ms: u64) -> bool {
        self.proposed_at_ms.is_some_and(|at_ms| now_ms < at_ms + PROPOSAL_PATIENCE_MS)
    }

    /// Opens a proposal, unless one is open.
    pub fn begin_proposal(&mut self, now_ms: u64) -> bool {
        let may_begin = !self.is_proposing(now_ms);
        if may_begin {
            self.proposed_at_ms = Some(now_ms);
        }
        may_begin
    }

    pub fn record_changed(&mut self, record: &PgRecord, has_new_epoch: bool, now_ms: u64) {
        self.proposed_at_ms = None;
        if has_new_epoch {
            self.epoch_since_ms = now_ms;
        }
        if record.activated_epoch == record.epoch {
            // Whoever is a member now was filled since it said otherwise.
            self.incomplete.retain(|osd| !record.members.contains(osd));
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

    /// A member that has been filled since it said that it was incomplete.
    pub fn note_complete(&mut self, osd: OsdId) {
        self.incomplete.remove(&osd);
    }

    /// Whether the group was without an active primary when it was last looked at.
    pub fn counts_inactivity(&self) -> bool {
        self.inactive_since_ms.is_some()
    }

    /// When the group may go on without an OSD.
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
    /// The members of the last configuration that was active: each of them has everything that was
    /// ever acknowledged.
    pub(crate) fn electors(&self) -> &[OsdId] {
        if self.record.activated_epoch == Epoch(0) {
            &self.record.members
        } else {
            &self.record.last_active_members
        }
    }

    /// Whether an OSD can be reached and has what its history says.
    pub(crate) fn is_usable(&self, osd: OsdId) -> bool {
        if osd == self.me {
            return !self.promises.is_incomplete;
        }
        self.membership.is_reachable(osd) && !self.membership.incomplete.contains(&osd)
    }

    /// At the primary: keeps the group going.
    pub(crate) fn lead(&mut self, view: &impl ObjectView) {
        if self.promises.is_incomplete {
            // Somebody else must lead; who can hears of it.
            self.state = PgState::Inactive;
            return self.tell_electors(view);
        }
        let all_usable = self.record.members.iter().all(|member| self.is_usable(*member));
        match self.state {
            PgState::Active if all_usable => return self.improve(view),
            // Once the pool's min_size is less, there are enough.
            PgState::Recovering if all_usable && !self.has_more_electors() && !self.may_serve() => {
                return self.improve(view);
            }
            PgState::Recovering => self.restart_peering(),
            PgState::Active | PgState::Peering if !all_usable => self.restart_peering(),
            PgState::Member => self.state = PgState::Inactive,
            _ => {}
        }
        // A promise of more: cluster state has gone on, and its records come one after the other.
        let is_current = self.promises.epoch <= self.record.epoch;
        if all_usable && is_current && self.membership.proposed == Some(self.record.epoch) {
            return self.peer(view);
        }
        self.propose_without_lost(view);
    }

    /// Whether somebody who has everything is there and not a member.
    fn has_more_electors(&self) -> bool {
        let members = &self.record.members;
        let adds = |elector: &OsdId| self.copies_on(members.iter().chain([elector])) > self.copies_on(members);
        let mut others = self.electors().iter().filter(|elector| !members.contains(elector));
        others.any(|elector| self.is_usable(*elector) && adds(elector))
    }

    /// Whether there are members enough to serve.
    pub(crate) fn may_serve(&self) -> bool {
        self.copies_on(&self.record.members) >= self.policy.min_size as usize
    }

    /// Whether this primary fills others now.
    pub(crate) fn fills_learners(&self) -> bool {
        // What this OSD's store refused is with others, until they have taken it back: shards do not fit.
        let is_torn = self.coded.is_some() && self.history_broken.is_some();
        !is_torn && matches!(self.state, PgState::Active | PgState::Recovering)
    }

    fn tell_electors(&mut self, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        for elector in self.electors().to_vec() {
            if elector != self.me {
                self.tell_what_is_here(elector, false, view);
            }
        }
    }

    /// A new epoch with whoever is there of the members and of those who have everything.
    fn propose_without_lost(&mut self, view: &impl ObjectView) {
        let mut known = self.record.members.clone();
        known.extend(self.electors().iter().filter(|elector| !self.record.members.contains(elector)));
        let (usable, lost): (Vec<OsdId>, Vec<OsdId>) = known.iter().partition(|osd| self.is_usable(**osd));
        // Too few to serve can still fill others. What was acknowledged stays with all electors.
        let are_enough = self.copies_on(&usable) >= self.policy.min_size as usize;
        let must_wait = |osd: &OsdId| view.now_ms() < self.membership.given_up_at_ms(*osd, are_enough);
        let sources = usable.iter().filter(|osd| self.electors().contains(osd));
        let has_source = self.copies_on(sources) >= self.copies_needed();
        if !has_source || lost.iter().any(must_wait) {
            return;
        }
        self.propose(usable, self.me, view);
    }

    /// At a member: takes over if the primary has been out of reach for long enough.
    pub(crate) fn consider_takeover(&mut self, view: &impl ObjectView) {
        let primary = self.record.primary;
        if self.is_usable(primary) || !self.is_usable(self.me) {
            return;
        }
        let candidates = self.electors().iter().filter(|elector| self.is_usable(**elector));
        let Some(rank) = candidates.clone().position(|elector| *elector == self.me) else { return };
        let is_new = self.record.activated_epoch < self.record.epoch && !self.membership.is_reachable(primary);
        let patience_ms = if is_new { NEW_PRIMARY_PATIENCE_MS } else { 0 };
        let from_ms =
            (self.membership.epoch_since_ms + patience_ms).max(self.membership.given_up_at_ms(primary, true));
        let at_ms = from_ms + rank as u64 * RANK_PAUSE_MS;
        if view.now_ms() >= at_ms {
            self.propose_without_lost(view);
        }
    }

    /// Another member knows more of the history.
    pub(crate) fn hand_over(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.propose(self.record.members.clone(), osd, view);
    }

    fn propose(&mut self, members: Vec<OsdId>, primary: OsdId, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        let epoch = Epoch(self.record.epoch.0.max(self.promises.epoch.0) + 1);
        if primary == self.me {
            self.membership.proposed = Some(epoch);
        }
        let shards = self.shards_of(&members);
        let record = PgRecord { epoch, members, primary, shards, ..self.record.clone() };
        self.actions.push_back(Action::Propose { expected: self.record.clone(), record, split_off: None });
    }

    /// All members have the same history: says so in cluster state.
    pub(crate) fn propose_activation(&mut self, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        let record = PgRecord {
            activated_epoch: self.record.epoch,
            last_active_members: self.record.members.clone(),
            last_active_shards: self.record.shards.clone(),
            ..self.record.clone()
        };
        self.actions.push_back(Action::Propose { expected: self.record.clone(), record, split_off: None });
    }

    /// While active: fills whoever should be a member, takes in who is full, lets go who should
    /// not be one.
    fn improve(&mut self, view: &impl ObjectView) {
        if self.state == PgState::Active && self.split(view) || !self.fills_learners() {
            return;
        }
        self.look_after_learners(view);
        let ready: Vec<OsdId> = self.learners.ready().collect();
        if !ready.is_empty() {
            return self.propose([&self.record.members[..], &ready].concat(), self.me, view);
        }
        let members = &self.record.members;
        let is_full = !self.target.is_empty() && self.target.iter().all(|osd| members.contains(osd));
        if !is_full {
            return;
        }
        if let Some(surplus) = self.surplus_member() {
            let rest = members.iter().copied().filter(|member| *member != surplus).collect();
            return self.propose(rest, self.me, view);
        }
        // Where the tree has no place for all copies, those that exist stay where they are.
        let mut wanted = self.target.clone();
        for member in members.iter().filter(|member| !self.target.contains(member)) {
            let has_room = self.coded.is_some() || wanted.len() < self.policy.size as usize;
            if has_room && self.copies_on(wanted.iter().chain([member])) > self.copies_on(&wanted) {
                wanted.push(*member);
            }
        }
        if wanted != *members || self.record.primary != wanted[0] {
            self.propose(wanted.clone(), wanted[0], view);
        }
    }

    /// Requests wait for a while, because a fail-over is short; then their clients are told.
    pub(crate) fn refuse_after_long_waiting(&mut self, view: &impl ObjectView) {
        if self.state == PgState::Active || !self.is_primary() {
            self.membership.inactive_since_ms = None;
            return;
        }
        let since_ms = *self.membership.inactive_since_ms.get_or_insert(view.now_ms());
        if view.now_ms() >= since_ms + INACTIVE_PATIENCE_MS {
            self.refuse_waiting(&self.inactive());
        }
    }

    pub(crate) fn inactive(&self) -> Refusal {
        let missing = self.record.members.iter().filter(|member| !self.is_usable(**member));
        let missing: Vec<String> = missing.map(OsdId::to_string).collect();
        let detail = if !self.may_serve() {
            let (members, min_size) = (self.record.members.len(), self.policy.min_size);
            format!("{members} copies of the {min_size} that the pool's min_size asks for")
        } else if missing.is_empty() {
            "members are being brought level".into()
        } else {
            format!("waiting for {}", missing.join(", "))
        };
        Refusal::Inactive { detail }
    }
}
