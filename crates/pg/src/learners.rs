//! Bringing other OSDs level: those that shall become members, while the group serves, and members
//! that lack the last writes, while it peers. By the log if it reaches back to
//! where the two histories part, else by comparing the versions of all objects.
//!
//! A learner gets every entry of the history in order from the start on, with its data unless the
//! object is still to be copied: the copy will have it. An object waits with its writes while it is
//! being copied, which begins only when it can be read at once. The learner knows durably that it is incomplete until all is done.

mod copying;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::{Epoch, LogEntry, Mutation, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ObjectView, Token};
use crate::coded::MIXED_SHARDS;
use crate::group::{EPOCH_KEY, Pg, meta_object};
use crate::promises::{incomplete, set_shard};
use crate::split::{is_split, split_whole};

/// Bytes of log entries per message. One entry more may begin below this, and the largest entry
/// still leaves the message within the control segment's limit.
const ENTRY_BYTES_PER_MESSAGE: usize = 256 << 10;
/// Objects that are read for or on their way to one learner at once.
const COPYING_MAX: usize = 8;
/// A learner that failed or does not answer is tried again after so long.
const RETRY_PAUSE_MS: u64 = 1_000;

/// What a learner has been sent and not yet acknowledged.
enum Sent {
    /// Something that needs no attention when it is durable.
    Other,
    /// A part of an object. When it is durable the next is read, from this byte on: so what is on its
    /// way is bounded, and the learner sets the pace.
    Part(ObjectName, u64),
    /// All of an object but the last part, which says of what version it is and follows when the
    /// others are durable.
    ButLast(ObjectName, Box<Transaction>),
    /// The last part of an object.
    Object(ObjectName),
    /// That it is complete.
    Done,
}

/// How far the comparison of all objects has come.
enum Listing {
    /// The histories had a common point: what is missing is known by the log.
    NotNeeded,
    /// This OSD's own objects are listed.
    Own { token: Token, listed: Vec<(ObjectName, Version)> },
    /// The learner's are.
    Theirs { own: BTreeMap<ObjectName, Version> },
}

struct Learner {
    /// When it was asked what it has.
    asked_at_ms: u64,
    answer: Option<Answer>,
    /// Its part of the history has begun: it gets every write from here on.
    has_begun: bool,
    tag: u64,
    /// Of how many groups this is one, for the learner.
    pg_num: u32,
    /// The shard that it is filled with, in an erasure-coded group.
    shard: Option<u8>,
    /// Its objects are of another shard, or of some that nobody knows, whatever their versions.
    is_of_other_shard: bool,
    /// It had objects when they were listed.
    has_objects: bool,
    listing: Listing,
    /// Objects to be copied, with the parts that differ.
    missing: BTreeMap<ObjectName, Touched>,
    /// While objects are compared: those that were written, which will be missing.
    written: BTreeSet<ObjectName>,
    /// Objects that are being read or sent.
    copying: BTreeMap<ObjectName, Copying>,
    /// Objects that could not be read, which are tried again later.
    failed: BTreeMap<ObjectName, Touched>,
    retry_failed_at_ms: u64,
    sent: VecDeque<Sent>,
    is_finishing: bool,
    is_ready: bool,
}

/// An object on its way to a learner.
struct Copying {
    touched: Touched,
    /// The read that is under way.
    reading: Option<Token>,
    /// Some of it was sent.
    has_begun: bool,
}

/// What a learner says it has.
pub(crate) struct Answer {
    pub head: Version,
    pub is_complete: bool,
    pub log: Vec<LogEntry>,
    /// Of which shard its objects are, in an erasure-coded group.
    pub shard: Option<u8>,
}

/// The learners of a group, at its primary.
#[derive(Default)]
pub(crate) struct Learners {
    learners: BTreeMap<OsdId, Learner>,
    /// When one that failed may be tried again.
    retry_at_ms: BTreeMap<OsdId, u64>,
}

impl Learners {
    pub fn clear(&mut self) {
        self.learners.clear();
    }

