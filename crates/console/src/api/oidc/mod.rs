//! Log-ins by OpenID Connect: the authorization code flow with PKCE (S256), state and nonce.
//!
//! A stranger gets the same answer whatever has failed; the log has the cause.

mod attempt;
mod logins;
mod person;
mod provider;
mod recent;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_admin::{AdminError, login_oidc};
use atoll_audit::{AuditLog, Stranger};
use atoll_cluster::ClusterClient;
use atoll_coordinator::unix_ms;
use atoll_keys::KeyRing;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::login_oidc::OidcRecord;
use axum::extract::{Extension, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, LOCATION, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::time::Instant;

use super::login;
use super::parts::{AUDIT_SOURCE, cookie_of, decoded_query};
use super::session_keeping::{self, Beginning};
use crate::cluster_state::absent_if_refused;
use crate::peer::Peer;
use crate::shared::Shared;
use atoll_outgoing::Url;
use attempt::{Attempt, LIFETIME_SECONDS};
pub(crate) use logins::OidcLogins;
use person::Person;

/// The prefix keeps it from other hosts of the domain and from plain HTTP.
const COOKIE_NAME: &str = "__Host-atoll_oidc";
const BEGIN_PATH: &str = "/session/oidc";
const CALLBACK_PATH: &str = "/session/oidc/callback";
/// A failure is not answered sooner.
const FAILED_AFTER: Duration = Duration::from_secs(1);
const STATE_LIMIT: Duration = Duration::from_secs(4);
const CODE_BYTES_MAX: usize = 4_096;
const SHOWN_CHARACTERS_MAX: usize = 64;
const NO_PROVIDER: &str = "there is no provider ('atoll operator oidc set')";
/// Stands for the unknown user of a failed log-in. No operator's name has a colon.
const SOMEBODY: &str = "oidc:";
const FAILED_PAGE: &str = "<!doctype html><html lang=\"en\"><title>Log-in failed - Atoll</title>\
    <h1>The log-in failed</h1><p>The log of the admin server has the cause.</p>\
    <p><a href=\"/\">Back to the console</a></p></html>\n";
const PAGE_HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
];

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/session/methods", get(methods))
        .route(BEGIN_PATH, get(begin))
        .route(CALLBACK_PATH, get(finish))
}

/// Why a log-in has failed.
enum Failure {
    /// The cause is for the log.
    Refused(String),
    /// There were too many of this address, or of all.
    TooMany { seconds: u64 },
    /// The audit log takes no lines.
    Unaudited,
}

impl From<String> for Failure {
    fn from(cause: String) -> Self {
        Failure::Refused(cause)
    }
}

impl From<&str> for Failure {
    fn from(cause: &str) -> Self {
        Failure::Refused(cause.to_owned())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, retry_after) = match self {
            Failure::Refused(_) => (StatusCode::FORBIDDEN, None),
            Failure::TooMany { seconds } => (StatusCode::TOO_MANY_REQUESTS, Some(seconds)),
            Failure::Unaudited => (StatusCode::SERVICE_UNAVAILABLE, None),
        };
        let mut response = (status, Html(FAILED_PAGE)).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn guarded(mut response: Response) -> Response {
    for (name, value) in PAGE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns the methods of logging in, for the page before a log-in.
async fn methods(State(shared): State<Arc<Shared>>) -> Response {
    // While cluster state is away nobody can log in; the page says so then.
    let (has_passwords, provider) = shared.oidc.recent.get(&shared.state).await.unwrap_or((true, None));
    guarded(Json(json!({ "password": has_passwords, "oidc": provider.is_some() })).into_response())
}

/// Parameters that the provider has sent with the browser.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| &value[..])
    }
}

/// One request of a log-in.
struct Request {
    shared: Arc<Shared>,
    peer: Option<Peer>,
    uri: Uri,
    headers: HeaderMap,
}

async fn begin(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let request = Request { shared, peer: peer.map(|peer| peer.0), uri, headers };
    let begun = Instant::now();
    let response = match request.begin().await {
        Ok(response) => response,
        Err(failure) => request.refuse(failure, begun).await,
    };
    guarded(response)
}

