//! Backfill of learners: OSDs that are to become members, while the PG serves, and members that
//! lack the last writes, while it peers. The log says what is missing if it reaches back to where
//! the two histories part; otherwise the versions of all objects are compared.
//!
//! From the start a learner gets every write in order: with its data, or as a mere log entry if the
//! object is still to be copied, because the copy will contain it. Writes of an object wait while
//! it is copied, so a copy begins only when the shell can read it at once. The learner has a
//! durable mark that it is incomplete until the backfill is done.

mod comparison;
mod copying;
mod learner;

use std::collections::VecDeque;

use atoll_types::{LogEntry, Mutation, OsdId, Touched, Transaction, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView, Token};
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{MIXED_SHARDS, own_change, set_epoch, set_incomplete, set_shard};
use crate::split::{is_split, split_whole};
use comparison::{common_point, differences};
pub(crate) use learner::{Answer, Learners};
use learner::{Learner, Listing, Sent};

/// Bytes of log entries per message. The last entry may go beyond this; even the largest leaves the
/// message within the control segment's limit.
const ENTRY_BYTES_PER_MESSAGE: usize = 256 << 10;

/// A learner that failed or does not answer is tried again after this time.
const RETRY_PAUSE_MS: u64 = 1_000;

pub(crate) fn whole() -> Touched {
    Touched { whole: true, ..Touched::default() }
}

/// All shards are held, or being backfilled.
struct NoShardIsFree;

impl Pg {
    /// Makes learners of the targets that are no members and can be reached, drops those that are
    /// not wanted or silent, and continues with the others.
    pub(crate) fn update_learners(&mut self, view: &impl ObjectView) {
        let now_ms = view.now_ms();
        let is_wanted = |osd: &OsdId| {
            self.config.policy.may_backfill
                && self.config.target.contains(osd)
                && !self.config.record.members.contains(osd)
                && self.membership.is_reachable(*osd)
        };
        let wanted: Vec<OsdId> = self.config.target.iter().copied().filter(is_wanted).collect();
        self.learners.learners.retain(|osd, learner| {
            let is_silent =
                learner.answer.is_none() && !learner.has_begun && now_ms >= learner.asked_at_ms + RETRY_PAUSE_MS;
            wanted.contains(osd) && !is_silent
        });
        for osd in wanted {
            let may_try = self.learners.retry_at_ms.get(&osd).is_none_or(|at_ms| now_ms >= *at_ms);
            if may_try && !self.learners.learners.contains_key(&osd) {
                let Token(tag) = self.outbox.token();
                self.learners.learners.insert(osd, Learner::new(tag, now_ms));
                self.ask(osd, true);
            }
        }
        self.continue_learners(view);
    }

    /// Continues with all learners, and tries objects again that could not be read.
    pub(crate) fn continue_learners(&mut self, view: &impl ObjectView) {
        let now_ms = view.now_ms();
        for osd in self.learners.learners.keys().copied().collect::<Vec<_>>() {
            let learner = self.learners.learners.get_mut(&osd).expect("it is listed");
            if now_ms >= learner.retry_failed_at_ms {
                learner.missing.append(&mut learner.failed);
            }
            self.copy_more(osd, view);
        }
    }

    /// While the PG peers: backfills a member whose head is behind.
    pub(crate) fn backfill_member(&mut self, osd: OsdId, head: Version, view: &impl ObjectView) {
        invariants::members_catch_up_one_by_one(osd, self.learners.are_any());
        let Token(tag) = self.outbox.token();
        let mut learner = Learner::new(tag, view.now_ms());
        let shard = self.config.record.shard_of(osd);
        learner.answer = Some(Answer { head, is_complete: true, log: Vec::new(), shard });
        self.learners.learners.insert(osd, learner);
        self.start_learning(view);
    }

