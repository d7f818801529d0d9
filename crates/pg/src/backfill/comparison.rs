//! The difference of a learner: by the log if both logs share a write, else by comparing the versions of all
//! objects.

use std::collections::BTreeMap;

use atoll_types::{LogEntry, ObjectName, OsdId, Touched, Version};
use atoll_wire::Message;

use super::{Answer, Effect, Learner, Learners, Listing, Sent, whole};
use crate::actions::{Action, ObjectView, Token};
use crate::config::Configuration;
use crate::context::Context;
use crate::outbox::Outbox;
use crate::own_object::{own_change, own_object, set_shard};

impl Learners {
    /// This OSD's objects have been listed for a learner.
    pub(super) fn own_listed(
        &mut self,
        token: Token,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
        config: &Configuration,
        outbox: &mut Outbox,
    ) {
        let wants_it =
            |learner: &Learner| matches!(&learner.listing, Listing::Own { token: own, .. } if *own == token);
        let next_token = outbox.token();
        // If there is none, the learner was dropped meanwhile.
        let Some(learner) = self.learners.values_mut().find(|learner| wants_it(learner)) else { return };
        let Listing::Own { token, listed } = &mut learner.listing else { unreachable!("looked at above") };
        listed.extend(objects);
        if more && let Some((last, _)) = listed.last() {
            *token = next_token;
            let after = Some(last.clone());
            return outbox.push(Action::ListObjects { token: next_token, after });
        }
        let own = std::mem::take(listed).into_iter().collect();
        learner.listing = Listing::Theirs { own };
        learner.ask_for_objects(None, config, outbox);
    }

    /// A learner has listed its objects. It lacks those whose versions differ, and those that only
    /// one side has.
    pub(super) fn listed(
        &mut self,
        osd: OsdId,
        tag: u64,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
        context: &mut Context<'_, impl ObjectView>,
    ) -> Effect {
        let learner = self.learners.get_mut(&osd).filter(|learner| learner.tag == tag);
        let Some(learner) = learner else { return Effect::Nothing };
        let Listing::Theirs { own } = &mut learner.listing else { return Effect::Nothing };
        let last = objects.last().map(|(name, _)| name.clone());
        learner.has_objects |= last.is_some();
        for (name, version) in objects {
            if own.remove(&name) != Some(version) || learner.is_of_other_shard {
                learner.missing.insert(name, whole());
            }
        }
        if more && last.is_some() {
            learner.ask_for_objects(last, context.config, context.outbox);
            return Effect::Nothing;
        }
        let own = std::mem::take(own);
        learner.listing = Listing::NotNeeded;
        let written = std::mem::take(&mut learner.written);
        let missing = own.into_keys().chain(written).chain([own_object()]);
        learner.missing.extend(missing.map(|name| (name, whole())));
        if let (Some(shard), true, false) = (learner.shard, learner.is_of_other_shard, learner.has_objects) {
            // It has no objects of another shard. If the backfill begins again, those it has by
            // then are of this one.
            learner.is_of_other_shard = false;
            let note = own_change(context.config.id, vec![set_shard(shard)]);
            learner.send(note, Sent::Other, context.config.record.epoch, context.outbox);
        }
        Effect::CopyMore { osd }
    }
}

impl Learner {
    fn ask_for_objects(&self, after: Option<ObjectName>, config: &Configuration, outbox: &mut Outbox) {
        let (pg, epoch, tag) = (config.id, config.record.epoch, self.tag);
        outbox.send(self.osd, Message::ObjectsQuery { pg, epoch, tag, after });
    }
}

/// The newest write that both histories have. `None` if the logs do not show it, or if the learner's copy is
/// incomplete.
pub(super) fn common_point(own_log: &[LogEntry], answer: &Answer) -> Option<Version> {
    if !answer.is_complete {
        return None;
    }
    if answer.head == Version::default() {
        // The learner has no history, so the log is enough if it holds the first write.
        let is_whole = own_log.first().is_none_or(|first| first.version.sequence == 1);
        return is_whole.then(Version::default);
    }
    let mut theirs = [answer.head].into_iter().chain(answer.log.iter().rev().map(|entry| entry.version));
    theirs.find(|version| own_log.iter().any(|entry| entry.version == *version))
}

/// Returns the objects to copy: everything that either side has written after the common point.
pub(super) fn differences(
    own_log: &[LogEntry],
    their_log: &[LogEntry],
    common: Version,
) -> BTreeMap<ObjectName, Touched> {
    let mut missing: BTreeMap<ObjectName, Touched> = BTreeMap::new();
    for entry in own_log.iter().filter(|entry| entry.version > common) {
        missing.entry(entry.object.clone()).or_default().merge(&entry.touched);
    }
    for entry in their_log.iter().filter(|entry| entry.version.sequence > common.sequence) {
        let touched = missing.entry(entry.object.clone()).or_default();
        touched.merge(&entry.touched);
        // That write may have created or grown the object. The PG's own object has keys only.
        touched.whole |= entry.object != own_object();
    }
    missing
}
