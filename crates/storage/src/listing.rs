//! Listing the objects of a PG with their versions.

use atoll_pg::Token;
use atoll_store::{LoadRequest, ObjectKey, StoreError};
use atoll_types::limits::OBJECTS_LISTED_MAX;
use atoll_types::{ObjectName, PgId, Version};

use crate::{Loader, Storage, StorageEvent};

/// Objects looked up at once when a PG is listed.
const NAMES_AT_ONCE: usize = 256;

/// A listing of a PG's objects that is under way.
pub struct ObjectList {
    /// The PG.
    pub pg: PgId,
    /// The PG's token.
    pub token: Token,
    /// It begins behind this one.
    pub after: Option<ObjectName>,
    /// Objects found so far.
    pub objects: Vec<(ObjectName, Version)>,
}

impl Storage {
    /// Collects some of a PG's objects, with their versions.
    pub fn list_objects(&mut self, mut list: ObjectList) {
        let more = match self.collect_objects(&mut list) {
            Ok(more) => more,
            Err(StoreError::Cold(cold)) => return self.load(LoadRequest::Pages(cold), Loader::List(list)),
            Err(error) => {
                self.failure = Some(error.to_string());
                return;
            }
        };
        let last = list.objects.last().map(|(name, _)| name.clone());
        list.objects.retain(|(name, _)| !atoll_pg::is_hidden(name));
        if more && list.objects.is_empty() {
            // Only the PG's own object was among them.
            list.after = last;
            return self.list_objects(list);
        }
        let ObjectList { pg, token, objects, .. } = list;
        self.events.push_back(StorageEvent::Listed { pg, token, objects, more });
    }

    /// Continues a list. True if there is more behind it.
    fn collect_objects(&mut self, list: &mut ObjectList) -> Result<bool, StoreError> {
        while list.objects.len() < OBJECTS_LISTED_MAX {
            let after = list.objects.last().map(|(name, _)| name).or(list.after.as_ref());
            let wanted = OBJECTS_LISTED_MAX - list.objects.len();
            let names = self.store.names_after(list.pg, after, wanted.min(NAMES_AT_ONCE))?;
            if names.is_empty() {
                return Ok(false);
            }
            let version = |name: ObjectName| -> Result<(ObjectName, Version), StoreError> {
                let info = self.store.object(&ObjectKey { pg: list.pg, name: name.clone() })?;
                Ok((name, info.map_or(Version::default(), |info| info.version)))
            };
            // Objects that are not in memory yet are looked at again, behind the last one that was.
            let found: Vec<_> = names.into_iter().map(version).take_while(Result::is_ok).flatten().collect();
            if found.is_empty() {
                let name = self.store.names_after(list.pg, after, 1)?.remove(0);
                version(name)?;
            }
            list.objects.extend(found);
        }
        Ok(true)
    }
}
