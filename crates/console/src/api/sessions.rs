//! Sessions of this admin server. They are in its memory only, so they end with it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_coordinator::unix_ms;
use atoll_types::operators::OperatorRole;
use serde::Serialize;

const SESSIONS_MAX: usize = 1_024;
/// So many wrong passwords for one user from one address, within a minute, are answered without a pause.
const FREE_ATTEMPTS: u32 = 3;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// The pause after the next one, which doubles.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const ATTEMPTS_MAX: usize = 10_000;

/// A session, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Session {
    pub user: String,
    pub role: OperatorRole,
    pub csrf_token: String,
    pub expires_unix_ms: u64,
    /// Of the operator's record when the session began: with another the session has ended.
    #[serde(skip)]
    pub revision: i64,
    /// When cluster state has confirmed the record last.
    #[serde(skip)]
    pub confirmed: Instant,
}

struct Attempts {
    wrong: u32,
    last: Instant,
    next_at: Instant,
}

#[derive(Default)]
struct State {
    /// By digest of their tokens.
    sessions: HashMap<String, Session>,
    attempts: HashMap<(String, IpAddr), Attempts>,
}

/// All sessions.
pub(crate) struct Sessions {
    /// Each ends after this time, whatever it does.
    length: Duration,
    state: Mutex<State>,
}

fn random_token() -> String {
    hex::encode(atoll_keys::random_bytes::<32>())
}

/// What a session is found by: so the time that it takes tells nothing of a token.
fn digest(token: &str) -> String {
    hex::encode(atoll_keys::sha256(token.as_bytes()))
}

impl Sessions {
    /// They last so long each.
    pub fn new(length: Duration) -> Self {
        Sessions { length, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is in it stays whole whatever has panicked elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session; returns its token as well.
    pub fn begin(&self, user: &str, role: OperatorRole, revision: i64) -> (String, Session) {
        let now_unix_ms = unix_ms();
        let session = Session {
            user: user.to_owned(),
            role,
            csrf_token: random_token(),
            expires_unix_ms: now_unix_ms + self.length.as_millis() as u64,
            revision,
            confirmed: Instant::now(),
        };
        let token = random_token();
        let mut state = self.lock();
        state.sessions.retain(|_, session| session.expires_unix_ms > now_unix_ms);
        if state.sessions.len() >= SESSIONS_MAX {
            let first = state.sessions.iter().min_by_key(|(_, session)| session.expires_unix_ms);
            if let Some(first) = first.map(|(key, _)| key.clone()) {
                state.sessions.remove(&first);
            }
        }
        state.sessions.insert(digest(&token), session.clone());
        (token, session)
    }

    /// The session of a token, if it has not ended.
    pub fn find(&self, token: &str) -> Option<Session> {
        let state = self.lock();
        state.sessions.get(&digest(token)).filter(|session| session.expires_unix_ms > unix_ms()).cloned()
    }

    /// Cluster state has just confirmed the operator's record.
    pub fn confirm(&self, token: &str) {
        if let Some(session) = self.lock().sessions.get_mut(&digest(token)) {
            session.confirmed = Instant::now();
        }
    }

    pub fn end(&self, token: &str) {
        self.lock().sessions.remove(&digest(token));
    }

    /// How long a user has to wait until the next attempt from an address, in seconds; nothing if it may begin.
    pub fn pause_seconds(&self, user: &str, address: IpAddr) -> Option<u64> {
        let state = self.lock();
        let attempts = state.attempts.get(&(user.to_owned(), address))?;
        let left = attempts.next_at.checked_duration_since(Instant::now())?;
        Some(left.as_secs_f64().ceil() as u64).filter(|seconds| *seconds > 0)
    }

    /// A password was wrong.
    pub fn failed(&self, user: &str, address: IpAddr) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.attempts.len() >= ATTEMPTS_MAX {
            state
                .attempts
                .retain(|_, attempts| attempts.last.elapsed() < FORGOTTEN_AFTER || attempts.next_at > now);
        }
        let new = || Attempts { wrong: 0, last: now, next_at: now };
        let attempts = state.attempts.entry((user.to_owned(), address)).or_insert_with(new);
        if attempts.last.elapsed() > FORGOTTEN_AFTER.max(PAUSE_MAX) {
            attempts.wrong = 0;
        }
        attempts.wrong += 1;
        attempts.last = now;
        if attempts.wrong >= FREE_ATTEMPTS {
            let doublings = (attempts.wrong - FREE_ATTEMPTS).min(16);
            attempts.next_at = now + (PAUSE_MIN * 2_u32.pow(doublings)).min(PAUSE_MAX);
        }
    }

    /// A password was right.
    pub fn succeeded(&self, user: &str, address: IpAddr) {
        self.lock().attempts.remove(&(user.to_owned(), address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_by_its_token_until_it_ends() {
        let sessions = Sessions::new(Duration::from_secs(60));
        let (token, session) = sessions.begin("ann", OperatorRole::Admin, 7);
        assert_eq!(sessions.find(&token), Some(session.clone()));
        assert_eq!(sessions.find(&session.csrf_token), None);
        sessions.end(&token);
        assert_eq!(sessions.find(&token), None);
    }

    #[test]
    fn wrong_passwords_are_slowed_for_each_user_and_address() {
        let (sessions, here, there) =
            (Sessions::new(Duration::from_secs(60)), IpAddr::from([1; 4]), IpAddr::from([2; 4]));
        (0..2).for_each(|_| sessions.failed("ann", here));
        assert_eq!(sessions.pause_seconds("ann", here), None);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            sessions.failed("ann", here);
            pauses.push(sessions.pause_seconds("ann", here).unwrap());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(sessions.pause_seconds("ann", there), None);
        assert_eq!(sessions.pause_seconds("rob", here), None);
        sessions.succeeded("ann", here);
        assert_eq!(sessions.pause_seconds("ann", here), None);
    }

    #[test]
    fn sessions_have_a_limit() {
        let sessions = Sessions::new(Duration::from_secs(60));
        for _ in 0..SESSIONS_MAX + 10 {
            sessions.begin("ann", OperatorRole::Admin, 1);
        }
        assert_eq!(sessions.lock().sessions.len(), SESSIONS_MAX);
    }
}
