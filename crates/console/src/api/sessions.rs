//! This server's copy of sessions, which are in cluster state, and its count of wrong passwords.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_admin::sessions::id_of;
use atoll_coordinator::unix_ms;
use atoll_types::operators::{OperatorRoles, SessionRecord};
use serde_json::{Value, json};

use super::document::{calls_of, settings_of};

/// Sessions that are remembered for when cluster state does not answer.
const SESSIONS_MAX: usize = 1_024;
/// Wrong passwords for one user from one address, within a minute, that are answered without a pause.
const FREE_ATTEMPTS: u32 = 3;
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// The pause after the next one, which doubles.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
const ATTEMPTS_MAX: usize = 10_000;

/// A session, as it was when cluster state has confirmed it last.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub id: String,
    pub record: SessionRecord,
    pub roles: OperatorRoles,
    /// It ends then at the latest.
    pub expires_unix_ms: u64,
    pub idle_seconds: u64,
    /// The operator has no second factor although one is required.
    pub needs_second_factor: bool,
    pub has_second_factor: bool,
    pub confirmed: Instant,
    /// This host may not write sessions to cluster state, so it is in the memory of this server only.
    pub is_kept_here: bool,
}

impl Session {
    /// As its owner sees it.
    pub fn told(&self) -> Value {
        json!({
            "id": self.id, "user": self.record.user, "role": self.roles.to_string(), "roles": self.roles.names(),
            "calls": calls_of(&self.roles), "settings": settings_of(&self.roles), "csrf_token": self.record.csrf_token,
            "expires_unix_ms": self.expires_unix_ms, "idle_seconds": self.idle_seconds,
            "has_second_factor": self.has_second_factor, "needs_second_factor": self.needs_second_factor,
            "has_password": self.record.oidc.is_none(),
        })
    }

    /// Returns whether its time is over, as far as this server knows.
    fn is_over(&self, now_unix_ms: u64) -> bool {
        let idle_until = self.record.used_unix_ms.saturating_add(self.idle_seconds * 1_000);
        now_unix_ms >= self.expires_unix_ms.min(idle_until)
    }
}

struct Attempts {
    wrong: u32,
    last: Instant,
    next_at: Instant,
}

#[derive(Default)]
struct State {
    /// By their ids.
    sessions: HashMap<String, Session>,
    attempts: HashMap<(String, IpAddr), Attempts>,
}

/// All sessions that this server knows.
#[derive(Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
}

/// A token for a session, and its id.
pub(super) fn new_token() -> (String, String) {
    let token = hex::encode(atoll_keys::random_bytes::<32>());
    let id = id_of(&token);
    (token, id)
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What is in it stays whole whatever has panicked elsewhere.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a session, as it is now.
    pub fn remember(&self, session: &Session) {
        let now_unix_ms = unix_ms();
        let mut state = self.lock();
        if state.sessions.len() >= SESSIONS_MAX && !state.sessions.contains_key(&session.id) {
            state.sessions.retain(|_, session| !session.is_over(now_unix_ms));
        }
        while state.sessions.len() >= SESSIONS_MAX && !state.sessions.contains_key(&session.id) {
            let oldest = state.sessions.iter().min_by_key(|(_, session)| session.confirmed);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            state.sessions.remove(&oldest);
        }
        state.sessions.insert(session.id.clone(), session.clone());
    }

    /// The session of this id as it was last, if its time is not over.
    pub fn known(&self, id: &str) -> Option<Session> {
        let state = self.lock();
        state.sessions.get(id).filter(|session| !session.is_over(unix_ms())).cloned()
    }

    pub fn forget(&self, id: &str) {
        self.lock().sessions.remove(id);
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
pub(super) mod tests {
    use super::*;
    use atoll_types::operators::OperatorRole;

    pub(in crate::api) fn session(id: &str, role: OperatorRole) -> Session {
        let now_unix_ms = unix_ms();
        let record = SessionRecord {
            format: 1,
            user: "ann".into(),
            stamp: String::new(),
            csrf_token: "token".into(),
            host: "h".into(),
            address: "::1".into(),
            created_unix_ms: now_unix_ms,
            used_unix_ms: now_unix_ms,
            expires_unix_ms: now_unix_ms + 60_000,
            oidc: None,
        };
        Session {
            id: id.into(),
            expires_unix_ms: record.expires_unix_ms,
            record,
            roles: role.into(),
            idle_seconds: 30,
            needs_second_factor: false,
            has_second_factor: false,
            confirmed: Instant::now(),
            is_kept_here: false,
        }
    }

    #[test]
    fn a_session_is_known_until_it_ends() {
        let (sessions, session) = (Sessions::default(), session("a", OperatorRole::Storage));
        sessions.remember(&session);
        assert!(sessions.known("a").is_some() && sessions.known("b").is_none());
        let told = session.told();
        assert_eq!((&told["role"], &told["roles"]), (&json!("storage"), &json!(["storage"])));
        assert!(told["calls"].as_array().unwrap().contains(&json!("markOsdOut")));
        sessions.forget("a");
        assert!(sessions.known("a").is_none());
        let mut idle = session;
        idle.record.used_unix_ms -= 30_000;
        sessions.remember(&idle);
        assert!(sessions.known("a").is_none(), "it was not used");
    }

    #[test]
    fn tokens_are_not_their_ids() {
        let ((token, id), (other, _)) = (new_token(), new_token());
        assert!(token != id && token != other && id == id_of(&token));
    }

    #[test]
    fn wrong_passwords_are_slowed_for_each_user_and_address() {
        let (sessions, here, there) = (Sessions::default(), IpAddr::from([1; 4]), IpAddr::from([2; 4]));
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
        let sessions = Sessions::default();
        (0..SESSIONS_MAX + 10)
            .for_each(|number| sessions.remember(&session(&number.to_string(), OperatorRole::Storage)));
        assert_eq!(sessions.lock().sessions.len(), SESSIONS_MAX);
        assert!(sessions.known(&(SESSIONS_MAX + 9).to_string()).is_some() && sessions.known("0").is_none());
    }
}
