//! The provider: its metadata, the exchange of a code for a token, and its keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_admin::login_oidc;
use atoll_credentials::{Claims, ExpectedToken, IdentityToken, IssuerKeys};
use atoll_outgoing::header::{ACCEPT, CONTENT_TYPE};
use atoll_outgoing::{Answer, Caller, CallerSettings, Chooser, Method, RequestBuilder, StatusCode, Url};
use atoll_types::login_oidc::OidcRecord;
use form_urlencoded::Serializer;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::attempt::Attempt;

/// Time for which the provider's metadata is used.
const LIFETIME: Duration = Duration::from_secs(300);
/// Time until the provider is asked again for a key that it did not have.
const NEW_KEY_PAUSE: Duration = Duration::from_secs(30);
/// Time until a provider that has failed is asked again.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// Longest time of one call.
const TIME_MAX: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 256 << 10;
const AT_ONCE: usize = 8;
/// Stands for the methods of a provider that does not name them (OpenID Connect Discovery 1.0).
const BASIC: &str = "client_secret_basic";

/// Known state of the provider. It is locked while the provider is asked.
#[derive(Default)]
pub(crate) struct KnownProvider(tokio::sync::Mutex<Option<Known>>);

struct Known {
    record: String,
    since: Instant,
    provider: Result<Arc<Provider>, String>,
}

/// The provider as it has described itself.
pub(super) struct Provider {
    caller: Caller,
    pub authorization_endpoint: Url,
    token_endpoint: Url,
    keys: IssuerKeys,
    sends_secret_in_form: bool,
    /// Answers name the issuer (RFC 9207).
    pub names_issuer: bool,
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

impl Known {
    /// Returns whether the provider need not be asked.
    fn serves(&self, record: &OidcRecord, token: Option<&IdentityToken<'_>>) -> bool {
        let age = self.since.elapsed();
        self.record == record.id
            && match &self.provider {
                Ok(provider) => {
                    let has_key = token.is_none_or(|token| provider.keys.has(token.key_id()));
                    age < LIFETIME && (has_key || age < NEW_KEY_PAUSE)
                }
                Err(_) => age < FAILURE_PAUSE,
            }
    }
}

impl KnownProvider {
    /// The provider of this record.
    pub(super) async fn get(&self, record: &OidcRecord) -> Result<Arc<Provider>, String> {
        self.get_for(record, None).await
    }

    /// The same, with the key of this token if the provider has it.
    async fn get_for(
        &self,
        record: &OidcRecord,
        token: Option<&IdentityToken<'_>>,
    ) -> Result<Arc<Provider>, String> {
        let mut known = self.0.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.serves(record, token)) {
            return known.provider.clone();
        }
        let provider = Provider::discover(record).await.map(Arc::new);
        *known = Some(Known { record: record.id.clone(), since: Instant::now(), provider: provider.clone() });
        provider
    }

    /// Returns the person who has logged in, as named by the provider for the code that it gave to the browser.
    pub(super) async fn redeem(
        &self,
        record: &OidcRecord,
        secret: Option<&str>,
        attempt: &Attempt,
        code: &str,
        now_unix_ms: u64,
    ) -> Result<Claims, String> {
        let text = self.get(record).await?.exchange(record, secret, attempt, code).await?;
        let token = IdentityToken::parse(&text).map_err(|error| format!("the token cannot be read: {error}"))?;
        // A new key may have come since it was asked for its keys.
        let provider = self.get_for(record, Some(&token)).await?;
        let expected = ExpectedToken {
            issuer: &record.issuer,
            client_id: &record.client_id,
            nonce: &attempt.nonce,
            skew_seconds: record.skew_seconds,
            now_unix_ms,
        };
        token.verify_as(&provider.keys, &expected).map_err(|error| format!("the token is not taken: {error}"))
    }
}

