//! The end of a world's settling after the last fault, and the reasons for which it still waits.

use atoll_pg::PgState;
use atoll_types::{OsdId, PgId, Version};

use crate::view::View;
use crate::world::{Event, Member, World, osd};

impl World {
    pub fn is_settled(&self) -> bool {
        let is_active = |pg: &PgId| {
            let running = self.members[self.primary_of(*pg)].pgs.get(pg);
            running.is_some_and(|running| *running.state() == PgState::Active)
        };
        self.clients.all_answered()
            && self.cluster.is_clean()
            && self.cluster.pgs().len() == self.policy.pg_num as usize
            && self.cluster.pgs().iter().all(is_active)
            && self.stray_copies().is_empty()
            && self.members.iter().all(|member| unsettled_parts(member).is_empty())
            && !self.queue.values().any(Event::may_unsettle)
    }

    /// Copies of PGs on OSDs that are not members.
    fn stray_copies(&self) -> Vec<(OsdId, PgId)> {
        let pgs = self.cluster.pgs();
        let pairs = (0..self.members.len()).flat_map(|at| pgs.iter().map(move |pg| (at, *pg)));
        let is_stray = |(at, pg): &(usize, PgId)| {
            let is_member = self.cluster.of(*pg).expect("it is listed").record.members.contains(&osd(*at));
            !is_member && self.members[*at].store.visible.of(*pg).head != Version::default()
        };
        pairs.filter(is_stray).map(|(at, pg)| (osd(at), pg)).collect()
    }

    /// A line for each thing that the world waits for.
    pub fn what_is_not_settled(&self) -> String {
        let mut lines = Vec::new();
        let unanswered = self.clients.ops.iter().filter(|op| op.answered.is_none());
        lines.extend(unanswered.map(|op| format!("client {} waits for the answer to {:?}", op.session, op.id)));
        let pgs = self.cluster.pgs();
        if pgs.len() < self.policy.pg_num as usize {
            lines.push("the PG that is split off is not in cluster state".into());
        }
        for pg in &pgs {
            let state = self.cluster.of(*pg).expect("it is listed");
            lines.push(format!("pg {pg}: target {:?}, {:?}", state.target, state.record));
        }
        let stray = self.stray_copies();
        lines.extend(stray.iter().map(|(osd, pg)| format!("{osd} holds a stray copy of pg {pg}")));
        for (at, member) in self.members.iter().enumerate() {
            lines.extend(unsettled_parts(member).into_iter().map(|part| format!("{} {part}", osd(at))));
            let view = View {
                store: &member.store,
                leases: &member.leases,
                full: &member.full,
                now_ms: self.local_ms(at),
            };
            for pg in member.pgs.values() {
                let reasons = pg.waits_for(&view);
                let head = member.store.visible.of(pg.id()).head;
                let state = pg.state();
                lines.extend(
                    reasons.iter().map(|why| format!("{}, pg {}, {state:?} at {head}: {why}", osd(at), pg.id())),
                );
            }
        }
        lines.join("\n  ")
    }
}

/// Returns the remaining work of an OSD, apart from its PGs.
fn unsettled_parts(member: &Member) -> Vec<String> {
    let mut parts = Vec::new();
    let mut add = |is_unsettled: bool, what: &str| {
        if is_unsettled {
            parts.push(what.to_owned());
        }
    };
    add(!member.is_up, "is down");
    add(!member.store.pending.is_empty(), "has submissions that are not durable");
    add(!member.store.backlog.is_empty(), "has submissions that wait for room in its log");
    add(
        !member.store.has_forgotten_pre_images(member.pgs.keys()),
        "keeps pre-images of writes that all members have",
    );
    add(!member.owed_reads.is_empty(), "owes answers to reads");
    add(!member.owed_writes.is_empty(), "owes answers to writes");
    parts
}
