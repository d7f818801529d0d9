//! Scrub: the primary walks all objects in the order of their names, a few at a time, has every
//! member examine its copy, and compares. A bad copy is written anew from a good one and examined
//! again.
//!
//! Copies can be compared because an object is examined while no write of it is in flight, and
//! new ones wait for the moment. If the answers take long, writes go on and the object is examined
//! again later. Whatever changes the configuration ends the scrub, and so does filling others; nothing
//! of it outlives an epoch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::{Epoch, Mutation, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::{Message, ScrubFinding};
use bytes::Bytes;

use crate::actions::{Action, ObjectParts, ObjectView, Token};
use crate::group::{INCOMPLETE_KEY, Pg, PgState};
use crate::promises::incomplete;
use crate::scrub_verdict::{Verdict, describe, judge};
use crate::submissions::Submission;

/// Objects that are examined or repaired at once.
const ROUNDS_MAX: usize = 4;
/// Writes wait no longer than this for answers about their object.
const HOLD_MAX_MS: u64 = 500;
/// New writes wait if an object has been written without a pause for so long.
const PAUSE_PATIENCE_MS: u64 = 2_000;
/// How often an object is examined, repairs included, before it is left as it is.
const EXAMINATIONS_MAX: u32 = 8;
pub(crate) const REPAIRS_MAX: u32 = 3;

/// What a scrub of a whole group found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Data was read, too.
    pub is_deep: bool,
    /// Objects examined.
    pub objects: u64,
    /// Objects of which not all copies were good.
    pub errors: u64,
    /// Those of them of which all copies are good now.
    pub repaired: u64,
}

/// A scrub that is under way.
pub(crate) struct Scrub {
    /// Of one object only, which could not be read to fill others.
    is_for_filling: bool,
    report: ScrubReport,
    listing: Option<Listing>,
    /// Behind which object the next page begins; the first begins at the start.
    next_page: Option<Option<ObjectName>>,
    queue: VecDeque<ObjectName>,
    rounds: BTreeMap<ObjectName, Round>,
}

/// One page of every member's objects.
struct Listing {
    tag: u64,
    pages: BTreeMap<OsdId, (Vec<ObjectName>, bool)>,
}

/// An object on its way through the scrub.
pub(crate) struct Round {
    step: Step,
    examinations: u32,
    pub repairs: u32,
    pub has_error: bool,
}

pub(crate) enum Step {
    /// For writes in flight to end.
    Waiting { since_ms: u64 },
    /// All members look at their copies.
    Examining { tag: u64, since_ms: u64, findings: BTreeMap<OsdId, ScrubFinding>, is_spoiled: bool },
    /// The primary's good copy is read.
    Reading { token: Token, bad: Vec<OsdId> },
    /// It is sent to bad ones, which have so many parts left to acknowledge.
    Sending { tag: u64, parts_left: BTreeMap<OsdId, usize> },
    /// A good copy comes to the primary.
    Fetching { tag: u64, from: OsdId, parts: Vec<Transaction> },
    /// Shards of it are read, to rebuild one or to see whether parity fits.
    Computing { tag: u64 },
    /// The primary's store writes it.
    Mending { tag: u64 },
}

