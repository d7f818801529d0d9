//! Peering: under a new epoch the primary has all members promise to heed no lower one, compares their heads, and
//! has members that are behind catch up with the newest. An acknowledgement needs all members, so every elector
//! has every acknowledged write, and the electors' histories are prefixes of each other. An elector without a
//! write that another knows to be committed has lost its device: its missing writes prove nothing.

pub(crate) mod acceptance;
pub mod leases;
pub(crate) mod membership;
pub(crate) mod promises;

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, OsdId, Version};
use atoll_wire::Message;

use crate::actions::ObjectView;
use crate::backfill::Answer;
use crate::config::{Configuration, PgState};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{mark_of, own_change};
use crate::replication::log::Log;
use crate::submissions::Submission;

/// A member that has not answered is asked again after this time.
const ANSWER_PATIENCE_MS: u64 = 500;

#[derive(Default)]
pub(crate) struct Peering {
    /// The epoch that this OSD has durably promised itself, with no lease that binds it to another.
    own_promise: Option<Epoch>,
    /// The epoch under which the members were queried.
    asked: Option<Epoch>,
    asked_at_ms: u64,
    heads: BTreeMap<OsdId, Version>,
    /// Sequence of the newest write that a member that has answered knows to be committed.
    pub committed_sequence: u64,
    /// Members, perhaps this one, that have run since the last configuration became active. Writes that they lack
    /// were never acknowledged.
    pub witnesses: BTreeSet<OsdId>,
    /// Members that were asked to roll back.
    rolling_back: BTreeSet<OsdId>,
}

/// Step that follows from the heads of all members.
pub(crate) enum Next {
    /// This elector lacks writes that were committed, so its device has lost them.
    LeaveOut { elector: OsdId, committed_sequence: u64 },
    /// This elector must lead.
    HandOver { to: OsdId },
    /// These members roll back writes that too few electors have.
    RollBack { members: Vec<OsdId>, head: Version },
    /// A member lacks writes.
    CatchUp { member: OsdId, head: Version },
    /// All members have the same history.
    Activate,
    /// No elector is a member.
    Wait,
}

impl Peering {
    /// The head of a member that has answered.
    pub fn head_of(&self, osd: OsdId) -> Option<Version> {
        self.heads.get(&osd).copied()
    }

    /// The heads of all members that have answered.
    pub fn heads(&self) -> impl Iterator<Item = (OsdId, Version)> {
        self.heads.iter().map(|(osd, head)| (*osd, *head))
    }

    /// Returns true if a member's shards fit those of this OSD: while the PG peers, only if it has the same head.
    pub fn fits(&self, osd: OsdId, config: &Configuration, log: &Log) -> bool {
        config.state != PgState::Peering
            || osd == config.me
            || self.head_of(osd).is_some_and(|head| head.sequence == log.last_sequence())
    }

    /// A member has answered.
    pub(crate) fn note(&mut self, osd: OsdId, answer: &Answer, config: &Configuration) {
        self.heads.insert(osd, answer.head);
        if answer.since_epoch <= config.record.activated_epoch {
            self.witnesses.insert(osd);
        }
        // A member knows of no more than it has. One whose head went back has lost its device.
        let known = answer.committed_sequence.min(answer.head.sequence);
        self.committed_sequence = self.committed_sequence.max(known);
    }

    /// Finds an elector whose history ends before a write that another elector, or this one, knows to be
    /// committed.
    pub(crate) fn without_committed(&self, own_head: Version, log: &Log, config: &Configuration) -> Option<Next> {
        let committed_sequence = self.committed_sequence.max(log.committed_sequence().min(own_head.sequence));
        let heads = self.heads().chain([(config.me, own_head)]);
        let mut electors = heads.filter(|(osd, _)| config.electors().contains(osd));
        let (elector, _) = electors.find(|(_, head)| head.sequence < committed_sequence)?;
        Some(Next::LeaveOut { elector, committed_sequence })
    }

    /// Begins to ask under an epoch. False if that has begun already.
    fn begin(&mut self, epoch: Epoch, now_ms: u64) -> bool {
        let is_new = self.asked != Some(epoch);
        if is_new {
            *self = Peering { asked: Some(epoch), asked_at_ms: now_ms, ..Peering::default() };
        }
        is_new
    }

