//! Backfill of learners: OSDs that are to become members, while the PG serves, and members that lack the last
//! writes, while it peers. The log has the difference if it reaches back to the point where the two histories
//! part; otherwise the versions of all objects are compared.
//!
//! From the start a learner gets every write in order: with its data, or as a mere log entry if the
//! object is still to be copied, because the copy will contain it. Writes of an object wait while
//! it is copied, so a copy begins only when the shell can read it at once. The learner has a
//! durable mark that it is incomplete until the backfill is done. A member that lacks the last writes
//! has none: it is staged ([`crate::staging`]).
//!
//! [`Learners`] decide on the data for each learner, and return an [`Effect`]; `events` passes them their events
//! and carries their effects out.

mod begin;
mod comparison;
mod copying;
mod events;
mod staging;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_types::{
    Epoch, LogEntry, Mutation, ObjectName, OsdId, SharedTransaction, Touched, Transaction, Version,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::Token;
use crate::config::Configuration;
use crate::outbox::Outbox;
use crate::own_object::own_object;
use staging::Staging;

/// A learner that failed or does not answer is tried again after this time.
const RETRY_PAUSE_MS: u64 = 1_000;
/// Objects of one learner that are being read or sent at once.
const COPYING_MAX: usize = 8;

/// A transaction that a learner has been sent and has not acknowledged.
enum Sent {
    /// Nothing follows from its acknowledgement.
    Other,
    /// A part of an object. When it is durable, the next part is read, from this byte on: so little
    /// is in flight, and the learner sets the pace.
    Part(ObjectName, u64),
    /// The last part but one. The last sets the version, and follows when this one is durable.
    ButLast(ObjectName, Box<Transaction>),
    /// The last part of an object.
    Object(ObjectName),
    /// The end of the backfill.
    Done,
}

/// How far the comparison of all objects has come.
enum Listing {
    /// The log has the difference, or the comparison is done.
    NotNeeded,
    /// This OSD's objects are being listed.
    Own { token: Token, listed: Vec<(ObjectName, Version)> },
    /// The learner's objects are being listed.
    Theirs { own: BTreeMap<ObjectName, Version> },
}

struct Learner {
    osd: OsdId,
    /// When it was queried.
    asked_at_ms: u64,
    answer: Option<Answer>,
    /// Its backfill has begun, and it gets every write.
    has_begun: bool,
    tag: u64,
    /// The pool's number of PGs that the learner knows.
    pg_num: u32,
    /// The shard that it gets, in an erasure-coded PG.
    shard: Option<u8>,
    /// It has objects of another shard or of several, so their versions say nothing.
    is_of_other_shard: bool,
    /// It had objects when they were listed.
    has_objects: bool,
    listing: Listing,
    /// Objects to be copied, with the parts that differ.
    missing: BTreeMap<ObjectName, Touched>,
    /// Objects written while versions are compared: they count as missing afterwards.
    written: BTreeSet<ObjectName>,
    /// Objects that are being read or sent.
    copying: BTreeMap<ObjectName, Copying>,
    /// Objects that could not be read, to be tried again later.
    failed: BTreeMap<ObjectName, Touched>,
    retry_failed_at_ms: u64,
    sent: VecDeque<Sent>,
    is_finishing: bool,
    is_ready: bool,
    /// Only of a member that catches up.
    staging: Option<Staging>,
}

/// An object on its way to a learner.
struct Copying {
    touched: Touched,
    /// The read that is under way.
    reading: Option<Token>,
    /// A part was sent.
    has_begun: bool,
}

/// The answer of an OSD to PeerQuery.
pub(crate) struct Answer {
    pub head: Version,
    /// Sequence of the newest write that it knows all members to have had.
    pub committed_sequence: u64,
    /// The first epoch that it promised since it started.
    pub since_epoch: Epoch,
    pub is_complete: bool,
    pub log: Vec<LogEntry>,
    /// The shard that it holds, in an erasure-coded PG.
    pub shard: Option<u8>,
    /// The object whose data, replaced by a write, it could not read.
    pub unreadable: Option<ObjectName>,
    /// The epoch in which the PG was active elsewhere when it deleted its copy; 0 if it has not.
    pub elsewhere: Epoch,
}

/// The learners of a PG, at its primary.
#[derive(Default)]
pub(crate) struct Learners {
    learners: BTreeMap<OsdId, Learner>,
    /// When a backfill that failed may be tried again.
    retry_at_ms: BTreeMap<OsdId, u64>,
}

/// Effect of a backfill on the PG after an event.
enum Effect {
    Nothing,
    /// More objects may be copied to this learner.
    CopyMore {
        osd: OsdId,
    },
    /// A learner has a part of an object. The next one begins at this byte.
    NextPart {
        osd: OsdId,
        object: ObjectName,
        from: u64,
    },
    /// A learner has all of an object, which may be written again.
    ObjectArrived {
        osd: OsdId,
    },
    /// A learner lacks nothing.
    Complete {
        osd: OsdId,
    },
    /// A member cannot catch up by the log, so it must be backfilled as a learner.
    CannotFollow {
        osd: OsdId,
    },
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

