//! Cluster state that is put back from an older snapshot, as 'atoll state restore' does it: while no OSD runs, and with
//! epochs raised beyond all that were given since.

use std::collections::BTreeSet;

use atoll_types::{Epoch, OsdId, PgId};

use crate::cluster::ClusterState;
use crate::world::{Event, World};

/// Amount by which epochs are raised.
const RAISED: u64 = 1 << 30;

/// Cluster state as it was at some time.
#[derive(Clone)]
pub struct Snapshot(ClusterState);

impl World {
    /// A snapshot of cluster state.
    pub fn snapshot_of_state(&self) -> Snapshot {
        Snapshot(self.cluster.clone())
    }

    /// Takes a snapshot, unless there is one: it is to be old when it is put back.
    pub fn save_state(&mut self) {
        let is_splitting = self.cluster.pgs().len() < self.policy.pg_num as usize;
        if !is_splitting && self.snapshot.is_none() {
            self.snapshot = Some(self.snapshot_of_state());
        }
    }

    /// Puts a snapshot back. No OSD runs.
    pub fn restore_state(&mut self, snapshot: Snapshot) {
        assert!(self.members.iter().all(|member| !member.is_up), "the cluster is stopped");
        let all = self.cluster.pgs();
        self.cluster = snapshot.0;
        for pg in self.cluster.pgs() {
            let state = self.cluster.of_mut(pg).expect("it is listed");
            state.record.epoch = Epoch(state.record.epoch.0 + RAISED);
            state.previous = state.record.clone();
        }
        // A PG that it does not know is split off again in a later epoch of its parent.
        let of_known = |pg: PgId| self.cluster.of(pg).or_else(|| self.cluster.of(self.parent_of(pg)));
        let epoch = |pg: PgId| of_known(pg).expect("a pool keeps its first PGs").record.epoch;
        self.restored = all.into_iter().map(|pg| (pg, epoch(pg))).collect();
        self.statistics.restores += 1;
    }

    /// Returns true if PGs have yet to be active again since cluster state was put back.
    pub fn has_open_restore(&self) -> bool {
        let is_open = |(pg, epoch): &(PgId, Epoch)| {
            self.cluster.of(*pg).is_none_or(|state| state.record.activated_epoch < *epoch)
        };
        self.restored.iter().any(is_open)
    }

    /// Stops all OSDs, puts the snapshot back and starts them, if that is to lose nothing: all OSDs are whole and
    /// start together, and the snapshot's electors have all writes acknowledged since.
    pub fn restore_state_by_chance(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        let pgs = self.cluster.pgs();
        if pgs.len() != self.policy.pg_num as usize {
            return;
        }
        let all_run = self.members.iter().all(|member| member.is_up && member.paused_until <= self.now);
        let is_lost = (0..self.members.len()).any(|at| self.has_open_loss(at));
        let is_damaged = self.members.iter().any(|member| !member.store.bad.is_empty());
        let is_known = |pg: PgId| match snapshot.0.of(pg) {
            Some(_) => self.knows_enough(&snapshot, pg),
            None => self.is_found_by_its_parent(&snapshot, pg),
        };
        let is_whole = pgs.iter().all(|pg| self.has_whole_electors(*pg) && is_known(*pg));
        if !all_run || is_lost || is_damaged || !is_whole || !self.all_reach_each_other() {
            return;
        }
        self.note("restore", &[self.cluster.record.epoch.0, snapshot.0.record.epoch.0]);
        self.statistics.forgotten_splits += u64::from(snapshot.0.pgs() != pgs);
        self.snapshot = None;
        let all = 0..self.members.len();
        all.clone().for_each(|at| self.kill(at));
        self.restore_state(snapshot);
        for at in all {
            let delay = self.random.below(crate::forgetting::TOGETHER);
            self.at(self.now + delay, Event::Restart { at });
        }
    }

    /// The PG that the pool began with and that a PG is of.
    fn parent_of(&self, pg: PgId) -> PgId {
        PgId { index: pg.index % self.cluster.pg_num_first(), ..pg }
    }

    /// Returns true if a PG was split off since a snapshot, and all members of its parent in the snapshot have its copy.
    fn is_found_by_its_parent(&self, snapshot: &Snapshot, new: PgId) -> bool {
        let (record, old) = match (self.cluster.of(new), snapshot.0.of(self.parent_of(new))) {
            (Some(state), Some(old)) => (&state.record, &old.record),
            _ => return false,
        };
        old.members.iter().all(|osd| record.members.contains(osd) && record.shard_of(*osd) == old.shard_of(*osd))
    }

    /// Returns true if enough members of a PG are electors by a snapshot, with the same shards.
    fn knows_enough(&self, snapshot: &Snapshot, pg: PgId) -> bool {
        let (record, old) = match (self.cluster.of(pg), snapshot.0.of(pg)) {
            (Some(state), Some(old)) => (&state.record, &old.record),
            _ => return false,
        };
        let electors = if old.activated_epoch == Epoch(0) { &old.members } else { &old.last_active_members };
        let known = record.members.iter().filter(|osd| {
            electors.contains(osd) && (record.shards.is_empty() || old.shard_of(**osd) == record.shard_of(**osd))
        });
        match self.options.shape {
            None => known.count() > 0,
            Some(shape) => {
                let shards = known.filter_map(|osd: &OsdId| record.shard_of(*osd));
                shards.collect::<BTreeSet<u8>>().len() >= usize::from(shape.data)
            }
        }
    }
}