    /// The members to be asked again: those that have been silent for a while.
    fn silent(&mut self, config: &Configuration, now_ms: u64) -> Vec<OsdId> {
        if now_ms < self.asked_at_ms + ANSWER_PATIENCE_MS {
            return Vec::new();
        }
        self.asked_at_ms = now_ms;
        config.others().into_iter().filter(|member| !self.heads.contains_key(member)).collect()
    }

    /// Returns true if all members have promised the epoch, and their heads are known.
    fn is_answered(&self, config: &Configuration) -> bool {
        let everyone_answered = config.others().iter().all(|member| self.heads.contains_key(member));
        self.own_promise == Some(config.record.epoch) && everyone_answered
    }

    /// Returns true if this OSD's own promise allows it to lead under the epoch of its query.
    fn has_own_promise(&self) -> bool {
        self.own_promise == self.asked
    }

    /// The elector with the newest head leads. Members that are behind catch up one after the other:
    /// so all but one are whole at any time, and a second failure costs nothing that was
    /// acknowledged.
    ///
    /// One that would not hear of it does not lead, if this OSD has run since the last configuration became
    /// active: writes that it lacks were never acknowledged.
    fn compare(&self, own_head: Version, config: &Configuration, hears: impl Fn(OsdId) -> bool) -> Next {
        // Only an elector may lead. A write that no elector has was never acknowledged; and if its
        // owner led and the last elector stopped halfway through catching up, no whole elector
        // would be left.
        let is_witness = self.witnesses.contains(&config.me) && config.electors().contains(&config.me);
        let counts = |osd: &OsdId| config.electors().contains(osd) && (!is_witness || hears(*osd));
        let newest = self.heads.iter().filter(|(osd, _)| counts(osd)).max_by_key(|(_, head)| **head);
        if let Some((&osd, head)) = newest
            && *head > own_head
        {
            invariants::elector_takes_over(config, osd);
            return Next::HandOver { to: osd };
        }
        invariants::newest_elector_leads(config, own_head, self.heads.iter().filter(|(osd, _)| counts(osd)));
        self.next_to_catch_up(own_head)
    }

    /// This OSD's head counts: members with another one catch up. The one that lacks least is the first: it may
    /// have a good shard that others lack.
    pub fn next_to_catch_up(&self, own_head: Version) -> Next {
        let others = self.heads.iter().filter(|(_, head)| **head != own_head);
        let behind = others.max_by_key(|(_, head)| **head);
        behind.map_or(Next::Activate, |(osd, head)| Next::CatchUp { member: *osd, head: *head })
    }

    /// Returns the reason for waiting while the PG peers, in words.
    pub fn waits_for(&self, config: &Configuration, log: &Log) -> String {
        if !self.has_own_promise() {
            return "its own promise is not durable, or a lease binds it to a former primary".into();
        }
        let silent = config.others().into_iter().filter(|osd| self.head_of(*osd).is_none());
        let silent: Vec<String> = silent.map(|osd| osd.to_string()).collect();
        if !silent.is_empty() {
            return format!("no answer to its query from {}", silent.join(", "));
        }
        let heads: Vec<_> = self.heads().collect();
        format!("members have to agree on one head: {heads:?}, its own {}", log.last_sequence())
    }
}

impl Configuration {
    /// Asks an OSD for its promise and its head.
    pub fn query(&self, osd: OsdId, wants_log: bool) -> Message {
        let decision = self.decision_for(osd);
        Message::PeerQuery {
            pg: self.id,
            epoch: self.record.epoch,
            active_epoch: self.record.activated_epoch,
            active_members: self.record.last_active_members.clone(),
            wants_log,
            shard: self.record.shard_of(osd),
            accepted_epoch: decision.epoch,
            accepted_head: decision.head,
            elsewhere_epoch: self.elsewhere,
        }
    }
}

