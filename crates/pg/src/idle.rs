//! Idle detection: a PG that waits for events alone, and for no timer, gets no ticks. So the work
//! of an OSD grows with its load and not with the number of its PGs.

use crate::actions::ObjectView;
use crate::config::PgState;
use crate::group::Pg;

impl Pg {
    /// Returns true if the PG is idle: [`Pg::tick`] would do nothing, now and at any time before the PG's next
    /// event. Leases that run out, a full device or a full log do not end it.
    pub fn is_idle(&self, view: &impl ObjectView) -> bool {
        let has_settled = match self.config.state {
            PgState::Active => self.is_idle_primary(view),
            PgState::Member => self.is_idle_member(view),
            PgState::Inactive | PgState::Peering | PgState::Recovering => false,
        };
        has_settled
            && self.outbox.is_empty()
            && self.queue.is_empty()
            && !self.reads.are_waiting()
            && self.intake.is_whole()
            && !self.promises.owes_answer()
            && !self.learners.are_any()
            && !self.membership.counts_inactivity()
            && self.stray.is_idle()
            && !self.staged.is_whole()
            && self.erasure.as_ref().is_none_or(|erasure| erasure.is_idle(&self.config, &self.log))
    }

    /// The members are on target, and nothing is under way.
    fn is_idle_primary(&self, view: &impl ObjectView) -> bool {
        let is_whole = self.leads() && self.config.is_on_target();
        let pg_num = self.config.pg_num();
        let needs_split =
            self.is_splitting || self.config.policy.pg_num > pg_num || self.config.is_split_under_way(view);
        is_whole && !needs_split && self.config.surplus_member().is_none() && !self.is_scrubbing()
    }

    /// Another OSD leads, and this one's copy is complete, or there is none.
    fn is_idle_member(&self, view: &impl ObjectView) -> bool {
        let primary = self.config.record.primary;
        let is_led = self.promises.is_copy_usable(&self.config)
            && self.is_usable(primary)
            && !self.membership.is_stuck(primary, view.now_ms())
            && !self.awaits_query();
        is_led && (self.config.record.members.contains(&self.config.me) || !self.holds_copy(view))
    }
}