    pub fn remove(&mut self, osd: OsdId) {
        self.learners.remove(&osd);
    }

    pub fn are_any(&self) -> bool {
        !self.learners.is_empty()
    }

    pub fn contains(&self, osd: OsdId) -> bool {
        self.learners.contains_key(&osd)
    }

    /// The shard that a learner is filled with.
    pub fn shard_of(&self, osd: OsdId) -> Option<u8> {
        self.learners.get(&osd).and_then(|learner| learner.shard)
    }

    /// The shards that all others are filled with.
    pub fn shards_but_of(&self, osd: OsdId) -> impl Iterator<Item = u8> {
        let others = self.learners.iter().filter(move |(other, _)| **other != osd);
        others.filter_map(|(_, learner)| learner.shard)
    }

    pub fn ready(&self) -> impl Iterator<Item = OsdId> {
        self.learners.iter().filter(|(_, learner)| learner.is_ready).map(|(osd, _)| *osd)
    }

    pub fn progress(&self) -> impl Iterator<Item = (OsdId, Option<usize>)> {
        self.learners.iter().map(|(osd, learner)| {
            let is_known = learner.has_begun && learner.is_listed();
            (*osd, is_known.then_some(learner.missing.len() + learner.copying.len() + learner.failed.len()))
        })
    }

    /// Objects of which some was sent, and not all is durable at the learner.
    pub fn objects_on_their_way(&self) -> usize {
        let begun = |learner: &Learner| learner.copying.values().filter(|copying| copying.has_begun).count();
        self.learners.values().map(begun).sum()
    }

    /// Whether an object is on its way to a learner, so that it must not change.
    pub fn are_copying(&self, object: &ObjectName) -> bool {
        self.learners.values().any(|learner| learner.copying.contains_key(object))
    }
}

impl Learner {
    fn new(tag: u64, now_ms: u64) -> Self {
        Learner {
            asked_at_ms: now_ms,
            answer: None,
            has_begun: false,
            tag,
            pg_num: 1,
            shard: None,
            is_of_other_shard: false,
            has_objects: false,
            listing: Listing::NotNeeded,
            missing: BTreeMap::new(),
            written: BTreeSet::new(),
            copying: BTreeMap::new(),
            failed: BTreeMap::new(),
            retry_failed_at_ms: 0,
            sent: VecDeque::new(),
            is_finishing: false,
            is_ready: false,
        }
    }

    fn is_listed(&self) -> bool {
        matches!(self.listing, Listing::NotNeeded)
    }

    /// The copy of an object that the learner has is not what the history says.
    fn lacks(&self, object: &ObjectName) -> bool {
        !self.is_listed()
            || self.missing.contains_key(object)
            || self.copying.contains_key(object)
            || self.failed.contains_key(object)
    }

    fn lacks_any(&self) -> bool {
        !(self.missing.is_empty() && self.copying.is_empty() && self.failed.is_empty())
    }

    fn may_copy(&self) -> bool {
        let is_ready = self.has_begun && self.is_listed() && !self.is_finishing;
        is_ready && !self.missing.is_empty() && self.copying.len() < COPYING_MAX
    }

    /// What of a write the learner gets.
    fn share_of(&mut self, transaction: &Transaction) -> Transaction {
        let object = &transaction.object;
        let clones_missing = transaction
            .mutations
            .iter()
            .any(|mutation| matches!(mutation, Mutation::CloneFrom { source } if self.lacks(source)));
        if !self.lacks(object) && !clones_missing {
            return transaction.clone();
        }
        if !self.is_listed() {
            self.written.insert(object.clone());
        } else {
            let touched = match &transaction.log[..] {
                [entry] if !clones_missing => entry.touched.clone(),
                _ => whole(),
            };
            let wanted = if self.failed.contains_key(object) { &mut self.failed } else { &mut self.missing };
            wanted.entry(object.clone()).or_default().merge(&touched);
        }
        let log = transaction.log.iter().map(|entry| LogEntry { undo: None, ..entry.clone() });
        Transaction {
            pg: transaction.pg,
            object: meta_object(),
            mutations: Vec::new(),
            payload: Bytes::new(),
            payload_sealed: false,
            log: log.collect(),
        }
    }
}

