//! Events of a scrub, their effects, and the work of this OSD for the scrub of another primary.

use atoll_types::{Epoch, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::{Message, ScrubFinding};

use super::{Effect, Scrub};
use crate::actions::{Action, ObjectParts, ObjectView, Token};
use crate::context::Context;
use crate::group::Pg;
use crate::invariants;
use crate::primary_requests::{PrimaryRequest, Wanted};
use crate::submissions::Submission;

impl Pg {
    /// Hands an event to the scrub, if there is one, and carries out its effect.
    pub(crate) fn with_scrub<V: ObjectView>(
        &mut self,
        view: &V,
        event: impl FnOnce(&mut Scrub, &mut Context<'_, V>) -> Effect,
    ) {
        self.is_for_scrub(view, |scrub, context| Some(event(scrub, context)));
    }

    /// Hands an event to the scrub, if there is one, and carries out its effect. False if the event
    /// was for something else.
    fn is_for_scrub<V: ObjectView>(
        &mut self,
        view: &V,
        event: impl FnOnce(&mut Scrub, &mut Context<'_, V>) -> Option<Effect>,
    ) -> bool {
        let Pg { scrub: Some(scrub), config, log, peering, outbox, .. } = self else { return false };
        let mut context = Context { config, log, peering, outbox, view };
        let effect = event(scrub, &mut context);
        effect.map(|effect| self.carry_out(effect, view)).is_some()
    }

    fn carry_out(&mut self, effect: Effect, view: &impl ObjectView) {
        match effect {
            Effect::Nothing => {}
            Effect::StartWaiting => self.start_waiting(view),
            Effect::ReadShards { object, fetch, what } => self.examine_shards(object, fetch, what, view),
            Effect::RestartWrites { object } => {
                self.restart_writes(&object);
                self.start_waiting(view);
            }
            Effect::RewriteOwnCopy { tag, parts } => self.rewrite_own_copy(tag, parts),
            Effect::End => self.scrub = None,
        }
    }

    /// Begins a scrub of the whole PG; a deep one reads the data, too. False if that is not
    /// possible now: another scrub or a backfill is under way, or the PG does not serve. The end
    /// comes as [`Action::ScrubDone`], unless a change of the configuration or a backfill ends the
    /// scrub before.
    pub fn start_scrub(&mut self, is_deep: bool) -> bool {
        if !self.may_compare() || self.learners.are_any() || self.is_scrubbing() {
            return false;
        }
        self.scrub = Some(Scrub::of_all(is_deep));
        true
    }

    /// Returns true if copies can be compared: all members have the same history.
    fn may_compare(&self) -> bool {
        self.config.is_active() && self.intake.is_whole() && !self.is_splitting
    }

    /// This copy of an object could not be read for a backfill: repairs it from another one.
    pub(crate) fn repair_for_backfill(&mut self, object: ObjectName) {
        if self.may_compare() && self.scrub.is_none() && self.config.record.members.len() > 1 {
            self.scrub = Some(Scrub::of_one(object));
        }
    }

    /// Returns true if a scrub is pending, of the whole PG or of an object that a backfill needs.
    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_some()
    }

    /// Returns true if a write of an object must wait for the scrub.
    pub(crate) fn scrub_holds_write(&self, object: &ObjectName, view: &impl ObjectView) -> bool {
        self.scrub.as_ref().is_some_and(|scrub| scrub.holds_write(object, view.now_ms()))
    }

    /// Returns true if this copy of an object is being replaced, perhaps in several parts.
    pub(crate) fn is_rewriting(&self, object: &ObjectName) -> bool {
        self.scrub.as_ref().is_some_and(|scrub| scrub.is_rewriting(object))
    }

    /// Returns true if copies of an object are being compared, or soon will be for a backfill. Then this copy may
    /// be replaced.
    pub(crate) fn is_in_scrub(&self, object: &ObjectName) -> bool {
        self.scrub.as_ref().is_some_and(|scrub| scrub.concerns(object))
    }

    /// A write of an object was ordered.
    pub(crate) fn scrub_sees_write(&mut self, object: &ObjectName) {
        self.scrub.iter_mut().for_each(|scrub| scrub.sees_write(object));
    }

    /// Starts the possible steps of the scrub now.
    pub(crate) fn continue_scrub<V: ObjectView>(&mut self, view: &V) {
        let (is_whole, backfills, is_splitting) =
            (self.intake.is_whole(), self.learners.are_any(), self.is_splitting);
        self.with_scrub(view, |scrub, context| {
            invariants::scrub_runs_while_active(context.config.is_active(), is_whole);
            match scrub.must_end(backfills, is_splitting) {
                true => scrub.wind_up(),
                false => scrub.walk(context),
            }
        });
    }

    /// A member has listed objects. False if the list was not for a scrub.
    pub(crate) fn scrub_listed(
        &mut self,
        member: OsdId,
        tag: u64,
        objects: &[(ObjectName, Version)],
        more: bool,
    ) -> bool {
        self.scrub.as_mut().is_some_and(|scrub| scrub.listed(member, tag, objects, more, &self.config))
    }

    /// This OSD's copy has been examined, for a scrub of its own or of another primary.
    pub fn scrubbed(&mut self, token: Token, finding: ScrubFinding, view: &impl ObjectView) {
        if let Some(PrimaryRequest { primary, epoch, tag }) = self.primary_requests.answered(token, Wanted::Scrub)
        {
            return self.outbox.send(primary, Message::ScrubReply { pg: self.config.id, epoch, tag, finding });
        }
        let me = self.config.me;
        self.with_scrub(view, |scrub, context| scrub.examined(me, token.0, finding, context));
    }

    /// A primary wants this OSD's copy to be examined.
    pub(crate) fn scrub_asked(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName, deep: bool) {
        if self.follows(from, epoch) {
            let request = PrimaryRequest { primary: from, epoch, tag };
            let token = self.primary_requests.begin(Wanted::Scrub, request, &mut self.outbox);
            self.outbox.push(Action::Scrub { token, object, deep });
        }
    }

    pub(crate) fn scrub_reply(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        finding: ScrubFinding,
        view: &impl ObjectView,
    ) {
        if self.config.is_primary() && epoch == self.config.record.epoch {
            self.with_scrub(view, |scrub, context| scrub.examined(from, tag, finding, context));
        }
    }

    /// An object has been read, for a scrub or for a primary. False if for neither.
    pub(crate) fn scrub_read_done<V: ObjectView>(
        &mut self,
        token: Token,
        result: &Result<ObjectParts, String>,
        view: &V,
    ) -> bool {
        if let Some(request) = self.primary_requests.answered(token, Wanted::Object) {
            request.send_object(result, self.config.id, &mut self.outbox);
            return true;
        }
        self.is_for_scrub(view, |scrub, context| scrub.read_done(token, result, context))
    }

    /// A member has made a part durable. False if it was not for a scrub.
    pub(crate) fn scrub_pushed<V: ObjectView>(&mut self, from: OsdId, epoch: Epoch, tag: u64, view: &V) -> bool {
        let is_current = self.config.is_primary() && epoch == self.config.record.epoch;
        is_current && self.is_for_scrub(view, |scrub, context| scrub.pushed(from, tag, context))
    }

    /// A primary with a bad copy of an object wants this OSD's good one.
    pub(crate) fn object_wanted(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName) {
        if self.follows(from, epoch) {
            let request = PrimaryRequest { primary: from, epoch, tag };
            let token = self.primary_requests.begin(Wanted::Object, request, &mut self.outbox);
            let touched = Touched { whole: true, ..Touched::default() };
            self.outbox.push(Action::ReadObject { token, object, touched, from: None, is_urgent: true });
        }
    }

    /// A part of a good copy has come.
    pub(crate) fn object_part(
        &mut self,
        sender: OsdId,
        epoch: Epoch,
        tag: u64,
        part: Transaction,
        view: &impl ObjectView,
    ) {
        if self.config.is_primary() && epoch == self.config.record.epoch {
            self.with_scrub(view, |scrub, context| scrub.part_came(sender, tag, part, context));
        }
    }

    fn rewrite_own_copy(&mut self, tag: u64, parts: Vec<Transaction>) {
        let count = parts.len();
        for (index, transaction) in parts.into_iter().enumerate() {
            self.note_staged(&transaction, (self.config.me, self.config.record.epoch, tag));
            self.submit(Submission::RewriteOwnCopy { tag, is_last: index + 1 == count }, transaction);
        }
    }

    /// The store refused a part of an object: the copy is as it was.
    pub(crate) fn own_copy_rewrite_refused(&mut self, tag: u64, cause: &str, view: &impl ObjectView) {
        self.outbox.warn(format!("the store of {} refused a repair: {cause}", self.config.me));
        self.with_scrub(view, |scrub, context| scrub.rewrite_refused(tag, context));
    }

    /// The change of this primary's copy is durable.
    pub(crate) fn own_copy_rewritten(&mut self, tag: u64, view: &impl ObjectView) {
        self.with_scrub(view, |scrub, context| scrub.rewritten(tag, context));
    }
}
