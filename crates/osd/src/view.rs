//! The view of the store and of the other members' space for PGs.

use atoll_pg::{ClientId, Examined, Leases, ObjectView, WholeObject};
use atoll_storage::Storage;
use atoll_store::{ObjectInfo, ObjectKey, Store, StoreError};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Condition, LogEntry, Mutation, ObjectName, OsdId, PgId, ReadRequest, Refusal, Room, Version};
use bytes::Bytes;

use crate::context::Context;
use crate::links::Links;

/// The store, the other members' space and leases, and the time, as a PG may see them.
pub(crate) struct StoreView<'a> {
    store: &'a Store,
    storage: &'a Storage,
    links: &'a Links,
    leases: &'a Leases,
    me: OsdId,
    now_us: u64,
}

impl<'a> StoreView<'a> {
    pub fn new(storage: &'a Storage, links: &'a Links, context: &Context) -> Self {
        StoreView::at(storage, links, links.leases(), context.me(), context.now_us())
    }

    /// The same for an OSD with these leases, at this time.
    pub fn at(storage: &'a Storage, links: &'a Links, leases: &'a Leases, me: OsdId, now_us: u64) -> Self {
        StoreView { store: storage.store(), storage, links, leases, me, now_us }
    }
}

impl StoreView<'_> {
    /// Returns the refusal for a client whose write the store would refuse.
    fn refusal(&self, error: StoreError) -> Refusal {
        match error {
            StoreError::NoSpace => Refusal::NoSpace { osd: self.me },
            StoreError::Invalid { detail } => Refusal::Invalid { detail },
            StoreError::Poisoned { cause } => Refusal::Inactive { detail: cause },
            error @ StoreError::Damaged { .. } => Refusal::Corrupt { detail: error.to_string() },
            // A PG looks only at what is loaded. If a request finds a way around that, its client tries again.
            StoreError::Cold(_) => Refusal::Busy,
        }
    }

    fn info(&self, pg: PgId, object: &ObjectName) -> Result<Option<ObjectInfo>, Refusal> {
        self.store.object(&key(pg, object)).map_err(|error| self.refusal(error))
    }

    /// Checks if all members have room for a write. `stays` if it is known that it overwrites in place here.
    fn check_members(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
        stays: bool,
    ) -> Result<(), Refusal> {
        let is_own = object.as_str() == PG_META_OBJECT;
        let adds_omap = Store::adds_metadata(mutations) && !is_own;
        let adds_data = payload_bytes > 0 || adds_omap;
        let lacks = |member: &&OsdId| match self.links.room(**member) {
            Room::Enough => false,
            // A guess: what this copy has to itself, because it was rebuilt, the member's may share with clones.
            Room::Overwrites => !stays && self.store.needs_room(&key(pg, object), mutations),
            // Such guesses have cost it a part of its reserve.
            Room::Deletes => true,
        };
        match members.iter().find(lacks) {
            Some(&osd) if adds_data => Err(Refusal::NoSpace { osd }),
            _ => Ok(()),
        }
    }
}

fn key(pg: PgId, object: &ObjectName) -> ObjectKey {
    ObjectKey { pg, name: object.clone() }
}

impl ObjectView for StoreView<'_> {
    fn object_exists(&self, pg: PgId, object: &ObjectName) -> Result<bool, Refusal> {
        Ok(self.info(pg, object)?.is_some())
    }

    fn whole_object(&self, pg: PgId, object: &ObjectName) -> Result<Option<WholeObject>, Refusal> {
        let Some(info) = self.info(pg, object)? else { return Ok(None) };
        let object_bytes = info.whole_bytes.unwrap_or(info.size_bytes);
        Ok(Some(WholeObject { object_bytes, version: info.version, seal_shape: info.seal_shape() }))
    }

    fn omap_value(&self, pg: PgId, object: &ObjectName, omap_key: &[u8]) -> Result<Option<Bytes>, Refusal> {
        self.store.omap_value(&key(pg, object), omap_key).map_err(|error| self.refusal(error))
    }

    fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool {
        self.store.is_read_loaded(pg, object, request)
    }

    fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool {
        self.store.is_write_loaded(pg, object, conditions, mutations)
    }

    fn head(&self, pg: PgId) -> Version {
        self.store.head(pg)
    }

    fn log(&self, pg: PgId) -> Vec<LogEntry> {
        self.store.log(pg).cloned().collect()
    }

    fn examine_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Option<Examined> {
        let found = self.store.examine_write(pg, object, conditions, mutations, payload_bytes)?;
        let check = found.check.map_err(|error| self.refusal(error));
        let check = match check {
            Ok(()) => self.check_members(pg, members, object, mutations, payload_bytes, found.overwrites),
            check => check,
        };
        Some(Examined { exists: found.exists, check })
    }

    fn check_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Result<(), Refusal> {
        self.store.check(&key(pg, object), mutations, payload_bytes).map_err(|error| self.refusal(error))?;
        self.check_members(pg, members, object, mutations, payload_bytes, false)
    }

    fn is_full(&self, osd: OsdId) -> bool {
        if osd == self.me { self.store.is_full() } else { self.links.room(osd).is_full() }
    }

    fn blocks_in_place(&self, pg: PgId, object: &ObjectName, offset: u64, length: u32) -> u32 {
        // What is damaged is not in place.
        let blocks = self.store.own_blocks(&key(pg, object), offset, length).unwrap_or_default();
        blocks.iter().take(u32::BITS as usize).rev().fold(0, |bits, is_own| bits << 1 | u32::from(*is_own))
    }

    fn has_room(&self, pg: PgId) -> bool {
        self.storage.has_room_for(pg)
    }

    fn pg_num(&self, pg: PgId) -> Option<u32> {
        self.store.pg_num(pg)
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn is_traced(&self, ClientId(number): ClientId, sequence: u64) -> bool {
        self.links.is_traced(number, sequence)
    }

    fn lease_held_until_ms(&self, peer: OsdId) -> u64 {
        self.leases.held_until_ms(peer)
    }

    fn lease_granted_until_ms(&self, peer: Option<OsdId>) -> u64 {
        self.leases.granted_until_ms(peer)
    }

    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool {
        self.store.matches_checks(&key(pg, object), offset, data)
    }
}