    /// A learner has answered the query; or, if its backfill has begun, it could not take what it
    /// was sent.
    pub(crate) fn learner_answered(&mut self, from: OsdId, answer: Answer, view: &impl ObjectView) {
        if !self.may_backfill_now() {
            return;
        }
        let Some(learner) = self.learners.learners.get_mut(&from) else { return };
        if learner.has_begun {
            self.learners.learners.remove(&from);
            self.learners.retry_at_ms.insert(from, view.now_ms() + RETRY_PAUSE_MS);
            return;
        }
        learner.answer = Some(answer);
        self.start_learning(view);
    }

    /// Begins with learners that have answered, once the view shows the whole history.
    pub(crate) fn start_learning(&mut self, view: &impl ObjectView) {
        if !self.outbox.view_is_current() {
            return;
        }
        let answered: Vec<OsdId> = self
            .learners
            .learners
            .iter()
            .filter(|(_, learner)| learner.answer.is_some())
            .map(|(osd, _)| *osd)
            .collect();
        for osd in answered {
            self.begin(osd, view);
        }
    }

    fn begin(&mut self, osd: OsdId, view: &impl ObjectView) {
        let mut own_log = view.log(self.config.id);
        own_log.iter_mut().for_each(|entry| entry.pre_image = None);
        let Ok(shard) = self.shard_for_learner(osd) else {
            // All shards are held or being backfilled, until a member leaves.
            self.learners.remove(osd);
            self.learners.retry_at_ms.insert(osd, view.now_ms() + RETRY_PAUSE_MS);
            return;
        };
        if let Some(shard) = shard {
            invariants::learners_get_different_shards(shard, self.learners.shards_but_of(osd));
        }
        let (pg_num, pg_num_here) = (self.config.pg_num(), self.pg_num_here(view));
        let learner = self.learners.learners.get_mut(&osd).expect("it has just answered");
        let answer = learner.answer.take().expect("it has just answered");
        learner.has_begun = true;
        learner.pg_num = pg_num_here;
        learner.shard = shard;
        learner.is_of_other_shard = answer.shard != shard;
        let common = common_point(&own_log, &answer).filter(|_| !learner.is_of_other_shard);
        if common.is_none() && self.config.record.members.contains(&osd) {
            return self.cannot_follow(osd, answer.head, view);
        }
        let behind: Vec<&LogEntry> = own_log.iter().filter(|entry| Some(entry.version) > common).collect();
        // Until cluster state has the split, the learner can split its copy like a member.
        // Afterwards the new PG has a history of its own.
        let lacks_split_only = pg_num_here > pg_num
            && common == Some(answer.head)
            && matches!(behind[..], [entry] if is_split(entry));
        // A learner that has not seen a split may have objects that moved to the new PG, and the
        // log does not tell which.
        let has_seen_splits = lacks_split_only || !behind.iter().any(|entry| is_split(entry));
        let common = common.filter(|_| has_seen_splits);
        if let (Some(common), false) = (common, lacks_split_only) {
            learner.missing = differences(&own_log, &answer.log, common);
        }
        let start = match lacks_split_only {
            true => split_whole(pg_num_here),
            false => self.start_of_backfill(osd, common, view),
        };
        self.send_history(osd, start, common, own_log);
        if common.is_none() {
            let token = self.outbox.token();
            let learner = self.learners.learners.get_mut(&osd).expect("it has begun");
            learner.listing = Listing::Own { token, listed: Vec::new() };
            self.outbox.push(Action::ListObjects { token, after: None });
        }
        self.copy_more(osd, view);
    }

    /// The shard that a learner gets: a member its own, another OSD a free one. `None` in a
    /// replicated PG.
    fn shard_for_learner(&self, osd: OsdId) -> Result<Option<u8>, NoShardIsFree> {
        if self.erasure.is_none() || self.config.record.members.contains(&osd) {
            return Ok(self.erasure.as_ref().and_then(|_| self.config.record.shard_of(osd)));
        }
        let has = self.learners.learners[&osd].answer.as_ref().and_then(|answer| answer.shard);
        self.shard_to_backfill(osd, has).map(Some).ok_or(NoShardIsFree)
    }

