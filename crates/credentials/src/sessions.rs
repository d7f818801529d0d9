//! Temporary credentials, which are not stored. A session token is the session itself, sealed under a key of the
//! cluster, and the secret follows from that key and the access key.

use atoll_iam::operations::{Change, Outcome, random_text};
use atoll_iam::{Identities, Record, Session};
use atoll_keys::{GcmKey, SecretKey, random_bytes};
use atoll_types::identities::{PreviousStsKey, StsKeyRecord};
use atoll_types::records::RECORD_FORMAT;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Begins the access keys of temporary credentials.
const PREFIX: &str = "ASIA";
const RANDOM_CHARS: usize = 12;
/// They end an access key, and say under which key of the cluster it was made.
const MARK_CHARS: usize = 4;
/// Longest session, in seconds.
pub const SESSION_SECONDS_MAX: u32 = 129_600;
const TOKEN_VERSION: u8 = 1;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
/// Longest token: one with all the policies that it may have is shorter.
const TOKEN_CHARS_MAX: usize = 16 << 10;

/// Why a session token is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenSessionError {
    /// It is none, is of another access key, or its account, user or role is gone.
    #[error("The security token included in the request is invalid")]
    Invalid,
    /// Its time is over.
    #[error("The security token included in the request is expired")]
    Expired,
}

/// Credentials of a new session.
pub struct Credentials {
    /// Signs, together with the token.
    pub access_key: String,
    /// The secret access key.
    pub secret: String,
    /// The session, sealed.
    pub session_token: String,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_unix_ms: u64,
}

impl Credentials {
    /// Seals a session, and gives it an access key and a secret.
    pub fn new(key: &SecretKey, session: Session) -> Self {
        let session = Session { access_key: new_access_key(key), ..session };
        Credentials {
            secret: secret(key, &session.access_key),
            session_token: seal(key, &session),
            expires_unix_ms: session.expires_unix_ms,
            access_key: session.access_key,
        }
    }
}

fn record(wrapped_key: &str, now_ms: u64, previous: Option<PreviousStsKey>) -> StsKeyRecord {
    let (wrapped_key, made_unix_ms) = (wrapped_key.to_owned(), Some(now_ms));
    StsKeyRecord { format: RECORD_FORMAT, wrapped_key, made_unix_ms, previous }
}

/// Gives the cluster another key of temporary credentials. Sessions under the previous one stay valid until they
/// end, or end at once.
pub fn rotate_sts_key(identities: &Identities, wrapped_key: &str, now_ms: u64, ends_sessions: bool) -> Outcome {
    let before = identities.sts_key().filter(|_| !ends_sessions);
    let previous = before.map(|before| PreviousStsKey {
        wrapped_key: before.wrapped_key.clone(),
        until_unix_ms: now_ms + u64::from(SESSION_SECONDS_MAX) * 1_000,
    });
    let changes = vec![Change::Put(Record::StsKey(record(wrapped_key, now_ms, previous)))];
    Outcome { changes, ..Outcome::default() }
}

/// Makes the cluster's key of temporary credentials, if there is none.
pub fn make_sts_key(identities: &Identities, wrapped_key: &str, now_ms: u64) -> Outcome {
    let is_needed = identities.sts_key().is_none();
    let make = || Change::Put(Record::StsKey(record(wrapped_key, now_ms, None)));
    let changes = is_needed.then(make).into_iter().collect();
    Outcome { changes, ..Outcome::default() }
}

/// Returns true if an access key is of temporary credentials, by its form.
pub fn is_temporary(access_key: &str) -> bool {
    access_key.len() == PREFIX.len() + RANDOM_CHARS + MARK_CHARS && access_key.starts_with(PREFIX)
}

/// An access key for new temporary credentials.
fn new_access_key(key: &SecretKey) -> String {
    let begin = format!("{PREFIX}{}", random_text(&random_bytes::<RANDOM_CHARS>()));
    let mark = mark(key, &begin);
    begin + &mark
}

