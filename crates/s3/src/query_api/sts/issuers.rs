//! The keys of the issuers of identity tokens, as OpenID Connect publishes them. Only issuers that an account
//! has registered are asked, each at most once at a time, and what they say is kept for some minutes.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How long keys are used without asking again.
const LIFETIME: Duration = Duration::from_secs(300);
/// How seldom an issuer is asked for a key that it did not have.
const NEW_KEY_PAUSE: Duration = Duration::from_secs(30);
/// How long an issuer that has failed is not asked again.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// For both documents together.
const TIME_MAX: Duration = Duration::from_secs(5);
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Issuers that are remembered.
const ISSUERS_MAX: usize = 4_096;
const KEYS_MAX: usize = 100;

/// Finds the keys of issuers.
#[derive(Default)]
pub(crate) struct Issuers(Mutex<HashMap<String, Arc<Issuer>>>);

/// What is known of one, if it was asked. Locked while it is asked.
#[derive(Default)]
struct Issuer(tokio::sync::Mutex<Option<Known>>);

struct Known {
    since: Instant,
    /// Why there are none, for who asks.
    keys: Result<Arc<[Jwk]>, String>,
}

/// What an issuer says about itself.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// The key of this id. A token may leave the id out if there is only one.
pub(super) fn find<'a>(keys: &'a [Jwk], id: Option<&str>) -> Option<&'a Jwk> {
    match (id, keys) {
        (Some(id), _) => keys.iter().find(|key| key.common.key_id.as_deref() == Some(id)),
        (None, [only]) => Some(only),
        (None, _) => None,
    }
}

impl Known {
    /// Whether the issuer need not be asked.
    fn serves(&self, id: Option<&str>) -> bool {
        let age = self.since.elapsed();
        match &self.keys {
            Ok(keys) => age < LIFETIME && (age < NEW_KEY_PAUSE || find(keys, id).is_some()),
            Err(_) => age < FAILURE_PAUSE,
        }
    }
}

impl Issuers {
    fn issuer(&self, url: &str) -> Arc<Issuer> {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ISSUERS_MAX && !all.contains_key(url) {
            all.clear();
        }
        all.entry(url.to_owned()).or_default().clone()
    }

    /// The keys of the issuer with this URL, asked for anew if the key of this id is not among them.
    pub(super) async fn keys(&self, url: &str, id: Option<&str>) -> Result<Arc<[Jwk]>, String> {
        let issuer = self.issuer(url);
        let mut known = issuer.0.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.serves(id)) {
            return known.keys.clone();
        }
        let asked = tokio::time::timeout(TIME_MAX, fetch(url)).await;
        let keys = asked.unwrap_or_else(|_| Err(format!("no answer within {} s", TIME_MAX.as_secs())));
        if let Err(error) = &keys {
            tracing::warn!(issuer = url, error, "the keys of an issuer of tokens cannot be had");
        }
        *known = Some(Known { since: Instant::now(), keys: keys.clone() });
        keys
    }
}

fn is_loopback(url: &Url) -> bool {
    matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"))
}

/// A URL that may be asked: over TLS, or, if the issuer itself is on this host and without TLS, there.
fn checked(url: &str, is_local: bool) -> Result<Url, String> {
    let parsed = Url::parse(url).map_err(|error| format!("'{url}' is no URL: {error}"))?;
    match parsed.scheme() {
        "https" => Ok(parsed),
        "http" if is_local && is_loopback(&parsed) => Ok(parsed),
        _ => Err(format!("'{url}' does not begin with https://")),
    }
}

fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

async fn fetch(issuer: &str) -> Result<Arc<[Jwk]>, String> {
    let issuer = issuer.trim_end_matches('/');
    let is_local = issuer.starts_with("http://");
    let mut builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(TIME_MAX);
    if is_local {
        builder = builder.no_proxy();
    }
    let http = builder.build().map_err(|error| causes(&error))?;
    let place = checked(&format!("{issuer}/.well-known/openid-configuration"), is_local)?;
    let discovery: Discovery = get(&http, place).await?;
    if discovery.issuer.trim_end_matches('/') != issuer {
        return Err(format!("it says that it is '{}'", discovery.issuer));
    }
    let set: KeySet = get(&http, checked(&discovery.jwks_uri, is_local)?).await?;
    // One that is of a kind of its own does not spoil the others.
    let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys = keys.filter(|key| matches!(key.common.public_key_use, None | Some(PublicKeyUse::Signature)));
    Ok(keys.take(KEYS_MAX).collect())
}

async fn get<T: DeserializeOwned>(http: &reqwest::Client, url: Url) -> Result<T, String> {
    let wrong = |error: reqwest::Error| causes(&error);
    let mut response = http.get(url.clone()).send().await.map_err(wrong)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("{url} is answered with {}", response.status()));
    }
    let mut document = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(wrong)? {
        if document.len() + piece.len() > DOCUMENT_BYTES_MAX {
            return Err(format!("{url} has more than {DOCUMENT_BYTES_MAX} bytes"));
        }
        document.extend_from_slice(&piece);
    }
    serde_json::from_slice(&document).map_err(|error| format!("{url} is not what it should be: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_issuers_on_this_host_go_without_tls() {
        for (url, is_local, is_right) in [
            ("https://a.example/keys", false, true),
            ("http://a.example/keys", false, false),
            ("http://127.0.0.1:1/keys", false, false),
            ("http://127.0.0.1:1/keys", true, true),
            ("http://a.example/keys", true, false),
            ("http://127.0.0.1@a.example/keys", true, false),
            ("file:///etc/passwd", true, false),
            ("keys", false, false),
        ] {
            assert_eq!(checked(url, is_local).is_ok(), is_right, "{url}");
        }
    }

    #[test]
    fn keys_are_found_by_id() {
        let key = |id: &str| -> Jwk {
            let json = serde_json::json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": id });
            serde_json::from_value(json).unwrap()
        };
        let both = [key("a"), key("b")];
        assert_eq!(find(&both, Some("b")), Some(&both[1]));
        assert_eq!(find(&both, Some("c")), None);
        assert_eq!(find(&both, None), None);
        assert_eq!(find(&both[..1], None), Some(&both[0]));
    }

    #[test]
    fn what_is_known_serves_for_a_time() {
        let ago = |seconds: u64| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let known = |seconds, keys| Known { since: ago(seconds), keys };
        assert!(known(1, Err("down".into())).serves(Some("a")));
        assert!(!known(6, Err("down".into())).serves(Some("a")));
        assert!(known(1, Ok([].into())).serves(Some("a")), "it was just asked");
        assert!(!known(31, Ok([].into())).serves(Some("a")));
    }
}
