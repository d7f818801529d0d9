//! Effects of several requests on the files.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::auth::Auth;
use super::change::Finished;
use super::state::{Entry, Granted, Key, State};

/// The effects of several requests, for one commit. Later ones replace earlier ones.
#[derive(Default)]
pub struct Batch {
    pub(super) keys: BTreeMap<Key, Option<Arc<Entry>>>,
    pub(super) leases: BTreeMap<i64, Option<Granted>>,
    pub(super) auth: Option<Arc<Auth>>,
    compacted: bool,
}

impl Batch {
    /// All of a state.
    pub(super) fn of(state: &State) -> Self {
        Batch {
            keys: state.keys.iter().map(|(key, entry)| (key.clone(), Some(entry.clone()))).collect(),
            leases: state.leases.iter().map(|(id, lease)| (*id, Some(lease.granted()))).collect(),
            auth: Some(state.auth.clone()),
            compacted: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.leases.is_empty() && self.auth.is_none() && !self.compacted
    }

    pub fn add(&mut self, finished: &Finished) {
        for event in &finished.events {
            self.keys.insert(event.key.clone(), event.now.clone());
        }
        self.leases.extend(finished.leases.iter().cloned());
        if finished.has_new_auth {
            self.auth = Some(finished.state.auth.clone());
        }
        self.compacted |= finished.compacted;
    }
}
