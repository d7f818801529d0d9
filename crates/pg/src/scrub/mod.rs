//! Scrub: the primary walks all objects in the order of their names, a few at a time, has every
//! member examine its copy, and compares. A bad copy is replaced by a good one and examined again.
//!
//! Copies can be compared because an object is examined while no write of it is in flight, and new
//! ones wait. If answers take long, writes go on and the object is examined again later. A change
//! of the configuration or a backfill ends the scrub; nothing of it outlives an epoch.

mod examination;
mod repair;
mod round;
pub(crate) mod verdict;
mod walk;

pub(crate) use round::{Round, Step};

use std::collections::{BTreeMap, VecDeque};

use atoll_types::{ObjectName, OsdId};

use crate::actions::ObjectView;
use crate::group::Pg;

/// Objects that are examined or repaired at once.
const ROUNDS_MAX: usize = 4;

/// How often an object is examined, also after repairs, before it is given up.
const EXAMINATIONS_MAX: u32 = 8;
/// How often an object is repaired before it is given up.
pub(crate) const REPAIRS_MAX: u32 = 3;

/// What a scrub of a whole PG found.
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

impl Scrub {
    fn new(is_deep: bool) -> Self {
        Scrub {
            is_for_backfill: false,
            report: ScrubReport { is_deep, ..ScrubReport::default() },
            listing: None,
            next_page: None,
            queue: VecDeque::new(),
            rounds: BTreeMap::new(),
        }
    }

    pub fn is_deep(&self) -> bool {
        self.report.is_deep
    }

    pub fn round(&mut self, object: &ObjectName) -> Option<&mut Round> {
        self.rounds.get_mut(object)
    }

    fn round_by_tag(&mut self, tag: u64) -> Option<(&ObjectName, &mut Round)> {
        self.rounds.iter_mut().find(|(_, round)| round.step.tag() == Some(tag))
    }
}

impl Pg {
    /// Begins a scrub of the whole PG; a deep one reads the data, too. False if that is not
    /// possible now: another scrub or a backfill is under way, or the PG does not serve. The end
    /// comes as [`Action::ScrubDone`](crate::Action::ScrubDone), unless a change of the
    /// configuration or a backfill ends the scrub before.
    pub fn start_scrub(&mut self, is_deep: bool) -> bool {
        if !self.may_compare() || self.learners.are_any() || self.is_scrubbing() {
            return false;
        }
        self.scrub = Some(Scrub { next_page: Some(None), ..Scrub::new(is_deep) });
        true
    }

    /// Whether copies can be compared: all members have the same history.
    fn may_compare(&self) -> bool {
        self.config.is_active() && self.intake.is_whole() && !self.is_splitting
    }

    /// This copy of an object could not be read for a backfill: repairs it from another one.
    pub(crate) fn repair_for_backfill(&mut self, object: ObjectName) {
        if self.may_compare() && self.scrub.is_none() && self.config.record.members.len() > 1 {
            let queue = VecDeque::from([object]);
            self.scrub = Some(Scrub { is_for_backfill: true, queue, ..Scrub::new(true) });
        }
    }

    /// Whether a scrub is under way, of the whole PG or of an object that a backfill needs.
    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_some()
    }

    /// Whether a write of an object must wait.
    pub(crate) fn scrub_holds_write(&self, object: &ObjectName, view: &impl ObjectView) -> bool {
        let round = self.scrub.as_ref().and_then(|scrub| scrub.rounds.get(object));
        round.is_some_and(|round| round.holds_writes(view.now_ms()))
    }

    /// Whether this copy of an object is being replaced, perhaps in several parts.
    pub(crate) fn is_rewriting(&self, object: &ObjectName) -> bool {
        let round = self.scrub.as_ref().and_then(|scrub| scrub.rounds.get(object));
        round.is_some_and(|round| matches!(round.step, Step::Rewriting { .. }))
    }

    /// Whether copies of an object are being compared, or soon will be for a backfill. Then this
    /// copy may be replaced.
    pub(crate) fn is_in_scrub(&self, object: &ObjectName) -> bool {
        let is_in = |scrub: &Scrub| {
            scrub.rounds.contains_key(object) || scrub.is_for_backfill && scrub.queue.contains(object)
        };
        self.scrub.as_ref().is_some_and(is_in)
    }

    /// A write of an object was ordered: an examination under way does not count.
    pub(crate) fn scrub_sees_write(&mut self, object: &ObjectName) {
        let round = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(object));
        if let Some(Round { step: Step::Examining { is_spoiled, .. }, .. }) = round {
            *is_spoiled = true;
        }
    }
}
