//! Objects on their way to learners, part by part.

use atoll_types::operation::FENCE_KEY_PREFIX;
use atoll_types::{Epoch, Mutation, ObjectName, OsdId, Touched, Transaction, Version};

use super::{Copying, Effect, Learner, Learners, RETRY_PAUSE_MS, Sent};
use crate::actions::{ObjectParts, Token};
use crate::config::Configuration;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::{change, own_change, own_object, set_complete, set_not_behind, set_shard};

/// A part of an object that is to be read for a learner.
pub(super) struct Part {
    pub token: Token,
    /// The learner's shard, in an erasure-coded PG.
    pub shard: Option<u8>,
    pub object: ObjectName,
    pub touched: Touched,
    /// Where the part begins.
    pub from: u64,
}

impl Learners {
    /// The objects that can be copied to a learner now.
    pub(super) fn to_copy(&self, osd: OsdId) -> impl Iterator<Item = &ObjectName> {
        let learner = self.learners.get(&osd).filter(|learner| learner.may_copy());
        learner.into_iter().flat_map(|learner| learner.missing.keys())
    }

    /// Begins to copy an object: gives back the part to read first, under this token. `None` if the learner only
    /// removes the object.
    pub(super) fn copy(
        &mut self,
        osd: OsdId,
        object: ObjectName,
        token: Token,
        config: &Configuration,
        outbox: &mut Outbox,
    ) -> Option<Part> {
        let learner = self.learners.get_mut(&osd).expect("it lacks the object");
        let touched = learner.missing.remove(&object).expect("it lacks the object");
        let is_held = config.has_place_for(&object, learner.pg_num);
        let reading = is_held.then_some(token);
        let copying = Copying { touched: touched.clone(), reading, has_begun: !is_held };
        let before = learner.copying.insert(object.clone(), copying);
        invariants::object_is_copied_once(&object, before.is_some());
        if is_held {
            return Some(Part { token, shard: learner.shard, object, touched, from: 0 });
        }
        // The learner's copy is from before a split, and the object belongs to the new PG now.
        let removal = learner.under_its_name(change(config.id, object.clone(), vec![Mutation::Remove]));
        learner.send(removal, Sent::Object(object), config.record.epoch, outbox);
        None
    }

    /// Informs a learner that lacks nothing that it is complete.
    pub(super) fn finish(&mut self, osd: OsdId, config: &Configuration, outbox: &mut Outbox) {
        let Some(learner) = self.learners.get_mut(&osd) else { return };
        if learner.has_begun && learner.is_listed() && !learner.is_finishing && !learner.lacks_any() {
            learner.is_finishing = true;
            if let Some(staging) = &mut learner.staging {
                let end = staging.end(config);
                return learner.send(end, Sent::Done, config.record.epoch, outbox);
            }
            let shard = learner.shard.filter(|_| learner.is_of_other_shard).map(set_shard);
            let done = [Some(set_complete()), Some(set_not_behind()), shard].into_iter().flatten().collect();
            learner.send(own_change(config.id, done), Sent::Done, config.record.epoch, outbox);
        }
    }

    /// The learner and the object that are read under this token. If there are none, the learner
    /// was dropped meanwhile.
    pub(super) fn read_under(&self, token: Token) -> Option<(OsdId, ObjectName)> {
        self.learners.values().find_map(|learner| {
            let (object, _) = learner.copying.iter().find(|(_, copying)| copying.reading == Some(token))?;
            Some((learner.osd, object.clone()))
        })
    }

    /// An object, or a part of it, has been read for a learner.
    pub(super) fn send_parts(
        &mut self,
        osd: OsdId,
        object: ObjectName,
        parts: ObjectParts,
        epoch: Epoch,
        outbox: &mut Outbox,
    ) -> Effect {
        let learner = self.learners.get_mut(&osd).expect("found above");
        let copying = learner.copying.get_mut(&object).expect("found above");
        copying.reading = None;
        let is_first = !std::mem::replace(&mut copying.has_begun, true);
        let ObjectParts { mut transactions, next } = parts;
        if object == own_object() {
            keep_fences(&mut transactions);
            if let Some(staging) = &mut learner.staging {
                staging.keep_own(transactions);
                return learner.own_object_kept(object, next);
            }
        } else if is_first && (transactions.len() > 1 || next.is_some()) {
            // Until the last part arrives, the learner's copy has no version.
            let version = Version::default();
            transactions[0].mutations.insert(0, Mutation::SetVersion { version });
        }
        learner.send_in_order(object, transactions, next, epoch, outbox);
        Effect::Nothing
    }

