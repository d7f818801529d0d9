//! The keys of the issuers of identity tokens, as OpenID Connect publishes them. Only issuers that an account has
//! registered are asked, each at most once at a time, and their answers are kept for some minutes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_credentials::IssuerKeys;
use atoll_outgoing::{Caller, CallerSettings, Chooser, Method, OutgoingError, StatusCode, failing_late};
use serde::Deserialize;

/// How long keys are used without asking again.
const LIFETIME: Duration = Duration::from_secs(300);
/// How seldom an issuer is asked for a key that it did not have.
const NEW_KEY_PAUSE: Duration = Duration::from_secs(30);
/// How long an issuer that has failed is not asked again.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// For both documents together. Any failure takes as long: the request is not signed, and its sender must not
/// learn if a server is at an address that an account has chosen.
const TIME_MAX: Duration = Duration::from_secs(5);
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Issuers that are remembered.
const ISSUERS_MAX: usize = 4_096;
/// Issuers that are asked at once.
const AT_ONCE: usize = 16;

/// Finds the keys of issuers.
pub(crate) struct Issuers {
    known: Mutex<HashMap<String, Arc<Issuer>>>,
    caller: Caller,
}

/// The keys of an issuer cannot be had. The log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoKeys;

/// State of one, if it was asked. Locked while it is asked.
#[derive(Default)]
struct Issuer(tokio::sync::Mutex<Option<Known>>);

struct Known {
    since: Instant,
    keys: Result<IssuerKeys, NoKeys>,
}

/// An issuer's document about itself.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

impl Known {
    /// Returns true if the issuer need not be asked.
    fn serves(&self, id: Option<&str>) -> bool {
        let age = self.since.elapsed();
        match &self.keys {
            Ok(keys) => age < LIFETIME && (age < NEW_KEY_PAUSE || keys.has(id)),
            Err(_) => age < FAILURE_PAUSE,
        }
    }
}

impl Issuers {
    pub(crate) fn new() -> Self {
        let settings = CallerSettings {
            time: TIME_MAX,
            answer_bytes_max: DOCUMENT_BYTES_MAX,
            at_once: AT_ONCE,
            ..CallerSettings::of(Chooser::Account)
        };
        Issuers { known: Mutex::default(), caller: Caller::new(settings) }
    }

    fn issuer(&self, url: &str) -> Arc<Issuer> {
        // A map is whole between any two changes, so a panic elsewhere does not spoil it.
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= ISSUERS_MAX && !all.contains_key(url) {
            all.clear();
        }
        all.entry(url.to_owned()).or_default().clone()
    }

    /// Returns the keys of the issuer with this URL, asking again if the key of this id is not among them.
    pub(super) async fn keys(&self, url: &str, id: Option<&str>) -> Result<IssuerKeys, NoKeys> {
        let issuer = self.issuer(url);
        let mut known = issuer.0.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.serves(id)) {
            return known.keys.clone();
        }
        let asked = failing_late(TIME_MAX, self.fetch(url)).await;
        let keys = asked.unwrap_or_else(|| Err(format!("no answer within {} s", TIME_MAX.as_secs())));
        let keys = keys.map_err(|error| {
            tracing::warn!(issuer = url, error, "the keys of an issuer of tokens cannot be had");
            NoKeys
        });
        *known = Some(Known { since: Instant::now(), keys: keys.clone() });
        keys
    }
}

impl Issuers {
    async fn fetch(&self, issuer: &str) -> Result<IssuerKeys, String> {
        let issuer = issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let discovery: Discovery = parsed(&url, serde_json::from_slice(&self.get(&url).await?))?;
        if discovery.issuer.trim_end_matches('/') != issuer {
            return Err(format!("it says that it is '{}'", discovery.issuer));
        }
        parsed(&discovery.jwks_uri, IssuerKeys::parse(&self.get(&discovery.jwks_uri).await?))
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let failed = |error: OutgoingError| error.to_string();
        let answer =
            self.caller.send(self.caller.request(Method::GET, url).map_err(failed)?).await.map_err(failed)?;
        if answer.status != StatusCode::OK {
            return Err(format!("{url} is answered with {}", answer.status));
        }
        Ok(answer.body)
    }
}

fn parsed<T>(url: &str, document: Result<T, serde_json::Error>) -> Result<T, String> {
    document.map_err(|error| format!("{url} has unexpected content: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_serves_for_a_time() {
        let ago = |seconds: u64| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let no_keys = || IssuerKeys::parse(br#"{"keys":[]}"#).unwrap();
        let known = |seconds, keys| Known { since: ago(seconds), keys };
        assert!(known(1, Err(NoKeys)).serves(Some("a")));
        assert!(!known(6, Err(NoKeys)).serves(Some("a")));
        assert!(known(1, Ok(no_keys())).serves(Some("a")), "it was just asked");
        assert!(!known(31, Ok(no_keys())).serves(Some("a")));
    }
}
