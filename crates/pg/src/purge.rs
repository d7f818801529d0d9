//! Removing what an OSD has of a group that does not need it any more: the group is active with all
//! its copies elsewhere. Before the first object goes, the OSD notes durably that what it has is
//! not whole.

use std::collections::VecDeque;

use atoll_base::{Mutation, ObjectName, Transaction, Version};

use crate::actions::{Action, ObjectView, Token};
use crate::group::{Pg, PgState};
use crate::promises::incomplete;
use crate::submissions::Submission;

/// For how long a group must have had all its copies before this one goes.
const DELAY_MS: u64 = 5_000;
/// Objects that are being removed at once.
const REMOVALS_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Purge {
    /// Since when this copy has not been needed.
    unneeded_since_ms: Option<u64>,
    /// The list that is under way.
    listing: Option<Token>,
    objects: VecDeque<ObjectName>,
    /// The last object listed, if there are more behind it.
    more_after: Option<ObjectName>,
    removing: usize,
    has_begun: bool,
}

impl Purge {
    /// Whether this copy was needed when it was last looked at, or is gone.
    pub fn is_idle(&self) -> bool {
        self.unneeded_since_ms.is_none() && !self.has_begun && self.objects.is_empty()
    }
}

impl Pg {
    /// Whether nobody needs this OSD's copy: not the group as it is, not as it was when it was last
    /// active, and not as it should be.
    fn is_unneeded(&self) -> bool {
        let record = &self.record;
        let has_part = |osds: &[atoll_base::OsdId]| osds.contains(&self.me);
        let has_all_copies = record.activated_epoch == record.epoch && record.members.len() >= self.size();
        let is_used = has_part(&record.members) || has_part(&record.last_active_members) || has_part(&self.target);
        // Whoever has promised this epoch may be being filled, whatever this OSD's map says.
        let is_asked = self.promises.epoch >= record.epoch;
        self.state == PgState::Member && has_all_copies && !is_used && !is_asked
    }

    /// Whether there is a copy here, or what is left of one.
    pub(crate) fn holds_something(&self, view: &impl ObjectView) -> bool {
        view.head(self.id) != Version::default() || self.promises.is_incomplete
    }

    /// Removes the next objects of a copy that nobody needs.
    pub(crate) fn purge(&mut self, view: &impl ObjectView) {
        if !self.is_unneeded() || !self.holds_something(view) {
            // Objects on their way out are gone; that the rest is not whole has been noted.
            self.purge.unneeded_since_ms = None;
            self.purge.has_begun = false;
            self.purge.objects.clear();
            return;
        }
        let since_ms = *self.purge.unneeded_since_ms.get_or_insert(view.now_ms());
        let is_busy = self.purge.listing.is_some() || self.purge.removing > 0;
        if view.now_ms() < since_ms + DELAY_MS || is_busy {
            return;
        }
        if !self.purge.has_begun {
            self.purge.has_begun = true;
            self.end_roll_back();
            self.promises.is_incomplete = true;
            let note = self.own_change(vec![incomplete()]);
            self.submit_removal(note);
            let text = format!("{} removes its copy, which is not needed any more", self.me);
            self.warn(text);
            return self.list_to_purge(None);
        }
        self.remove_more(view);
    }

    fn list_to_purge(&mut self, after: Option<ObjectName>) {
        let token = self.token();
        self.purge.listing = Some(token);
        self.actions.push_back(Action::ListObjects { token, after });
    }

    /// Objects have been listed. False if not for this.
    pub(crate) fn listed_to_purge(&mut self, token: Token, objects: &[(ObjectName, Version)], more: bool) -> bool {
        if self.purge.listing != Some(token) {
            return false;
        }
        self.purge.listing = None;
        self.purge.more_after = objects.last().filter(|_| more).map(|(name, _)| name.clone());
        if self.purge.has_begun {
            self.purge.objects = objects.iter().map(|(name, _)| name.clone()).collect();
        }
        true
    }

    fn submit_removal(&mut self, transaction: Transaction) {
        self.purge.removing += 1;
        self.submit(Submission::Purge, transaction);
    }

    fn remove_more(&mut self, view: &impl ObjectView) {
        while self.purge.removing < REMOVALS_MAX
            && let Some(object) = self.purge.objects.pop_front()
        {
            let removal = Transaction { object, ..self.own_change(vec![Mutation::Remove]) };
            self.submit_removal(removal);
        }
        if self.purge.removing > 0 {
            return;
        }
        if let Some(after) = self.purge.more_after.take() {
            return self.list_to_purge(Some(after));
        }
        // The promise stays: it says that this OSD did not lose its device.
        let key = bytes::Bytes::from_static(crate::group::INCOMPLETE_KEY);
        let epoch = bytes::Bytes::copy_from_slice(&self.promises.epoch.0.to_be_bytes());
        let promise = Mutation::OmapSet { key: bytes::Bytes::from_static(crate::group::EPOCH_KEY), value: epoch };
        let nothing = Mutation::ResetLog { head: Version::default() };
        let last = self.own_change(vec![Mutation::Remove, promise, Mutation::OmapRemove { key }, nothing]);
        self.promises.is_incomplete = false;
        self.promises.shard = None;
        self.purge = Purge { unneeded_since_ms: Some(view.now_ms()), ..Purge::default() };
        self.submit_removal(last);
    }

    /// A removal is durable.
    pub(crate) fn removed(&mut self, view: &impl ObjectView) {
        self.purge.removing -= 1;
        self.purge(view);
    }
}
