//! Deletes stray PG copies: those of a PG that has been active with all its copies elsewhere for a
//! while. Before the first object goes, the OSD notes durably that its copy is incomplete.
//!
//! A [`StrayCopy`] decides on deletions and their times; effects on other components are an [`Effect`].

use std::collections::VecDeque;

use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Mutation, ObjectName, OsdId, Transaction, Version};

use crate::actions::{Action, ObjectView, Token};
use crate::config::PgState;
use crate::context::Context;
use crate::group::Pg;
use crate::invariants;
use crate::outbox::Outbox;
use crate::own_object::{change, own_change, set_complete, set_deleted, set_epoch, set_incomplete};
use crate::peering::promises::Promises;
use crate::submissions::Submission;

/// For how long a copy must have been stray before it is deleted.
const DELAY_MS: u64 = 5_000;
/// Objects that are deleted at once.
const REMOVALS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct StrayCopy {
    /// Since when this copy has been stray.
    stray_since_ms: Option<u64>,
    /// The list that is under way.
    listing: Option<Token>,
    /// Objects to delete.
    objects: VecDeque<ObjectName>,
    /// The last object listed, if there are more after it.
    more_after: Option<ObjectName>,
    removing: usize,
    has_begun: bool,
    /// When the primary that has this OSD's promise last sent a message: it may be backfilling this
    /// copy.
    heard_at_ms: Option<u64>,
}

/// Effect of the deletion on the PG.
enum Effect {
    Nothing,
    /// The mark that the copy is incomplete was submitted: all uses of the copy end, and its objects are listed.
    Begin,
    /// All objects are gone. This removes the rest, and the history.
    ForgetCopy(Transaction),
}

impl StrayCopy {
    /// Returns true if no deletion is pending.
    pub fn is_idle(&self) -> bool {
        self.stray_since_ms.is_none() && !self.has_begun && self.objects.is_empty()
    }

    /// A primary wants this copy: the deletion stops, and the rest of the copy stays.
    pub fn stop(&mut self) {
        let StrayCopy { listing, removing, heard_at_ms, .. } = *self;
        *self = StrayCopy { listing, removing, heard_at_ms, ..StrayCopy::default() };
    }

    /// Returns true if objects are being deleted. Then the copy takes no writes.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The primary that has this OSD's promise has sent a message.
    pub fn heard_from_primary(&mut self, now_ms: u64) {
        self.heard_at_ms = Some(now_ms);
    }

    /// Objects have been listed. False if the list was for something else.
    pub fn listed(&mut self, token: Token, objects: &[(ObjectName, Version)], more: bool) -> bool {
        if self.listing != Some(token) {
            return false;
        }
        self.listing = None;
        if self.has_begun {
            self.more_after = objects.last().filter(|_| more).map(|(name, _)| name.clone());
            self.objects = objects.iter().map(|(name, _)| name.clone()).collect();
        }
        true
    }

    /// Returns true if this OSD's copy is stray: the PG is active with all its copies, and this OSD is neither a
    /// member, nor an elector, nor a target.
    fn is_stray(&self, promises: &Promises, context: &Context<'_, impl ObjectView>) -> bool {
        let (config, record) = (context.config, &context.config.record);
        let has_part = |osds: &[OsdId]| osds.contains(&config.me);
        let has_all_copies =
            record.activated_epoch == record.epoch && record.members.len() >= config.policy.size as usize;
        let is_used =
            has_part(&record.members) || has_part(&record.last_active_members) || has_part(&config.target);
        // A primary whose map lags may still backfill this copy; one that has stopped is silent.
        let was_asked = promises.epoch() >= record.epoch;
        let now_ms = context.view.now_ms();
        let is_asked = was_asked && self.heard_at_ms.is_some_and(|at_ms| now_ms < at_ms + DELAY_MS);
        let is_ahead = promises.epoch() > record.epoch;
        config.state == PgState::Member && has_all_copies && !is_used && !is_asked && !is_ahead
    }

