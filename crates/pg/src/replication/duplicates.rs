//! Recognises retries: remembers how the requests of each session were answered, so that a request
//! happens once, however often it is sent. A new primary learns from the log what was done. It need
//! not know what was refused: copies of such a request end with the process that they were sent to.

use std::collections::BTreeMap;

use atoll_types::{Epoch, Refusal, RequestId, Version};

use crate::invariants;

/// Sessions remembered at once. The one that has been quiet longest is forgotten first.
const SESSIONS_MAX: usize = 10_000;

#[derive(Default)]
struct Session {
    last: Version,
    /// The client has the answers to all requests below this number.
    answered_below: u64,
    outcomes: BTreeMap<u64, Result<(), Refusal>>,
}

/// What is known of a request.
pub(crate) enum Known {
    /// Nothing: it is new.
    Nothing,
    /// What became of it.
    Outcome(Result<(), Refusal>),
    /// Its client has the answer: this is a late copy.
    Stale,
}

/// The outcomes of requests, by session.
#[derive(Default)]
pub(crate) struct Duplicates {
    sessions: BTreeMap<u64, Session>,
    /// The epoch since which this OSD has led the PG without another in between.
    led_since: Epoch,
}

impl Duplicates {
    /// This OSD leads from this epoch on; another primary led before.
    pub fn begin_to_lead(&mut self, epoch: Epoch) {
        self.led_since = epoch;
    }

    /// The epoch from which on this OSD leads. Another primary may have refused a request that was
    /// sent before, and the history does not show refusals.
    pub fn led_since(&self) -> Epoch {
        self.led_since
    }

    /// Remembers the outcome of a request; `at` is the newest version at that time.
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

    /// Another primary continues the history, perhaps without the writes in flight here: only the
    /// log will tell what was done. Refused requests stay refused.
    pub fn forget_successes(&mut self) {
        for session in self.sessions.values_mut() {
            session.outcomes.retain(|_, outcome| outcome.is_err());
        }
    }

    /// The outcome of a request is open again.
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

    /// The client has the answers to all requests below this number and will not retry them.
    pub fn forget_below(&mut self, session: u64, sequence: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.answered_below = session.answered_below.max(sequence);
            while let Some(oldest) = session.outcomes.first_entry()
                && *oldest.key() < session.answered_below
            {
                drop(oldest.remove());
            }
            let first = session.outcomes.first_key_value().map(|(sequence, _)| *sequence);
            invariants::outcomes_are_still_wanted(first, session.answered_below);
        }
    }
}