impl Provider {
    async fn discover(record: &OidcRecord) -> Result<Provider, String> {
        let settings = CallerSettings {
            time: TIME_MAX,
            answer_bytes_max: ANSWER_BYTES_MAX,
            at_once: AT_ONCE,
            authorities: login_oidc::authorities(record).map_err(|error| error.to_string())?,
            ..CallerSettings::of(Chooser::Operator)
        };
        let caller = Caller::new(settings);
        let url = format!("{}/.well-known/openid-configuration", record.issuer.trim_end_matches('/'));
        let said: Discovery = parsed(&url, &get(&caller, &url).await?)?;
        if said.issuer != record.issuer {
            return Err(format!("{url} says that it is '{}'", said.issuer));
        }
        let keys_url = over_tls(&said.jwks_uri)?;
        let keys = IssuerKeys::parse(&get(&caller, keys_url.as_str()).await?);
        let methods = &said.token_endpoint_auth_methods_supported;
        Ok(Provider {
            authorization_endpoint: over_tls(&said.authorization_endpoint)?,
            token_endpoint: over_tls(&said.token_endpoint)?,
            keys: keys.map_err(|error| format!("{keys_url} has unexpected content: {error}"))?,
            sends_secret_in_form: !methods.is_empty() && !methods.iter().any(|method| method == BASIC),
            names_issuer: said.authorization_response_iss_parameter_supported,
            caller,
        })
    }

    /// The identity token for a code.
    async fn exchange(
        &self,
        record: &OidcRecord,
        secret: Option<&str>,
        attempt: &Attempt,
        code: &str,
    ) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Tokens {
            id_token: String,
        }
        let url = self.token_endpoint.as_str();
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &attempt.redirect_uri),
            ("code_verifier", &attempt.verifier),
        ];
        let mut request = self.caller.request(Method::POST, url).map_err(|error| error.to_string())?;
        match secret {
            Some(secret) if !self.sends_secret_in_form => {
                // RFC 6749, 2.3.1.
                request = request.basic_auth(encoded(&record.client_id), Some(encoded(secret)));
            }
            Some(secret) => fields.extend([("client_id", &record.client_id[..]), ("client_secret", secret)]),
            None => fields.push(("client_id", &record.client_id)),
        }
        let body = Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body);
        let answer = send(&self.caller, request).await?;
        if answer.status != StatusCode::OK {
            return Err(format!("{url} is answered with {}{}", answer.status, error_code(&answer.body)));
        }
        parsed::<Tokens>(url, &answer.body).map(|tokens| tokens.id_token)
    }
}

/// Returns the provider's code of a failure, if it has the standard's form (RFC 6749, 5.2).
fn error_code(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Failure {
        error: String,
    }
    let is_fit =
        |code: &String| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let failure = serde_json::from_slice::<Failure>(body).ok().map(|failure| failure.error).filter(is_fit);
    failure.map(|code| format!(" ({code})")).unwrap_or_default()
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// An address that the provider names. Networks that are named for operators are called over TLS, too.
fn over_tls(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| url.scheme() == "https" && url.username().is_empty());
    url.ok_or_else(|| format!("the provider names '{text}', which is no https:// address"))
}

async fn get(caller: &Caller, url: &str) -> Result<Vec<u8>, String> {
    let request = caller.request(Method::GET, url).map_err(|error| error.to_string())?;
    let answer = send(caller, request).await?;
    match answer.status {
        StatusCode::OK => Ok(answer.body),
        status => Err(format!("{url} is answered with {status}")),
    }
}

async fn send(caller: &Caller, request: RequestBuilder) -> Result<Answer, String> {
    caller.send(request.header(ACCEPT, "application/json")).await.map_err(|error| error.to_string())
}

fn parsed<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("{url} has unexpected content: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_a_provider_names_are_over_tls() {
        assert!(over_tls("https://login.example/token?a=b").is_ok());
        for wrong in ["http://127.0.0.1/token", "https://user@login.example/", "javascript:alert(1)", "/token", ""]
        {
            assert!(over_tls(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_provider_says_of_a_failure_is_a_code_or_nothing() {
        assert_eq!(error_code(br#"{"error":"invalid_grant","error_description":"secret"}"#), " (invalid_grant)");
        for odd in [&br#"{"error":"a\nline"}"#[..], br#"{"error":7}"#, b"<html>", b""] {
            assert_eq!(error_code(odd), "");
        }
    }
}
