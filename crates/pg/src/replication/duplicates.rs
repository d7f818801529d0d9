//! Recognises retries: remembers how the requests of each session were answered, so that a request happens once,
//! however often it is sent. Every member follows the history, so the next primary knows the results of the one
//! before, until the client needs them no more. It need not know refused requests: copies of such a request end
//! with the process that they were sent to.
//!
//! Its memory is bounded, and a process knows of the time before its start only the log. So it reports since when
//! it knows everything; of a request that may have been sent before that, it does not know the outcome.

use std::collections::{BTreeMap, VecDeque};

use atoll_types::{Epoch, LogEntry, Refusal, RequestId, Version};

use super::arrivals::Arrivals;
use crate::invariants;

/// Memory of a session beside its outcomes: a place in a tree, and an allocation.
const SESSION_BYTES: usize = 256;
/// Memory of an outcome, with its age, beside the text of a refusal.
const OUTCOME_BYTES: usize = 112;

struct Outcome {
    sequence: u64,
    /// Its place in the history, or the head of the history when it was refused.
    at: Version,
    refusal: Option<Box<Refusal>>,
}

impl Outcome {
    fn bytes(&self) -> usize {
        let text = match self.refusal.as_deref() {
            Some(Refusal::Invalid { detail } | Refusal::Corrupt { detail }) => detail.len(),
            _ => 0,
        };
        OUTCOME_BYTES + text + self.refusal.as_ref().map_or(0, |_| size_of::<Refusal>())
    }
}

#[derive(Default)]
struct Session {
    /// The client has the answers to all requests to this PG below this number.
    answered_below: u64,
    /// The newest version at which an outcome came that was forgotten for that.
    forgotten: Version,
    /// By sequence.
    outcomes: VecDeque<Outcome>,
}

impl Session {
    fn position(&self, sequence: u64) -> Result<usize, usize> {
        self.outcomes.binary_search_by_key(&sequence, |outcome| outcome.sequence)
    }
}

/// Knowledge about a request.
pub(crate) enum Known {
    /// Nothing: it is new.
    Nothing,
    /// Its outcome.
    Outcome(Result<(), Refusal>),
    /// Its client has the answer: this is a late copy.
    Stale,
}

/// The outcomes of requests, by session.
pub(crate) struct Duplicates {
    sessions: BTreeMap<u64, Session>,
    outcome_count: usize,
    /// When outcomes came, oldest first. Some may be forgotten.
    ages: VecDeque<(Version, RequestId)>,
    bytes: usize,
    bytes_max: usize,
    /// Everything that was done after this write is known, unless its client has the answer.
    known_after: Version,
    /// The newest write of the history.
    head: Version,
    pub arrivals: Arrivals,
    /// The epoch since which this OSD has led the PG without another in between.
    led_since: Epoch,
}

impl Duplicates {
    /// Nothing is known, and nothing was done.
    pub fn new(bytes_max: usize) -> Self {
        Duplicates {
            sessions: BTreeMap::new(),
            outcome_count: 0,
            ages: VecDeque::new(),
            bytes: 0,
            bytes_max,
            known_after: Version::default(),
            head: Version::default(),
            arrivals: Arrivals::default(),
            led_since: Epoch::default(),
        }
    }

    pub fn limit_memory(&mut self, bytes: usize) {
        self.bytes_max = bytes;
        self.stay_within_bounds();
    }

    /// This OSD leads from this epoch on; another primary led before.
    pub fn begin_to_lead(&mut self, epoch: Epoch) {
        self.led_since = epoch;
    }

    /// The epoch from which on this OSD leads. Another primary may have refused a request that was
    /// sent before, and the history does not show refusals.
    pub fn led_since(&self) -> Epoch {
        self.led_since
    }

    /// The newest write of the history that was followed.
    pub fn head(&self) -> Version {
        self.head
    }

    /// Returns true if all requests done after this write are known.
    pub fn know_all_after(&self, version: Version) -> bool {
        version >= self.known_after
    }

    /// An entry is appended to the history.
    pub fn follow(&mut self, entry: &LogEntry) {
        let before = entry.version.sequence.saturating_sub(1);
        if before > self.head.sequence {
            // What is between is not known.
            self.forget_all(Version { sequence: before, ..entry.version });
        } else if before < self.head.sequence {
            self.cut(Version { sequence: before, ..entry.version });
        }
        self.head = entry.version;
        if let Some(request) = entry.request {
            self.insert(request, entry.version, None);
        }
    }

    /// The history ends with this write from now on: later writes never happened. Refused requests stay refused.
    pub fn cut(&mut self, head: Version) {
        if head.sequence >= self.head.sequence {
            return;
        }
        let mut cut_off = Vec::new();
        while let Some((at, request)) = self.ages.pop_back_if(|(at, _)| at.sequence > head.sequence) {
            let refusal = self.take(at, request).and_then(|outcome| outcome.refusal);
            cut_off.push((request, refusal));
        }
        self.head = head;
        self.known_after = self.known_after.min(head);
        for (request, refusal) in cut_off.into_iter().rev() {
            match refusal {
                Some(_) => self.insert(request, head, refusal),
                // Its session still tells what the client has the answers to.
                None => self.ages.push_back((head, request)),
            }
        }
    }

