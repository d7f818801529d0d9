//! Objects on their way to learners, part by part.

use atoll_types::operation::FENCE_KEY_PREFIX;
use atoll_types::{Epoch, Mutation, ObjectName, OsdId, Touched, Transaction, Version};

use super::RETRY_PAUSE_MS;
use super::learner::{Copying, Learner, Sent};
use crate::actions::{Action, ObjectParts, ObjectView, Token};
use crate::config::PgState;
use crate::erasure::ShardPartRequest;
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{change, own_change, own_object, set_complete, set_shard};

impl Pg {
    /// Copies the next objects while the PG peers, and tells a learner that lacks nothing that it
    /// is complete.
    pub(super) fn copy_more(&mut self, osd: OsdId, view: &impl ObjectView) {
        // While the PG peers no client writes, so reading ahead holds up no request.
        while self.config.state == PgState::Peering && self.copy_one(osd, view) {}
        let Some(learner) = self.learners.learners.get_mut(&osd) else { return };
        if learner.has_begun && learner.is_listed() && !learner.is_finishing && !learner.lacks_any() {
            learner.is_finishing = true;
            let shard = learner.shard.filter(|_| learner.is_of_other_shard).map(set_shard);
            let done = [Some(set_complete()), shard].into_iter().flatten().collect();
            let done = own_change(self.config.id, done);
            self.send_to_learner(osd, done, Sent::Done);
        }
    }

    /// Whether there is an object to copy to a learner now. The shell paces copies by
    /// [`Pg::backfill_next`]; until then clients may write the object.
    pub fn wants_to_backfill(&self) -> bool {
        let is_free = |learner: &Learner| learner.missing.keys().any(|object| self.may_be_copied(object));
        let mut learners = self.learners.learners.values();
        self.may_backfill_now() && learners.any(|learner| learner.may_copy() && is_free(learner))
    }

    /// Begins to read the next object. False if there is none.
    pub fn backfill_next(&mut self, view: &impl ObjectView) -> bool {
        let learners: Vec<OsdId> = self.learners.learners.keys().copied().collect();
        self.may_backfill_now() && learners.into_iter().any(|osd| self.copy_one(osd, view))
    }

    /// A scrub may replace an object between two parts. Shards are read from several members, so no
    /// write of the object may be in flight to them.
    fn may_be_copied(&self, object: &ObjectName) -> bool {
        let erasure = self.erasure.as_ref();
        let changes = erasure.is_some_and(|erasure| erasure.is_about_to_change(object, &self.config, &self.log));
        !self.is_in_scrub(object) && !changes
    }

    fn copy_one(&mut self, osd: OsdId, view: &impl ObjectView) -> bool {
        loop {
            let token = self.outbox.token();
            let learner = self.learners.learners.get(&osd).filter(|learner| learner.may_copy());
            let Some(learner) = learner else { return false };
            let shard = learner.shard;
            let next = learner.missing.keys().find(|object| self.may_be_copied(object)).cloned();
            let is_held = |object: &ObjectName| self.has_place_for(object, learner.pg_num);
            let Some((object, is_held)) = next.map(|object| (object.clone(), is_held(&object))) else {
                return false;
            };
            let learner = self.learners.learners.get_mut(&osd).expect("found above");
            let touched = learner.missing.remove(&object).expect("found above");
            let reading = is_held.then_some(token);
            let copying = Copying { touched: touched.clone(), reading, has_begun: !is_held };
            let before = learner.copying.insert(object.clone(), copying);
            invariants::object_is_copied_once(&object, before.is_some());
            if is_held {
                self.read_part((token, shard), object, touched, 0, view);
                return true;
            }
            // The learner's copy is from before a split, and the object belongs to the new PG now.
            let removal = change(self.config.id, object.clone(), vec![Mutation::Remove]);
            self.send_to_learner(osd, removal, Sent::Object(object));
        }
    }

    fn read_part(
        &mut self,
        (token, shard): (Token, Option<u8>),
        object: ObjectName,
        touched: Touched,
        from: u64,
        view: &impl ObjectView,
    ) {
        if let (true, Some(shard)) = (self.is_erasure_coded(&object), shard) {
            let begins = from == 0 && self.config.state != PgState::Peering;
            return self.read_shard_part(ShardPartRequest { token, shard, object, touched, from, begins }, view);
        }
        let is_urgent = self.config.state == PgState::Peering;
        self.outbox.push(Action::ReadObject { token, object, touched, from: Some(from), is_urgent });
    }

