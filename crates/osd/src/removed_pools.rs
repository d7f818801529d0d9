//! Pools that were removed: what this OSD has of their groups goes, a few objects at a time. That a
//! pool is missing from cluster state is not enough; its removal must be recorded there.

use std::collections::{BTreeSet, VecDeque};

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::{Mutation, ObjectName, PgId, PoolId, Transaction, Version};
use atoll_store::{StoreError, TransactionId, Wish};
use bytes::Bytes;

use crate::daemon::{LoadOwner, Osd};

/// Objects that are removed at once.
const REMOVALS_MAX: usize = 32;

/// Groups that are on their way out.
#[derive(Default)]
pub(crate) struct RemovedPools {
    groups: VecDeque<PgId>,
    removing: BTreeSet<TransactionId>,
    is_loading: bool,
}

impl RemovedPools {
    /// A transaction is durable. True if it was one of these.
    pub fn committed(&mut self, id: TransactionId) -> bool {
        self.removing.remove(&id)
    }

    pub fn loaded(&mut self) {
        self.is_loading = false;
    }
}

impl Osd {
    /// A pool was removed, now or while this OSD was away.
    pub(crate) fn pool_removed(&mut self, pool: PoolId) {
        for (pg, group) in self.pgs.extract_if(.., |pg, _| pg.pool == pool) {
            self.recovery.forget_group(pg, group.reads_to_fill());
        }
        self.dirty.retain(|pg| pg.pool != pool);
        self.restless.retain(|pg| pg.pool != pool);
        self.backlog.retain(|pg, _| pg.pool != pool);
        self.loading_for_submit.retain(|pg| pg.pool != pool);
        self.scrubs.forget_pool(pool);
        let groups: Vec<PgId> = self.store.groups().filter(|pg| pg.pool == pool).collect();
        let held = groups.into_iter().filter(|pg| self.store.head(*pg) != Version::default());
        self.removed_pools.groups.extend(held.collect::<Vec<_>>());
        if !self.removed_pools.groups.is_empty() {
            tracing::info!("pool {pool} was removed; what {} has of it goes", self.config.id);
        }
    }

    /// Removes the next objects, once those before them are gone.
    pub(crate) fn empty_removed_pools(&mut self) {
        let is_busy =
            !self.removed_pools.removing.is_empty() || self.removed_pools.is_loading || !self.store.has_log_room();
        let Some(&pg) = self.removed_pools.groups.front().filter(|_| !is_busy) else { return };
        match self.remove_some(pg) {
            Ok(true) => drop(self.removed_pools.groups.pop_front()),
            Ok(false) => {}
            Err(StoreError::Cold(cold)) => {
                let load = self.store.load(Wish::Pages(cold));
                self.loads.insert(load, LoadOwner::RemovedPool);
                self.removed_pools.is_loading = true;
            }
            Err(error) => {
                tracing::warn!(
                    "cannot remove what is left of group {pg}: {error}; it is tried again after a restart"
                );
                self.removed_pools.groups.pop_front();
            }
        }
    }

    /// True if nothing of the group is left.
    fn remove_some(&mut self, pg: PgId) -> Result<bool, StoreError> {
        let mut names = self.store.names_after(pg, None, REMOVALS_MAX)?;
        names.retain(|name| name.as_str() != PG_META_OBJECT);
        for object in &names {
            if self.store.has_log_room() {
                self.submit_removal(pg, object.clone(), vec![Mutation::Remove])?;
            }
        }
        if names.is_empty() {
            // Last, so that what is left after a crash is found by it.
            let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
            let nothing = Mutation::ResetLog { head: Version::default() };
            self.submit_removal(pg, own, vec![Mutation::Remove, nothing])?;
        }
        Ok(names.is_empty())
    }

    fn submit_removal(
        &mut self,
        pg: PgId,
        object: ObjectName,
        mutations: Vec<Mutation>,
    ) -> Result<(), StoreError> {
        let payload = Bytes::new();
        let removal = Transaction { pg, object, mutations, payload, payload_sealed: false, log: Vec::new() };
        let id = self.store.submit(&removal)?;
        self.removed_pools.removing.insert(id);
        Ok(())
    }
}
