//! What a learner lacks: by the log if both logs share a write, else by comparing the versions of
//! all objects.

use std::collections::BTreeMap;

use atoll_types::{Epoch, LogEntry, ObjectName, OsdId, Touched, Version};
use atoll_wire::Message;

use super::learner::{Answer, Learner, Listing, Sent};
use super::whole;
use crate::actions::{Action, ObjectView, Token};
use crate::group::Pg;
use crate::own_object::{own_change, own_object, set_shard};
use crate::primary_requests::{PrimaryRequest, Wanted};

impl Pg {
    /// This OSD's objects have been listed: for a backfill, a scrub, a deletion, or a primary.
    pub fn objects_listed(&mut self, token: Token, objects: Vec<(ObjectName, Version)>, more: bool) {
        if let Some(PrimaryRequest { primary, epoch, tag }) = self.primary_requests.answered(token, Wanted::List) {
            let reply = Message::ObjectsReply { pg: self.config.id, epoch, tag, objects, more };
            return self.outbox.send(primary, reply);
        }
        if self.stray.listed(token, &objects, more) || self.scrub_listed(self.config.me, token.0, &objects, more) {
            return;
        }
        let wants_it =
            |learner: &Learner| matches!(&learner.listing, Listing::Own { token: own, .. } if *own == token);
        let next_token = self.outbox.token();
        let mut found = self.learners.learners.iter_mut().map(|(osd, learner)| (*osd, learner));
        // If there is none, the learner was dropped meanwhile.
        let Some((osd, learner)) = found.find(|(_, learner)| wants_it(learner)) else { return };
        let Listing::Own { token, listed } = &mut learner.listing else { unreachable!("looked at above") };
        listed.extend(objects);
        if more && let Some((last, _)) = listed.last() {
            *token = next_token;
            let after = Some(last.clone());
            return self.outbox.push(Action::ListObjects { token: next_token, after });
        }
        let own = std::mem::take(listed).into_iter().collect();
        learner.listing = Listing::Theirs { own };
        self.ask_for_objects(osd, None);
    }

    pub(super) fn ask_for_objects(&mut self, osd: OsdId, after: Option<ObjectName>) {
        let tag = self.learners.learners[&osd].tag;
        self.outbox
            .send(osd, Message::ObjectsQuery { pg: self.config.id, epoch: self.config.record.epoch, tag, after });
    }

    /// The learner has listed its objects. It lacks those whose versions differ, and those that
    /// only one side has.
    pub(crate) fn learner_listed(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
        view: &impl ObjectView,
    ) {
        if !self.config.is_primary()
            || epoch != self.config.record.epoch
            || self.scrub_listed(from, tag, &objects, more)
        {
            return;
        }
        let Some(learner) = self.learners.learners.get_mut(&from).filter(|learner| learner.tag == tag) else {
            return;
        };
        let Listing::Theirs { own } = &mut learner.listing else { return };
        let last = objects.last().map(|(name, _)| name.clone());
        learner.has_objects |= last.is_some();
        for (name, version) in objects {
            if own.remove(&name) != Some(version) || learner.is_of_other_shard {
                learner.missing.insert(name, whole());
            }
        }
        if more && last.is_some() {
            return self.ask_for_objects(from, last);
        }
        let Listing::Theirs { own } = std::mem::replace(&mut learner.listing, Listing::NotNeeded) else {
            unreachable!("looked at above");
        };
        let written = std::mem::take(&mut learner.written);
        let missing = own.into_keys().chain(written).chain([own_object()]);
        learner.missing.extend(missing.map(|name| (name, whole())));
        if let (Some(shard), true, false) = (learner.shard, learner.is_of_other_shard, learner.has_objects) {
            // It has no objects of another shard. If the backfill begins again, those it has by
            // then are of this one.
            learner.is_of_other_shard = false;
            let note = own_change(self.config.id, vec![set_shard(shard)]);
            self.send_to_learner(from, note, Sent::Other);
        }
        self.copy_more(from, view);
    }
}

/// The newest write that both histories have. `None` if the logs do not tell, or if the learner's
/// copy is incomplete.
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

/// What must be copied: everything that either side has written after the common point.
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
