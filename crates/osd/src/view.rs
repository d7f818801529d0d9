//! What placement groups may see of the store and of the other members' space.

use std::collections::BTreeSet;

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::{LogEntry, Mutation, ObjectName, OsdId, PgId, Refusal, Version};
use atoll_pg::ObjectView;
use atoll_store::{ObjectKey, Store, StoreError};
use bytes::Bytes;

pub(crate) struct StoreView<'a> {
    pub store: &'a Store,
    pub me: OsdId,
    /// Other OSDs that have said that they are full.
    pub full: &'a BTreeSet<OsdId>,
    /// Whether submissions of other members wait for room; then nobody may overtake them.
    pub has_backlog: bool,
}

fn key(pg: PgId, object: &ObjectName) -> ObjectKey {
    ObjectKey { pg, name: object.clone() }
}

impl ObjectView for StoreView<'_> {
    fn object_exists(&self, pg: PgId, object: &ObjectName) -> bool {
        self.store.object(&key(pg, object)).is_some()
    }

    fn omap_value(&self, pg: PgId, object: &ObjectName, omap_key: &[u8]) -> Option<Bytes> {
        self.store.object(&key(pg, object))?.omap().get(omap_key).cloned()
    }

    fn objects(&self, pg: PgId) -> Vec<ObjectName> {
        let names = self.store.objects_of(pg);
        names.into_iter().filter(|name| name.as_str() != PG_META_OBJECT).collect()
    }

    fn head(&self, pg: PgId) -> Version {
        self.store.head(pg)
    }

    fn log(&self, pg: PgId) -> Vec<LogEntry> {
        self.store.log(pg).cloned().collect()
    }

    fn check_write(
        &self,
        pg: PgId,
        members: &[OsdId],
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Result<(), Refusal> {
        self.store.check(&key(pg, object), mutations, payload_bytes).map_err(|error| match error {
            StoreError::NoSpace => Refusal::NoSpace { osd: self.me },
            StoreError::Invalid { detail } => Refusal::Invalid { detail },
            StoreError::Poisoned { cause } => Refusal::Inactive { detail: cause },
        })?;
        let is_own = object.as_str() == PG_META_OBJECT;
        let adds_omap = Store::<atoll_store::MemoryMetadata>::adds_omap(mutations) && !is_own;
        let adds_data = payload_bytes > 0 || adds_omap;
        match members.iter().find(|member| self.full.contains(member)) {
            Some(&osd) if adds_data => Err(Refusal::NoSpace { osd }),
            _ => Ok(()),
        }
    }

    fn has_room(&self) -> bool {
        !self.has_backlog && self.store.has_log_room()
    }

    fn matches_checks(&self, pg: PgId, object: &ObjectName, offset: u64, data: &[u8]) -> bool {
        self.store.matches_checks(&key(pg, object), offset, data)
    }
}
