//! Log-ins that have begun. The browser keeps each in a cookie that only this process can open, so strangers take no
//! memory here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use atoll_keys::{GcmKey, SecretKey, random_bytes, sha256};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// Longest time from the begin of a log-in to the answer of the provider.
pub(super) const LIFETIME_SECONDS: u64 = 600;
/// States that were used and whose time is not over.
const USED_MAX: usize = 16_384;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const PURPOSE: &[u8] = b"log-in by OpenID Connect";

/// A log-in that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    /// Binds the answer of the provider to the browser.
    pub state: String,
    /// Binds the token to the log-in.
    pub nonce: String,
    /// Proves to the provider who has begun the log-in (RFC 7636).
    pub verifier: String,
    /// [`atoll_types::login_oidc::OidcRecord::id`] when it began.
    pub record: String,
    pub redirect_uri: String,
    pub until_unix_ms: u64,
}

fn random_text() -> String {
    hex::encode(random_bytes::<32>())
}

impl Attempt {
    pub fn new(record: &str, redirect_uri: String, now_unix_ms: u64) -> Self {
        Attempt {
            state: random_text(),
            nonce: random_text(),
            verifier: random_text(),
            record: record.to_owned(),
            redirect_uri,
            until_unix_ms: now_unix_ms + LIFETIME_SECONDS * 1_000,
        }
    }

    /// The challenge for its verifier (S256).
    pub fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(sha256(self.verifier.as_bytes()))
    }
}

/// Seals and opens attempts.
pub(crate) struct Attempts {
    key: GcmKey,
    /// Digests of the states that were used, with their ends.
    used: Mutex<HashMap<[u8; 32], u64>>,
}

impl Default for Attempts {
    fn default() -> Self {
        Attempts { key: GcmKey::new(&SecretKey::random()), used: Mutex::default() }
    }
}

impl Attempts {
    /// Returns the value of the cookie.
    pub(super) fn seal(&self, attempt: &Attempt) -> String {
        let nonce = random_bytes::<NONCE_BYTES>();
        let mut text = serde_json::to_vec(attempt).expect("an attempt has only texts and a number");
        let tag = self.key.seal(nonce, PURPOSE, &mut text);
        URL_SAFE_NO_PAD.encode([&nonce[..], &tag[..], &text[..]].concat())
    }

    /// Returns the attempt of this cookie, if it is the one with this state, and the first with it.
    pub(super) fn take(&self, cookie: &str, state: &str, now_unix_ms: u64) -> Result<Attempt, &'static str> {
        let attempt = self.open(cookie).ok_or("the browser has begun no log-in here")?;
        // Their digests are compared, so the time that it takes says nothing of the state.
        if sha256(attempt.state.as_bytes()) != sha256(state.as_bytes()) {
            return Err("the answer is for another log-in, or for that of another browser");
        }
        if now_unix_ms >= attempt.until_unix_ms {
            return Err("the log-in has taken too long");
        }
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, until_unix_ms| now_unix_ms < *until_unix_ms);
        if used.len() >= USED_MAX {
            return Err("there are too many log-ins");
        }
        match used.insert(sha256(state.as_bytes()), attempt.until_unix_ms) {
            Some(_) => Err("the answer was used already"),
            None => Ok(attempt),
        }
    }

    fn open(&self, cookie: &str) -> Option<Attempt> {
        let sealed = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        let (tag, ciphertext) = rest.split_at_checked(TAG_BYTES)?;
        let mut text = vec![0; ciphertext.len()];
        if !self.key.open(*nonce, PURPOSE, ciphertext, tag, &mut text) {
            return None;
        }
        serde_json::from_slice(&text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once_in_its_browser_and_its_time() {
        let attempts = Attempts::default();
        let attempt = Attempt::new("record", "https://console.example/session/oidc/callback".into(), 1_000);
        let cookie = attempts.seal(&attempt);
        assert!(!cookie.contains(&attempt.verifier) && cookie.len() < 2_000);
        let other = Attempt::new("record", attempt.redirect_uri.clone(), 1_000);
        let of_other = attempts.seal(&other);
        assert!(attempts.take(&of_other, &attempt.state, 2_000).is_err(), "another browser");
        assert!(attempts.take("", &attempt.state, 2_000).is_err());
        assert!(Attempts::default().take(&cookie, &attempt.state, 2_000).is_err(), "another process");
        let mut changed = cookie.clone().into_bytes();
        changed[40] ^= 1;
        assert!(attempts.take(&String::from_utf8_lossy(&changed), &attempt.state, 2_000).is_err());
        assert!(attempts.take(&of_other, &other.state, 1_000 + LIFETIME_SECONDS * 1_000).is_err(), "late");
        assert_eq!(attempts.take(&cookie, &attempt.state, 2_000).unwrap(), attempt);
        assert!(attempts.take(&cookie, &attempt.state, 2_000).is_err(), "again");
    }

    /// RFC 7636, appendix B.
    #[test]
    fn challenges_are_those_of_the_standard() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk".to_owned();
        let attempt = Attempt { verifier, ..Attempt::new("", String::new(), 0) };
        assert_eq!(attempt.challenge(), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
