//! Pools that were removed: this OSD's copies of their PGs are deleted, a few objects at a time.
//! That a pool is missing from cluster state is not enough; its removal must be recorded there.

use std::collections::VecDeque;

use atoll_store::{LoadRequest, StoreError};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, PgId, PoolId, Transaction, Version};
use bytes::Bytes;

use crate::invariants;
use crate::storage::Storage;

/// Objects that are removed at once.
const REMOVALS_MAX: usize = 32;

/// PGs that are being deleted.
#[derive(Default)]
pub(crate) struct RemovedPools {
    pgs: VecDeque<PgId>,
    /// Removals that are not durable yet.
    in_flight: usize,
    is_loading: bool,
}

impl RemovedPools {
    /// A removal is durable.
    pub fn committed(&mut self) {
        invariants::removals_end_once(self.in_flight);
        self.in_flight -= 1;
    }

    pub fn loaded(&mut self) {
        self.is_loading = false;
    }

    /// The PGs of a pool are to be deleted. True if there is anything to remove.
    pub fn add(&mut self, pool: PoolId, storage: &Storage) -> bool {
        let store = storage.store();
        let of_pool = store.pgs().filter(|pg| pg.pool == pool);
        self.pgs.extend(of_pool.filter(|pg| store.head(*pg) != Version::default()));
        !self.pgs.is_empty()
    }

    /// Removes the next objects, once those before them are gone.
    pub fn go_on(&mut self, storage: &mut Storage) {
        let is_busy = self.in_flight > 0 || self.is_loading || !storage.store().has_log_room();
        let Some(&pg) = self.pgs.front().filter(|_| !is_busy) else { return };
        match self.remove_some(storage, pg) {
            Ok(true) => drop(self.pgs.pop_front()),
            Ok(false) => {}
            Err(StoreError::Cold(cold)) => {
                storage.load_for_removal(LoadRequest::Pages(cold));
                self.is_loading = true;
            }
            Err(error) => {
                tracing::warn!(
                    "cannot delete the copy of PG {pg}, whose pool was removed: {error}; the next start tries again"
                );
                self.pgs.pop_front();
            }
        }
    }

    /// True if nothing of the PG is left.
    fn remove_some(&mut self, storage: &mut Storage, pg: PgId) -> Result<bool, StoreError> {
        let mut names = storage.store().names_after(pg, None, REMOVALS_MAX)?;
        names.retain(|name| name.as_str() != PG_META_OBJECT);
        for object in &names {
            if storage.store().has_log_room() {
                self.submit_removal(storage, pg, object.clone(), vec![Mutation::Remove])?;
            }
        }
        if names.is_empty() {
            // Last, so that what is left after a crash is found by it.
            let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
            let nothing = Mutation::ResetLog { head: Version::default() };
            self.submit_removal(storage, pg, own, vec![Mutation::Remove, nothing])?;
        }
        Ok(names.is_empty())
    }

    fn submit_removal(
        &mut self,
        storage: &mut Storage,
        pg: PgId,
        object: ObjectName,
        mutations: Vec<Mutation>,
    ) -> Result<(), StoreError> {
        let payload = Bytes::new();
        let removal = Transaction { pg, object, mutations, payload, payload_sealed: false, log: Vec::new() };
        storage.submit_removal(&removal)?;
        self.in_flight += 1;
        Ok(())
    }
}
