//! Operations that wait for metadata which is not in memory.

use std::collections::BTreeMap;

use atoll_types::{Condition, Mutation, ObjectName, PgId, ReadRequest};

use crate::event::LoadId;
use crate::metadata::Cold;

/// Metadata to load.
///
/// ```
/// use atoll_store::{LoadId, LoadRequest, Store, StoreError};
///
/// /// Has loaded what was missing when a call said so; it is made again after `StoreEvent::Loaded`.
/// fn load_what_was_missing(store: &mut Store, error: StoreError) -> Result<LoadId, StoreError> {
///     match error {
///         StoreError::Cold(cold) => Ok(store.load(LoadRequest::Pages(cold))),
///         error => Err(error),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub enum LoadRequest {
    /// Missing pages of a call.
    Pages(Cold),
    /// Metadata of a read.
    Read {
        /// The PG.
        pg: PgId,
        /// The object.
        object: ObjectName,
        /// The read.
        request: ReadRequest,
    },
    /// Metadata of a write.
    Write {
        /// The PG.
        pg: PgId,
        /// The object.
        object: ObjectName,
        /// Its conditions.
        conditions: Vec<Condition>,
        /// Its mutations.
        mutations: Vec<Mutation>,
    },
}

/// Owner of a waiting operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    Load(LoadId),
    Read(u64),
    Scrub(u64),
    Checkpoint,
}

/// Operations that wait for pages.
#[derive(Default)]
pub(crate) struct Loads {
    pub requests: BTreeMap<LoadId, LoadRequest>,
    pub waiters: BTreeMap<u32, Waiters>,
}

/// Operations that wait for one page.
pub(crate) struct Waiters {
    /// The turn in which the first of them began.
    pub since: u64,
    pub waiters: Vec<Waiter>,
}

impl Loads {
    /// The turn in which the longest wait for a page began.
    pub fn waiting_since(&self) -> Option<u64> {
        self.waiters.values().map(|waiters| waiters.since).min()
    }
}