async fn finish(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let request = Request { shared, peer: peer.map(|peer| peer.0), uri, headers };
    let (begun, mut person) = (Instant::now(), None);
    let is_refusing = request.shared.audit.as_ref().is_some_and(AuditLog::is_refusing);
    let finished = if is_refusing { Err(Failure::Unaudited) } else { request.finish(&mut person).await };
    let mut response = match finished {
        Ok(response) => response,
        Err(failure) => request.refuse(failure, begun).await,
    };
    // Good once, whatever has come of it.
    if let Ok(gone) = HeaderValue::from_str(&cookie("", 0)) {
        response.headers_mut().append(SET_COOKIE, gone);
    }
    request.audit(person.as_ref(), response.status());
    guarded(response)
}

fn cookie(value: &str, max_age_seconds: u64) -> String {
    // The provider sends the browser back from another site, so it is Lax.
    format!("{COOKIE_NAME}={value}; Path=/; HttpOnly; Secure; SameSite=Lax; Max-Age={max_age_seconds}")
}

/// A text of a stranger, for the log.
fn shown(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(SHOWN_CHARACTERS_MAX).collect()
}

fn see_other(location: &str) -> Result<Response, Failure> {
    let location = HeaderValue::from_str(location).map_err(|error| error.to_string())?;
    Ok((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response())
}

impl Request {
    fn address(&self) -> IpAddr {
        self.peer.as_ref().map_or(IpAddr::from([0; 4]), |peer| peer.address.ip())
    }

    async fn record(&self) -> Result<OidcRecord, Failure> {
        let read = |client: ClusterClient| async move {
            absent_if_refused(login_oidc::find(&client).await.map_err(AdminError::from))
        };
        let found = self.shared.state.read(STATE_LIMIT, read).await;
        let found = found.map_err(|error| format!("the provider's record cannot be read: {error}"))?;
        Ok(found.ok_or(NO_PROVIDER)?.0)
    }

    /// Sends the browser to the provider.
    async fn begin(&self) -> Result<Response, Failure> {
        let _turn = self.shared.login_turns.begin(self.address()).ok_or(Failure::TooMany { seconds: 1 })?;
        let (_, record) = self.shared.oidc.recent.get(&self.shared.state).await?;
        let record = record.ok_or(NO_PROVIDER)?;
        let console = self.console(&record)?;
        let provider = self.shared.oidc.provider.get(&record).await?;
        let attempt = Attempt::new(&record.id, format!("{console}{CALLBACK_PATH}"), unix_ms());
        let mut url = provider.authorization_endpoint.clone();
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &record.client_id)
            .append_pair("redirect_uri", &attempt.redirect_uri)
            .append_pair("scope", &record.scopes)
            .append_pair("state", &attempt.state)
            .append_pair("nonce", &attempt.nonce)
            .append_pair("code_challenge", &attempt.challenge())
            .append_pair("code_challenge_method", "S256");
        let mut response = see_other(url.as_str())?;
        let kept = cookie(&self.shared.oidc.attempts.seal(&attempt), LIFETIME_SECONDS);
        let kept = HeaderValue::from_str(&kept).map_err(|error| error.to_string())?;
        response.headers_mut().append(SET_COOKIE, kept);
        Ok(response)
    }

    /// The address of this console in the record. The browser says which it has asked, and can choose no other.
    fn console(&self, record: &OidcRecord) -> Result<String, Failure> {
        let of_header = || self.headers.get(HOST).and_then(|host| host.to_str().ok());
        let authority = self.uri.authority().map(axum::http::uri::Authority::as_str).or_else(of_header);
        let authority = authority.unwrap_or_default();
        let origin = Url::parse(&format!("https://{authority}")).map(|url| url.origin().ascii_serialization());
        match origin.ok().filter(|origin| record.console_urls.contains(origin)) {
            Some(origin) => Ok(origin),
            None => Err(format!("'{}' is at none of the addresses of --console-url", shown(authority)).into()),
        }
    }

    /// Begins a session for the person in the provider's answer.
    async fn finish(&self, person: &mut Option<Person>) -> Result<Response, Failure> {
        let (shared, address) = (&self.shared, self.address());
        if let Some(seconds) = shared.sessions.pause_seconds(SOMEBODY, address) {
            return Err(Failure::TooMany { seconds });
        }
        // Held until the answer, so that who tries many is no faster.
        let _turn = shared.login_turns.begin(address).ok_or(Failure::TooMany { seconds: 1 })?;
        let given = Parameters(decoded_query(self.uri.query()));
        let kept = cookie_of(&self.headers, COOKIE_NAME).ok_or("the browser has begun no log-in here")?;
        let attempt = shared.oidc.attempts.take(kept, given.get("state").unwrap_or_default(), unix_ms())?;
        let redeemed = self.redeem(&attempt, &given, person).await;
        match &redeemed {
            Err(Failure::Refused(cause)) => {
                shared.sessions.failed(SOMEBODY, address);
                tracing::warn!(%address, cause, "a log-in by OpenID Connect has failed");
            }
            _ => shared.sessions.succeeded(SOMEBODY, address),
        }
        redeemed
    }

    async fn redeem(
        &self,
        attempt: &Attempt,
        given: &Parameters,
        person: &mut Option<Person>,
    ) -> Result<Response, Failure> {
        let shared = &self.shared;
        let record = self.record().await?;
        if record.id != attempt.record || self.console(&record)? + CALLBACK_PATH != attempt.redirect_uri {
            return Err(
                "the provider's record, or the address of the console, is another than at the beginning".into()
            );
        }
        if let Some(error) = given.get("error") {
            return Err(format!("the provider refuses: {}", shown(error)).into());
        }
        let provider = shared.oidc.provider.get(&record).await?;
        match given.get("iss") {
            Some(issuer) if issuer != record.issuer => return Err("the answer is of another issuer".into()),
            None if provider.names_issuer => return Err("the answer does not name its issuer".into()),
            _ => {}
        }
        let code = given.get("code").filter(|code| !code.is_empty() && code.len() <= CODE_BYTES_MAX);
        let code = code.ok_or("the answer has no code")?;
        // Also without a secret: who has no key service cannot tell whether the record is genuine.
        let keys = KeyRing::open(&shared.directory.key_service_file());
        let keys =
            keys.map_err(|error| format!("it needs the key service; use the console of another host: {error}"))?;
        let secret = login_oidc::open_secret(&keys, &record).await.map_err(|error| error.to_string())?;
        let redeemed = shared.oidc.provider.redeem(&record, secret.as_deref(), attempt, code, unix_ms());
        let found = person.insert(Person::of(&redeemed.await?, &record)?);
        if record.roles_of(&found.identity.groups).is_none() {
            return Err(format!("{} ({}) is in no group with a role", found.user, found.identity.subject).into());
        }
        self.let_in(found, record).await
    }

    async fn let_in(&self, person: &Person, record: OidcRecord) -> Result<Response, Failure> {
        let address = self.address().to_string();
        let beginning = Beginning::by_provider(&person.user, person.identity.clone(), record, address.clone());
        let begun = session_keeping::begin(&self.shared, beginning).await;
        let (token, session) = begun.map_err(|refusal| refusal.message().to_owned())?;
        self.peer.iter().for_each(Peer::log_in);
        tracing::info!(
            subject = person.identity.subject,
            session = session.id,
            "{} has logged in to the console from {address} by OpenID Connect",
            person.user
        );
        let kept = login::cookie(&token, None).map_err(|refusal| refusal.message().to_owned())?;
        // Nobody can have the browser sent elsewhere.
        let mut response = see_other("/")?;
        response.headers_mut().append(SET_COOKIE, kept);
        Ok(response)
    }

    /// The answer to a failure, the same for all causes and not before a second.
    async fn refuse(&self, failure: Failure, begun: Instant) -> Response {
        if let Failure::Refused(cause) = &failure {
            let detail = format!("a log-in to the console by OpenID Connect: {cause}");
            note(SecurityEvent::BadToken, self.address(), detail);
            tokio::time::sleep_until(begun + FAILED_AFTER).await;
        }
        failure.into_response()
    }

    fn audit(&self, person: Option<&Person>, status: StatusCode) {
        let Some(log) = self.shared.audit.as_ref() else { return };
        let address = self.peer.as_ref().map(|peer| peer.address.ip());
        let record = json!({
            "source": AUDIT_SOURCE,
            "time_unix_ms": unix_ms(),
            "user": person.map(|person| &person.user),
            "subject": person.map(|person| &person.identity.subject),
            "client": address.map(|address| address.to_string()),
            "method": "GET",
            "path": CALLBACK_PATH,
            "status": status.as_u16(),
        });
        match person.filter(|_| status == StatusCode::SEE_OTHER) {
            Some(_) => log.add(&record),
            None => {
                log.add_of_stranger(Stranger { address, is_refused: status != StatusCode::SEE_OTHER }, &record)
            }
        }
    }
}
