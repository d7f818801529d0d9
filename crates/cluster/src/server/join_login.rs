//! Who has a join token that is worth something is told the user and the password of cluster state, once: so these are in
//! no token, and a token that was used, has expired or was revoked opens nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use atoll_types::join::{JOIN_USER_PREFIX, JoinTokenRecord, StateLogin};
use atoll_types::record_json::read_record;
use aws_lc_rs::digest::{SHA256, digest};

use super::state::State;
use super::tokens::same;
use crate::keys;

/// The id of the token that a user's name stands for.
pub fn token_of(user: &str) -> Option<&str> {
    user.strip_prefix(JOIN_USER_PREFIX)
}

/// Whether this is the secret of a token that may still be used.
pub fn may_log_in(state: &State, token: &str, secret: &str) -> bool {
    let Some(entry) = state.keys.get(keys::join_token(token).as_bytes()) else { return false };
    let Ok(record) = read_record::<JoinTokenRecord>(&entry.value) else { return false };
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_millis() as u64);
    let given = hex::encode(digest(&SHA256, secret.as_bytes()));
    let is_right = same(given.as_bytes(), record.secret_sha256.as_bytes());
    is_right && record.used_by.is_none() && record.expires_unix_ms > now_ms
}

/// What stands where others get a token of etcd.
pub fn answer(user: &str, password: &str) -> String {
    let login = StateLogin { user: user.into(), password: password.into() };
    serde_json::to_string(&login).expect("two texts are plain JSON")
}
