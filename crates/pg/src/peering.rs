//! Peering: after a start or a lost connection the primary takes a new epoch by compare-and-swap,
//! has all members promise to heed nothing older, compares histories, and brings everyone to the
//! newest head. Because an ack needs all members, the newest head among all members holds every
//! acknowledged write, and histories are prefixes of one another.

use std::collections::BTreeMap;

use atoll_base::records::PgRecord;
use atoll_base::{Epoch, OsdId, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView};
use crate::group::{Pg, PgState};

#[derive(Default)]
pub(crate) struct Peering {
    /// The epoch whose promise is durable here.
    pub own_promise: Option<Epoch>,
    /// The epoch under which the members were asked.
    pub asked: Option<Epoch>,
    pub heads: BTreeMap<OsdId, Version>,
    /// The member with the newest history, while this one fetches from it.
    pub fetching_from: Option<OsdId>,
    pub has_proposed_activation: bool,
    /// A proposal may be repeated: some time has passed since the last.
    pub may_propose_again: bool,
    has_proposed: bool,
}

impl Pg {
    /// Does whatever peering can do now. Safe to call at any time.
    pub(crate) fn advance_peering(&mut self, view: &impl ObjectView) {
        if !self.is_primary() || self.state == PgState::Active && self.unreachable().is_empty() {
            return;
        }
        if !self.unreachable().is_empty() {
            self.state = PgState::Inactive;
            return;
        }
        if self.proposed != Some(self.record.epoch) {
            return self.propose_epoch();
        }
        self.state = PgState::Peering;
        let epoch = self.record.epoch;
        if self.peering.asked != Some(epoch) {
            self.peering = Peering { asked: Some(epoch), ..Peering::default() };
            self.submit_promise(epoch, None);
            for member in self.others() {
                self.send(member, Message::PeerQuery { pg: self.id, epoch });
            }
        }
        let everyone_answered = self.others().iter().all(|member| self.peering.heads.contains_key(member));
        if self.peering.own_promise == Some(epoch) && everyone_answered {
            self.level_members(view);
        }
    }

    fn propose_epoch(&mut self) {
        self.state = PgState::Inactive;
        let epoch = Epoch(self.record.epoch.0.max(self.promised.0) + 1);
        let already = self.peering.has_proposed && !self.peering.may_propose_again;
        if already {
            return;
        }
        self.peering.has_proposed = true;
        self.peering.may_propose_again = false;
        self.proposed = Some(epoch);
        let record = PgRecord { epoch, ..self.record.clone() };
        self.actions.push_back(Action::Propose { expected: self.record.clone(), record });
    }

    pub(crate) fn peer_info(&mut self, from: OsdId, epoch: Epoch, head: Version, view: &impl ObjectView) {
        if self.state == PgState::Peering && self.peering.asked == Some(epoch) {
            self.peering.heads.insert(from, head);
            self.advance_peering(view);
        }
    }

    pub(crate) fn peer_synced(&mut self, from: OsdId, epoch: Epoch, head: Version, view: &impl ObjectView) {
        if epoch != self.promised {
            return;
        }
        let is_over = self.continue_sync(from);
        if is_over && self.state == PgState::Peering {
            self.peering.heads.insert(from, head);
            self.advance_peering(view);
        }
    }

    /// Everyone has said what it has: fetch what the primary lacks, then bring up the others.
    fn level_members(&mut self, view: &impl ObjectView) {
        let own_head = view.head(self.id);
        let epoch = self.record.epoch;
        if self.peering.fetching_from.is_some() {
            return;
        }
        let newest = self.peering.heads.iter().max_by_key(|(_, head)| **head).map(|(osd, head)| (*osd, *head));
        if let Some((osd, head)) = newest
            && head > own_head
        {
            self.peering.fetching_from = Some(osd);
            return self.send(osd, Message::PeerFetch { pg: self.id, epoch, after: own_head });
        }
        let behind: Vec<(OsdId, Version)> = self
            .peering
            .heads
            .iter()
            .filter(|(_, head)| **head < own_head)
            .map(|(osd, head)| (*osd, *head))
            .collect();
        for (osd, head) in &behind {
            if !self.sync_jobs.contains_key(osd) {
                self.start_sync(*osd, epoch, *head, view);
            }
        }
        if behind.is_empty() {
            self.activate(view);
        }
    }

    /// All members have the same history: say so in cluster state, then serve.
    fn activate(&mut self, view: &impl ObjectView) {
        let epoch = self.record.epoch;
        if self.record.activated_epoch != epoch {
            if !self.peering.has_proposed_activation || self.peering.may_propose_again {
                self.peering.has_proposed_activation = true;
                self.peering.may_propose_again = false;
                let record = PgRecord {
                    activated_epoch: epoch,
                    last_active_members: self.record.members.clone(),
                    ..self.record.clone()
                };
                self.actions.push_back(Action::Propose { expected: self.record.clone(), record });
            }
            return;
        }
        self.state = PgState::Active;
        self.was_active = true;
        for entry in view.log(self.id) {
            if let Some(request) = entry.request {
                self.retries.record(request, Ok(()), entry.version);
            }
        }
        // Whatever was in flight is in the history that all members now share.
        while let Some(done) = self.in_flight.pop_front() {
            assert!(done.version <= view.head(self.id), "the primary's head covers what it ordered");
            self.reply_written(done.client, done.request.sequence, Ok(()));
        }
        self.start_waiting(view);
    }
}