impl Scrub {
    fn new(is_deep: bool) -> Self {
        Scrub {
            is_for_filling: false,
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

impl Step {
    fn tag(&self) -> Option<u64> {
        match self {
            Step::Waiting { .. } => None,
            Step::Reading { token, .. } => Some(token.0),
            Step::Examining { tag, .. }
            | Step::Sending { tag, .. }
            | Step::Fetching { tag, .. }
            | Step::Computing { tag }
            | Step::Mending { tag } => Some(*tag),
        }
    }
}

impl Round {
    fn new(now_ms: u64) -> Self {
        Round { step: Step::Waiting { since_ms: now_ms }, examinations: 0, repairs: 0, has_error: false }
    }

    fn holds_writes(&self, now_ms: u64) -> bool {
        match &self.step {
            Step::Waiting { since_ms } => now_ms >= since_ms + PAUSE_PATIENCE_MS,
            Step::Examining { since_ms, .. } => now_ms < since_ms + HOLD_MAX_MS,
            Step::Reading { .. } | Step::Fetching { .. } | Step::Computing { .. } | Step::Mending { .. } => true,
            // What follows on the connection is applied after it.
            Step::Sending { .. } => false,
        }
    }
}

impl Pg {
    /// Begins a scrub of the whole group, a deep one with the data. False if that cannot be now:
    /// another one is under way, the group does not serve, or others are being filled. The end
    /// comes as [`Action::ScrubDone`], unless the configuration changes before or somebody is to be
    /// filled.
    pub fn start_scrub(&mut self, is_deep: bool) -> bool {
        if !self.may_compare() || self.learners.are_any() || self.is_scrubbing() {
            return false;
        }
        self.scrub = Some(Scrub { next_page: Some(None), ..Scrub::new(is_deep) });
        true
    }

    /// Whether all members have the same history, and will for a while.
    fn may_compare(&self) -> bool {
        self.state == PgState::Active && self.history_broken.is_none() && !self.is_splitting
    }

    /// This copy of an object could not be read to fill others: another one may be good.
    pub(crate) fn repair_for_filling(&mut self, object: ObjectName) {
        if self.may_compare() && self.scrub.is_none() && self.record.members.len() > 1 {
            let queue = VecDeque::from([object]);
            self.scrub = Some(Scrub { is_for_filling: true, queue, ..Scrub::new(true) });
        }
    }

    /// Whether a scrub of the whole group is under way, or of an object that filling needs.
    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_some()
    }

    /// Whether a write of an object must wait.
    pub(crate) fn scrub_holds_write(&self, object: &ObjectName, view: &impl ObjectView) -> bool {
        let round = self.scrub.as_ref().and_then(|scrub| scrub.rounds.get(object));
        round.is_some_and(|round| round.holds_writes(view.now_ms()))
    }

    /// Whether this copy of an object is just being written anew, perhaps in several parts.
    pub(crate) fn is_mending(&self, object: &ObjectName) -> bool {
        let round = self.scrub.as_ref().and_then(|scrub| scrub.rounds.get(object));
        round.is_some_and(|round| matches!(round.step, Step::Mending { .. }))
    }

    /// Whether copies of an object are being compared, or will be because filling needs it, so that
    /// this one may be replaced.
    pub(crate) fn is_in_scrub(&self, object: &ObjectName) -> bool {
        let is_in = |scrub: &Scrub| {
            scrub.rounds.contains_key(object) || scrub.is_for_filling && scrub.queue.contains(object)
        };
        self.scrub.as_ref().is_some_and(is_in)
    }

    /// A write has been sent to the members.
    pub(crate) fn scrub_sees_write(&mut self, object: &ObjectName) {
        let round = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(object));
        if let Some(Round { step: Step::Examining { is_spoiled, .. }, .. }) = round {
            *is_spoiled = true;
        }
    }

    /// Starts whatever the scrub can start now.
    pub(crate) fn go_on_with_scrub(&mut self, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        if self.learners.are_any() && !scrub.is_for_filling || self.is_splitting {
            // That may take hours. What is under way comes to its end; the rest is begun anew.
            scrub.rounds.retain(|_, round| !matches!(round.step, Step::Waiting { .. }));
            if scrub.rounds.is_empty() {
                self.scrub = None;
            }
            return;
        }
        while scrub.rounds.len() < ROUNDS_MAX
            && let Some(object) = scrub.queue.pop_front()
        {
            scrub.rounds.insert(object, Round::new(view.now_ms()));
        }
        let waiting = scrub.rounds.iter().filter(|(_, round)| matches!(round.step, Step::Waiting { .. }));
        let waiting: Vec<ObjectName> = waiting.map(|(object, _)| object.clone()).collect();
        let is_idle = scrub.rounds.is_empty() && scrub.listing.is_none();
        for object in waiting {
            if !self.in_flight.iter().any(|write| write.object == object) {
                self.examine(object, view);
            }
        }
        if is_idle {
            self.list_page();
        }
    }

    // ---- the walk ---------------------------------------------------------------------------

    fn list_page(&mut self) {
        let token = self.token();
        let Some(scrub) = &mut self.scrub else { return };
        let Some(after) = scrub.next_page.take() else {
            let (report, is_for_filling) = (scrub.report, scrub.is_for_filling);
            self.scrub = None;
            if !is_for_filling {
                self.actions.push_back(Action::ScrubDone { report });
            }
            return;
        };
        scrub.listing = Some(Listing { tag: token.0, pages: BTreeMap::new() });
        self.actions.push_back(Action::ListObjects { token, after: after.clone() });
        let (pg, epoch) = (self.id, self.record.epoch);
        for member in self.others() {
            self.send(member, Message::ObjectsQuery { pg, epoch, tag: token.0, after: after.clone() });
        }
    }

    /// A member has listed objects. False if not for a scrub.
    pub(crate) fn scrub_listed(
        &mut self,
        member: OsdId,
        tag: u64,
        objects: &[(ObjectName, Version)],
        more: bool,
    ) -> bool {
        let members = self.record.members.len();
        let (id, pg_num) = (self.id, self.pg_num());
        let Some(scrub) = &mut self.scrub else { return false };
        let Some(listing) = scrub.listing.as_mut().filter(|listing| listing.tag == tag) else { return false };
        let names = objects.iter().map(|(name, _)| name.clone()).collect();
        listing.pages.insert(member, (names, more));
        if listing.pages.len() == members {
            let (names, next_page) = merge(std::mem::take(&mut listing.pages));
            // A copy from before a split may still have others.
            scrub.queue.extend(names.into_iter().filter(|name| id.holds(name, pg_num)));
            scrub.next_page = next_page.map(Some);
            scrub.listing = None;
        }
        true
    }

    // ---- one object -------------------------------------------------------------------------

    fn examine(&mut self, object: ObjectName, view: &impl ObjectView) {
        let token = self.token();
        let Some(scrub) = &mut self.scrub else { return };
        let Some(round) = scrub.rounds.get_mut(&object) else { return };
        round.examinations += 1;
        let findings = BTreeMap::new();
        round.step = Step::Examining { tag: token.0, since_ms: view.now_ms(), findings, is_spoiled: false };
        let deep = scrub.report.is_deep;
        self.actions.push_back(Action::Scrub { token, object: object.clone(), deep });
        let (pg, epoch) = (self.id, self.record.epoch);
        for member in self.others() {
            self.send(member, Message::ScrubQuery { pg, epoch, tag: token.0, object: object.clone(), deep });
        }
    }

    /// This OSD's copy has been examined, for a scrub of its own or of another primary.
    pub fn scrubbed(&mut self, token: Token, finding: ScrubFinding, view: &impl ObjectView) {
        if let Some((primary, epoch, tag)) = self.scrubs_for_primary.remove(&token) {
            return self.send(primary, Message::ScrubReply { pg: self.id, epoch, tag, finding });
        }
        self.examined(self.me, token.0, finding, view);
    }

    /// A primary wants this OSD's copy to be examined.
    pub(crate) fn scrub_asked(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName, deep: bool) {
        if epoch == self.promises.epoch {
            let token = self.token();
            self.scrubs_for_primary.insert(token, (from, epoch, tag));
            self.actions.push_back(Action::Scrub { token, object, deep });
        }
    }

    pub(crate) fn scrub_reply(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        tag: u64,
        finding: ScrubFinding,
        view: &impl ObjectView,
    ) {
        if self.is_primary() && epoch == self.record.epoch {
            self.examined(from, tag, finding, view);
        }
    }

    fn examined(&mut self, member: OsdId, tag: u64, finding: ScrubFinding, view: &impl ObjectView) {
        let members = self.record.members.len();
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return };
        let object = object.clone();
        match &mut round.step {
            Step::Examining { findings, is_spoiled, .. } => {
                findings.insert(member, finding);
                if findings.len() < members {
                    return;
                }
                let is_spoiled = *is_spoiled || findings.values().any(|finding| *finding == ScrubFinding::Busy);
                let findings = std::mem::take(findings);
                if is_spoiled {
                    self.examine_again(object, view);
                } else {
                    self.compare(object, &findings, view);
                }
            }
            // It could not be read there.
            Step::Fetching { from, .. } if *from == member => self.examine_again(object, view),
            _ => {}
        }
    }

