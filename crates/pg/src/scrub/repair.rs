//! Repair: a bad copy of an object is replaced by a good one.

use atoll_types::{Epoch, Mutation, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::{Message, ScrubFinding};

use super::round::Step;
use crate::actions::{Action, ObjectParts, ObjectView, Token};
use crate::group::Pg;
use crate::own_object::{own_change, set_complete, set_incomplete};
use crate::primary_requests::{PrimaryRequest, Wanted};
use crate::submissions::Submission;

impl Pg {
    /// An object has been read, for a scrub or for a primary. False if for neither.
    pub(crate) fn scrub_read_done(
        &mut self,
        token: Token,
        result: &Result<ObjectParts, String>,
        view: &impl ObjectView,
    ) -> bool {
        if let Some(PrimaryRequest { primary, epoch, tag }) = self.primary_requests.answered(token, Wanted::Object)
        {
            self.answer_wanted(primary, epoch, tag, result);
            return true;
        }
        let Some(scrub) = &mut self.scrub else { return false };
        let Some((object, round)) = scrub.round_by_tag(token.0) else { return false };
        let (object, Step::Reading { bad, .. }) = (object.clone(), &mut round.step) else { return false };
        let bad = std::mem::take(bad);
        match result {
            Ok(parts) => {
                let series = self.series(parts.transactions.clone());
                let parts_left = bad.iter().map(|member| (*member, series.len())).collect();
                let scrub = self.scrub.as_mut().expect("found above");
                let round = scrub.rounds.get_mut(&object).expect("found above");
                round.step = Step::Sending { tag: token.0, parts_left };
                let (epoch, tag) = (self.config.record.epoch, token.0);
                for member in bad {
                    for transaction in series.clone() {
                        self.outbox.send(member, Message::PeerPush { epoch, tag, transaction });
                    }
                }
                self.start_waiting(view);
            }
            Err(cause) => {
                self.outbox.warn(format!("cannot read '{object}' to repair another copy of it: {cause}"));
                self.end_round(&object, false, view);
            }
        }
        true
    }

    /// The parts of an object, framed by the mark that the copy is incomplete: a member that gets
    /// only some of them is backfilled before it counts.
    fn series(&self, mut parts: Vec<Transaction>) -> Vec<Transaction> {
        if parts.len() == 1 {
            return parts;
        }
        if let Some(first) = parts.first_mut() {
            first.mutations.insert(0, Mutation::SetVersion { version: Version::default() });
        }
        parts.insert(0, own_change(self.config.id, vec![set_incomplete()]));
        parts.push(own_change(self.config.id, vec![set_complete()]));
        parts
    }

    /// A member has made a part durable. False if it was not for a scrub.
    pub(crate) fn scrub_pushed(&mut self, from: OsdId, epoch: Epoch, tag: u64, view: &impl ObjectView) -> bool {
        if !self.config.is_primary() || epoch != self.config.record.epoch {
            return false;
        }
        let Some(scrub) = &mut self.scrub else { return false };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return false };
        let (object, Step::Sending { parts_left, .. }) = (object.clone(), &mut round.step) else { return false };
        if let Some(left) = parts_left.get_mut(&from) {
            *left = left.saturating_sub(1);
        }
        if parts_left.values().all(|left| *left == 0) {
            self.examine_again(object, view);
        }
        true
    }

    /// A primary with a bad copy of an object wants this OSD's good one.
    pub(crate) fn object_wanted(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName) {
        if epoch == self.promises.epoch() {
            let token = self.outbox.token();
            self.primary_requests.begin(token, Wanted::Object, PrimaryRequest { primary: from, epoch, tag });
            let touched = Touched { whole: true, ..Touched::default() };
            self.outbox.push(Action::ReadObject { token, object, touched, from: None, is_urgent: true });
        }
    }

    fn answer_wanted(&mut self, primary: OsdId, epoch: Epoch, tag: u64, result: &Result<ObjectParts, String>) {
        match result {
            Ok(parts) => {
                for transaction in parts.transactions.clone() {
                    self.outbox.send(primary, Message::ObjectPart { epoch, tag, transaction });
                }
            }
            Err(_) => {
                let finding = ScrubFinding::Busy;
                self.outbox.send(primary, Message::ScrubReply { pg: self.config.id, epoch, tag, finding });
            }
        }
    }

    /// A part of a good copy has come. Nothing is written before all parts are here, so a failure
    /// in between leaves this copy as it is.
    pub(crate) fn object_part(&mut self, sender: OsdId, epoch: Epoch, tag: u64, part: Transaction) {
        if !self.config.is_primary() || epoch != self.config.record.epoch {
            return;
        }
        let (token, pg) = (self.outbox.token(), self.config.id);
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return };
        let Step::Fetching { from, parts, .. } = &mut round.step else { return };
        if *from != sender || part.pg != pg || part.object != *object || !part.log.is_empty() {
            return;
        }
        let is_last = part.mutations[..] == [Mutation::Remove]
            || matches!(part.mutations.last(), Some(Mutation::SetVersion { .. }));
        parts.push(part);
        if !is_last {
            return;
        }
        let parts = std::mem::take(parts);
        round.step = Step::Rewriting { tag: token.0 };
        let series = self.series(parts);
        let count = series.len();
        for (index, transaction) in series.into_iter().enumerate() {
            let is_last = index + 1 == count;
            let is_whole = count == 1;
            self.submit(Submission::RewriteOwnCopy { tag: token.0, is_last, is_whole }, transaction);
        }
    }

    /// The store refused an object in one piece: the copy is as it was.
    pub(crate) fn own_copy_rewrite_refused(&mut self, tag: u64, cause: &str, view: &impl ObjectView) {
        self.outbox.warn(format!("the store of {} refused a repair: {cause}", self.config.me));
        self.own_copy_rewritten(tag, view);
    }

    /// The store refused a part, so the copy may be torn: another member must lead and backfill
    /// this one.
    pub(crate) fn own_copy_rewrite_failed(&mut self, cause: &str, view: &impl ObjectView) {
        self.outbox.warn(format!("{} could not repair its copy of an object: {cause}", self.config.me));
        self.promises.note_incomplete();
        let note = own_change(self.config.id, vec![set_incomplete()]);
        self.submit(Submission::Repair, note);
        if self.config.is_primary() {
            self.restart_peering();
        }
        self.advance(view);
    }

    /// All parts of this primary's copy are durable, or none: it is examined again.
    pub(crate) fn own_copy_rewritten(&mut self, tag: u64, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, _)) = scrub.round_by_tag(tag) else { return };
        let object = object.clone();
        self.examine_again(object, view);
    }
}
