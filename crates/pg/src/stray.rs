//! Deletes stray PG copies: those of a PG that has been active with all its copies elsewhere for a
//! while. Before the first object goes, the OSD notes durably that its copy is incomplete.

use std::collections::VecDeque;

use atoll_types::{Mutation, ObjectName, Transaction, Version};

use crate::actions::{Action, ObjectView, Token};
use crate::config::PgState;
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{change, own_change, set_complete, set_epoch, set_incomplete};
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

impl StrayCopy {
    /// Whether no deletion is under way or coming up.
    pub fn is_idle(&self) -> bool {
        self.stray_since_ms.is_none() && !self.has_begun && self.objects.is_empty()
    }

    /// A primary wants this copy: the deletion stops, and what is left of the copy stays.
    pub fn stop(&mut self) {
        self.stray_since_ms = None;
        self.has_begun = false;
        self.objects.clear();
    }

    /// Whether objects are being deleted. Then the copy takes no writes.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The primary that has this OSD's promise has sent a message.
    pub fn heard_from_primary(&mut self, now_ms: u64) {
        self.heard_at_ms = Some(now_ms);
    }
}

impl Pg {
    /// Whether this OSD's copy is stray: the PG is active with all its copies, and this OSD is
    /// neither a member, nor an elector, nor a target.
    fn is_stray(&self, now_ms: u64) -> bool {
        let record = &self.config.record;
        let has_part = |osds: &[atoll_types::OsdId]| osds.contains(&self.config.me);
        let has_all_copies = record.activated_epoch == record.epoch && record.members.len() >= self.size();
        let is_used =
            has_part(&record.members) || has_part(&record.last_active_members) || has_part(&self.config.target);
        // A primary whose map lags may still backfill this copy; one that has stopped is silent.
        let was_asked = self.promises.epoch() >= record.epoch;
        let is_asked = was_asked && self.stray.heard_at_ms.is_some_and(|at_ms| now_ms < at_ms + DELAY_MS);
        let is_ahead = self.promises.epoch() > record.epoch;
        self.config.state == PgState::Member && has_all_copies && !is_used && !is_asked && !is_ahead
    }

    /// Whether there is a copy here, or remains of one.
    pub(crate) fn holds_copy(&self, view: &impl ObjectView) -> bool {
        view.head(self.config.id) != Version::default() || self.promises.is_incomplete()
    }

    /// Deletes the next objects of a stray copy.
    pub(crate) fn delete_stray_copy(&mut self, view: &impl ObjectView) {
        if !self.is_stray(view.now_ms()) || !self.holds_copy(view) {
            // Some objects may be gone. The copy has been marked as incomplete.
            return self.stray.stop();
        }
        let since_ms = *self.stray.stray_since_ms.get_or_insert(view.now_ms());
        let is_busy = self.stray.listing.is_some() || self.stray.removing > 0;
        if view.now_ms() < since_ms + DELAY_MS || is_busy {
            return;
        }
        if !self.stray.has_begun {
            self.stray.has_begun = true;
            self.end_roll_back();
            self.promises.note_incomplete();
            let note = own_change(self.config.id, vec![set_incomplete()]);
            self.submit_removal(note);
            self.end_backfill_here(view);
            let text = format!("{} deletes its stray copy", self.config.me);
            self.outbox.warn(text);
            return self.list_stray_objects(None);
        }
        self.remove_more(view);
    }

    /// Ends a backfill that this copy was getting, and tells its primary.
    fn end_backfill_here(&mut self, view: &impl ObjectView) {
        self.intake.break_newest_backfill();
        if let Some(primary) = self.promises.asked_by().filter(|primary| *primary != self.config.me)
            && self.promises.is_durable()
        {
            self.send_peer_info(primary, false, view);
        }
    }

    fn list_stray_objects(&mut self, after: Option<ObjectName>) {
        let token = self.outbox.token();
        self.stray.listing = Some(token);
        self.outbox.push(Action::ListObjects { token, after });
    }

    /// Objects have been listed. False if the list was for something else.
    pub(crate) fn stray_objects_listed(
        &mut self,
        token: Token,
        objects: &[(ObjectName, Version)],
        more: bool,
    ) -> bool {
        if self.stray.listing != Some(token) {
            return false;
        }
        self.stray.listing = None;
        self.stray.more_after = objects.last().filter(|_| more).map(|(name, _)| name.clone());
        if self.stray.has_begun {
            self.stray.objects = objects.iter().map(|(name, _)| name.clone()).collect();
        }
        true
    }

    fn submit_removal(&mut self, transaction: Transaction) {
        invariants::only_stray_copies_are_deleted(&self.config);
        self.stray.removing += 1;
        self.submit(Submission::StrayCopy, transaction);
    }

    fn remove_more(&mut self, view: &impl ObjectView) {
        while self.stray.removing < REMOVALS_MAX
            && let Some(object) = self.stray.objects.pop_front()
        {
            let removal = change(self.config.id, object, vec![Mutation::Remove]);
            self.submit_removal(removal);
        }
        if self.stray.removing > 0 {
            return;
        }
        if let Some(after) = self.stray.more_after.take() {
            return self.list_stray_objects(Some(after));
        }
        // The promise stays. Without it this OSD would seem to have lost its device.
        let promise = set_epoch(self.promises.epoch());
        let nothing = Mutation::ResetLog { head: Version::default() };
        let last = own_change(self.config.id, vec![Mutation::Remove, promise, set_complete(), nothing]);
        self.promises.forget_copy();
        self.stray = StrayCopy { stray_since_ms: Some(view.now_ms()), ..StrayCopy::default() };
        self.submit_removal(last);
    }

    /// A removal is durable.
    pub(crate) fn removed(&mut self, view: &impl ObjectView) {
        self.stray.removing -= 1;
        self.delete_stray_copy(view);
    }
}