    /// The shard that a learner gets.
    pub fn shard_of(&self, osd: OsdId) -> Option<u8> {
        self.learners.get(&osd).and_then(|learner| learner.shard)
    }

    /// The shards of members, for a record; empty in a replicated PG. A member may have been a
    /// learner.
    pub fn shards_of(&self, members: &[OsdId], config: &Configuration) -> Vec<u8> {
        let shard_of = |osd: OsdId| self.shard_of(osd).or_else(|| config.record.shard_of(osd));
        match config.policy.shape {
            None => Vec::new(),
            Some(_) => members.iter().map(|osd| shard_of(*osd).expect("members hold shards")).collect(),
        }
    }

    /// The shards that all other learners get.
    pub fn shards_but_of(&self, osd: OsdId) -> impl Iterator<Item = u8> {
        let others = self.learners.iter().filter(move |(other, _)| **other != osd);
        others.filter_map(|(_, learner)| learner.shard)
    }

    fn osds(&self) -> impl Iterator<Item = OsdId> {
        self.learners.keys().copied()
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

    /// Returns the number of objects whose parts a learner has been sent and has not all acknowledged.
    pub fn objects_in_transit(&self) -> usize {
        let begun = |learner: &Learner| learner.copying.values().filter(|copying| copying.has_begun).count();
        self.learners.values().map(begun).sum()
    }

    /// Returns true if an object is on its way to a learner, so that it must not change.
    pub fn are_copying(&self, object: &ObjectName) -> bool {
        self.learners.values().any(|learner| learner.copying.contains_key(object))
    }

    /// Sends a write to all learners whose backfill has begun.
    pub fn replicate(
        &mut self,
        transaction: impl Fn(Option<u8>) -> SharedTransaction,
        (epoch, committed, answered_below): (Epoch, Version, u64),
        outbox: &mut Outbox,
    ) {
        for learner in self.learners.values_mut().filter(|learner| learner.has_begun) {
            let transaction = learner.share_of(&transaction(learner.shard)).into();
            outbox.send(learner.osd, Message::Replicate { epoch, transaction, committed, answered_below });
        }
    }
}

impl Learner {
    fn new(osd: OsdId, tag: u64, now_ms: u64) -> Self {
        Learner {
            osd,
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
            staging: None,
        }
    }

    fn is_listed(&self) -> bool {
        matches!(self.listing, Listing::NotNeeded)
    }

    /// Returns true if the learner's copy of an object is missing or old, or may be.
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

    /// Sends a change of the learner's copy.
    fn send(&mut self, transaction: Transaction, sent: Sent, epoch: Epoch, outbox: &mut Outbox) {
        self.sent.push_back(sent);
        outbox.send(self.osd, Message::PeerPush { epoch, tag: self.tag, transaction });
    }

    /// A write as the learner gets it: with its data, or as a mere log entry if the object, or the
    /// source of a clone, is still to be copied.
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
        let log = transaction.log.iter().map(|entry| LogEntry { pre_image: None, ..entry.clone() });
        Transaction {
            pg: transaction.pg,
            object: own_object(),
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
