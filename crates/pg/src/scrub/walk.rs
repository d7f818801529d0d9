//! The walk of a scrub over all objects, a page of every member's at a time.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::{ObjectName, OsdId, Version};
use atoll_wire::Message;

use super::round::{Round, Step};
use super::{Listing, ROUNDS_MAX};
use crate::actions::{Action, ObjectView};
use crate::group::Pg;
use crate::invariants;

impl Pg {
    /// Starts what the scrub can start now.
    pub(crate) fn continue_scrub(&mut self, view: &impl ObjectView) {
        let Some(scrub) = &mut self.scrub else { return };
        invariants::scrub_runs_while_active(self.config.is_active());
        if self.learners.are_any() && !scrub.is_for_backfill || self.is_splitting {
            // A backfill may take hours. Objects under way are finished, then the scrub ends.
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
            invariants::scrub_rounds_are_bounded(scrub.rounds.len(), ROUNDS_MAX);
        }
        let waiting = scrub.rounds.iter().filter(|(_, round)| matches!(round.step, Step::Waiting { .. }));
        let waiting: Vec<ObjectName> = waiting.map(|(object, _)| object.clone()).collect();
        let is_idle = scrub.rounds.is_empty() && scrub.listing.is_none();
        for object in waiting {
            if !self.log.writes(&object) {
                self.examine(object, view);
            }
        }
        if is_idle {
            self.list_page();
        }
    }

    pub(super) fn list_page(&mut self) {
        let token = self.outbox.token();
        let Some(scrub) = &mut self.scrub else { return };
        let Some(after) = scrub.next_page.take() else {
            let (report, is_for_backfill) = (scrub.report, scrub.is_for_backfill);
            self.scrub = None;
            if !is_for_backfill {
                self.outbox.push(Action::ScrubDone { report });
            }
            return;
        };
        scrub.listing = Some(Listing { tag: token.0, pages: BTreeMap::new() });
        self.outbox.push(Action::ListObjects { token, after: after.clone() });
        let (pg, epoch) = (self.config.id, self.config.record.epoch);
        for member in self.config.others() {
            self.outbox.send(member, Message::ObjectsQuery { pg, epoch, tag: token.0, after: after.clone() });
        }
    }

    /// A member has listed objects. False if the list was not for a scrub.
    pub(crate) fn scrub_listed(
        &mut self,
        member: OsdId,
        tag: u64,
        objects: &[(ObjectName, Version)],
        more: bool,
    ) -> bool {
        let members = self.config.record.members.len();
        let (id, pg_num) = (self.config.id, self.config.pg_num());
        let Some(scrub) = &mut self.scrub else { return false };
        let Some(listing) = scrub.listing.as_mut().filter(|listing| listing.tag == tag) else { return false };
        let names = objects.iter().map(|(name, _)| name.clone()).collect();
        listing.pages.insert(member, (names, more));
        if listing.pages.len() == members {
            let (names, next_page) = merge(std::mem::take(&mut listing.pages));
            // A copy from before a split may still have objects of the new PG.
            scrub.queue.extend(names.into_iter().filter(|name| id.holds(name, pg_num)));
            scrub.next_page = next_page.map(Some);
            scrub.listing = None;
        }
        true
    }
}

/// The names on all pages up to where every member has listed, and the name after which the next
/// pages begin.
fn merge(pages: BTreeMap<OsdId, (Vec<ObjectName>, bool)>) -> (BTreeSet<ObjectName>, Option<ObjectName>) {
    let unfinished = pages.values().filter(|(_, more)| *more);
    let end = unfinished.filter_map(|(names, _)| names.last()).min().cloned();
    let names = pages.into_values().flat_map(|(names, _)| names);
    let listed = names.filter(|name| end.as_ref().is_none_or(|end| name <= end));
    (listed.collect(), end)
}