    /// Looks at an object anew, or gives up.
    pub(crate) fn examine_again(&mut self, object: ObjectName, view: &impl ObjectView) {
        let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(&object)) else { return };
        round.step = Step::Waiting { since_ms: view.now_ms() };
        if round.examinations == EXAMINATIONS_MAX {
            self.warn(format!("'{object}' could not be scrubbed in {EXAMINATIONS_MAX} attempts"));
            self.end_round(&object, false, view);
        }
        self.start_waiting(view);
    }

    /// An object has been found good, perhaps after repairs.
    pub(crate) fn end_good_round(&mut self, object: &ObjectName, view: &impl ObjectView) {
        let has_error =
            self.scrub.as_mut().and_then(|scrub| scrub.round(object)).is_some_and(|round| round.has_error);
        if has_error {
            self.warn(format!("all copies of '{object}' are good again"));
        }
        self.end_round(object, true, view);
    }

    pub(crate) fn set_step(&mut self, object: &ObjectName, step: Step) {
        if let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.round(object)) {
            round.step = step;
        }
    }

    pub(crate) fn set_error(&mut self, object: &ObjectName) {
        if let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.round(object)) {
            round.has_error = true;
        }
    }

    /// Whether an object's shards are being read under this tag.
    pub(crate) fn is_computing(&mut self, object: &ObjectName, tag: u64) -> bool {
        let round = self.scrub.as_mut().and_then(|scrub| scrub.round(object));
        round.is_some_and(|round| matches!(round.step, Step::Computing { tag: of } if of == tag))
    }

    pub(crate) fn end_round(&mut self, object: &ObjectName, is_good: bool, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        let Some(round) = scrub.rounds.remove(object) else { return };
        scrub.report.objects += 1;
        scrub.report.errors += u64::from(round.has_error);
        scrub.report.repaired += u64::from(round.has_error && is_good);
        self.start_waiting(view);
    }

    fn compare(&mut self, object: ObjectName, findings: &BTreeMap<OsdId, ScrubFinding>, view: &impl ObjectView) {
        if self.coded.is_some() {
            return self.compare_shards(object, findings, view);
        }
        let token = self.token();
        let me = self.me;
        let Verdict { good, bad } = judge(findings, me);
        let Some(round) = self.scrub.as_mut().and_then(|scrub| scrub.rounds.get_mut(&object)) else { return };
        if bad.is_empty() {
            return self.end_good_round(&object, view);
        }
        round.has_error = true;
        // What the device cannot read it cannot replace either.
        let is_writable = |osd: &OsdId| findings.get(osd) != Some(&ScrubFinding::Unreadable);
        let mendable: Vec<OsdId> = bad.iter().copied().filter(is_writable).collect();
        if good.is_empty() || mendable.is_empty() || round.repairs == REPAIRS_MAX {
            let what = if good.is_empty() { "no copy can be trusted" } else { "the bad copies stay as they are" };
            self.warn(format!("scrub of '{object}': {what}: {}", describe(findings)));
            return self.end_round(&object, false, view);
        }
        round.repairs += 1;
        if good.contains(&me) {
            round.step = Step::Reading { token, bad: mendable };
            let touched = Touched { whole: true, ..Touched::default() };
            let read = Action::ReadForSync { token, object: object.clone(), touched, from: None, is_urgent: true };
            self.actions.push_back(read);
        } else if mendable.contains(&me) {
            let (pg, epoch, tag, from) = (self.id, self.record.epoch, token.0, good[0]);
            round.step = Step::Fetching { tag, from, parts: Vec::new() };
            self.send(from, Message::ObjectWanted { pg, epoch, tag, object: object.clone() });
        } else {
            self.warn(format!("scrub of '{object}': {me} cannot read its copy: {}", describe(findings)));
            return self.end_round(&object, false, view);
        }
        let names: Vec<String> = good.iter().map(OsdId::to_string).collect();
        let text = format!("scrub repairs '{object}' from {}: {}", names.join(" or "), describe(findings));
        self.warn(text);
    }

    // ---- repair of another member -----------------------------------------------------------

    /// An object has been read, for a scrub or for a primary that wants it. False if neither.
    pub(crate) fn scrub_read_done(
        &mut self,
        token: Token,
        result: &Result<ObjectParts, String>,
        view: &impl ObjectView,
    ) -> bool {
        if let Some((primary, epoch, tag)) = self.wanted_by.remove(&token) {
            self.answer_wanted(primary, epoch, tag, result);
            return true;
        }
        let Some(scrub) = &mut self.scrub else { return false };
        let Some((object, round)) = scrub.round_by_tag(token.0) else { return false };
        let (object, Step::Reading { bad, .. }) = (object.clone(), &mut round.step) else { return false };
        let bad = std::mem::take(bad);
        match result {
            Ok(parts) => {
                let series = self.series(parts.transactions.clone());
                let parts_left = bad.iter().map(|member| (*member, series.len())).collect();
                let scrub = self.scrub.as_mut().expect("found above");
                let round = scrub.rounds.get_mut(&object).expect("found above");
                round.step = Step::Sending { tag: token.0, parts_left };
                let (epoch, tag) = (self.record.epoch, token.0);
                for member in bad {
                    for transaction in series.clone() {
                        self.send(member, Message::PeerSync { epoch, tag, transaction });
                    }
                }
                self.start_waiting(view);
            }
            Err(cause) => {
                self.warn(format!("cannot read '{object}' to repair another copy of it: {cause}"));
                self.end_round(&object, false, view);
            }
        }
        true
    }

    /// The parts of an object, so that a copy that has got some of them and not all says so:
    /// whoever has it is filled before it is asked for anything.
    fn series(&self, mut parts: Vec<Transaction>) -> Vec<Transaction> {
        if parts.len() == 1 {
            return parts;
        }
        let key = Bytes::from_static(INCOMPLETE_KEY);
        if let Some(first) = parts.first_mut() {
            first.mutations.insert(0, Mutation::SetVersion { version: Version::default() });
        }
        parts.insert(0, self.own_change(vec![incomplete()]));
        parts.push(self.own_change(vec![Mutation::OmapRemove { key }]));
        parts
    }

    /// A member has made a part durable. False if not for a scrub.
    pub(crate) fn scrub_synced(&mut self, from: OsdId, epoch: Epoch, tag: u64, view: &impl ObjectView) -> bool {
        if !self.is_primary() || epoch != self.record.epoch {
            return false;
        }
        let Some(scrub) = &mut self.scrub else { return false };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return false };
        let (object, Step::Sending { parts_left, .. }) = (object.clone(), &mut round.step) else { return false };
        if let Some(left) = parts_left.get_mut(&from) {
            *left = left.saturating_sub(1);
        }
        if parts_left.values().all(|left| *left == 0) {
            self.examine_again(object, view);
        }
        true
    }

    // ---- repair of the primary's own copy ---------------------------------------------------

    /// The primary's copy is bad and this OSD's is good.
    pub(crate) fn object_wanted(&mut self, from: OsdId, epoch: Epoch, tag: u64, object: ObjectName) {
        if epoch == self.promises.epoch {
            let token = self.token();
            self.wanted_by.insert(token, (from, epoch, tag));
            let touched = Touched { whole: true, ..Touched::default() };
            self.actions.push_back(Action::ReadForSync { token, object, touched, from: None, is_urgent: true });
        }
    }

    fn answer_wanted(&mut self, primary: OsdId, epoch: Epoch, tag: u64, result: &Result<ObjectParts, String>) {
        match result {
            Ok(parts) => {
                for transaction in parts.transactions.clone() {
                    self.send(primary, Message::ObjectPart { epoch, tag, transaction });
                }
            }
            Err(_) => {
                let finding = ScrubFinding::Busy;
                self.send(primary, Message::ScrubReply { pg: self.id, epoch, tag, finding });
            }
        }
    }

    /// A part of a good copy has come. Nothing is written before all are there, so that whatever
    /// happens meanwhile leaves the copy as it is.
    pub(crate) fn object_part(&mut self, sender: OsdId, epoch: Epoch, tag: u64, part: Transaction) {
        if !self.is_primary() || epoch != self.record.epoch {
            return;
        }
        let (token, pg) = (self.token(), self.id);
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, round)) = scrub.round_by_tag(tag) else { return };
        let Step::Fetching { from, parts, .. } = &mut round.step else { return };
        if *from != sender || part.pg != pg || part.object != *object || !part.log.is_empty() {
            return;
        }
        let is_last = part.mutations[..] == [Mutation::Remove]
            || matches!(part.mutations.last(), Some(Mutation::SetVersion { .. }));
        parts.push(part);
        if !is_last {
            return;
        }
        let parts = std::mem::take(parts);
        round.step = Step::Mending { tag: token.0 };
        let series = self.series(parts);
        let count = series.len();
        for (index, transaction) in series.into_iter().enumerate() {
            let is_last = index + 1 == count;
            self.submit(Submission::Mend { tag: token.0, is_last }, transaction);
        }
    }

    /// The store did not take a part, so the copy may be torn: another member must lead and fill
    /// this one.
    pub(crate) fn mend_failed(&mut self, cause: &str, view: &impl ObjectView) {
        self.warn(format!("{} could not repair its copy of an object: {cause}", self.me));
        self.promises.is_incomplete = true;
        let note = self.own_change(vec![incomplete()]);
        self.submit(Submission::Repair, note);
        if self.is_primary() {
            self.restart_peering();
        }
        self.advance(view);
    }

    /// All parts of this primary's copy are durable.
    pub(crate) fn mended(&mut self, tag: u64, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        let Some((object, _)) = scrub.round_by_tag(tag) else { return };
        let object = object.clone();
        self.examine_again(object, view);
    }
}

/// The names on all pages as far as every member has listed, and where the next pages begin.
fn merge(pages: BTreeMap<OsdId, (Vec<ObjectName>, bool)>) -> (BTreeSet<ObjectName>, Option<ObjectName>) {
    let unfinished = pages.values().filter(|(_, more)| *more);
    let end = unfinished.filter_map(|(names, _)| names.last()).min().cloned();
    let names = pages.into_values().flat_map(|(names, _)| names);
    let listed = names.filter(|name| end.as_ref().is_none_or(|end| name <= end));
    (listed.collect(), end)
}
