//! Recognises retries: remembers how the requests of each session were answered, so that a request
//! happens once, however often it is sent. A new primary learns from the log what was done. It need
//! not know what was refused: copies of such a request end with the process that they were sent to.

use std::collections::BTreeMap;

use atoll_types::{Epoch, Refusal, RequestId, Version};

use crate::invariants;

/// Sessions remembered at once. Those that have been quiet longest are forgotten first.
const SESSIONS_MAX: usize = 10_000;

#[derive(Default)]
struct Session {
    last: Version,
    /// The highest request that has come.
    newest_request: Option<u64>,
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
    /// From then on what has come of a session is not known for sure.
    has_forgotten_sessions: bool,
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
        session.newest_request = session.newest_request.max(Some(request.sequence));
        if request.sequence >= session.answered_below {
            session.outcomes.insert(request.sequence, outcome);
        }
        self.forget_quiet_sessions();
    }

    /// A request has come. True if none of its session with its number or a higher one had: then it is no retry
    /// of a request that waits or is in flight here.
    pub fn is_news(&mut self, request: RequestId) -> bool {
        let newest = &mut self.sessions.entry(request.session).or_default().newest_request;
        let is_news = newest.is_none_or(|newest| request.sequence > newest);
        *newest = (*newest).max(Some(request.sequence));
        self.forget_quiet_sessions();
        is_news && !self.has_forgotten_sessions
    }

    /// Forgets a tenth of the sessions, those that have been quiet longest, once there are too many.
    fn forget_quiet_sessions(&mut self) {
        if self.sessions.len() <= SESSIONS_MAX {
            return;
        }
        let mut last: Vec<Version> = self.sessions.values().map(|session| session.last).collect();
        let (_, newest_forgotten, _) = last.select_nth_unstable(SESSIONS_MAX / 10);
        let newest_forgotten = *newest_forgotten;
        let mut left_to_forget = SESSIONS_MAX / 10;
        self.sessions.retain(|_, session| {
            let stays = session.last > newest_forgotten || left_to_forget == 0;
            left_to_forget -= usize::from(!stays);
            stays
        });
        self.has_forgotten_sessions = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(session: u64, sequence: u64) -> RequestId {
        RequestId { session, sequence }
    }

    fn version(sequence: u64) -> Version {
        Version { epoch: Epoch(1), sequence }
    }

    #[test]
    fn only_what_is_above_all_that_came_is_news() {
        let mut duplicates = Duplicates::default();
        assert!(duplicates.is_news(request(1, 5)));
        assert!(!duplicates.is_news(request(1, 5)), "a retry");
        assert!(!duplicates.is_news(request(1, 4)), "it may have come before");
        assert!(duplicates.is_news(request(1, 6)));
        assert!(duplicates.is_news(request(2, 1)));
        // Learned from the log, under another primary.
        duplicates.record(request(3, 9), Ok(()), version(1));
        assert!(!duplicates.is_news(request(3, 9)));
        assert!(duplicates.is_news(request(3, 10)));
    }

    #[test]
    fn sessions_are_bounded_and_the_quietest_are_forgotten() {
        let mut duplicates = Duplicates::default();
        for session in 0..=SESSIONS_MAX as u64 {
            duplicates.record(request(session, 1), Ok(()), version(session + 1));
        }
        assert_eq!(duplicates.sessions.len(), SESSIONS_MAX + 1 - SESSIONS_MAX / 10);
        assert!(matches!(duplicates.find(request(0, 1)), Known::Nothing));
        assert!(matches!(duplicates.find(request(SESSIONS_MAX as u64, 1)), Known::Outcome(Ok(()))));
        assert!(!duplicates.is_news(request(0, 2)), "who was forgotten may have more here");
    }
}
