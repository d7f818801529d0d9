//! What a group may see of its OSD.

use atoll_base::{
    BLOCK_BYTES, Condition, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, Version,
};
use atoll_pg::{Leases, ObjectView};
use bytes::Bytes;

use crate::store::{Store, clone_source, looked_at};

pub struct View<'a> {
    pub store: &'a Store,
    pub leases: &'a Leases,
    /// Of the OSD's own clock.
    pub now_ms: u64,
}

impl ObjectView for View<'_> {
    fn is_read_loaded(&self, _: PgId, object: &ObjectName, _: &ReadRequest) -> bool {
        self.store.loaded.contains(object)
    }

    fn is_write_loaded(
        &self,
        _: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool {
        looked_at(object, conditions, mutations).all(|object| self.store.loaded.contains(&object))
    }

    fn object_exists(&self, _: PgId, object: &ObjectName) -> bool {
        self.store.assert_loaded(object);
        self.store.visible.objects.contains_key(object)
    }

    fn omap_value(&self, _: PgId, object: &ObjectName, key: &[u8]) -> Option<Bytes> {
        self.store.assert_loaded(object);
        self.store.visible.omap_value(object, key)
    }

    fn head(&self, _: PgId) -> Version {
        self.store.visible.head
    }

    fn log(&self, _: PgId) -> Vec<LogEntry> {
        self.store.visible.log.iter().cloned().collect()
    }

    fn check_write(
        &self,
        _: PgId,
        _: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        _: usize,
    ) -> Result<(), Refusal> {
        self.store.assert_loaded(object);
        let Some(source) = clone_source(mutations) else { return Ok(()) };
        self.store.assert_loaded(source);
        if source != object && self.store.visible.objects.contains_key(source) {
            return Ok(());
        }
        Err(Refusal::Invalid { detail: "the object to clone does not exist".into() })
    }

    fn has_room(&self, _: PgId) -> bool {
        self.store.has_room()
    }

    fn matches_checks(&self, _: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool {
        self.store.assert_loaded(object);
        let Some(found) = self.store.visible.objects.get(object) else { return false };
        let first = (offset / BLOCK_BYTES as u64) as u32;
        data.chunks(BLOCK_BYTES).zip(first..).all(|(data, block)| match found.blocks.get(&block) {
            Some(expected) => data == expected,
            None => data.iter().all(|byte| *byte == 0),
        })
    }

    fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn lease_held_until_ms(&self, peer: OsdId) -> u64 {
        self.leases.held_until_ms(peer)
    }

    fn lease_granted_until_ms(&self, peer: Option<OsdId>) -> u64 {
        self.leases.granted_until_ms(peer)
    }
}
