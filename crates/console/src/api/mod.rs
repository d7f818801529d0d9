//! The admin API: its callers, parameters and calls. `openapi.json` says which calls there are.

mod approvals;
mod caller;
mod calls;
mod document;
mod login;
mod oidc;
mod operator_calls;
mod own_password;
mod own_totp;
mod parts;
mod password;
mod refusal;
mod session_keeping;
mod sessions;
mod told;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use atoll_audit::{AuditLog, Bounded, METHOD_BYTES_MAX, PATH_BYTES_MAX, Stranger, cut_fields};
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde_json::{Map, Value, json};

use crate::peer::Peer;
use crate::shared::Shared;
use atoll_admin::operators::NAME_BYTES_MAX;
use atoll_admin::sessions::id_of;
use atoll_connection_limits::LookUp;
use atoll_coordinator::unix_ms;
use atoll_security_log::{SecurityEvent, note};
use caller::Caller;
pub(crate) use document::Given;
pub use document::is_call_of_tokens;
use document::{Needs, Operation};
pub(crate) use oidc::OidcLogins;
pub use parts::AUDIT_SOURCE;
use parts::{COOKIE_NAME, OwnCall, cookie_of, decoded_query, own_call};
pub(crate) use refusal::Refusal;
use sessions::Session;
pub(crate) use sessions::Sessions;

/// Largest body of a call: policies are the longest that there are.
const BODY_BYTES_MAX: usize = 256 << 10;
const CSRF_HEADER: &str = "x-atoll-csrf";
/// Header of calls without a user at the page: the call is no use of the session.
const IDLE_HEADER: &str = "x-atoll-idle";

pub(crate) fn routes() -> Router<Arc<Shared>> {
    let document = || async { ([(CONTENT_TYPE, "application/json")], document::TEXT) };
    let api = Router::new().route("/api/openapi.json", get(document)).route("/api/v1/{*call}", any(call));
    api.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)).merge(oidc::routes())
}

