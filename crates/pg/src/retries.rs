//! Recognising retries: which requests of which sessions were done, so that each happens once
//! however often it is sent. Rebuilt from the log when a primary starts.

use std::collections::BTreeMap;

use atoll_base::{RequestId, Version};

/// Sessions remembered at once. The one that has been quiet for longest is forgotten first.
const SESSIONS_MAX: usize = 10_000;

#[derive(Default)]
struct Session {
    last: Version,
    done: BTreeMap<u64, Version>,
}

/// The requests done, by session.
#[derive(Default)]
pub(crate) struct Retries {
    sessions: BTreeMap<u64, Session>,
}

impl Retries {
    pub fn record(&mut self, request: RequestId, version: Version) {
        let session = self.sessions.entry(request.session).or_default();
        session.last = version;
        session.done.insert(request.sequence, version);
        if self.sessions.len() > SESSIONS_MAX {
            let quietest = self.sessions.iter().min_by_key(|(_, session)| session.last).map(|(id, _)| *id);
            quietest.map(|id| self.sessions.remove(&id));
        }
    }

    /// The version under which the request was done before.
    pub fn find(&self, request: RequestId) -> Option<Version> {
        self.sessions.get(&request.session)?.done.get(&request.sequence).copied()
    }

    /// The client has the answers to everything below this sequence and will not retry it.
    pub fn forget_below(&mut self, session: u64, sequence: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.done = session.done.split_off(&sequence);
        }
    }
}