    /// An object, or a part of it, has been read for a learner or for a repair.
    pub fn object_read(&mut self, token: Token, result: Result<ObjectParts, String>, view: &impl ObjectView) {
        if self.scrub_read_done(token, &result, view) {
            return;
        }
        let reads_it = |learner: &Learner| {
            let found = learner.copying.iter().find(|(_, copying)| copying.reading == Some(token));
            found.map(|(object, _)| object.clone())
        };
        let found = self.learners.learners.iter().find_map(|(osd, learner)| Some((*osd, reads_it(learner)?)));
        // If there is none, the learner was dropped meanwhile.
        let Some((osd, object)) = found else { return };
        let learner = self.learners.learners.get_mut(&osd).expect("found above");
        let copying = learner.copying.get_mut(&object).expect("found above");
        match result {
            Ok(parts) => {
                copying.reading = None;
                let is_first = !std::mem::replace(&mut copying.has_begun, true);
                self.send_parts(osd, object, parts, is_first);
            }
            Err(cause) => {
                self.outbox.warn(format!("cannot read '{object}' to backfill {osd}, and will try again: {cause}"));
                self.repair_for_backfill(object.clone());
                self.try_again_later(osd, object, view);
                self.let_another_help(osd, view);
            }
        }
    }

    fn part_arrived(&mut self, osd: OsdId, object: ObjectName, next: u64, view: &impl ObjectView) {
        if self.is_in_scrub(&object) {
            // The scrub may replace the object, and further parts would be of another state.
            return self.try_again_later(osd, object, view);
        }
        let token = self.outbox.token();
        let learner = self.learners.learners.get_mut(&osd).expect("it has just answered");
        let copying = learner.copying.get_mut(&object).expect("its parts are not all there");
        invariants::object_is_read_part_by_part(&object, copying.reading.is_some());
        copying.reading = Some(token);
        let touched = copying.touched.clone();
        let shard = learner.shard;
        self.read_part((token, shard), object, touched, next, view);
    }

    /// Sends an object again from the start, later. The parts that were sent have no version yet.
    fn try_again_later(&mut self, osd: OsdId, object: ObjectName, view: &impl ObjectView) {
        if let Some(learner) = self.learners.learners.get_mut(&osd)
            && let Some(copying) = learner.copying.remove(&object)
        {
            learner.failed.insert(object, copying.touched);
            learner.retry_failed_at_ms = view.now_ms() + RETRY_PAUSE_MS;
        }
        self.copy_more(osd, view);
        self.start_waiting(view);
    }

    fn send_parts(&mut self, osd: OsdId, object: ObjectName, parts: ObjectParts, is_first: bool) {
        let ObjectParts { mut transactions, next } = parts;
        if object == own_object() {
            keep_fences(&mut transactions);
        } else if is_first && (transactions.len() > 1 || next.is_some()) {
            // Until the last part arrives, the learner's copy has no version.
            let version = Version::default();
            transactions[0].mutations.insert(0, Mutation::SetVersion { version });
        }
        let last = transactions.pop().expect("an object has one part at least");
        if let Some(next) = next {
            return self.send_to_learner(osd, last, Sent::Part(object, next));
        }
        let Some(but_last) = transactions.pop() else {
            return self.send_to_learner(osd, last, Sent::Object(object));
        };
        for transaction in transactions {
            self.send_to_learner(osd, transaction, Sent::Other);
        }
        self.send_to_learner(osd, but_last, Sent::ButLast(object, Box::new(last)));
    }

    /// A learner has made durable what it was sent.
    pub(crate) fn learner_pushed(&mut self, from: OsdId, epoch: Epoch, tag: u64, view: &impl ObjectView) {
        if !self.config.is_primary() || epoch != self.config.record.epoch {
            return;
        }
        let Some(learner) = self.learners.learners.get_mut(&from).filter(|learner| learner.tag == tag) else {
            return;
        };
        match learner.sent.pop_front() {
            Some(Sent::Part(object, next)) => self.part_arrived(from, object, next, view),
            Some(Sent::ButLast(object, last)) => self.send_to_learner(from, *last, Sent::Object(object)),
            Some(Sent::Object(object)) => {
                learner.copying.remove(&object);
                self.copy_more(from, view);
                self.start_waiting(view);
            }
            Some(Sent::Done) => {
                invariants::complete_learner_lacks_nothing(from, learner.lacks_any());
                learner.is_ready = true;
                self.membership.note_complete(from);
                if self.config.record.members.contains(&from) {
                    self.learners.remove(from);
                    return self.member_caught_up(from, view);
                }
                self.advance(view);
            }
            Some(Sent::Other) | None => {}
        }
    }
}

/// Of the PG's own object only fences are copied. The rest belongs to each OSD.
fn keep_fences(transactions: &mut [Transaction]) {
    let is_fence = |mutation: &Mutation| match mutation {
        Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => key.starts_with(FENCE_KEY_PREFIX),
        _ => false,
    };
    for transaction in transactions {
        transaction.mutations.retain(is_fence);
    }
}