/// The end of an access key that begins so and is made under this key of the cluster.
fn mark(key: &SecretKey, begin: &str) -> String {
    random_text(&derived(key, "mark", begin)[..MARK_CHARS])
}

fn has_mark_of(key: &SecretKey, access_key: &str) -> bool {
    let split = access_key.split_at_checked(access_key.len().saturating_sub(MARK_CHARS));
    split.is_some_and(|(begin, end)| end == mark(key, begin))
}

/// The keys of the cluster under which sessions may have begun.
pub struct StsKeys {
    /// The one under which sessions begin.
    pub current: SecretKey,
    /// The one before, as long as sessions under it last.
    pub previous: Option<SecretKey>,
}

impl StsKeys {
    /// The one under which an access key was made. Access keys of earlier releases have no mark; they are of the older of
    /// the two, because who gives a cluster another key marks all that follow.
    fn of(&self, access_key: &str) -> &SecretKey {
        match &self.previous {
            Some(previous) if !has_mark_of(&self.current, access_key) => previous,
            _ => &self.current,
        }
    }

    /// Returns the secret of temporary credentials with this access key.
    pub fn secret_of(&self, access_key: &str) -> String {
        secret(self.of(access_key), access_key)
    }

    /// Returns the session that a token holds.
    pub fn open_session_token(
        &self,
        access_key: &str,
        token: &str,
        now_unix_ms: u64,
    ) -> Result<Session, OpenSessionError> {
        let session = open(self.of(access_key), access_key, token).ok_or(OpenSessionError::Invalid)?;
        if session.expires_unix_ms <= now_unix_ms {
            return Err(OpenSessionError::Expired);
        }
        Ok(session)
    }
}

/// Derives a value from the cluster's key for one purpose.
fn derived(key: &SecretKey, purpose: &str, of: &str) -> [u8; 32] {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.expose()));
    context.update(purpose.as_bytes());
    context.update(of.as_bytes());
    context.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

fn secret(key: &SecretKey, access_key: &str) -> String {
    hex::encode(derived(key, "secret", access_key))
}

/// A key of its own, so that no bytes that are sealed can be those that a secret is made of.
fn sealing_key(key: &SecretKey) -> GcmKey {
    GcmKey::new(&SecretKey::from_bytes(derived(key, "token", "")))
}

fn seal(key: &SecretKey, session: &Session) -> String {
    let nonce: [u8; NONCE_BYTES] = random_bytes();
    let mut text = serde_json::to_vec(session).expect("a session is made of texts and numbers");
    let tag = sealing_key(key).seal(nonce, session.access_key.as_bytes(), &mut text);
    STANDARD.encode([&[TOKEN_VERSION][..], &nonce, &text, &tag].concat())
}

