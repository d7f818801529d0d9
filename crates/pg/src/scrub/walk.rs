//! The walk of a scrub over all objects, a page of every member's at a time.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::{ObjectName, OsdId, Version};
use atoll_wire::Message;

use super::round::{Round, Step};
use super::{Effect, Listing, ROUNDS_MAX, Scrub};
use crate::actions::{Action, ObjectView};
use crate::config::Configuration;
use crate::context::Context;
use crate::invariants;

impl Scrub {
    /// Returns true if the scrub makes way for a backfill or a split. A backfill may take hours.
    pub(super) fn must_end(&self, backfills: bool, is_splitting: bool) -> bool {
        backfills && !self.is_for_backfill || is_splitting
    }

    /// Begins nothing more. Objects under way are finished, then the scrub ends.
    pub(super) fn wind_up(&mut self) -> Effect {
        self.rounds.retain(|_, round| !matches!(round.step, Step::Waiting { .. }));
        if self.rounds.is_empty() { Effect::End } else { Effect::Nothing }
    }

    /// Examines the next objects that no write in flight touches, and lists more when none is left.
    pub(super) fn walk(&mut self, context: &mut Context<'_, impl ObjectView>) -> Effect {
        while self.rounds.len() < ROUNDS_MAX
            && let Some(object) = self.queue.pop_front()
        {
            let is_free = |place: &usize| self.rounds.values().all(|round| round.place != *place);
            let place = (0..ROUNDS_MAX).find(is_free).expect("fewer are under way");
            self.rounds.insert(object, Round::new(place, context.view.now_ms()));
            invariants::scrub_rounds_are_bounded(self.rounds.len(), ROUNDS_MAX);
        }
        let is_idle = self.rounds.is_empty() && self.listing.is_none();
        let waiting = self.rounds.iter().filter(|(_, round)| matches!(round.step, Step::Waiting { .. }));
        let waiting: Vec<ObjectName> = waiting.map(|(object, _)| object.clone()).collect();
        for object in waiting.into_iter().filter(|object| !context.log.writes(object)) {
            self.examine(object, context);
        }
        if is_idle { self.list_page(context) } else { Effect::Nothing }
    }

    fn list_page(&mut self, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Some(after) = self.next_page.take() else {
            if !self.is_for_backfill {
                context.outbox.push(Action::ScrubDone { report: self.report });
            }
            return Effect::End;
        };
        let token = context.outbox.token();
        self.listing = Some(Listing { tag: token.0, pages: BTreeMap::new() });
        context.outbox.push(Action::ListObjects { token, after: after.clone() });
        let (pg, epoch) = (context.config.id, context.config.record.epoch);
        for member in context.config.others() {
            let query = Message::ObjectsQuery { pg, epoch, tag: token.0, after: after.clone() };
            context.outbox.send(member, query);
        }
        Effect::Nothing
    }

    /// A member has listed objects. False if the list was not for this scrub.
    pub(super) fn listed(
        &mut self,
        member: OsdId,
        tag: u64,
        objects: &[(ObjectName, Version)],
        more: bool,
        config: &Configuration,
    ) -> bool {
        let Some(listing) = self.listing.as_mut().filter(|listing| listing.tag == tag) else { return false };
        let names = objects.iter().map(|(name, _)| name.clone()).collect();
        listing.pages.insert(member, (names, more));
        if listing.pages.len() == config.record.members.len() {
            let (names, next_page) = merge(std::mem::take(&mut listing.pages));
            // A copy from before a split may still have objects of the new PG.
            let pg_num = config.pg_num();
            self.queue.extend(names.into_iter().filter(|name| config.id.holds(name, pg_num)));
            self.next_page = next_page.map(Some);
            self.listing = None;
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