impl Pg {
    /// Does the possible steps of peering now. All members can be reached, and this primary proposed the epoch.
    /// Safe to call at any time.
    pub(crate) fn peer(&mut self, view: &impl ObjectView) {
        let epoch = self.config.record.epoch;
        invariants::primary_peers_under_its_own_epoch(self.membership.proposed(), epoch);
        self.config.state = PgState::Peering;
        if self.peering.begin(epoch, view.now_ms()) {
            self.ask(self.config.others());
            let active = self.config.record.last_active_members.clone();
            self.promise(epoch, self.config.me, &active, view);
            // The promise may have called this function again.
            return;
        }
        let silent = self.peering.silent(&self.config, view.now_ms());
        self.ask(silent);
        if self.peering.is_answered(&self.config) {
            self.compare_heads(view);
        }
    }

    fn ask(&mut self, members: Vec<OsdId>) {
        for member in members {
            self.outbox.send(member, self.config.query(member, false));
        }
    }

    pub(crate) fn peer_info(&mut self, from: OsdId, epoch: Epoch, mut answer: Answer, view: &impl ObjectView) {
        self.config.elsewhere = self.config.elsewhere.max(answer.elsewhere);
        if let (Some(object), Some(erasure)) = (answer.unreadable.take(), &mut self.erasure) {
            erasure.suspect(object);
        }
        let is_of_other_shard = self.erasure.is_some()
            && self.config.record.members.contains(&from)
            && answer.shard != self.config.record.shard_of(from);
        let is_complete = answer.is_complete && !(is_of_other_shard && epoch == self.config.record.epoch);
        if !is_complete && self.config.is_before_decision(from, epoch) {
            return;
        }
        if !is_complete && (!self.config.is_primary() || self.config.record.members.contains(&from)) {
            // It must be backfilled before it can be a member or a primary.
            self.membership.note_incomplete(from);
            return self.advance(view);
        }
        if !self.config.is_primary() || epoch != self.config.record.epoch {
            return;
        }
        if !self.config.record.members.contains(&from) {
            return self.learner_answered(from, answer, view);
        }
        // A member that sends its head without being asked could not take what it was sent.
        if self.may_backfill_now() || self.learners.contains(from) {
            self.member_refused(from, view.now_ms());
            self.restart_peering();
        } else if self.config.state == PgState::Peering {
            self.peering.note(from, &answer, &self.config);
        }
        self.advance(view);
    }

    /// All members have sent their heads.
    fn compare_heads(&mut self, view: &impl ObjectView) {
        if self.is_rolling_back() {
            return;
        }
        if self.is_outdated() {
            return self.note_incomplete_here(Incompleteness::Outdated, view);
        }
        let (own_head, config) = (view.head(self.config.id), &self.config);
        let lost = self.peering.without_committed(own_head, &self.log, config);
        let next = lost.unwrap_or_else(|| match self.erasure {
            None => {
                let hears = |osd| !self.membership.is_passed_over(osd, view.now_ms());
                self.peering.compare(own_head, config, hears)
            }
            Some(_) => self.peering.compare_shards(own_head, config),
        });
        match next {
            Next::LeaveOut { elector, committed_sequence } => self.leave_out(elector, committed_sequence, view),
            Next::HandOver { to } => self.hand_over(to, view),
            Next::RollBack { members, head } => self.roll_back(members, head, view),
            Next::Wait => {}
            Next::CatchUp { .. } | Next::Activate if self.learners.are_any() => {}
            Next::CatchUp { member, head } => self.backfill_member(member, head, view),
            Next::Activate => self.activate(view),
        }
    }

    /// Returns true if this elector was no member when the PG was active in an epoch that cluster state does not know. An
    /// operator may have accepted its copy all the same.
    fn is_outdated(&self) -> bool {
        let Configuration { record, elsewhere, me, .. } = &self.config;
        let is_unknown = *elsewhere > record.activated_epoch && record.accepted.is_none();
        is_unknown && self.config.electors().contains(me) && self.promises.has_missed(*elsewhere, record.epoch)
    }