fn open(key: &SecretKey, access_key: &str, token: &str) -> Option<Session> {
    if token.len() > TOKEN_CHARS_MAX {
        return None;
    }
    let token = STANDARD.decode(token).ok()?;
    let sealed = token.strip_prefix(&[TOKEN_VERSION])?;
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
    let (text, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG_BYTES)?)?;
    let mut opened = vec![0; text.len()];
    if !sealing_key(key).open(*nonce, access_key.as_bytes(), text, tag, &mut opened) {
        return None;
    }
    let session: Session = serde_json::from_slice(&opened).ok()?;
    (session.access_key == access_key).then_some(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_iam::SessionPrincipal;

    fn session(access_key: &str) -> Session {
        Session {
            access_key: access_key.into(),
            account: "100000000000".into(),
            principal: SessionPrincipal::Role { name: "r".into(), id: "AROAX".into(), session_name: "s".into() },
            policies: vec!["{}".into()],
            policy_arns: Vec::new(),
            key_policy: None,
            issued_unix_ms: 1,
            expires_unix_ms: 5,
        }
    }

    #[test]
    fn tokens_open_for_their_access_key_only() {
        let key = SecretKey::random();
        let (mine, other) = (new_access_key(&key), new_access_key(&key));
        assert!(is_temporary(&mine) && !is_temporary("ASIA") && !is_temporary("AKIAABCDEFGHIJKLMNOP"));
        let token = seal(&key, &session(&mine));
        assert_eq!(open(&key, &mine, &token), Some(session(&mine)));
        assert_eq!(open(&key, &other, &token), None);
        assert_eq!(open(&SecretKey::random(), &mine, &token), None);
        assert_ne!(token, seal(&key, &session(&mine)), "each has a nonce of its own");
    }

    #[test]
    fn tokens_that_were_touched_do_not_open() {
        let key = SecretKey::random();
        let mine = new_access_key(&key);
        let token = STANDARD.decode(seal(&key, &session(&mine))).unwrap();
        for position in 0..token.len() {
            let mut touched = token.clone();
            touched[position] ^= 1;
            assert_eq!(open(&key, &mine, &STANDARD.encode(&touched)), None, "{position}");
            assert_eq!(open(&key, &mine, &STANDARD.encode(&token[..position])), None, "{position}");
        }
        for text in ["", "!", &"A".repeat(TOKEN_CHARS_MAX + 4)] {
            assert_eq!(open(&key, &mine, text), None);
        }
    }

    #[test]
    fn an_access_key_says_under_which_key_it_was_made() {
        let keys = StsKeys { current: SecretKey::random(), previous: Some(SecretKey::random()) };
        let previous = keys.previous.as_ref().unwrap();
        let wrong = |key: &SecretKey| (0..2_000).filter(|_| keys.of(&new_access_key(key)) != key).count();
        assert_eq!(wrong(&keys.current), 0);
        assert_eq!(wrong(previous), 0, "20 bits");
        assert_eq!(keys.of("ASIAABCDEFGHIJKLMNOP"), previous, "of an earlier release");
        let only = StsKeys { current: SecretKey::random(), previous: None };
        assert_eq!(only.of("ASIAABCDEFGHIJKLMNOP"), &only.current);
        let credentials = Credentials::new(&keys.current, session(""));
        assert!(is_temporary(&credentials.access_key) && has_mark_of(&keys.current, &credentials.access_key));
        let opened = open(&keys.current, &credentials.access_key, &credentials.session_token).unwrap();
        assert_eq!(opened.access_key, credentials.access_key);
    }

    #[test]
    fn sessions_outlive_their_key_unless_they_shall_not() {
        let none = Identities::from_records([]);
        let put = |outcome: Outcome| match &outcome.changes[..] {
            [Change::Put(Record::StsKey(record))] => record.clone(),
            changes => panic!("{} changes", changes.len()),
        };
        let first = put(make_sts_key(&none, "first", 1));
        let identities = Identities::from_records([Record::StsKey(first)]);
        assert!(make_sts_key(&identities, "other", 2).changes.is_empty(), "there is one");
        let second = put(rotate_sts_key(&identities, "second", 5, false));
        let previous = PreviousStsKey { wrapped_key: "first".into(), until_unix_ms: 129_600_005 };
        assert_eq!((&second.wrapped_key[..], second.made_unix_ms), ("second", Some(5)));
        assert_eq!(second.previous, Some(previous));
        assert_eq!(put(rotate_sts_key(&identities, "second", 5, true)).previous, None);
        assert_eq!(put(rotate_sts_key(&none, "first", 5, false)).previous, None);
    }

    #[test]
    fn secrets_follow_from_the_access_key() {
        let key = SecretKey::random();
        assert_eq!(secret(&key, "ASIAX"), secret(&key, "ASIAX"));
        assert_ne!(secret(&key, "ASIAX"), secret(&key, "ASIAY"));
        assert_ne!(secret(&key, "ASIAX"), secret(&SecretKey::random(), "ASIAX"));
    }
}
