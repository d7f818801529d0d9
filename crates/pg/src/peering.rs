//! Peering: under a new epoch the primary has all members promise to heed nothing older, compares
//! histories, and brings everyone to the newest head. Because an ack needs all members of the
//! active configuration, each of those that were has every acknowledged write, and their histories
//! are prefixes of one another.

use std::collections::{BTreeMap, BTreeSet};

use atoll_base::{Epoch, OsdId, Version};
use atoll_wire::Message;

use crate::actions::ObjectView;
use crate::group::{Pg, PgState};
use crate::learners::Answer;

/// A member that has not answered is asked again after so long.
const ANSWER_PATIENCE_MS: u64 = 500;

#[derive(Default)]
pub(crate) struct Peering {
    /// The epoch whose promise is durable here, with no lease that binds this OSD to another.
    pub own_promise: Option<Epoch>,
    /// The epoch under which the members were asked.
    pub asked: Option<Epoch>,
    asked_at_ms: u64,
    pub heads: BTreeMap<OsdId, Version>,
    /// Those that have been told to take back what not all have.
    pub rolling_back: BTreeSet<OsdId>,
}

impl Pg {
    /// Does whatever peering can do now: all members can be reached and the epoch is this
    /// primary's own. Safe to call at any time.
    pub(crate) fn peer(&mut self, view: &impl ObjectView) {
        self.state = PgState::Peering;
        let epoch = self.record.epoch;
        if self.peering.asked != Some(epoch) {
            self.peering = Peering { asked: Some(epoch), asked_at_ms: view.now_ms(), ..Peering::default() };
            self.others().into_iter().for_each(|member| self.ask(member, false));
            let active = self.record.last_active_members.clone();
            self.promise(epoch, self.me, &active, view);
            // Which may have led to everything else already.
            return;
        }
        if view.now_ms() >= self.peering.asked_at_ms + ANSWER_PATIENCE_MS {
            self.peering.asked_at_ms = view.now_ms();
            let silent = self.others().into_iter().filter(|member| !self.peering.heads.contains_key(member));
            silent.collect::<Vec<_>>().into_iter().for_each(|member| self.ask(member, false));
        }
        let everyone_answered = self.others().iter().all(|member| self.peering.heads.contains_key(member));
        if self.peering.own_promise == Some(epoch) && everyone_answered {
            self.level_members(view);
        }
    }

    pub(crate) fn ask(&mut self, osd: OsdId, wants_log: bool) {
        let query = Message::PeerQuery {
            pg: self.id,
            epoch: self.record.epoch,
            active_epoch: self.record.activated_epoch,
            active_members: self.record.last_active_members.clone(),
            wants_log,
            shard: self.record.shard_of(osd),
        };
        self.send(osd, query);
    }

    pub(crate) fn peer_info(&mut self, from: OsdId, epoch: Epoch, answer: Answer, view: &impl ObjectView) {
        let is_of_other_shard = self.coded.is_some()
            && self.record.members.contains(&from)
            && answer.shard != self.record.shard_of(from);
        let is_complete = answer.is_complete && !(is_of_other_shard && epoch == self.record.epoch);
        if !is_complete && (!self.is_primary() || self.record.members.contains(&from)) {
            // It cannot be a member, and not a primary, before it is filled.
            self.membership.note_incomplete(from);
            return self.advance(view);
        }
        if !self.is_primary() || epoch != self.record.epoch {
            return;
        }
        if !self.record.members.contains(&from) {
            return self.learner_answered(from, answer, view);
        }
        // A member that says what it has without being asked could not take what it was sent.
        if self.fills_learners() || self.learners.contains(from) {
            self.restart_peering();
        } else if self.state == PgState::Peering && self.peering.asked == Some(epoch) {
            self.peering.heads.insert(from, answer.head);
        }
        self.advance(view);
    }

    /// Everyone has said what it has. Whoever has most leads; the others are brought level one
    /// after the other, so that all but one are whole at any time and a second failure costs
    /// nothing that was acknowledged.
    fn level_members(&mut self, view: &impl ObjectView) {
        if self.coded.is_some() {
            return self.level_shards(view);
        }
        let own_head = view.head(self.id);
        // What goes beyond all electors was never acknowledged; whoever has it cannot lead, for with
        // the last elector half levelled nobody could tell that it has everything.
        let electors = self.peering.heads.iter().filter(|(osd, _)| self.electors().contains(osd));
        let newest = electors.max_by_key(|(_, head)| **head);
        if let Some((&osd, head)) = newest
            && *head > own_head
        {
            return self.hand_over(osd, view);
        }
        if self.learners.are_any() {
            return;
        }
        let behind = self.peering.heads.iter().find(|(_, head)| **head != own_head);
        match behind.map(|(osd, head)| (*osd, *head)) {
            Some((osd, head)) => self.level(osd, head, view),
            None => self.activate(view),
        }
    }

    /// This copy cannot be read where it is needed; another one may be.
    pub(crate) fn let_another_level(&mut self, view: &impl ObjectView) {
        let own_head = view.head(self.id);
        if self.coded.is_some() {
            return;
        }
        let other = self.peering.heads.iter().find(|(_, head)| **head == own_head).map(|(osd, _)| *osd);
        if self.state == PgState::Peering
            && let Some(osd) = other
        {
            self.hand_over(osd, view);
        }
    }

    /// A member has everything now.
    pub(crate) fn is_level(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.peering.heads.insert(osd, view.head(self.id));
        self.advance(view);
    }

    /// All members have the same history: say so in cluster state, then serve.
    pub(crate) fn activate(&mut self, view: &impl ObjectView) {
        if !self.may_serve() {
            self.state = PgState::Recovering;
            return self.advance(view);
        }
        if self.record.activated_epoch != self.record.epoch {
            return self.propose_activation(view);
        }
        self.state = PgState::Active;
        for entry in view.log(self.id) {
            if let Some(request) = entry.request {
                self.retries.record(request, Ok(()), entry.version);
            }
        }
        // Whatever was in flight is in the history that all members now share.
        while let Some(done) = self.in_flight.pop_front() {
            assert!(done.version <= view.head(self.id), "the primary's head covers what it ordered");
            self.reply_write(&done, Ok(()));
        }
        let head = view.head(self.id);
        self.forget_undo(Version { epoch: self.record.epoch, ..head });
        self.start_waiting(view);
        self.advance(view);
    }
}
