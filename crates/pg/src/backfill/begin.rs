//! Learners, and the start of a backfill: its shard, and the point of the history from which it copies.

use std::collections::{BTreeSet, VecDeque};

use atoll_types::{Epoch, LogEntry, Mutation, OsdId, Transaction, Version};

use super::comparison::{common_point, differences};
use super::{Answer, Effect, Learner, Learners, Listing, RETRY_PAUSE_MS, Sent};
use crate::actions::{Action, ObjectView, Token};
use crate::config::Configuration;
use crate::context::Context;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::{MIXED_SHARDS, own_change, set_epoch, set_incomplete, set_shard};
use crate::split::{is_split, split_whole};
use crate::staging::can_be_staged;

/// Bytes of log entries per message. The last entry may go beyond this; even the largest leaves the
/// message within the control segment's limit.
const ENTRY_BYTES_PER_MESSAGE: usize = 256 << 10;

/// All shards are held, or being backfilled.
struct NoShardIsFree;

impl Learners {
    /// Makes learners of the targets that are no members and can be reached, and drops those that
    /// are not wanted or silent.
    pub(super) fn update(
        &mut self,
        is_reachable: impl Fn(OsdId) -> bool,
        context: &mut Context<'_, impl ObjectView>,
    ) {
        let (config, now_ms) = (context.config, context.view.now_ms());
        let is_wanted =
            |osd: &OsdId| config.policy.may_backfill && !config.record.members.contains(osd) && is_reachable(*osd);
        let wanted: Vec<OsdId> = config.target.iter().copied().filter(is_wanted).collect();
        self.learners.retain(|osd, learner| {
            let is_silent =
                learner.answer.is_none() && !learner.has_begun && now_ms >= learner.asked_at_ms + RETRY_PAUSE_MS;
            wanted.contains(osd) && !is_silent
        });
        for osd in wanted {
            let may_try = self.retry_at_ms.get(&osd).is_none_or(|at_ms| now_ms >= *at_ms);
            if may_try && !self.contains(osd) {
                let Token(tag) = context.outbox.token();
                self.learners.insert(osd, Learner::new(osd, tag, now_ms));
                context.outbox.send(osd, config.query(osd, true));
            }
        }
    }

    /// A learner has answered the query. False if its backfill has begun: then it could not take the sent data.
    pub(super) fn answered(&mut self, osd: OsdId, answer: Answer, now_ms: u64) -> bool {
        let Some(learner) = self.learners.get_mut(&osd) else { return false };
        if learner.has_begun {
            self.try_again_later(osd, now_ms);
            return false;
        }
        learner.answer = Some(answer);
        true
    }

    /// An OSD is not backfilled before this time.
    pub fn postpone(&mut self, osd: OsdId, until_ms: u64) {
        self.retry_at_ms.insert(osd, until_ms);
    }

    fn try_again_later(&mut self, osd: OsdId, now_ms: u64) {
        self.learners.remove(&osd);
        self.retry_at_ms.insert(osd, now_ms + RETRY_PAUSE_MS);
    }

    /// While the PG peers: a member's head is behind.
    pub(super) fn add_member(
        &mut self,
        osd: OsdId,
        head: Version,
        now_ms: u64,
        config: &Configuration,
        outbox: &mut Outbox,
    ) {
        invariants::members_catch_up_one_by_one(osd, self.are_any());
        let Token(tag) = outbox.token();
        let mut learner = Learner::new(osd, tag, now_ms);
        let shard = config.record.shard_of(osd);
        learner.answer = Some(Answer {
            head,
            committed_sequence: 0,
            since_epoch: config.record.epoch,
            is_complete: true,
            log: Vec::new(),
            shard,
            unreadable: None,
            elsewhere: Epoch(0),
        });
        self.learners.insert(osd, learner);
    }

    /// Learners that have answered and whose backfill has not begun.
    pub(super) fn to_begin(&self) -> Vec<OsdId> {
        let answered = self.learners.values().filter(|learner| learner.answer.is_some());
        answered.map(|learner| learner.osd).collect()
    }