    /// Deletes the next objects, if the copy has been stray for long enough.
    fn delete(&mut self, promises: &Promises, context: &mut Context<'_, impl ObjectView>) -> Effect {
        let now_ms = context.view.now_ms();
        if !self.is_stray(promises, context) {
            // Some objects may be gone. The copy has been marked as incomplete.
            self.stop();
            return Effect::Nothing;
        }
        let since_ms = *self.stray_since_ms.get_or_insert(now_ms);
        let is_busy = self.listing.is_some() || self.removing > 0;
        if now_ms < since_ms + DELAY_MS || is_busy {
            return Effect::Nothing;
        }
        if !self.has_begun {
            self.has_begun = true;
            self.submit(own_change(context.config.id, vec![set_incomplete()]), context);
            return Effect::Begin;
        }
        while self.removing < REMOVALS_MAX
            && let Some(object) = self.objects.pop_front()
        {
            self.submit(change(context.config.id, object, vec![Mutation::Remove]), context);
        }
        if self.removing > 0 {
            return Effect::Nothing;
        }
        if let Some(after) = self.more_after.take() {
            self.list(Some(after), context.outbox);
            return Effect::Nothing;
        }
        self.finish(promises, context)
    }

    fn list(&mut self, after: Option<ObjectName>, outbox: &mut Outbox) {
        let token = outbox.token();
        self.listing = Some(token);
        outbox.push(Action::ListObjects { token, after });
    }

    fn submit(&mut self, removal: Transaction, context: &mut Context<'_, impl ObjectView>) {
        invariants::only_stray_copies_are_deleted(context.config);
        self.removing += 1;
        context.outbox.submit(Submission::StrayCopy, removal);
    }

    fn finish(&mut self, promises: &Promises, context: &Context<'_, impl ObjectView>) -> Effect {
        invariants::only_stray_copies_are_deleted(context.config);
        let since_ms = Some(context.view.now_ms());
        *self = StrayCopy { stray_since_ms: since_ms, removing: 1, ..StrayCopy::default() };
        // The promise stays. Without it this OSD would seem to have lost its device.
        let promise = set_epoch(promises.epoch());
        // By an older record, put back from a snapshot, it might count as an elector that has nothing.
        let deleted = set_deleted(context.config.record.activated_epoch);
        let nothing = Mutation::ResetLog { head: Version::default() };
        let last = vec![Mutation::Remove, promise, deleted, set_complete(), nothing];
        Effect::ForgetCopy(own_change(context.config.id, last))
    }
}

impl Pg {
    /// Returns true if there is a copy here, or remains of one.
    pub(crate) fn holds_copy(&self, view: &impl ObjectView) -> bool {
        view.head(self.config.id) != Version::default() || self.promises.is_incomplete()
    }

    /// Deletes the next objects of a stray copy.
    pub(crate) fn delete_stray_copy(&mut self, view: &impl ObjectView) {
        if !self.holds_copy(view) {
            return self.stray.stop();
        }
        if self.staged.is_whole() {
            return;
        }
        let Pg { stray, promises, config, log, peering, outbox, .. } = self;
        let mut context = Context { config, log, peering, outbox, view };
        match stray.delete(promises, &mut context) {
            Effect::Nothing => {}
            Effect::Begin => {
                self.end_roll_back();
                self.drop_staged();
                self.promises.note_incomplete(Incompleteness::Torn);
                self.end_backfill_here(view);
                self.outbox.warn(format!("{} deletes its stray copy", self.config.me));
                self.stray.list(None, &mut self.outbox);
            }
            Effect::ForgetCopy(last) => {
                self.promises.forget_copy(self.config.record.activated_epoch);
                self.forget_notes();
                self.submit(Submission::StrayCopy, last);
            }
        }
    }

    /// Ends a backfill that this copy was getting, and informs its primary.
    fn end_backfill_here(&mut self, view: &impl ObjectView) {
        self.intake.break_newest_backfill();
        if let Some(primary) = self.promises.asked_by().filter(|primary| *primary != self.config.me)
            && self.promises.is_durable()
        {
            self.send_peer_info(primary, false, view);
        }
    }

    /// A removal is durable.
    pub(crate) fn removed(&mut self, view: &impl ObjectView) {
        self.stray.removing -= 1;
        self.delete_stray_copy(view);
    }
}
