//! The view of a PG on its OSD.

use std::collections::BTreeSet;

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{Leases, ObjectView, WholeObject};
use atoll_types::{Condition, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, Version};
use bytes::Bytes;

use crate::store::{Store, clone_source, looked_at};

pub struct View<'a> {
    pub store: &'a Store,
    pub leases: &'a Leases,
    /// OSDs that have said that they are full, perhaps this one.
    pub full: &'a BTreeSet<OsdId>,
    /// Of the OSD's own clock.
    pub now_ms: u64,
}

impl ObjectView for View<'_> {
    fn is_read_loaded(&self, pg: PgId, object: &ObjectName, _: &ReadRequest) -> bool {
        self.store.loaded.contains(&(pg, object.clone()))
    }

    fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool {
        looked_at(object, conditions, mutations).all(|object| self.store.loaded.contains(&(pg, object)))
    }

    fn object_exists(&self, pg: PgId, object: &ObjectName) -> bool {
        self.store.assert_loaded(pg, object);
        self.store.visible.of(pg).objects.contains_key(object)
    }

    fn whole_object(&self, pg: PgId, object: &ObjectName) -> Option<WholeObject> {
        self.store.assert_loaded(pg, object);
        let found = self.store.visible.of(pg).objects.get(object)?;
        let object_bytes = found.whole_size.unwrap_or(found.size);
        Some(WholeObject { object_bytes, version: found.version, seal_shape: found.seal_shape })
    }

    fn omap_value(&self, pg: PgId, object: &ObjectName, key: &[u8]) -> Option<Bytes> {
        self.store.assert_loaded(pg, object);
        self.store.visible.of(pg).omap_value(object, key)
    }

    fn head(&self, pg: PgId) -> Version {
        self.store.visible.of(pg).head
    }

    fn log(&self, pg: PgId) -> Vec<LogEntry> {
        self.store.visible.of(pg).log.iter().cloned().collect()
    }

    fn check_write(
        &self,
        pg: PgId,
        _: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        _: usize,
    ) -> Result<(), Refusal> {
        self.store.assert_loaded(pg, object);
        let Some(source) = clone_source(mutations) else { return Ok(()) };
        self.store.assert_loaded(pg, source);
        if source != object && self.store.visible.of(pg).objects.contains_key(source) {
            return Ok(());
        }
        Err(Refusal::Invalid { detail: "the object to clone does not exist".into() })
    }

    fn is_full(&self, osd: OsdId) -> bool {
        self.full.contains(&osd)
    }

    fn blocks_in_place(&self, pg: PgId, object: &ObjectName, offset: u64, length: u32) -> u32 {
        self.store.assert_loaded(pg, object);
        let first = (offset / BLOCK_BYTES as u64) as u32;
        let count = length.div_ceil(BLOCK_BYTES as u32).min(u32::BITS);
        let bit = |block: u32| u32::from(self.store.visible.of(pg).has_to_itself(object, first + block));
        (0..count).map(|block| bit(block) << block).sum()
    }

    fn has_room(&self, _: PgId) -> bool {
        self.store.has_room()
    }

    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool {
        self.store.assert_loaded(pg, object);
        let Some(found) = self.store.visible.of(pg).objects.get(object) else { return false };
        let first = (offset / BLOCK_BYTES as u64) as u32;
        data.chunks(BLOCK_BYTES).zip(first..).all(|(data, block)| match found.blocks.get(&block) {
            Some(expected) => data == expected,
            None => data.iter().all(|byte| *byte == 0),
        })
    }

    fn pg_num(&self, pg: PgId) -> Option<u32> {
        self.store.visible.of(pg).pg_num
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
