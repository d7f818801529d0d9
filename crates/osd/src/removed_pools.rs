//! Pools that were removed: this OSD's copies of their PGs are deleted, a few objects at a time.
//! That a pool is missing from cluster state is not enough; its removal must be recorded there.

use std::collections::VecDeque;

use atoll_storage::Storage;
use atoll_store::{LoadRequest, ObjectKey, StoreError};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, PgId, PoolId, Transaction, Version};
use bytes::Bytes;

use crate::invariants;

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

    /// The PGs of a pool are to be deleted, also those without a history: one that a split made for a copy that was
    /// behind has objects all the same. True if one has a history.
    pub fn add(&mut self, pool: PoolId, storage: &Storage) -> bool {
        let store = storage.store();
        let of_pool = || store.pgs().filter(|pg| pg.pool == pool);
        self.pgs.extend(of_pool());
        of_pool().any(|pg| store.head(pg) != Version::default())
    }

    /// Removes the next objects, once those before them are gone.
    pub fn go_on(&mut self, storage: &mut Storage) {
        while !self.is_busy(storage)
            && let Some(&pg) = self.pgs.front()
        {
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
    }

    fn is_busy(&self, storage: &Storage) -> bool {
        self.in_flight > 0 || self.is_loading || !storage.store().has_log_room()
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
        let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
        if names.is_empty() && self.has_remains(storage, pg, &own)? {
            // Last, so that what is left after a crash is found by it. The other way round the object would be made again.
            let nothing = Mutation::ResetLog { head: Version::default() };
            self.submit_removal(storage, pg, own, vec![nothing, Mutation::Remove])?;
        }
        Ok(names.is_empty())
    }

    /// Returns true if a PG without objects has a history or an object of its own.
    fn has_remains(&self, storage: &Storage, pg: PgId, own: &ObjectName) -> Result<bool, StoreError> {
        let store = storage.store();
        let key = ObjectKey { pg, name: own.clone() };
        Ok(store.head(pg) != Version::default() || store.object(&key)?.is_some())
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

#[cfg(test)]
mod tests {
    use atoll_buffers::BLOCK_BYTES;
    use atoll_storage::StorageEvent;
    use atoll_store::simulated_disk::SimulatedDisk;
    use atoll_store::{DEVICE_BYTES_MIN, Disk, FormatOptions, Store};
    use atoll_types::{Epoch, LogEntry, Touched};

    use super::*;

    const POOL: PoolId = PoolId(1);

    struct Fixture {
        disk: SimulatedDisk,
        storage: Storage,
        removed: RemovedPools,
    }

    impl Fixture {
        fn new() -> Self {
            let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
            let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false };
            Store::format(&mut disk, options).unwrap();
            let store = Store::open(&mut disk, 1).unwrap();
            Fixture { disk, storage: Storage::new(store), removed: RemovedPools::default() }
        }

        fn write(&mut self, index: u32, object: &str, mutations: Vec<Mutation>, is_logged: bool) {
            let pg = PgId { pool: POOL, index };
            let object = ObjectName::new(object).unwrap();
            let sequence = self.storage.store().head(pg).sequence + 1;
            let entry = LogEntry {
                version: Version { epoch: Epoch(1), sequence },
                request: None,
                object: object.clone(),
                touched: Touched::by(&mutations),
                committed_sequence: 0,
                pre_image: None,
            };
            let writes = mutations.iter().filter(|mutation| matches!(mutation, Mutation::Write { .. })).count();
            let payload = vec![7; writes * BLOCK_BYTES].into();
            let log = if is_logged { vec![entry] } else { Vec::new() };
            let change = Transaction { pg, object, mutations, payload, payload_sealed: false, log };
            self.storage.store_mut().apply_blocking(&mut self.disk, &change).unwrap();
        }

        /// Objects that the store has.
        fn object_count(&self) -> u64 {
            self.storage.store().usage().object_count
        }

        fn remove_pool(&mut self) {
            self.removed.add(POOL, &self.storage);
            self.removed.go_on(&mut self.storage);
            loop {
                self.storage.store_mut().flush();
                while let Some(request) = self.storage.store_mut().next_request() {
                    let result = self.disk.execute(request.device, request.operation);
                    self.storage.store_mut().complete(request.id, result);
                }
                let Some(event) = self.storage.next_event() else { break };
                match event {
                    StorageEvent::RemovalCommitted => self.removed.committed(),
                    StorageEvent::RemovedPoolLoaded => self.removed.loaded(),
                    _ => {}
                }
                self.removed.go_on(&mut self.storage);
            }
        }
    }

    /// Names of a PG's objects.
    fn names(index: u32, pg_num: u32) -> impl Iterator<Item = String> {
        let is_of =
            move |name: &String| (PgId { pool: POOL, index }).holds(&ObjectName::new(name).unwrap(), pg_num);
        (0..).map(|number| format!("o{number}")).filter(is_of)
    }

    fn block() -> Mutation {
        Mutation::Write { offset: 0, length: BLOCK_BYTES as u32, seals: None }
    }

    fn keep(name: String) -> Mutation {
        Mutation::ClonePreImage { copy: ObjectName::new(&name).unwrap() }
    }

    /// Pre-images and staged objects belong to a PG by their names, which must not hash to no PG at all.
    #[test]
    fn nothing_is_left_of_a_pool_whose_pgs_were_split() {
        for is_whole in [true, false] {
            let mut fixture = Fixture::new();
            for (number, name) in names(1, 4).take(20).enumerate() {
                fixture.write(1, &name, vec![block()], true);
                fixture.write(1, &name, vec![keep(format!("@kept/1.{number}")), block()], true);
            }
            let split = Mutation::Split { pg_num_before: 4, pg_num: 8, is_whole };
            fixture.write(1, PG_META_OBJECT, vec![Mutation::Create, split], true);
            for index in [1, 5] {
                for (number, name) in names(index, 8).skip(20).take(20).enumerate() {
                    fixture.write(index, &name, vec![block()], true);
                    let kept = keep(format!("@kept/{index:x}.new.{number}"));
                    fixture.write(index, &name, vec![kept, block()], true);
                }
            }
            assert!(fixture.object_count() >= 80, "{is_whole}");
            fixture.remove_pool();
            assert_eq!(fixture.object_count(), 0, "is_whole: {is_whole}");
        }
    }

    /// A copy that was behind when its PG split has objects of the new PG without its history. A copy that was only
    /// asked for a promise has no history either.
    #[test]
    fn nothing_is_left_of_pgs_without_a_history() {
        let mut fixture = Fixture::new();
        names(1, 4).take(20).for_each(|name| fixture.write(1, &name, vec![block()], true));
        let split = Mutation::Split { pg_num_before: 4, pg_num: 8, is_whole: false };
        fixture.write(1, PG_META_OBJECT, vec![Mutation::Create, split], false);
        fixture.write(2, PG_META_OBJECT, vec![Mutation::Create], false);
        fixture.remove_pool();
        assert_eq!(fixture.object_count(), 0);
        // The next start has nothing to do.
        assert!(!fixture.removed.add(POOL, &fixture.storage));
        fixture.removed.go_on(&mut fixture.storage);
        assert_eq!(fixture.removed.in_flight, 0);
    }
}
