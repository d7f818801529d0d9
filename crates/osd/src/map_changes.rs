//! Following the cluster map: the PGs here, and the policies of their pools.

use atoll_cluster::{MapChange, keys};
use atoll_metrics::traces;
use atoll_pg::{CodeShape, Pg, PoolPolicy};
use atoll_store::LoadRequest;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::records::{ClusterFlag, PgRecord, PgTargetRecord, PoolRecord, RECORD_FORMAT, Redundancy};
use atoll_types::{Condition, ObjectName, PgId, PoolId, Version};

use crate::context::Context;
use crate::control::{ControlRequest, SplitOff};
use crate::daemon::Osd;
use crate::view::StoreView;

impl Osd {
    pub(crate) fn map_changes(&mut self, changes: Vec<MapChange>) {
        let (mut targets_change, mut pools_change) = (false, false);
        for change in changes {
            self.context.map.apply(change.clone());
            match change {
                MapChange::Pg(pg, Some((record, _))) => {
                    self.with_pg(pg, |pg, view| pg.set_record(record, view));
                    self.add_pg_of_own(pg);
                }
                MapChange::AuthorizedKey(key, _) => self.links.key_changed(&mut self.context, &key),
                MapChange::Up(..) => self.links.connect(&mut self.context),
                MapChange::Pool(..) => (targets_change, pools_change) = (true, true),
                MapChange::Osd(..) | MapChange::PgTarget(..) | MapChange::Flags(_) => targets_change = true,
                MapChange::RemovedPool(pool) => self.pool_removed(pool),
                // Others are looked at every second.
                MapChange::Settings(settings) => {
                    traces::configure(&settings.trace_endpoint, settings.trace_one_in, settings.trace_slow);
                    atoll_outgoing::configure(
                        &settings.outgoing_networks,
                        &settings.outgoing_networks_of_accounts,
                    );
                }
                MapChange::Pg(_, None)
                | MapChange::Refused(_)
                | MapChange::Frames(_)
                | MapChange::PgScrub(..)
                | MapChange::ScrubRequest(..) => {}
            }
            self.link_events();
        }
        if pools_change {
            let pools = self.context.map.pools.iter();
            self.metrics.set_pools(pools.map(|(pool, record)| (*pool, &record.name[..])));
        }
        if targets_change {
            self.set_targets();
        }
    }

    /// Puts the records back of PGs that this OSD leads, after refused changes. Where the primary is gone another member
    /// leads soon, and its first change replaces the refused one.
    pub(crate) fn put_back(&self) {
        for key in self.context.map.refused.keys() {
            let Some(pg) = keys::parse_pg(key) else { continue };
            let Some((record, revision)) = self.context.map.pgs.get(&pg) else { continue };
            if record.primary == self.context.me() && self.context.map.pools.contains_key(&pg.pool) {
                tracing::warn!("pg {pg}: puts its record back, which another process has changed");
                self.context.ask_control(ControlRequest::Propose {
                    pg,
                    expected_revision: *revision,
                    record: Box::new(record.clone()),
                    split_off: None,
                });
            }
        }
    }

    fn set_targets(&mut self) {
        for pg in self.pgs.ids().collect::<Vec<_>>() {
            let Some(pool) = self.context.map.pools.get(&pg.pool) else { continue };
            let (target, policy) = (self.context.target(pg, pool), policy(&self.context, pool));
            self.with_pg(pg, |pg, view| pg.set_target(target, policy, view));
        }
        for pg in self.context.map.pgs.keys().copied().collect::<Vec<_>>() {
            self.add_pg_of_own(pg);
        }
        // Stray copies of PGs that went elsewhere may not be needed any more.
        for pg in self.storage.store().pgs().collect::<Vec<_>>() {
            if self.context.map.pgs.contains_key(&pg) {
                self.add_pg(pg);
            }
        }
    }

    pub(crate) fn split_off(&self, pg: PgId, new: PgId, record: PgRecord) -> SplitOff {
        let target = self.context.map.pools.get(&pg.pool).map(|pool| self.context.target(pg, pool));
        let members = target.filter(|target| !target.is_empty()).unwrap_or(record.members.clone());
        let target = PgTargetRecord { format: RECORD_FORMAT, members };
        let replaced = self.context.map.refused.get(&keys::pg(new)).copied().unwrap_or(0);
        SplitOff { pg: new, record, replaced, target }
    }

    /// Makes a PG once its record and its pool are known, if this OSD has a part in it or holds a stray
    /// copy, which a split may have left.
    fn add_pg_of_own(&mut self, pg: PgId) {
        let me = self.context.me();
        let has_part =
            self.context.map.pgs.get(&pg).is_some_and(|(record, _)| {
                record.members.contains(&me) || record.last_active_members.contains(&me)
            });
        if has_part || self.storage.store().head(pg) != Version::default() {
            self.add_pg(pg);
        }
    }

    /// Makes a PG once its record and its pool are known.
    pub(crate) fn add_pg(&mut self, pg: PgId) {
        let (Some((record, _)), Some(pool)) =
            (self.context.map.pgs.get(&pg), self.context.map.pools.get(&pg.pool))
        else {
            return;
        };
        if self.pgs.contains(pg) {
            return;
        }
        // A new PG looks at what its own object says.
        let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
        let has_key = |key: &[u8]| Condition::OmapExists { key: bytes::Bytes::copy_from_slice(key) };
        let conditions: Vec<Condition> = atoll_pg::KEYS_AT_START.into_iter().map(has_key).collect();
        if !self.storage.store().is_write_loaded(pg, &own, &conditions, &[]) {
            let request = LoadRequest::Write { pg, object: own, conditions, mutations: Vec::new() };
            return self.storage.load_new_pg(pg, request);
        }
        let target = self.context.target(pg, pool);
        let (policy, record) = (policy(&self.context, pool), record.clone());
        let view = StoreView::new(&self.storage, &self.links, &self.context);
        let new = Pg::new(pg, self.context.me(), policy, target, record, &view);
        self.pgs.add(pg, new);
        for osd in self.links.osds() {
            self.with_pg(pg, |pg, view| pg.peer_up(osd, view));
        }
    }

    /// A pool was removed, now or while this OSD was away.
    fn pool_removed(&mut self, pool: PoolId) {
        for (pg, removed) in self.pgs.remove_pool(pool) {
            self.recovery.forget_pg(pg, removed.backfill_reads());
        }
        self.storage.forget_pool(pool);
        self.scrubs.forget_pool(pool);
        if self.removed_pools.add(pool, &self.storage) {
            tracing::info!("pool {pool} was removed; {} deletes its copies of the pool's PGs", self.context.me());
        }
    }
}

/// Returns a pool's policy for its PGs.
fn policy(context: &Context, pool: &PoolRecord) -> PoolPolicy {
    let (size, min_size) = (pool.redundancy.size(), pool.redundancy.min_size());
    let shape = match pool.redundancy {
        Redundancy::Replicated { .. } => None,
        Redundancy::Erasure { data, parity, chunk_bytes, .. } => {
            Some(CodeShape { data: data as u8, parity: parity as u8, chunk_bytes })
        }
    };
    let may_backfill = !context.map.flags.flags.contains_key(&ClusterFlag::NoBackfill);
    PoolPolicy { pg_num: pool.pg_num, pg_num_first: pool.pg_num_first(), size, min_size, may_backfill, shape }
}
