//! The view of a PG on its OSD.

use std::collections::BTreeSet;
use std::fmt::Debug;

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{Leases, ObjectView, WholeObject};
use atoll_store::{ObjectKey, StoreError};
use atoll_types::{Condition, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, Version};
use bytes::Bytes;

use crate::store::{Store, clone_source, looked_at};

pub struct View<'a> {
    pub store: &'a Store,
    pub leases: &'a Leases,
    /// OSDs that have said that they are full, perhaps this one.
    pub full: &'a BTreeSet<OsdId>,
    /// Time of the OSD's own clock.
    pub now_ms: u64,
}

/// Metadata that PGs look at was loaded, and nothing is dropped before all PGs are quiet.
const LOADED: &str = "a PG looks only at loaded metadata";

fn object_key(pg: PgId, object: &ObjectName) -> ObjectKey {
    ObjectKey { pg, name: object.clone() }
}

impl View<'_> {
    /// Returns the store's answer, of the real one and its model or of the stand-in alone.
    fn agreed<T: PartialEq + Debug>(
        &self,
        what: &str,
        real: impl FnOnce(&atoll_store::Store) -> T,
        model: impl FnOnce(&Store) -> T,
    ) -> T {
        let said = model(self.store);
        if let Some(store) = self.store.real() {
            let real = real(store);
            assert_eq!(real, said, "{what}: the real store, and its model");
        }
        said
    }
}

impl ObjectView for View<'_> {
    fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool {
        if let Some(store) = self.store.real() {
            return store.is_read_loaded(pg, object, request);
        }
        self.store.is_read_loaded(pg, object, request)
    }

    fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool {
        if let Some(store) = self.store.real() {
            return store.is_write_loaded(pg, object, conditions, mutations);
        }
        looked_at(object, conditions, mutations).all(|object| self.store.loaded.contains(&(pg, object)))
    }

    fn object_exists(&self, pg: PgId, object: &ObjectName) -> Result<bool, Refusal> {
        self.store.assert_loaded(pg, object);
        Ok(self.agreed(
            "object_exists",
            |store| store.object(&object_key(pg, object)).expect(LOADED).is_some(),
            |model| model.visible.of(pg).objects.contains_key(object),
        ))
    }

    fn whole_object(&self, pg: PgId, object: &ObjectName) -> Result<Option<WholeObject>, Refusal> {
        self.store.assert_loaded(pg, object);
        let real = |store: &atoll_store::Store| {
            let info = store.object(&object_key(pg, object)).expect(LOADED)?;
            Some((info.whole_bytes.unwrap_or(info.size_bytes), info.version, info.seal_shape()))
        };
        let model = |model: &Store| {
            let found = model.visible.of(pg).objects.get(object)?;
            Some((found.whole_size.unwrap_or(found.size), found.version, found.seal_shape))
        };
        let found = self.agreed("whole_object", real, model);
        Ok(found.map(|(object_bytes, version, seal_shape)| WholeObject { object_bytes, version, seal_shape }))
    }

    fn omap_value(&self, pg: PgId, object: &ObjectName, key: &[u8]) -> Result<Option<Bytes>, Refusal> {
        self.store.assert_loaded(pg, object);
        Ok(self.agreed(
            "omap_value",
            |store| store.omap_value(&object_key(pg, object), key).expect(LOADED),
            |model| model.visible.of(pg).omap_value(object, key),
        ))
    }

    fn head(&self, pg: PgId) -> Version {
        self.agreed("head", |store| store.head(pg), |model| model.visible.of(pg).head)
    }

    fn log(&self, pg: PgId) -> Vec<LogEntry> {
        let log: Vec<LogEntry> = self.store.visible.of(pg).log.iter().cloned().collect();
        if let Some(store) = self.store.real() {
            // A whole log would be too much to read.
            let differ = store.log(pg).zip(&log).find(|(real, said)| real != said);
            assert_eq!(differ, None, "log of pg {pg}: the real store, and its model");
            assert_eq!(store.log(pg).count(), log.len(), "log of pg {pg}: the real store, and its model");
        }
        log
    }

    fn check_write(
        &self,
        pg: PgId,
        _: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Result<(), Refusal> {
        self.store.assert_loaded(pg, object);
        if let Some(source) = clone_source(mutations) {
            self.store.assert_loaded(pg, source);
        }
        let is_valid = self.agreed(
            "check_write",
            |store| match store.check(&object_key(pg, object), mutations, payload_bytes) {
                Ok(()) => true,
                Err(StoreError::Invalid { .. }) => false,
                Err(error) => panic!("{LOADED}, and there is space: {error}"),
            },
            |model| {
                let is_there = |source: &ObjectName| model.visible.of(pg).objects.contains_key(source);
                clone_source(mutations).is_none_or(|source| source != object && is_there(source))
                    && model.is_valid(pg, object, mutations, payload_bytes)
            },
        );
        if is_valid { Ok(()) } else { Err(Refusal::Invalid { detail: "the store would not take it".into() }) }
    }

    fn is_full(&self, osd: OsdId) -> bool {
        self.full.contains(&osd)
    }

    fn blocks_in_place(&self, pg: PgId, object: &ObjectName, offset: u64, length: u32) -> u32 {
        self.store.assert_loaded(pg, object);
        let first = (offset / BLOCK_BYTES as u64) as u32;
        let count = length.div_ceil(BLOCK_BYTES as u32).min(u32::BITS);
        let real = |store: &atoll_store::Store| {
            let blocks = store.own_blocks(&object_key(pg, object), offset, length).expect(LOADED);
            blocks.iter().take(u32::BITS as usize).rev().fold(0, |bits, is_own| bits << 1 | u32::from(*is_own))
        };
        let model = |model: &Store| {
            let bit = |block: u32| u32::from(model.visible.of(pg).has_to_itself(object, first + block));
            (0..count).map(|block| bit(block) << block).sum()
        };
        self.agreed("blocks_in_place", real, model)
    }

    fn has_room(&self, pg: PgId) -> bool {
        self.store.has_room(pg)
    }

    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool {
        self.store.assert_loaded(pg, object);
        let first = (offset / BLOCK_BYTES as u64) as u32;
        let model = |model: &Store| {
            let Some(found) = model.visible.of(pg).objects.get(object) else { return false };
            data.chunks(BLOCK_BYTES).zip(first..).all(|(data, block)| match found.blocks.get(&block) {
                Some(expected) => data == expected,
                None => data.iter().all(|byte| *byte == 0),
            })
        };
        let real = |store: &atoll_store::Store| store.matches_checks(&object_key(pg, object), offset, data);
        self.agreed("matches_checks", real, model)
    }

    fn pg_num(&self, pg: PgId) -> Option<u32> {
        self.agreed("pg_num", |store| store.pg_num(pg), |model| model.visible.of(pg).pg_num)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn now_us(&self) -> u64 {
        self.now_ms * 1_000
    }

    fn lease_held_until_ms(&self, peer: OsdId) -> u64 {
        self.leases.held_until_ms(peer)
    }

    fn lease_granted_until_ms(&self, peer: Option<OsdId>) -> u64 {
        self.leases.granted_until_ms(peer)
    }
}
