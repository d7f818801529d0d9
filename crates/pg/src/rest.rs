//! Whether a group waits for time to pass. Most groups of an OSD have nothing to do most of the
//! time; they need no ticks then, so that what an OSD costs grows with its work and not with the
//! number of its groups.

use crate::actions::ObjectView;
use crate::coded::Coded;
use crate::group::{Pg, PgState};

impl Pg {
    /// Whether [`Pg::tick`] would do nothing, now and at any time before the next event of the group.
    /// It holds for as long as the group gets no event; an OSD that is full or has no room in its log,
    /// and leases that run out, change nothing for who is at rest.
    pub fn is_at_rest(&self, view: &impl ObjectView) -> bool {
        let has_settled = match self.state {
            PgState::Active => self.has_settled_as_primary(view),
            PgState::Member => self.has_settled_as_member(view),
            PgState::Inactive | PgState::Peering | PgState::Recovering => false,
        };
        has_settled
            && self.actions.is_empty()
            && self.waiting.is_empty()
            && self.history_broken.is_none()
            && !self.promises.owes_answer()
            && !self.learners.are_any()
            && !self.membership.counts_inactivity()
            && self.purge.is_idle()
            && self.coded.as_ref().is_none_or(Coded::is_at_rest)
    }

    /// The configuration is the one wanted, and nothing is under way.
    fn has_settled_as_primary(&self, view: &impl ObjectView) -> bool {
        let is_whole = self.leads() && self.is_on_target();
        let pg_num = self.pg_num();
        let needs_split = self.is_splitting || self.policy.pg_num > pg_num || self.pg_num_here(view) > pg_num;
        let is_known_to_be_everywhere = !self.has_news_of_committed() && self.surplus_member().is_none();
        is_whole && !needs_split && is_known_to_be_everywhere && !self.is_scrubbing()
    }

    /// Another OSD leads, and this one has nothing to give up.
    fn has_settled_as_member(&self, view: &impl ObjectView) -> bool {
        let is_led = !self.promises.is_incomplete && self.is_usable(self.record.primary);
        is_led && (self.record.members.contains(&self.me) || !self.holds_something(view))
    }
}