    /// A learner has answered, and the view shows the whole history: its backfill begins.
    pub(super) fn begin(&mut self, osd: OsdId, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let (config, view) = (context.config, context.view);
        let mut own_log = view.log(config.id);
        own_log.iter_mut().for_each(|entry| entry.pre_image = None);
        let Ok(shard) = self.shard_for(osd, config) else {
            // All shards are held or being backfilled, until a member leaves.
            self.try_again_later(osd, view.now_ms());
            return Effect::Nothing;
        };
        if let Some(shard) = shard {
            invariants::learners_get_different_shards(shard, self.shards_but_of(osd));
        }
        let (pg_num, pg_num_here) = (config.pg_num(), config.pg_num_here(view));
        let learner = self.learners.get_mut(&osd).expect("it has just answered");
        let answer = learner.answer.take().expect("it has just answered");
        learner.has_begun = true;
        learner.pg_num = pg_num_here;
        learner.shard = shard;
        learner.is_of_other_shard = answer.shard != shard;
        let common = common_point(&own_log, &answer).filter(|_| !learner.is_of_other_shard);
        if common.is_none() && config.record.members.contains(&osd) {
            // The log does not reach back to the end of its history, so it was no member of the
            // last active configuration with this history.
            self.remove(osd);
            let head = answer.head;
            context.outbox.warn(format!("{osd} ends at {head}, before the log begins; it must be backfilled"));
            return Effect::CannotFollow { osd };
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
        let stages = config.record.members.contains(&osd) && !lacks_split_only && can_be_staged(&behind);
        if let Some(since) = common.filter(|common| stages && *common == answer.head) {
            let entries = behind.into_iter().cloned().collect();
            learner.begin_staging(since, entries, config, context.outbox);
            return Effect::CopyMore { osd };
        }
        let start = match lacks_split_only {
            true => split_whole(pg_num_here),
            false => learner.start(common, context),
        };
        learner.send_history(start, common, own_log, context);
        if common.is_none() {
            let token = context.outbox.token();
            learner.listing = Listing::Own { token, listed: Vec::new() };
            context.outbox.push(Action::ListObjects { token, after: None });
        }
        Effect::CopyMore { osd }
    }

    /// The shard that a learner gets: a member its own, another OSD a free one. `None` in a
    /// replicated PG.
    fn shard_for(&self, osd: OsdId, config: &Configuration) -> Result<Option<u8>, NoShardIsFree> {
        if config.policy.shape.is_none() || config.record.members.contains(&osd) {
            return Ok(config.policy.shape.and_then(|_| config.record.shard_of(osd)));
        }
        let has = self.learners[&osd].answer.as_ref().and_then(|answer| answer.shard);
        self.free_shard_for(osd, has, config).map(Some).ok_or(NoShardIsFree)
    }

    /// A shard that no member holds, or else that of a member that is to leave; if possible the
    /// shard that the learner has already.
    fn free_shard_for(&self, osd: OsdId, has: Option<u8>, config: &Configuration) -> Option<u8> {
        let members = || config.record.members.iter().zip(&config.record.shards);
        let staying = members().filter(|(member, _)| config.target.contains(member)).map(|(_, shard)| *shard);
        let taken: BTreeSet<u8> = staying.chain(self.shards_but_of(osd)).collect();
        let free: Vec<u8> = (0..config.shape().shards()).filter(|shard| !taken.contains(shard)).collect();
        let is_missing = |shard: &u8| members().all(|(_, held)| held != shard);
        let had = has.filter(|shard| free.contains(shard));
        // A shard that no member holds is more urgent than one that moves.
        let missing: Vec<u8> = free.iter().copied().filter(is_missing).collect();
        let had = had.filter(|shard| missing.is_empty() || missing.contains(shard));
        had.or(missing.first().copied()).or(free.first().copied())
    }
}

impl Learner {
    /// The first change of a learner's copy: marks it as incomplete, and cuts its history back to
    /// the common point.
    fn start(&self, common: Option<Version>, context: &Context<'_, impl ObjectView>) -> Vec<Mutation> {
        let splits = context.config.tell_of_splits(context.view);
        let mut start = match common {
            Some(common) => vec![set_incomplete(), Mutation::ResetLog { head: common }],
            None => {
                // Its fences may stem from writes that were never acknowledged.
                let promise = set_epoch(context.config.record.epoch);
                let nothing = Mutation::ResetLog { head: Version::default() };
                vec![Mutation::Remove, promise, set_incomplete(), nothing]
            }
        };
        if let Some(shard) = self.shard {
            // Until the backfill is done it has objects of both shards, and versions do not tell
            // which.
            start.push(set_shard(if self.is_of_other_shard { MIXED_SHARDS } else { shard }));
        }
        start.push(splits);
        start
    }

    /// Sends the first change and the history after the common point.
    fn send_history(
        &mut self,
        start: Vec<Mutation>,
        common: Option<Version>,
        log: Vec<LogEntry>,
        context: &mut Context<'_, impl ObjectView>,
    ) {
        let (pg, epoch, osd) = (context.config.id, context.config.record.epoch, self.osd);
        let text = match common {
            Some(common) => format!("backfilling {osd}, which has everything up to {common}"),
            None => format!("backfilling {osd}, whose objects are compared one by one"),
        };
        context.outbox.warn(text);
        let common = common.unwrap_or_default();
        let mut log: VecDeque<LogEntry> = log.into_iter().filter(|entry| entry.version > common).collect();
        let start = Transaction { log: entries_for_one_message(&mut log), ..own_change(pg, start) };
        self.send(start, Sent::Other, epoch, context.outbox);
        while !log.is_empty() {
            let entries = Transaction { log: entries_for_one_message(&mut log), ..own_change(pg, Vec::new()) };
            self.send(entries, Sent::Other, epoch, context.outbox);
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
