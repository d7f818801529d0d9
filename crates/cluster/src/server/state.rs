//! Everything the server holds, at one revision. The maps share structure between copies, so a
//! copy costs next to nothing: readers keep the copy they began with, and a write that is refused
//! half way is undone by dropping its copy.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use super::auth::Auth;
use super::proto::{KeyValue, RangeRequest, RangeResponse, range_request};
use super::span::Span;
use super::status;
use tonic::Status;

/// A key. Shared, because maps, lease sets and events all hold it.
pub type Key = Arc<[u8]>;

/// Entry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub create_revision: i64,
    pub mod_revision: i64,
    pub version: i64,
    pub lease: i64,
    pub value: Vec<u8>,
}

impl Entry {
    pub fn to_proto(&self, key: &[u8]) -> KeyValue {
        KeyValue {
            key: key.to_vec(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            value: self.value.clone(),
            lease: self.lease,
        }
    }

    fn to_proto_without_value(&self, key: &[u8]) -> KeyValue {
        KeyValue {
            key: key.to_vec(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            value: Vec::new(),
            lease: self.lease,
        }
    }
}

/// A lease as it is kept: its term in seconds, and its owner. The records of keys have the rest.
pub type Granted = (i64, Option<Arc<str>>);

/// A lease and the keys that go when it goes.
#[derive(Clone, Debug, Default)]
pub struct LeaseState {
    pub granted_seconds: i64,
    /// The user who granted it; none if that was root, or an earlier release, which did not keep it.
    pub owner: Option<Arc<str>>,
    pub keys: OrdSet<Key>,
}

impl LeaseState {
    /// Returns its durable part.
    pub fn granted(&self) -> Granted {
        (self.granted_seconds, self.owner.clone())
    }
}

/// The store at one revision.
#[derive(Clone, Debug)]
pub struct State {
    pub revision: i64,
    /// The revision given to the last compaction, or -1.
    pub compacted: i64,
    pub keys: OrdMap<Key, Arc<Entry>>,
    pub leases: OrdMap<i64, LeaseState>,
    /// Bytes of all keys and values, held under [`super::limits::STORED_BYTES`].
    pub stored_bytes: u64,
    /// Users and roles with rights to them.
    pub auth: Arc<Auth>,
}

impl State {
    /// An empty store; the first write makes revision 2, as in etcd.
    pub fn new() -> State {
        State {
            revision: 1,
            compacted: -1,
            keys: OrdMap::new(),
            leases: OrdMap::new(),
            stored_bytes: 0,
            auth: Arc::default(),
        }
    }

    /// The entries of `span` in the order of their keys.
    pub fn select<'a>(&'a self, span: &'a Span) -> Box<dyn Iterator<Item = (&'a Key, &'a Arc<Entry>)> + 'a> {
        if span.is_empty() {
            Box::new(std::iter::empty())
        } else {
            Box::new(self.keys.range::<_, [u8]>(span.bounds()))
        }
    }

    /// Answers a range request; the caller, which knows the cluster's name, sets the header.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        use range_request::{SortOrder, SortTarget};

        if request.key.is_empty() {
            return Err(status::empty_key());
        }
        if request.revision > self.revision {
            return Err(status::future_revision());
        }
        if request.revision > 0 && request.revision < self.revision {
            return Err(status::historical_revision(request.revision, self.revision));
        }
        let target = SortTarget::try_from(request.sort_target).map_err(|_| status::invalid_sort())?;
        let mut order = SortOrder::try_from(request.sort_order).map_err(|_| status::invalid_sort())?;
        // A target without an order means ascending: what etcd does since keys come sorted anyway.
        if order == SortOrder::None && target != SortTarget::Key {
            order = SortOrder::Ascend;
        }

        let span = Span::new(&request.key, &request.range_end);
        let total = self.select(&span).count();
        let mut response = RangeResponse { count: total as i64, ..Default::default() };
        if request.count_only {
            return Ok(response);
        }

        let within = |value: i64, low: i64, high: i64| (low == 0 || value >= low) && (high == 0 || value <= high);
        let chosen = self.select(&span).filter(|(_, entry)| {
            within(entry.mod_revision, request.min_mod_revision, request.max_mod_revision)
                && within(entry.create_revision, request.min_create_revision, request.max_create_revision)
        });
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let sorted_already = order == SortOrder::None || (order == SortOrder::Ascend && target == SortTarget::Key);
        // One more than the limit tells whether there is more, and no more than that is looked at.
        let mut found: Vec<_> =
            if sorted_already { chosen.take(limit.saturating_add(1)).collect() } else { chosen.collect() };
        if !sorted_already {
            match target {
                SortTarget::Key => {}
                SortTarget::Version => found.sort_by_key(|(_, entry)| entry.version),
                SortTarget::Create => found.sort_by_key(|(_, entry)| entry.create_revision),
                SortTarget::Mod => found.sort_by_key(|(_, entry)| entry.mod_revision),
                SortTarget::Value => found.sort_by(|(_, a), (_, b)| a.value.cmp(&b.value)),
            }
            if order == SortOrder::Descend {
                found.reverse();
            }
        }
        response.more = found.len() > limit;
        found.truncate(limit);
        response.kvs = found
            .into_iter()
            .map(
                |(key, entry)| {
                    if request.keys_only { entry.to_proto_without_value(key) } else { entry.to_proto(key) }
                },
            )
            .collect();
        Ok(response)
    }
}
