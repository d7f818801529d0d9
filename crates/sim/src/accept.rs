//! An operator who resumes a PG from copies that are incomplete, as 'atoll pg accept' does.

use std::collections::BTreeSet;

use atoll_types::pg_copies::{Incompleteness, PgCopy, accepting};
use atoll_types::{OsdId, PgId};

use crate::state::PG;
use crate::view::View;
use crate::world::{Event, World};

impl World {
    /// Returns an OSD's report of its copy; none if its process does not run, or has no part in the PG.
    pub fn copy_told(&self, pg: PgId, at: usize) -> Option<PgCopy> {
        let member = &self.members[at];
        let view =
            View { store: &member.store, leases: &member.leases, full: &member.full, now_ms: self.local_ms(at) };
        Some(member.pgs.get(&pg)?.copy_told(&view))
    }

    /// The operator resumes a PG from the copies of these OSDs, which run.
    pub fn accept(&mut self, pg: PgId, osds: &[usize]) {
        let copies = osds.iter().map(|at| self.copy_told(pg, *at).expect("its OSD runs")).collect();
        let state = self.cluster.of_mut(pg).expect("the PG exists");
        let expected = state.record.clone();
        let record = accepting(&expected, copies);
        assert!(state.compare_and_swap(&expected, record.clone(), None), "nothing came between");
        self.note("accept", &osds.iter().map(|at| *at as u64).collect::<Vec<_>>());
        self.tell_record(pg, &record);
    }

    /// Marks the copy of an OSD whose process is gone as incomplete.
    pub fn mark(&mut self, at: usize, why: Incompleteness) {
        self.mark_of(PG, at, why);
    }

    fn mark_of(&mut self, pg: PgId, at: usize, why: Incompleteness) {
        let store = &mut self.members[at].store;
        let mark = atoll_pg::mark_incomplete(pg, why);
        if let Some(device) = &mut store.device {
            device.apply_blocking(&mark);
        }
        store.durable.apply(&mark, store.ring_entries);
        store.visible = store.durable.clone();
    }

    /// Returns true if each elector of a PG, which serves, has all acknowledged writes.
    pub fn has_whole_electors(&self, pg: PgId) -> bool {
        let record = &self.cluster.of(pg).expect("it is listed").record;
        let is_whole = |osd: &OsdId| {
            let member = &self.members[number(osd)];
            let counts = self.counts_as_elector(pg, number(osd), record.activated_epoch);
            member.is_up && counts && member.store.bad.is_empty()
        };
        record.activated_epoch == record.epoch && record.members.iter().all(is_whole)
    }

    /// All processes die, and the state of their copies is forgotten: an operator has to choose the copies from
    /// which the PGs resume. Since each elector has all that was acknowledged, nothing is lost by that, whatever
    /// he says.
    pub fn lose_trust(&mut self) {
        let pgs = self.cluster.pgs();
        let is_splitting = pgs.len() < self.policy.pg_num as usize;
        let is_awaited = self.queue.values().any(|event| matches!(event, Event::Operator { .. }));
        let is_whole = pgs.iter().all(|pg| self.has_whole_electors(*pg));
        // A device that has forgotten may not know it yet.
        if is_splitting || is_awaited || !is_whole || self.options.keeps_past {
            return;
        }
        (0..self.members.len()).for_each(|at| self.crash(at));
        use Incompleteness::{CannotRollBack, LacksCommitted, LacksPromise, OldDevice, Torn};
        for pg in pgs {
            for osd in self.cluster.of(pg).expect("it is listed").record.members.clone() {
                let why = self.random.one_of([OldDevice, LacksPromise, LacksCommitted, CannotRollBack, Torn]);
                // A torn shard is of no use.
                let why = if self.options.shape.is_some() && why == Torn { OldDevice } else { why };
                self.mark_of(pg, number(&osd), why);
            }
            self.after(3_000_000, Event::Operator { pg });
        }
    }

    /// An operator chooses the copies from which a PG resumes, if enough of their OSDs run.
    pub fn operator_looks(&mut self, pg: PgId) {
        let electors = self.cluster.of(pg).expect("it is listed").record.last_active_members.clone();
        let mut running: Vec<usize> = electors.iter().map(number).collect();
        running.retain(|at| self.copy_told(pg, *at).is_some_and(|copy| copy.incomplete.is_some()));
        let needed = self.options.shape.map_or(1, |shape| usize::from(shape.data));
        let mut chosen: Vec<usize> = Vec::new();
        let mut shards = BTreeSet::new();
        while chosen.len() < needed && !running.is_empty() {
            let at = running.remove(self.random.below(running.len() as u64) as usize);
            let shard = self.copy_told(pg, at).and_then(|copy| copy.shard);
            if self.options.shape.is_none() || shard.is_some() && shards.insert(shard) {
                chosen.push(at);
            }
        }
        if chosen.len() < needed {
            return self.after(500_000, Event::Operator { pg });
        }
        self.statistics.decisions += 1;
        self.accept(pg, &chosen);
    }
}

fn number(osd: &OsdId) -> usize {
    osd.0 as usize - 1
}