    /// A learner has made sent data durable.
    pub(super) fn pushed(&mut self, osd: OsdId, tag: u64, epoch: Epoch, outbox: &mut Outbox) -> Effect {
        let learner = self.learners.get_mut(&osd).filter(|learner| learner.tag == tag);
        let Some(learner) = learner else { return Effect::Nothing };
        match learner.sent.pop_front() {
            Some(Sent::Part(object, from)) => Effect::NextPart { osd, object, from },
            Some(Sent::ButLast(object, last)) => {
                learner.send(*last, Sent::Object(object), epoch, outbox);
                Effect::Nothing
            }
            Some(Sent::Object(object)) => {
                learner.copying.remove(&object);
                Effect::ObjectArrived { osd }
            }
            Some(Sent::Done) => {
                invariants::complete_learner_lacks_nothing(osd, learner.lacks_any());
                learner.is_ready = true;
                Effect::Complete { osd }
            }
            Some(Sent::Other) | None => Effect::Nothing,
        }
    }

    /// The next part of an object, to be read under this token.
    pub(super) fn next_part(&mut self, osd: OsdId, object: ObjectName, from: u64, token: Token) -> Part {
        let learner = self.learners.get_mut(&osd).expect("it has just answered");
        let copying = learner.copying.get_mut(&object).expect("its parts are not all there");
        invariants::object_is_read_part_by_part(&object, copying.reading.is_some());
        copying.reading = Some(token);
        Part { token, shard: learner.shard, object, touched: copying.touched.clone(), from }
    }

    /// An object is sent again from the start, later. The parts that were sent have no version yet.
    pub(super) fn copy_later(&mut self, osd: OsdId, object: ObjectName, now_ms: u64) {
        if let Some(learner) = self.learners.get_mut(&osd)
            && let Some(copying) = learner.copying.remove(&object)
        {
            learner.failed.insert(object, copying.touched);
            learner.retry_failed_at_ms = now_ms + RETRY_PAUSE_MS;
        }
    }

    /// Objects that could not be read are tried again.
    pub(super) fn retry_failed(&mut self, now_ms: u64) {
        let is_time = |learner: &&mut Learner| now_ms >= learner.retry_failed_at_ms;
        for learner in self.learners.values_mut().filter(is_time) {
            learner.missing.append(&mut learner.failed);
        }
    }
}

impl Learner {
    /// Sends the parts of an object. The last one follows when the one before is durable.
    fn send_in_order(
        &mut self,
        object: ObjectName,
        parts: Vec<Transaction>,
        next: Option<u64>,
        epoch: Epoch,
        outbox: &mut Outbox,
    ) {
        let is_own = object == own_object();
        let named = |part| if is_own { part } else { self.under_its_name(part) };
        let mut parts: Vec<Transaction> = parts.into_iter().map(named).collect();
        let last = parts.pop().expect("an object has one part at least");
        if let Some(next) = next {
            return self.send(last, Sent::Part(object, next), epoch, outbox);
        }
        let Some(but_last) = parts.pop() else {
            return self.send(last, Sent::Object(object), epoch, outbox);
        };
        for part in parts {
            self.send(part, Sent::Other, epoch, outbox);
        }
        self.send(but_last, Sent::ButLast(object, Box::new(last)), epoch, outbox);
    }

    /// The omap entries of the PG's own object that a staged member lacks go with the last part.
    fn own_object_kept(&mut self, object: ObjectName, next: Option<u64>) -> Effect {
        let osd = self.osd;
        match next {
            Some(from) => Effect::NextPart { osd, object, from },
            None => {
                self.copying.remove(&object);
                Effect::ObjectArrived { osd }
            }
        }
    }
}

/// Only fences of the PG's own object are copied. The rest belongs to each OSD.
fn keep_fences(transactions: &mut [Transaction]) {
    let is_fence = |mutation: &Mutation| match mutation {
        Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => key.starts_with(FENCE_KEY_PREFIX),
        _ => false,
    };
    for transaction in transactions {
        transaction.mutations.retain(is_fence);
    }
}
