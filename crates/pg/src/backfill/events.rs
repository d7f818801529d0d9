//! The PG's messages to its learners, and their effects.

use atoll_types::{Epoch, ObjectName, OsdId, Version};
use atoll_wire::Message;

use super::copying::Part;
use super::{Answer, Effect, Learners};
use crate::actions::{Action, ObjectParts, ObjectView, Token};
use crate::config::PgState;
use crate::context::Context;
use crate::erasure::ShardPartRequest;
use crate::group::Pg;
use crate::primary_requests::{PrimaryRequest, Wanted};

impl Pg {
    /// Hands an event to the learners, and carries out its effect.
    fn with_learners<V: ObjectView>(
        &mut self,
        view: &V,
        event: impl FnOnce(&mut Learners, &mut Context<'_, V>) -> Effect,
    ) {
        let Pg { learners, config, log, peering, outbox, .. } = self;
        let mut context = Context { config, log, peering, outbox, view };
        match event(learners, &mut context) {
            Effect::Nothing => {}
            Effect::CopyMore { osd } => self.copy_more(osd, view),
            Effect::NextPart { osd, object, from } => self.read_next_part(osd, object, from, view),
            Effect::ObjectArrived { osd } => {
                self.copy_more(osd, view);
                self.start_waiting(view);
            }
            Effect::Complete { osd } => self.learner_is_complete(osd, view),
            Effect::CannotFollow { osd } => {
                self.membership.note_incomplete(osd);
                self.advance(view);
            }
        }
    }

    /// Makes learners of the targets that are no members and can be reached, drops those that are
    /// not wanted or silent, and continues with the others.
    pub(crate) fn update_learners(&mut self, view: &impl ObjectView) {
        let Pg { learners, membership, config, log, peering, outbox, .. } = self;
        let mut context = Context { config, log, peering, outbox, view };
        learners.update(|osd| membership.is_reachable(osd), &mut context);
        self.continue_learners(view);
    }

    /// Continues with all learners, and tries objects again that could not be read.
    pub(crate) fn continue_learners(&mut self, view: &impl ObjectView) {
        self.learners.retry_failed(view.now_ms());
        for osd in self.learners.osds().collect::<Vec<_>>() {
            self.copy_more(osd, view);
        }
    }

    /// While the PG peers: backfills a member whose head is behind.
    pub(crate) fn backfill_member(&mut self, osd: OsdId, head: Version, view: &impl ObjectView) {
        self.learners.add_member(osd, head, view.now_ms(), &self.config, &mut self.outbox);
        self.start_learning(view);
    }

    /// A learner has answered the query.
    pub(crate) fn learner_answered(&mut self, from: OsdId, answer: Answer, view: &impl ObjectView) {
        if self.may_backfill_now() && self.learners.answered(from, answer, view.now_ms()) {
            self.start_learning(view);
        }
    }

    /// Begins with learners that have answered, once the view shows the whole history.
    pub(crate) fn start_learning(&mut self, view: &impl ObjectView) {
        if !self.outbox.view_is_current() {
            return;
        }
        for osd in self.learners.to_begin() {
            self.with_learners(view, |learners, context| learners.begin(osd, context));
        }
    }

    /// This OSD's objects have been listed: for a backfill, a scrub, a deletion, or a primary.
    pub fn objects_listed(&mut self, token: Token, objects: Vec<(ObjectName, Version)>, more: bool) {
        if let Some(PrimaryRequest { primary, epoch, tag }) = self.primary_requests.answered(token, Wanted::List) {
            let reply = Message::ObjectsReply { pg: self.config.id, epoch, tag, objects, more };
            return self.outbox.send(primary, reply);
        }
        let is_for_others =
            self.stray.listed(token, &objects, more) || self.scrub_listed(self.config.me, token.0, &objects, more);
        if !is_for_others {
            self.learners.own_listed(token, objects, more, &self.config, &mut self.outbox);
        }
    }

    /// A member or a learner has listed its objects.
    pub(crate) fn learner_listed(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
        view: &impl ObjectView,
    ) {
        let is_current = self.config.is_primary() && epoch == self.config.record.epoch;
        if is_current && !self.scrub_listed(from, tag, &objects, more) {
            self.with_learners(view, |learners, context| learners.listed(from, tag, objects, more, context));
        }
    }

    /// Copies the next objects while the PG peers, and informs a learner that lacks nothing that it is complete.
    fn copy_more(&mut self, osd: OsdId, view: &impl ObjectView) {
        // While the PG peers no client writes, so reading ahead holds up no request.
        while self.config.state == PgState::Peering && self.copy_one(osd, view) {}
        self.learners.finish(osd, &self.config, &mut self.outbox);
    }

    /// Returns true if there is an object to copy to a learner now. The shell paces copies by
    /// [`Pg::backfill_next`]; until then clients may write the object.
    pub fn wants_to_backfill(&self) -> bool {
        self.may_backfill_now() && self.learners.osds().any(|osd| self.next_to_copy(osd).is_some())
    }

    /// Begins to read the next object. False if there is none.
    pub fn backfill_next(&mut self, view: &impl ObjectView) -> bool {
        let learners: Vec<OsdId> = self.learners.osds().collect();
        self.may_backfill_now() && learners.into_iter().any(|osd| self.copy_one(osd, view))
    }

    /// A scrub may replace an object between two parts. Shards are read from several members, so no
    /// write of the object may be in flight to them.
    fn next_to_copy(&self, osd: OsdId) -> Option<&ObjectName> {
        let erasure = self.erasure.as_ref();
        let changes = |object: &ObjectName| {
            erasure.is_some_and(|erasure| erasure.is_about_to_change(object, &self.config, &self.log))
        };
        self.learners.to_copy(osd).find(|object| !self.is_in_scrub(object) && !changes(object))
    }

    fn copy_one(&mut self, osd: OsdId, view: &impl ObjectView) -> bool {
        loop {
            let token = self.outbox.token();
            let Some(object) = self.next_to_copy(osd).cloned() else { return false };
            let part = self.learners.copy(osd, object, token, &self.config, &mut self.outbox);
            if let Some(part) = part {
                self.read_part(part, view);
                return true;
            }
        }
    }

    fn read_part(&mut self, part: Part, view: &impl ObjectView) {
        let Part { token, shard, object, touched, from } = part;
        let is_urgent = self.config.state == PgState::Peering;
        if let (true, Some(shard)) = (self.config.is_erasure_coded(&object), shard) {
            let begins = from == 0 && !is_urgent;
            return self.read_shard_part(ShardPartRequest { token, shard, object, touched, from, begins }, view);
        }
        self.outbox.push(Action::ReadObject { token, object, touched, from: Some(from), is_urgent });
    }

    /// An object, or a part of it, has been read for a learner or for a repair.
    pub fn object_read(&mut self, token: Token, result: Result<ObjectParts, String>, view: &impl ObjectView) {
        if self.scrub_read_done(token, &result, view) {
            return;
        }
        let Some((osd, object)) = self.learners.read_under(token) else { return };
        match result {
            Ok(parts) => self.with_learners(view, |learners, context| {
                learners.send_parts(osd, object, parts, context.config.record.epoch, context.outbox)
            }),
            Err(cause) => {
                self.outbox.warn(format!("cannot read '{object}' to backfill {osd}, and will try again: {cause}"));
                self.repair_for_backfill(object.clone());
                self.copy_later(osd, object, view);
                self.let_another_help(osd, view);
            }
        }
    }

    fn read_next_part(&mut self, osd: OsdId, object: ObjectName, from: u64, view: &impl ObjectView) {
        if self.is_in_scrub(&object) {
            // The scrub may replace the object, and further parts would be of another state.
            return self.copy_later(osd, object, view);
        }
        let token = self.outbox.token();
        let part = self.learners.next_part(osd, object, from, token);
        self.read_part(part, view);
    }

    fn copy_later(&mut self, osd: OsdId, object: ObjectName, view: &impl ObjectView) {
        self.learners.copy_later(osd, object, view.now_ms());
        self.copy_more(osd, view);
        self.start_waiting(view);
    }

    /// A learner has made sent data durable.
    pub(crate) fn learner_pushed(&mut self, from: OsdId, epoch: Epoch, tag: u64, view: &impl ObjectView) {
        if self.config.is_primary() && epoch == self.config.record.epoch {
            self.with_learners(view, |learners, context| learners.pushed(from, tag, epoch, context.outbox));
        }
    }

    fn learner_is_complete(&mut self, osd: OsdId, view: &impl ObjectView) {
        self.membership.note_complete(osd);
        if self.config.record.members.contains(&osd) {
            self.learners.remove(osd);
            return self.member_caught_up(osd, view);
        }
        self.advance(view);
    }
}
