//! Recognising retries: which requests of which sessions were answered and how, so that each
//! happens once however often it is sent. What was done is rebuilt from the log when a primary
//! starts; copies of a request that was refused or is long answered cannot outlive the process
//! that they were sent to.

use std::collections::BTreeMap;

use atoll_base::{Refusal, RequestId, Version};

/// Sessions remembered at once. The one that has been quiet for longest is forgotten first.
const SESSIONS_MAX: usize = 10_000;

#[derive(Default)]
struct Session {
    last: Version,
    /// The client has the answers to everything below this sequence.
    answered_below: u64,
    outcomes: BTreeMap<u64, Result<(), Refusal>>,
}

/// What is known of a request.
pub(crate) enum Known {
    /// Nothing: it is new.
    Nothing,
    /// What became of it.
    Outcome(Result<(), Refusal>),
    /// Its client has the answer already: a copy that was left behind on the way.
    Stale,
}

/// The requests done or refused, by session.
#[derive(Default)]
pub(crate) struct Retries {
    sessions: BTreeMap<u64, Session>,
}

impl Retries {
    /// Remembers the outcome of a request; `at` is the newest version then.
    pub fn record(&mut self, request: RequestId, outcome: Result<(), Refusal>, at: Version) {
        let session = self.sessions.entry(request.session).or_default();
        session.last = at;
        if request.sequence >= session.answered_below {
            session.outcomes.insert(request.sequence, outcome);
        }
        if self.sessions.len() > SESSIONS_MAX {
            let quietest = self.sessions.iter().min_by_key(|(_, session)| session.last).map(|(id, _)| *id);
            quietest.map(|id| self.sessions.remove(&id));
        }
    }

    /// Another primary goes on with the history, perhaps without what was in flight here: only the
    /// log will say what was done. What was refused stays refused.
    pub fn forget_successes(&mut self) {
        for session in self.sessions.values_mut() {
            session.outcomes.retain(|_, outcome| outcome.is_err());
        }
    }

    /// Nobody knows yet what will become of a request.
    pub fn forget(&mut self, request: RequestId) {
        if let Some(session) = self.sessions.get_mut(&request.session) {
            session.outcomes.remove(&request.sequence);
        }
    }

    pub fn find(&self, request: RequestId) -> Known {
        let Some(session) = self.sessions.get(&request.session) else { return Known::Nothing };
        if request.sequence < session.answered_below {
            return Known::Stale;
        }
        session.outcomes.get(&request.sequence).map_or(Known::Nothing, |outcome| Known::Outcome(outcome.clone()))
    }

    /// The client has the answers to everything below this sequence and will not retry it.
    pub fn forget_below(&mut self, session: u64, sequence: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.answered_below = session.answered_below.max(sequence);
            session.outcomes = session.outcomes.split_off(&session.answered_below);
        }
    }
}