    /// The log does not reach back to the end of a member's history, so it was no member of the
    /// last active configuration with this history. It must be backfilled as a learner.
    fn cannot_follow(&mut self, osd: OsdId, head: Version, view: &impl ObjectView) {
        self.learners.remove(osd);
        self.membership.note_incomplete(osd);
        self.outbox.warn(format!("{osd} ends at {head}, before the log begins; it must be backfilled"));
        self.advance(view);
    }

    /// The first change of a learner's copy: marks it as incomplete, and cuts its history back to
    /// the common point.
    fn start_of_backfill(&self, osd: OsdId, common: Option<Version>, view: &impl ObjectView) -> Vec<Mutation> {
        let splits = self.tell_of_splits(view);
        let mut start = match common {
            Some(common) => vec![set_incomplete(), Mutation::ResetLog { head: common }],
            None => {
                // Its fences may stem from writes that were never acknowledged.
                let promise = set_epoch(self.config.record.epoch);
                let nothing = Mutation::ResetLog { head: Version::default() };
                vec![Mutation::Remove, promise, set_incomplete(), nothing]
            }
        };
        let learner = &self.learners.learners[&osd];
        if let Some(shard) = learner.shard {
            // Until the backfill is done it has objects of both shards, and versions do not tell
            // which.
            start.push(set_shard(if learner.is_of_other_shard { MIXED_SHARDS } else { shard }));
        }
        start.push(splits);
        start
    }

    /// Sends the first change and the history after the common point.
    fn send_history(&mut self, osd: OsdId, start: Vec<Mutation>, common: Option<Version>, log: Vec<LogEntry>) {
        let text = match common {
            Some(common) => format!("backfilling {osd}, which has everything up to {common}"),
            None => format!("backfilling {osd}, whose objects are compared one by one"),
        };
        self.outbox.warn(text);
        let common = common.unwrap_or_default();
        let mut log: VecDeque<LogEntry> = log.into_iter().filter(|entry| entry.version > common).collect();
        let start = Transaction { log: entries_for_one_message(&mut log), ..own_change(self.config.id, start) };
        self.send_to_learner(osd, start, Sent::Other);
        while !log.is_empty() {
            let transaction =
                Transaction { log: entries_for_one_message(&mut log), ..own_change(self.config.id, Vec::new()) };
            self.send_to_learner(osd, transaction, Sent::Other);
        }
    }

    fn send_to_learner(&mut self, osd: OsdId, transaction: Transaction, sent: Sent) {
        let epoch = self.config.record.epoch;
        let Some(learner) = self.learners.learners.get_mut(&osd) else { return };
        learner.sent.push_back(sent);
        let tag = learner.tag;
        self.outbox.send(osd, Message::PeerPush { epoch, tag, transaction });
    }

    /// Sends a write to all learners whose backfill has begun.
    pub(crate) fn replicate_to_learners(&mut self, transaction: impl Fn(Option<u8>) -> Transaction) {
        let (epoch, committed) = (self.config.record.epoch, self.newest_committed());
        let learners = self.learners.learners.iter_mut().filter(|(_, learner)| learner.has_begun);
        let shares: Vec<(OsdId, Transaction)> =
            learners.map(|(osd, learner)| (*osd, learner.share_of(&transaction(learner.shard)))).collect();
        for (osd, transaction) in shares {
            self.outbox.send(osd, Message::Replicate { epoch, transaction, committed });
        }
    }
}

/// Takes as many entries as fit into one message, at least one if there is any.
fn entries_for_one_message(log: &mut VecDeque<LogEntry>) -> Vec<LogEntry> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while bytes < ENTRY_BYTES_PER_MESSAGE
        && let Some(entry) = log.pop_front()
    {
        bytes += entry.encoded_bytes_bound();
        taken.push(entry);
    }
    taken
}
