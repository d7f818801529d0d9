//! Scrub: the primary walks all objects in the order of their names, a few at a time, has every
//! member examine its copy, and compares. A bad copy is replaced by a good one and examined again.
//!
//! Copies can be compared because an object is examined while no write of it is in flight, and new ones wait. If
//! answers take long, writes continue and the object is examined again later. A change of the configuration or a
//! backfill ends the scrub; none of its state outlives an epoch.
//!
//! A [`Scrub`] takes events with a [`Context`](crate::context::Context) and returns an [`Effect`]; `events` passes
//! it its events and carries its effects out.

mod events;
mod examination;
mod repair;
mod round;
mod shards;
mod verdict;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use atoll_types::{ObjectName, OsdId, Transaction};

use crate::erasure::{Examination, Fetch};
use round::{Round, Step};

/// Objects that are examined or repaired at once.
const ROUNDS_MAX: usize = 4;

/// How often an object is examined, also after repairs, before it is given up.
const EXAMINATIONS_MAX: u32 = 8;
/// How often an object is repaired before it is given up.
const REPAIRS_MAX: u32 = 3;

/// Result of a scrub of a whole PG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Data was read and compared with its checksums, too.
    pub is_deep: bool,
    /// Objects examined.
    pub objects: u64,
    /// Objects with a bad copy.
    pub errors: u64,
    /// Those of them whose copies are all good now.
    pub repaired: u64,
}

/// A scrub that is under way.
pub(crate) struct Scrub {
    /// It is of one object only, which could not be read for a backfill.
    is_for_backfill: bool,
    report: ScrubReport,
    listing: Option<Listing>,
    /// The object after which the next page begins; `Some(None)` for the first page, `None` at the
    /// end.
    next_page: Option<Option<ObjectName>>,
    queue: VecDeque<ObjectName>,
    rounds: BTreeMap<ObjectName, Round>,
}

/// One page of every member's list of objects.
struct Listing {
    tag: u64,
    pages: BTreeMap<OsdId, (Vec<ObjectName>, bool)>,
}

/// Effect of a scrub on the PG after an event.
pub(crate) enum Effect {
    Nothing,
    /// Writes that the scrub held back may continue.
    StartWaiting,
    /// Shards of an object are to be read.
    ReadShards {
        object: ObjectName,
        fetch: Fetch,
        what: Examination,
    },
    /// A shard of an object is being replaced, so writes read their old bytes again.
    RestartWrites {
        object: ObjectName,
    },
    /// This OSD's copy of an object is to be replaced by these parts.
    RewriteOwnCopy {
        tag: u64,
        parts: Vec<Transaction>,
    },
    /// The scrub is over.
    End,
}

impl Scrub {
    /// A scrub of the whole PG.
    fn of_all(is_deep: bool) -> Self {
        Scrub {
            is_for_backfill: false,
            report: ScrubReport { is_deep, ..ScrubReport::default() },
            listing: None,
            next_page: Some(None),
            queue: VecDeque::new(),
            rounds: BTreeMap::new(),
        }
    }

    /// A deep scrub of one object, which a backfill needs.
    fn of_one(object: ObjectName) -> Self {
        let queue = VecDeque::from([object]);
        Scrub { is_for_backfill: true, next_page: None, queue, ..Scrub::of_all(true) }
    }

    fn round_by_tag(&mut self, tag: u64) -> Option<(&ObjectName, &mut Round)> {
        self.rounds.iter_mut().find(|(_, round)| round.step.tag() == Some(tag))
    }

    /// Returns true if a write of an object must wait.
    fn holds_write(&self, object: &ObjectName, now_ms: u64) -> bool {
        self.rounds.get(object).is_some_and(|round| round.holds_writes(now_ms))
    }

    /// Returns true if this OSD's copy of an object is being replaced, perhaps in several parts.
    fn is_rewriting(&self, object: &ObjectName) -> bool {
        self.rounds.get(object).is_some_and(|round| matches!(round.step, Step::Rewriting { .. }))
    }

    /// Returns true if copies of an object are being compared, or soon will be for a backfill.
    fn concerns(&self, object: &ObjectName) -> bool {
        self.rounds.contains_key(object) || self.is_for_backfill && self.queue.contains(object)
    }

    /// A write of an object was ordered: an examination under way does not count.
    fn sees_write(&mut self, object: &ObjectName) {
        if let Some(Round { step: Step::Examining { is_spoiled, .. }, .. }) = self.rounds.get_mut(object) {
            *is_spoiled = true;
        }
    }
}