    /// Follows the log, up to `head`.
    pub fn catch_up(&mut self, log: &[LogEntry], head: Version) {
        self.cut(head);
        let newer = log.partition_point(|entry| entry.version <= self.head);
        log[newer..].iter().for_each(|entry| self.follow(entry));
        if self.head.sequence < head.sequence {
            self.forget_all(head);
        }
    }

    fn forget_all(&mut self, head: Version) {
        self.sessions.clear();
        self.ages.clear();
        (self.outcome_count, self.bytes) = (0, 0);
        (self.known_after, self.head) = (head, head);
    }

    /// Remembers that a request was refused for good; `at` is the newest version at that time.
    pub fn refuse(&mut self, request: RequestId, refusal: Refusal, at: Version) {
        self.insert(request, at, Some(Box::new(refusal)));
    }

    fn insert(&mut self, request: RequestId, at: Version, refusal: Option<Box<Refusal>>) {
        self.bytes += if self.sessions.contains_key(&request.session) { 0 } else { SESSION_BYTES };
        self.forget_answered(request.session);
        let session = self.sessions.entry(request.session).or_default();
        let outcome = Outcome { sequence: request.sequence, at, refusal };
        self.bytes += outcome.bytes();
        match session.position(request.sequence) {
            Ok(index) => self.bytes -= std::mem::replace(&mut session.outcomes[index], outcome).bytes(),
            Err(index) => {
                session.outcomes.insert(index, outcome);
                self.outcome_count += 1;
            }
        }
        self.ages.push_back((at, request));
        self.stay_within_bounds();
    }

    /// Drops outcomes whose answers the client of a session has.
    fn forget_answered(&mut self, session: u64) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        let answered_below = session.answered_below;
        while let Some(outcome) = session.outcomes.pop_front_if(|outcome| outcome.sequence < answered_below) {
            session.forgotten = session.forgotten.max(outcome.at);
            self.bytes -= outcome.bytes();
            self.outcome_count -= 1;
        }
        let first = session.outcomes.front().map(|outcome| outcome.sequence);
        invariants::outcomes_are_still_wanted(first, answered_below);
    }

    /// Takes an outcome, if it is the one that came then.
    fn take(&mut self, at: Version, request: RequestId) -> Option<Outcome> {
        let session = self.sessions.get_mut(&request.session)?;
        let index = session.position(request.sequence).ok()?;
        if session.outcomes[index].at != at {
            return None;
        }
        let outcome = session.outcomes.remove(index)?;
        self.bytes -= outcome.bytes();
        self.outcome_count -= 1;
        Some(outcome)
    }

    /// Forgets a session without outcomes. Its answered requests go with it, and late copies of these must not be
    /// done.
    fn forget_empty(&mut self, session: u64) {
        let Some(empty) = self.sessions.get(&session).filter(|session| session.outcomes.is_empty()) else {
            return;
        };
        self.known_after = self.known_after.max(empty.forgotten.min(self.head));
        self.bytes -= SESSION_BYTES;
        self.sessions.remove(&session);
    }

    /// Forgets the oldest outcomes while there are too many.
    fn stay_within_bounds(&mut self) {
        while self.bytes > self.bytes_max {
            let (at, request) = self.ages.pop_front().expect("every outcome has an age");
            if self.take(at, request).is_some() {
                self.known_after = self.known_after.max(at);
            }
            self.forget_empty(request.session);
        }
        if self.ages.len() > 2 * (self.outcome_count + self.sessions.len()) + 64 {
            let sessions = &self.sessions;
            self.ages.retain(|(at, request)| {
                sessions.get(&request.session).is_some_and(|session| match session.position(request.sequence) {
                    Ok(index) => session.outcomes[index].at == *at,
                    Err(_) => session.outcomes.is_empty(),
                })
            });
        }
    }

    pub fn find(&self, request: RequestId) -> Known {
        let Some(session) = self.sessions.get(&request.session) else { return Known::Nothing };
        if request.sequence < session.answered_below {
            return Known::Stale;
        }
        match session.position(request.sequence) {
            Ok(index) => {
                let refusal = session.outcomes[index].refusal.as_deref().cloned();
                Known::Outcome(refusal.map_or(Ok(()), Err))
            }
            Err(_) => Known::Nothing,
        }
    }

    /// The client has the answers to all requests to this PG below this number and will not retry them. They are
    /// dropped when its next request is done.
    pub fn note_answered(&mut self, session: u64, below: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.answered_below = session.answered_below.max(below);
        }
    }

    /// Returns the last value of the answers that the client of a session has.
    pub fn answered_below(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |session| session.answered_below)
    }
}

#[cfg(test)]
#[path = "duplicates_tests.rs"]
mod tests;
