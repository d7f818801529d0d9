//! Which placement groups live here: they follow the cluster map.

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::records::{ClusterFlag, PgRecord, PgTargetRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_base::{Condition, ObjectName, OsdId, PgId};
use atoll_cluster::MapChange;
use atoll_pg::{CodeShape, Pg, PoolPolicy};
use atoll_store::Wish;

use crate::control::SplitOff;
use crate::daemon::{LoadOwner, Osd};

impl Osd {
    pub(crate) fn map_changes(&mut self, changes: Vec<MapChange>) {
        let mut targets_change = false;
        for change in changes {
            self.map.apply(change.clone());
            match change {
                MapChange::Pg(pg, Some((record, _))) => {
                    self.with_group(pg, |group, view| group.set_record(record, view));
                    self.add_group_of_own(pg);
                }
                MapChange::AuthorizedKey(key, _) => self.key_changed(&key),
                MapChange::Up(..) => self.connect_peers(),
                MapChange::Osd(..) | MapChange::Pool(..) | MapChange::PgTarget(..) | MapChange::Flags(_) => {
                    targets_change = true;
                }
                MapChange::RemovedPool(pool) => self.pool_removed(pool),
                MapChange::Pg(_, None)
                | MapChange::Frames(_)
                | MapChange::PgScrub(..)
                | MapChange::ScrubRequest(..) => {}
            }
        }
        if targets_change {
            self.set_targets();
        }
    }

    fn set_targets(&mut self) {
        for pg in self.pgs.keys().copied().collect::<Vec<_>>() {
            let Some(pool) = self.map.pools.get(&pg.pool) else { continue };
            let (target, policy) = (self.target(pg, pool), self.policy(pool));
            self.with_group(pg, |group, view| group.set_target(target, policy, view));
        }
        for pg in self.map.pgs.keys().copied().collect::<Vec<_>>() {
            self.add_group_of_own(pg);
        }
        // What is left of groups that went elsewhere may not be needed any more.
        for pg in self.store.groups().collect::<Vec<_>>() {
            if self.map.pgs.contains_key(&pg) {
                self.add_group(pg);
            }
        }
    }

    fn target(&self, pg: PgId, pool: &PoolRecord) -> Vec<OsdId> {
        atoll_placement::target(pg, pool, &self.map.osds, self.map.pg_targets.get(&pg))
    }

    pub(crate) fn split_off(&self, pg: PgId, new: PgId, record: PgRecord) -> SplitOff {
        let target = self.map.pools.get(&pg.pool).map(|pool| self.target(pg, pool));
        let members = target.filter(|target| !target.is_empty()).unwrap_or(record.members.clone());
        let target = PgTargetRecord { format: RECORD_FORMAT, members };
        SplitOff { pg: new, record, target }
    }

    fn policy(&self, pool: &PoolRecord) -> PoolPolicy {
        let (size, min_size) = (pool.redundancy.size(), pool.redundancy.min_size());
        let shape = match pool.redundancy {
            Redundancy::Replicated { .. } => None,
            Redundancy::Erasure { data, parity, chunk_bytes, .. } => {
                Some(CodeShape { data: data as u8, parity: parity as u8, chunk_bytes })
            }
        };
        let may_backfill = !self.map.flags.flags.contains_key(&ClusterFlag::NoBackfill);
        PoolPolicy { pg_num: pool.pg_num, pg_num_first: pool.pg_num_first(), size, min_size, may_backfill, shape }
    }

    /// Makes a group once its record and its pool are known, if this OSD has a part in it.
    fn add_group_of_own(&mut self, pg: PgId) {
        let me = self.config.id;
        let has_part =
            self.map.pgs.get(&pg).is_some_and(|(record, _)| {
                record.members.contains(&me) || record.last_active_members.contains(&me)
            });
        if has_part {
            self.add_group(pg);
        }
    }

    /// Makes a group once its record and its pool are known.
    pub(crate) fn add_group(&mut self, pg: PgId) {
        let (Some((record, _)), Some(pool)) = (self.map.pgs.get(&pg), self.map.pools.get(&pg.pool)) else {
            return;
        };
        if self.pgs.contains_key(&pg) {
            return;
        }
        // A new group looks at what its own object says.
        let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
        let has_key = |key: &[u8]| Condition::OmapExists { key: bytes::Bytes::copy_from_slice(key) };
        let conditions =
            vec![has_key(atoll_pg::EPOCH_KEY), has_key(atoll_pg::INCOMPLETE_KEY), has_key(atoll_pg::SHARD_KEY)];
        if !self.store.is_write_loaded(pg, &own, &conditions, &[]) {
            let wish = Wish::Write { pg, object: own, conditions, mutations: Vec::new() };
            let load = self.store.load(wish);
            self.loads.insert(load, LoadOwner::NewGroup(pg));
            return;
        }
        let (policy, target, record) = (self.policy(pool), self.target(pg, pool), record.clone());
        let group = Pg::new(pg, self.config.id, policy, target, record, &self.view());
        self.pgs.insert(pg, group);
        let connected: Vec<OsdId> = self.peers.by_osd.keys().copied().collect();
        for osd in connected {
            self.with_group(pg, |group, view| group.peer_up(osd, view));
        }
        self.dirty.insert(pg);
    }
}