    /// An elector, perhaps this one, has lost its device. It is backfilled before it counts again.
    fn leave_out(&mut self, elector: OsdId, committed_sequence: u64, view: &impl ObjectView) {
        self.outbox.warn(format!(
            "{elector} lacks writes that all members had, up to {committed_sequence}: its device has lost them, and it must be backfilled"
        ));
        if elector == self.config.me {
            return self.note_incomplete_here(Incompleteness::LacksCommitted, view);
        }
        self.membership.note_incomplete(elector);
        self.advance(view);
    }

    /// Marks this copy as incomplete, and informs the primary.
    pub(crate) fn note_incomplete_here(&mut self, why: Incompleteness, view: &impl ObjectView) {
        self.promises.note_incomplete(why);
        let note = own_change(self.config.id, vec![mark_of(why)]);
        self.submit(Submission::Repair, note);
        if self.config.is_primary() {
            self.restart_peering();
        } else if let Some(leader) = self.promises.asked_by() {
            self.send_peer_info(leader, false, view);
        }
        self.advance(view);
    }

    /// Makes members, perhaps this one, roll back every write after `head`, unless they were asked already.
    fn roll_back(&mut self, members: Vec<OsdId>, head: Version, view: &impl ObjectView) {
        let (pg, epoch, me) = (self.config.id, self.config.record.epoch, self.config.me);
        for osd in members {
            if !self.peering.rolling_back.insert(osd) {
                continue;
            }
            if osd == me {
                self.with_erasure(view, |erasure, context| erasure.begin_roll_back(head, context));
            } else {
                self.outbox.send(osd, Message::RollBack { pg, epoch, head });
            }
        }
    }

    /// While the PG peers: `member` cannot be backfilled from this copy, or from the members. Another member with
    /// the same head leads; or the member makes way for an elector that has its shard.
    pub(crate) fn let_another_help(&mut self, member: OsdId, view: &impl ObjectView) {
        if self.config.state != PgState::Peering {
            return;
        }
        if self.erasure.is_none() {
            let own_head = view.head(self.config.id);
            let other = self.peering.heads.iter().find(|(_, head)| **head == own_head).map(|(osd, _)| *osd);
            return other.into_iter().for_each(|osd| self.hand_over(osd, view));
        }
        let record = &self.config.record;
        let has_its_shard = |elector: &OsdId| {
            let is_other = !record.members.contains(elector) && self.is_usable(*elector);
            is_other && record.shard_of(*elector) == record.shard_of(member)
        };
        let electors = self.config.electors();
        if !electors.contains(&member) && electors.iter().any(has_its_shard) {
            self.learners.remove(member);
            self.membership.note_incomplete(member);
            self.restart_peering();
            self.advance(view);
        }
    }

    /// A member has caught up.
    pub(crate) fn member_caught_up(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.peering.heads.insert(osd, view.head(self.config.id));
        self.advance(view);
    }

    /// All members have the same history: puts that into cluster state, then serves.
    pub(crate) fn activate(&mut self, view: &impl ObjectView) {
        let heads = self.config.others();
        let heads = heads.iter().map(|member| self.peering.heads.get(member));
        invariants::members_share_one_head(view.head(self.config.id), heads);
        invariants::nothing_is_rolled_back_while_serving(self.is_rolling_back());
        if self.erasure.is_some() {
            let listed = self.config.record.shard_of(self.config.me);
            invariants::primary_holds_the_listed_shard(self.promises.shard(), listed);
        }
        if !self.config.may_serve() {
            self.config.state = PgState::Recovering;
            return self.advance(view);
        }
        if self.config.record.activated_epoch != self.config.record.epoch {
            return self.propose_activation(view);
        }
        invariants::enough_members_serve(&self.config);
        self.config.state = PgState::Active;
        self.log.note_committed(view.head(self.config.id).sequence);
        invariants::outcomes_follow_the_history(self.duplicates.head(), self.log.last_sequence());
        // Writes that were in flight are in the history that all members now share.
        for mut done in self.log.take_in_flight() {
            invariants::head_covers_what_was_ordered(view.head(self.config.id), done.version);
            self.tell_durable(&mut done);
            self.reply_in_flight(&done, Ok(()));
        }
        let head = view.head(self.config.id);
        self.forget_pre_images(Version { epoch: self.config.record.epoch, ..head });
        self.start_waiting(view);
        self.advance(view);
    }
}
