//! The metadata base: objects by placement group and name. The base that is here now keeps
//! everything in memory in persistent (structure-sharing) maps, so that a checkpoint can write a
//! snapshot while changes go on. The copy-on-write B+tree of DESIGN section 7 replaces it behind
//! the same trait.

use std::sync::Arc;

use atoll_base::{ObjectName, PgId};
use imbl::OrdMap;

use crate::onode::Onode;

/// Names an object within a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its placement group.
    pub pg: PgId,
    /// Its name.
    pub name: ObjectName,
}

/// An ordered map of objects with cheap snapshots.
pub trait Metadata: Default {
    /// A frozen state, readable while the base changes on.
    type Snapshot: Iterator<Item = (ObjectKey, Arc<Onode>)>;

    /// The object's metadata, if it exists.
    fn get(&self, key: &ObjectKey) -> Option<&Arc<Onode>>;

    /// The object's metadata for changing; an empty one is made if it does not exist.
    fn edit(&mut self, key: &ObjectKey) -> &mut Onode;

    /// Takes the object out.
    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Onode>>;

    /// Number of objects.
    fn len(&self) -> u64;

    /// Whether there are no objects.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the objects of one placement group, in order.
    fn names_of(&self, pg: PgId) -> Vec<ObjectName>;

    /// All objects in key order, as they are now.
    fn snapshot(&self) -> Self::Snapshot;
}

/// The base that keeps everything in memory.
#[derive(Default)]
pub struct MemoryMetadata {
    objects: OrdMap<ObjectKey, Arc<Onode>>,
}

impl Metadata for MemoryMetadata {
    type Snapshot = imbl::ordmap::ConsumingIter<ObjectKey, Arc<Onode>, imbl::shared_ptr::DefaultSharedPtr>;

    fn get(&self, key: &ObjectKey) -> Option<&Arc<Onode>> {
        self.objects.get(key)
    }

    fn edit(&mut self, key: &ObjectKey) -> &mut Onode {
        Arc::make_mut(self.objects.entry(key.clone()).or_default())
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Onode>> {
        self.objects.remove(key)
    }

    fn len(&self) -> u64 {
        self.objects.len() as u64
    }

    fn names_of(&self, pg: PgId) -> Vec<ObjectName> {
        // No object name sorts before "\0": names are not empty.
        let first = ObjectKey { pg, name: ObjectName::new("\0").expect("one byte is a valid length") };
        let of_group = self.objects.range(first..).take_while(|(key, _)| key.pg == pg);
        of_group.map(|(key, _)| key.name.clone()).collect()
    }

    fn snapshot(&self) -> Self::Snapshot {
        self.objects.clone().into_iter()
    }
}
