//! Roll back of writes that too few electors have to rebuild the shards of the others, by their pre-images.

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{LogEntry, Mutation, ObjectName, ReadRequest, Transaction, Version};

use super::Erasure;
use super::effects::Effect;
use crate::actions::{Action, Lookup, ObjectView};
use crate::context::Context;
use crate::group::Pg;
use crate::outbox::Outbox;
use crate::own_object::change;
use crate::submissions::Submission;

/// A roll back under way.
pub(crate) struct RollBack {
    /// The version that the history is to end with.
    head: Version,
    /// The store has refused a step before.
    was_refused: bool,
    /// The next attempt waits for a tick.
    waits_for_tick: bool,
}

impl Erasure {
    /// Returns true if a roll back is pending or not durable yet. A crash may undo a step that is not durable, so
    /// nothing may rest on it.
    fn is_rolling_back(&self, outbox: &Outbox) -> bool {
        self.roll_back.is_some()
            || outbox.submissions().any(|submission| matches!(submission, Submission::RollBack))
    }

    /// Rolls back all writes after `head`, the newest first. Each goes together with its log entry,
    /// so the log matches the objects at any time.
    pub fn begin_roll_back(&mut self, head: Version, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let committed_sequence = context.log.committed_sequence();
        if head.sequence < committed_sequence {
            // The primary has heard that from this member, so none sends it.
            let me = context.config.me;
            context.outbox.warn(format!(
                "{me} does not roll back to {head}: all members had the writes up to {committed_sequence}"
            ));
            return Effect::Nothing;
        }
        self.roll_back = Some(RollBack { head, was_refused: false, waits_for_tick: false });
        if context.view.head(context.config.id) > head {
            let me = context.config.me;
            context.outbox.warn(format!("{me} rolls back the writes after {head}, which too few members had"));
        }
        self.continue_roll_back(context)
    }

    /// Tries the step again that the store refused.
    pub fn try_roll_back_again(&mut self, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let Some(back) = &mut self.roll_back else { return Effect::Nothing };
        back.waits_for_tick = false;
        self.continue_roll_back(context)
    }

    /// Rolls back the newest write, when the view shows everything submitted.
    pub fn continue_roll_back(&mut self, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let back = self.roll_back.as_ref().filter(|back| !back.waits_for_tick);
        let Some(RollBack { head, .. }) = back else { return Effect::Nothing };
        let (pg, head, view) = (context.config.id, *head, context.view);
        if !context.outbox.view_is_current() || !view.has_room(pg) {
            return Effect::Nothing;
        }
        if view.head(pg) <= head {
            self.roll_back = None;
            return Effect::RolledBack;
        }
        let log = view.log(pg);
        let mut newest = log.iter().rev();
        let undone = newest.next().and_then(|entry| Some((entry, entry.pre_image.clone()?)));
        let before = newest.next().map_or(Version::default(), |entry| entry.version);
        let is_step = |entry: &LogEntry| before >= head && before.sequence + 1 == entry.version.sequence;
        let Some((entry, pre_image)) = undone.filter(|(entry, _)| is_step(entry)) else {
            self.roll_back = None;
            let me = context.config.me;
            context.outbox.warn(format!("{me} cannot roll back to {head}; it must be backfilled"));
            return Effect::CannotRollBack;
        };
        let mutations = [vec![Mutation::ResetLog { head: before }], pre_image.mutations].concat();
        let undo = Transaction { payload: pre_image.payload, ..change(pg, entry.object.clone(), mutations) };
        Effect::Undo { version: entry.version, undo }
    }

    /// The store refused to roll back a write, which stays in the history until the store takes
    /// that.
    fn roll_back_refused(&mut self, cause: &str, context: &mut Context<'_, impl ObjectView>) -> Effect {
        self.pre_images.find_again(context.config.id, context.view);
        if self.roll_back.is_some() && newest_lacks_its_clone(context) {
            self.roll_back = None;
            let me = context.config.me;
            context.outbox.warn(format!("{me} has lost the pre-image of a write; it must be backfilled"));
            return Effect::CannotRollBack;
        }
        let Some(back) = &mut self.roll_back else { return Effect::Nothing };
        back.waits_for_tick = true;
        if !std::mem::replace(&mut back.was_refused, true) {
            context.outbox.warn(format!(
                "the store of {} did not roll back a write ({cause}); the PG waits until it does",
                context.config.me
            ));
        }
        Effect::Nothing
    }
}

/// Returns true if the pre-image of the newest write is a clone that is not there. If that is not in memory, it is
/// known at the next attempt.
fn newest_lacks_its_clone(context: &mut Context<'_, impl ObjectView>) -> bool {
    let (pg, view) = (context.config.id, context.view);
    let log = view.log(pg);
    let pre_image = log.last().and_then(|entry| entry.pre_image.as_ref());
    let Some(clone) = pre_image.and_then(|pre_image| pre_image.clone_object()) else { return false };
    if view.is_read_loaded(pg, clone, &ReadRequest::Stat) {
        return view.object_exists(pg, clone) == Ok(false);
    }
    let lookup = Lookup::Read { object: clone.clone(), request: ReadRequest::Stat };
    let token = context.outbox.token();
    context.outbox.push(Action::Load { token, lookup });
    false
}

impl Pg {
    pub(crate) fn end_roll_back(&mut self) {
        if let Some(erasure) = &mut self.erasure {
            erasure.roll_back = None;
        }
    }

    pub(crate) fn roll_back_refused(&mut self, cause: &str, view: &impl ObjectView) {
        let head = view.head(self.config.id);
        self.log.ends_at(head.sequence);
        self.duplicates.catch_up(&view.log(self.config.id), head);
        self.with_erasure(view, |erasure, context| erasure.roll_back_refused(cause, context));
    }

    /// Undoes the newest write of the history.
    pub(super) fn undo(&mut self, newest: Version, undo: Transaction) {
        self.abandon(newest);
        self.withdraw_refusals();
        self.submit(Submission::RollBack, undo);
    }

    /// Returns true if a roll back is pending or not durable yet.
    pub(crate) fn is_rolling_back(&self) -> bool {
        self.erasure.as_ref().is_some_and(|erasure| erasure.is_rolling_back(&self.outbox))
    }

    /// If the roll back is durable, informs the primary, or continues as the primary.
    pub(crate) fn rolled_back(&mut self, view: &impl ObjectView) {
        if self.is_rolling_back() {
            return;
        }
        match self.promises.asked_by() {
            Some(leader) if leader != self.config.me && self.promises.is_durable() => {
                self.send_peer_info(leader, false, view);
            }
            _ => self.advance(view),
        }
    }
}

/// Returns true if an object belongs to its OSD alone: the PG's own object, or a pre-image clone. Such objects are
/// not listed.
pub fn is_hidden(object: &ObjectName) -> bool {
    object.as_str() == PG_META_OBJECT || object.as_str().starts_with(atoll_types::operation::PRE_IMAGE_PREFIX)
}
