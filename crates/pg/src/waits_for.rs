//! The reasons for which a PG waits, in words, for reports of PGs that do not settle.

use atoll_types::OsdId;

use crate::actions::ObjectView;
use crate::config::PgState;
use crate::group::Pg;

impl Pg {
    /// Returns the reasons for which this member of the PG waits, a sentence each; empty when the PG is idle here.
    pub fn waits_for(&self, view: &impl ObjectView) -> Vec<String> {
        if self.is_idle(view) {
            return Vec::new();
        }
        let mut reasons = Vec::new();
        if let Some(leader) = self.intake.refused() {
            reasons.push(format!("its store refused a write, and it has to inform {leader}"));
        }
        if self.is_rolling_back() {
            reasons.push("writes are being rolled back".into());
        }
        if self.staged.is_whole() {
            reasons.push("the objects that it caught up with move to their places".into());
        }
        if self.promises.owes_answer() {
            reasons.push(self.promises.waits_for());
        }
        match self.config.state {
            PgState::Member => reasons.extend(self.member_waits_for(view)),
            PgState::Inactive => reasons.push(self.inactive_primary_waits_for(view)),
            PgState::Peering => reasons.push(self.peering.waits_for(&self.config, &self.log)),
            PgState::Recovering => {
                reasons.push(format!(
                    "too few copies to serve: {:?}, min_size {}",
                    self.config.record.members, self.config.policy.min_size
                ));
            }
            PgState::Active => reasons.extend(self.active_primary_waits_for(view)),
        }
        for (osd, left) in self.learners() {
            let left = left.map_or("an unknown number of".into(), |left| left.to_string());
            reasons.push(format!("{osd} is being backfilled and lacks {left} objects"));
        }
        if !self.queue.is_empty() {
            reasons.push(format!("{} client requests wait", self.queue.len()));
        }
        reasons
    }

    fn member_waits_for(&self, view: &impl ObjectView) -> Option<String> {
        let primary = self.config.record.primary;
        if !self.is_usable(primary) {
            let is_reachable = self.membership.is_reachable(primary);
            let what = if is_reachable { "has said that it is incomplete" } else { "is out of reach" };
            return Some(format!("its primary {primary} {what}"));
        }
        if self.is_primary_unaware(view) {
            return Some(format!("its primary {primary} has not heard of epoch {}", self.config.record.epoch.0));
        }
        if self.membership.is_stuck(primary, view.now_ms()) {
            return Some(format!("cluster state does not answer its primary {primary}"));
        }
        if !self.promises.is_copy_usable(&self.config) {
            return Some("its copy is incomplete or of another shard and has to be backfilled".into());
        }
        let is_stray = !self.config.record.members.contains(&self.config.me) && self.holds_copy(view);
        is_stray.then(|| "its stray copy has to be deleted".into())
    }

    fn inactive_primary_waits_for(&self, view: &impl ObjectView) -> String {
        if !self.promises.is_copy_usable(&self.config) {
            return "it leads with an incomplete copy or another shard and waits for another elector to take over"
                .into();
        }
        if self.membership.is_proposing(view.now_ms()) {
            return "cluster state has not answered its proposal".into();
        }
        if self.promises.epoch() > self.config.record.epoch {
            return format!("it promised epoch {} and has not seen that record", self.promises.epoch().0);
        }
        let lost: Vec<String> =
            self.config.record.members.iter().filter(|osd| !self.is_usable(**osd)).map(OsdId::to_string).collect();
        format!("members are out of reach or incomplete: [{}]", lost.join(", "))
    }

    fn active_primary_waits_for(&self, view: &impl ObjectView) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(write) = self.log.in_flight().next() {
            let missing: Vec<String> = write.missing.iter().map(OsdId::to_string).collect();
            reasons.push(format!("{} has not acknowledged write {}", missing.join(", "), write.version));
        }
        if !self.config.is_on_target() {
            reasons
                .push(format!("members {:?} have to become {:?}", self.config.record.members, self.config.target));
        }
        if self.is_splitting || self.config.is_split_under_way(view) {
            reasons.push("a split is under way".into());
        }
        if self.is_scrubbing() {
            reasons.push("a scrub is under way".into());
        }
        reasons
    }
}