async fn call(
    State(shared): State<Arc<Shared>>,
    peer: Option<Extension<Peer>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let (body, unread) =
        body.map_or_else(|error| (Bytes::new(), Some(Refusal::unread_body(&error))), |body| (body, None));
    let call = Call {
        shared,
        peer: peer.map(|peer| peer.0),
        method,
        uri,
        headers,
        body,
        user: OnceLock::new(),
        subject: OnceLock::new(),
        tried_user: OnceLock::new(),
        allowed: OnceLock::new(),
    };
    let answer = match unread {
        _ if call.is_unaudited() => Err(Refusal::unaudited()),
        Some(refusal) => Err(refusal),
        None => call.answer().await,
    };
    let mut response = answer.unwrap_or_else(Refusal::into_response);
    call.audit(response.status());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct Call {
    shared: Arc<Shared>,
    peer: Option<Peer>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// The authenticated user.
    user: OnceLock<String>,
    /// Id of that user at the OpenID Connect provider, whose names may change.
    subject: OnceLock<String>,
    /// The user name of an attempt to log in.
    tried_user: OnceLock<String>,
    /// The operation, once the call is allowed.
    allowed: OnceLock<&'static Operation>,
}

impl Call {
    /// Most calls that only look are not recorded: the console makes one every few seconds.
    fn is_recorded(&self) -> bool {
        self.method != Method::GET || {
            let found = document::find(self.method.as_str(), &decoded_parts(self.uri.path()));
            found.is_some_and(|(operation, _)| operation.is_audited)
        }
    }

    /// Returns true if it is to be refused, because its line could be neither written nor spooled.
    fn is_unaudited(&self) -> bool {
        let is_refusing = self.shared.audit.as_ref().is_some_and(AuditLog::is_refusing) && self.is_recorded();
        if let Some(peer) = self.peer.as_ref().filter(|_| is_refusing) {
            note(SecurityEvent::Unaudited, peer.address, "a call of the admin API is refused");
        }
        is_refusing
    }

    fn audit(&self, status: StatusCode) {
        // Who looks where it may not is recorded, too.
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let Some(log) = self.shared.audit.as_ref().filter(|_| is_denied || self.is_recorded()) else { return };
        let address = self.address();
        let method = Bounded::new(self.method.as_str(), METHOD_BYTES_MAX);
        let path = Bounded::new(self.uri.path(), PATH_BYTES_MAX);
        let mut record = json!({
            "source": AUDIT_SOURCE,
            "time_unix_ms": unix_ms(),
            "user": self.user.get().or(self.tried_user.get()),
            "client": address.map(|address| address.to_string()),
            "method": method,
            "path": path,
            "status": status.as_u16(),
        });
        if let Some(subject) = self.subject.get() {
            record["subject"] = json!(subject);
        }
        let cut = cut_fields(&[("method", method), ("path", path)]);
        if !cut.is_empty() {
            record["cut"] = json!(cut);
        }
        match self.user.get() {
            Some(_) if self.may_have_changed(status) => log.add_change(&record),
            Some(_) => log.add(&record),
            None => log.add_of_stranger(Stranger { address, is_refused: !status.is_success() }, &record),
        }
    }

    /// Returns true for an allowed change of more than its session that was not refused afterwards.
    fn may_have_changed(&self, status: StatusCode) -> bool {
        let is_change = self.allowed.get().is_some_and(|operation| operation.is_change());
        is_change && !status.is_client_error()
    }

    /// Checks the session first, then its protection from other sites, then the role, and only then the call's
    /// subject: a caller learns nothing that it may not see.
    async fn answer(&self) -> Result<Response, Refusal> {
        let parts = decoded_parts(self.uri.path());
        let found = document::find(self.method.as_str(), &parts);
        if found.as_ref().is_some_and(|(operation, _)| operation.needs == Needs::Nothing) {
            let body = self.body()?;
            let user = body.get("user").and_then(Value::as_str);
            if let Some(user) = user.filter(|user| user.len() <= NAME_BYTES_MAX) {
                let _ = self.tried_user.set(user.to_owned());
            }
            let answer = login::log_in(&self.shared, self.peer.as_ref(), self.csrf(), &body).await?;
            if let Some(user) = self.tried_user.get() {
                let _ = self.user.set(user.clone());
            }
            return Ok(answer);
        }
        let caller = self.caller().await?;
        let _ = self.user.set(caller.name());
        if let Some(identity) = caller.session().and_then(|session| session.record.oidc.as_ref()) {
            let _ = self.subject.set(identity.subject.clone());
        }
        self.peer.iter().for_each(Peer::log_in);
        let csrf_token = caller.session().map(|session| &session.record.csrf_token[..]);
        // No other site makes a browser send a token in a header.
        if self.method != Method::GET && csrf_token.is_some() && self.csrf() != csrf_token {
            return Err(Refusal::no_csrf());
        }
        let Some((operation, names)) = found else {
            return Err(Refusal::not_found("There is no such call.".into(), "See openapi.json."));
        };
        caller.check(operation)?;
        let given = Given { names, query: decoded_query(self.uri.query()), body: self.body()? };
        operation.check(&given)?;
        caller.check_fields(operation, &given)?;
        let _ = self.allowed.set(operation);
        match caller.session().and_then(|session| own_call(&operation.id).map(|own| (own, session))) {
            Some((own, session)) => self.perform_own(own, session, &given).await,
            None => self.perform(&caller, operation, given).await,
        }
    }

    /// Makes a call about the session itself.
    async fn perform_own(&self, own: OwnCall, session: &Session, given: &Given) -> Result<Response, Refusal> {
        let (shared, peer) = (&self.shared, self.peer.as_ref());
        if session.record.oidc.is_some() && !matches!(own, OwnCall::Show | OwnCall::End) {
            return Err(Refusal::no_password(&session.record.user));
        }
        match own {
            OwnCall::EnrolTotp => Ok(Json(own_totp::enrol(shared, peer, session, given).await?).into_response()),
            OwnCall::ConfirmTotp => {
                Ok(Json(own_totp::confirm(shared, peer, session, given).await?).into_response())
            }
            OwnCall::Show => Ok(Json(session.told()).into_response()),
            OwnCall::End => {
                session_keeping::end(shared, session).await?;
                Ok(login::ended())
            }
            OwnCall::ChangePassword => own_password::change(shared, peer, session, given).await,
        }
    }

    /// Makes a call that its caller may make.
    async fn perform(&self, caller: &Caller, operation: &Operation, given: Given) -> Result<Response, Refusal> {
        let shared = &self.shared;
        let document = match &operation.id[..] {
            "getFigures" => shared.figures.tell(shared, &given.query).await,
            "getPgScrub" => told::scrub(shared, &given).await?,
            "listEvents" => told::events(shared, &given).await?,
            "listSlowOperations" => told::slow_operations(shared, &given).await?,
            "listObjects" => told::objects(shared, &given, &caller.name()).await?,
            "approveRequest" => approvals::decide(shared, &given, &caller.name(), true).await?,
            "denyRequest" => approvals::decide(shared, &given, &caller.name(), false).await?,
            id => calls::perform(shared, id, given, caller).await?,
        };
        let status = StatusCode::from_u16(operation.status).unwrap_or(StatusCode::OK);
        Ok((status, Json(document)).into_response())
    }

    fn csrf(&self) -> Option<&str> {
        self.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok())
    }

    fn body(&self) -> Result<Map<String, Value>, Refusal> {
        if self.body.is_empty() {
            return Ok(Map::new());
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(fields)) => Ok(fields),
            Ok(_) => Err(Refusal::invalid("The body is no object.".into())),
            Err(error) => Err(Refusal::invalid(format!("The body is no JSON: {error}."))),
        }
    }

    /// The caller: the token in the header, or else the session of the cookie.
    async fn caller(&self) -> Result<Caller, Refusal> {
        match self.headers.get(AUTHORIZATION) {
            Some(value) => {
                let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
                let token = token.ok_or_else(Refusal::wrong_token)?;
                self.check_look_ups()?;
                let found = Caller::of_token(&self.shared, self.peer.as_ref(), token.trim()).await;
                found.inspect_err(|refusal| self.count_look_up(refusal))
            }
            None => {
                let found = self.session().await;
                found.map(|session| Caller::Session(Box::new(session)))
            }
        }
    }

    fn address(&self) -> Option<IpAddr> {
        self.peer.as_ref().map(|peer| peer.address.ip())
    }

    /// Refuses to look a token or a session up for an address that has made up too many: each costs cluster state a read.
    fn check_look_ups(&self) -> Result<(), Refusal> {
        match self.shared.look_ups.look("", self.address(), Instant::now()) {
            LookUp::TooMany => Err(Refusal::too_many_look_ups()),
            LookUp::Ask | LookUp::Missing => Ok(()),
        }
    }

    fn count_look_up(&self, refusal: &Refusal) {
        if refusal.is_of_nobody() {
            self.shared.look_ups.count(self.address(), Instant::now());
        }
    }

    /// The session whose token is in the cookie.
    async fn session(&self) -> Result<Session, Refusal> {
        let token = cookie_of(&self.headers, COOKIE_NAME).ok_or_else(Refusal::no_session)?;
        let is_idle = self.headers.get(IDLE_HEADER).is_some_and(|value| value.as_bytes() == b"true");
        // Operators who are logged in go on, whoever has their address.
        if self.shared.sessions.known(&id_of(token)).is_none() {
            self.check_look_ups()?;
        }
        let found = session_keeping::current(&self.shared, token, is_idle).await.ok_or_else(Refusal::no_session);
        found.inspect_err(|refusal| self.count_look_up(refusal))
    }
}

/// The parts of a path between its slashes. A name may have slashes, as `%2F`.
fn decoded_parts(path: &str) -> Vec<String> {
    path.trim_start_matches('/').split('/').map(decoded).collect()
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_decoded_once() {
        assert_eq!(decoded_parts("/api/v1/buckets/a%2Fb/objects"), ["api", "v1", "buckets", "a/b", "objects"]);
        assert_eq!(decoded_parts("/api/%252F"), ["api", "%2F"]);
        let query = decoded_query(Some("prefix=a%2Fb+c&kind=osd&kind=pool"));
        let expected = [("prefix", "a/b c"), ("kind", "osd"), ("kind", "pool")];
        assert_eq!(query, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