fn whole() -> Touched {
    Touched { whole: true, ..Touched::default() }
}

impl Pg {
    /// Begins with those that should be members and are not, tries failed ones again, and goes on
    /// with the others.
    pub(crate) fn look_after_learners(&mut self, view: &impl ObjectView) {
        let now_ms = view.now_ms();
        let is_wanted = |osd: &OsdId| {
            self.policy.may_backfill
                && self.target.contains(osd)
                && !self.record.members.contains(osd)
                && self.membership.is_reachable(*osd)
        };
        let wanted: Vec<OsdId> = self.target.iter().copied().filter(is_wanted).collect();
        self.learners.learners.retain(|osd, learner| {
            let is_silent =
                learner.answer.is_none() && !learner.has_begun && now_ms >= learner.asked_at_ms + RETRY_PAUSE_MS;
            wanted.contains(osd) && !is_silent
        });
        for osd in wanted {
            let may_try = self.learners.retry_at_ms.get(&osd).is_none_or(|at_ms| now_ms >= *at_ms);
            if may_try && !self.learners.learners.contains_key(&osd) {
                let Token(tag) = self.token();
                self.learners.learners.insert(osd, Learner::new(tag, now_ms));
                self.ask(osd, true);
            }
        }
        self.go_on_with_learners(view);
    }

    /// Tries again what could not be read.
    pub(crate) fn go_on_with_learners(&mut self, view: &impl ObjectView) {
        let now_ms = view.now_ms();
        for osd in self.learners.learners.keys().copied().collect::<Vec<_>>() {
            let learner = self.learners.learners.get_mut(&osd).expect("it is listed");
            if now_ms >= learner.retry_failed_at_ms {
                learner.missing.append(&mut learner.failed);
            }
            self.copy_more(osd, view);
        }
    }

    /// While the group peers: brings a member level whose history is behind.
    pub(crate) fn level(&mut self, osd: OsdId, head: Version, view: &impl ObjectView) {
        let Token(tag) = self.token();
        let mut learner = Learner::new(tag, view.now_ms());
        let shard = self.record.shard_of(osd);
        learner.answer = Some(Answer { head, is_complete: true, log: Vec::new(), shard });
        self.learners.learners.insert(osd, learner);
        self.start_learning(view);
    }

    /// A learner has promised, and says what it has; or it could not take what it was sent.
    pub(crate) fn learner_answered(&mut self, from: OsdId, answer: Answer, view: &impl ObjectView) {
        if !self.fills_learners() {
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
        if !self.view_is_current() {
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
        let mut own_log = view.log(self.id);
        own_log.iter_mut().for_each(|entry| entry.undo = None);
        let shard = match (&self.coded, self.record.members.contains(&osd)) {
            (None, _) => None,
            (Some(_), true) => self.record.shard_of(osd),
            (Some(_), false) => {
                let has = self.learners.learners[&osd].answer.as_ref().and_then(|answer| answer.shard);
                let Some(shard) = self.shard_to_fill(osd, has) else {
                    // All shards are taken, until one of those that hold them has gone.
                    self.learners.remove(osd);
                    self.learners.retry_at_ms.insert(osd, view.now_ms() + RETRY_PAUSE_MS);
                    return;
                };
                Some(shard)
            }
        };
        let (pg_num, pg_num_here, splits) = (self.pg_num(), self.pg_num_here(view), self.tell_of_splits(view));
        let learner = self.learners.learners.get_mut(&osd).expect("it has just answered");
        let answer = learner.answer.take().expect("it has just answered");
        learner.has_begun = true;
        learner.pg_num = pg_num_here;
        learner.shard = shard;
        learner.is_of_other_shard = answer.shard != shard;
        let common = common_point(&own_log, &answer).filter(|_| !learner.is_of_other_shard);
        if common.is_none() && self.record.members.contains(&osd) {
            // It cannot have been a member of the active configuration with this history.
            let head = answer.head;
            self.learners.remove(osd);
            self.membership.note_incomplete(osd);
            self.warn(format!("{osd} ends at {head}, where the log does not reach back to; it must be filled"));
            return self.advance(view);
        }
        let behind: Vec<&LogEntry> = own_log.iter().filter(|entry| Some(entry.version) > common).collect();
        // Once cluster state has it, the group that was split off goes on by itself.
        let lacks_split_only = pg_num_here > pg_num
            && common == Some(answer.head)
            && matches!(behind[..], [entry] if is_split(entry));
        // Otherwise it may have what is not the group's any more, of which the log says nothing.
        let has_seen_splits = lacks_split_only || !behind.iter().any(|entry| is_split(entry));
        let common = common.filter(|_| has_seen_splits);
        let mut start = match common {
            _ if lacks_split_only => split_whole(pg_num_here),
            Some(common) => {
                learner.missing = differences(&own_log, &answer.log, common);
                vec![incomplete(), Mutation::ResetLog { head: common }, splits]
            }
            None => {
                // Fences of its own may stem from writes that were never acknowledged.
                let epoch = Bytes::copy_from_slice(&self.record.epoch.0.to_be_bytes());
                let promise = Mutation::OmapSet { key: Bytes::from_static(EPOCH_KEY), value: epoch };
                let nothing = Mutation::ResetLog { head: Version::default() };
                vec![Mutation::Remove, promise, incomplete(), nothing, splits]
            }
        };
        if let (Some(shard), false) = (shard, lacks_split_only) {
            let behind_other_changes = start.len() - 1;
            // Until all is done, objects of the other shard are among them, and versions do not tell.
            let now = if learner.is_of_other_shard { MIXED_SHARDS } else { shard };
            start.insert(behind_other_changes, set_shard(now));
        }
        let common_or_nothing = common.unwrap_or_default();
        let mut log: VecDeque<LogEntry> =
            own_log.into_iter().filter(|entry| entry.version > common_or_nothing).collect();
        let text = match common {
            Some(common) => format!("filling {osd}, which has everything up to {common}"),
            None => format!("filling {osd}, whose objects are compared one by one"),
        };
        self.warn(text);
        let start = Transaction { log: entries_for_one_message(&mut log), ..self.own_change(start) };
        self.send_to_learner(osd, start, Sent::Other);
        while !log.is_empty() {
            let transaction =
                Transaction { log: entries_for_one_message(&mut log), ..self.own_change(Vec::new()) };
            self.send_to_learner(osd, transaction, Sent::Other);
        }
        if common.is_none() {
            let token = self.token();
            let learner = self.learners.learners.get_mut(&osd).expect("it has begun");
            learner.listing = Listing::Own { token, listed: Vec::new() };
            self.actions.push_back(Action::ListObjects { token, after: None });
        }
        self.copy_more(osd, view);
    }

    fn send_to_learner(&mut self, osd: OsdId, transaction: Transaction, sent: Sent) {
        let epoch = self.record.epoch;
        let Some(learner) = self.learners.learners.get_mut(&osd) else { return };
        learner.sent.push_back(sent);
        let tag = learner.tag;
        self.send(osd, Message::PeerSync { epoch, tag, transaction });
    }

    /// Every write goes to the learners too, as far as they can use it.
    pub(crate) fn replicate_to_learners(&mut self, transaction: impl Fn(Option<u8>) -> Transaction) {
        let (epoch, committed) = (self.record.epoch, self.newest_committed());
        let learners = self.learners.learners.iter_mut().filter(|(_, learner)| learner.has_begun);
        let shares: Vec<(OsdId, Transaction)> =
            learners.map(|(osd, learner)| (*osd, learner.share_of(&transaction(learner.shard)))).collect();
        for (osd, transaction) in shares {
            self.send(osd, Message::Replicate { epoch, transaction, committed });
        }
    }

    /// Own objects have been listed, for a learner; or for a primary that fills this OSD.
    pub fn objects_listed(&mut self, token: Token, objects: Vec<(ObjectName, Version)>, more: bool) {
        if let Some((primary, epoch, tag)) = self.lists_for_primary.remove(&token) {
            let reply = Message::ObjectsReply { pg: self.id, epoch, tag, objects, more };
            return self.send(primary, reply);
        }
        if self.listed_to_purge(token, &objects, more) || self.scrub_listed(self.me, token.0, &objects, more) {
            return;
        }
        let wants_it =
            |learner: &Learner| matches!(&learner.listing, Listing::Own { token: own, .. } if *own == token);
        let next_token = self.token();
        let mut found = self.learners.learners.iter_mut().map(|(osd, learner)| (*osd, learner));
        // Without a learner: it went away meanwhile.
        let Some((osd, learner)) = found.find(|(_, learner)| wants_it(learner)) else { return };
        let Listing::Own { token, listed } = &mut learner.listing else { unreachable!("looked at above") };
        listed.extend(objects);
        if more && let Some((last, _)) = listed.last() {
            *token = next_token;
            let after = Some(last.clone());
            return self.actions.push_back(Action::ListObjects { token: next_token, after });
        }
        let own = std::mem::take(listed).into_iter().collect();
        learner.listing = Listing::Theirs { own };
        self.ask_for_objects(osd, None);
    }

    fn ask_for_objects(&mut self, osd: OsdId, after: Option<ObjectName>) {
        let tag = self.learners.learners[&osd].tag;
        self.send(osd, Message::ObjectsQuery { pg: self.id, epoch: self.record.epoch, tag, after });
    }

    /// The learner's objects: what has another version there, or is at one side only, is missing.
    pub(crate) fn learner_listed(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        objects: Vec<(ObjectName, Version)>,
        more: bool,
        view: &impl ObjectView,
    ) {
        if !self.is_primary() || epoch != self.record.epoch || self.scrub_listed(from, tag, &objects, more) {
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
        let missing = own.into_keys().chain(written).chain([meta_object()]);
        learner.missing.extend(missing.map(|name| (name, whole())));
        if let (Some(shard), true, false) = (learner.shard, learner.is_of_other_shard, learner.has_objects) {
            // Whatever is there from now on is of this one, should the filling have to begin anew.
            learner.is_of_other_shard = false;
            let note = self.own_change(vec![set_shard(shard)]);
            self.send_to_learner(from, note, Sent::Other);
        }
        self.copy_more(from, view);
    }
}

/// The newest write that both histories have. `None` if that cannot be told from the logs, or if
/// the learner's data is not what its history says.
fn common_point(own_log: &[LogEntry], answer: &Answer) -> Option<Version> {
    if !answer.is_complete {
        return None;
    }
    if answer.head == Version::default() {
        // Nothing was ever written there: the log tells all if it holds the first write.
        let is_whole = own_log.first().is_none_or(|first| first.version.sequence == 1);
        return is_whole.then(Version::default);
    }
    let mut theirs = [answer.head].into_iter().chain(answer.log.iter().rev().map(|entry| entry.version));
    theirs.find(|version| own_log.iter().any(|entry| entry.version == *version))
}

/// What must be copied: whatever either side has written behind the common point.
fn differences(own_log: &[LogEntry], their_log: &[LogEntry], common: Version) -> BTreeMap<ObjectName, Touched> {
    let mut missing: BTreeMap<ObjectName, Touched> = BTreeMap::new();
    for entry in own_log.iter().filter(|entry| entry.version > common) {
        missing.entry(entry.object.clone()).or_default().merge(&entry.touched);
    }
    for entry in their_log.iter().filter(|entry| entry.version.sequence > common.sequence) {
        let touched = missing.entry(entry.object.clone()).or_default();
        touched.merge(&entry.touched);
        // It may have made or grown the object. The group's own object has keys only.
        touched.whole |= entry.object != meta_object();
    }
    missing
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
