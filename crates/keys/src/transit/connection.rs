//! Calls to the service: each with a token, within a time, with retries where they can help.

use std::time::Duration;

use atoll_outgoing::{Caller, CallerSettings, Certificate, Chooser, Method, OutgoingError, StatusCode, Url};
use serde_json::Value;

use super::login::Login;
use crate::{KeyError, TransitSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// Answers are a few hundred bytes, or a list of keys.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const CALLS_MAX: usize = 256;

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// There is no key of that name.
    Missing,
    /// The token may not do this, or is none.
    Denied(String),
    /// Asking again changes nothing.
    Refused(String),
    /// Asking later may help.
    Unavailable(String),
}

pub(super) struct Connection {
    caller: Caller,
    base: String,
    namespace: Option<String>,
    login: Login,
    timeout: Duration,
}

impl Connection {
    pub(super) fn new(settings: &TransitSettings) -> Result<Self, KeyError> {
        let unusable = |detail: String| KeyError::Malformed {
            what: format!("the settings of the key service at {}", settings.address),
            detail,
        };
        let url = Url::parse(&settings.address).map_err(|error| unusable(error.to_string()))?;
        let is_loopback = matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback) {
            return Err(unusable("use https://: keys would travel in clear (http:// is for loopback)".into()));
        }
        let timeout = Duration::from_millis(settings.timeout_ms.max(1));
        // A file of this host names the service, and its calls are not few.
        let mut outgoing = CallerSettings {
            time: timeout,
            connect_time: CONNECT_TIMEOUT,
            answer_bytes_max: ANSWER_BYTES_MAX,
            at_once: CALLS_MAX,
            ..CallerSettings::of(Chooser::Host)
        };
        if let Some(path) = &settings.ca_file {
            let pem = std::fs::read(path).map_err(|error| KeyError::key_file(path, error))?;
            let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(error.to_string()))?;
            outgoing.authorities = Some(authorities);
        }
        Ok(Connection {
            caller: Caller::new(outgoing),
            base: format!("{}/v1", settings.address.trim_end_matches('/')),
            namespace: settings.namespace.clone(),
            login: Login::new(settings.login.clone()),
            timeout,
        })
    }

    /// One call, with a token.
    pub(super) async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        self.in_time(async {
            let token = self.login.token(self).await?;
            match self.send(method.clone(), path, body.as_ref(), Some(&token)).await {
                // The token may have been revoked, or replaced in its file.
                Err(Failure::Denied(_)) => {
                    self.login.forget(&token);
                    let token = self.login.token(self).await?;
                    self.send(method, path, body.as_ref(), Some(&token)).await
                }
                other => other,
            }
        })
        .await
    }

    /// Renews the token when half of its time is over.
    pub(super) async fn renew(&self) -> Result<(), Failure> {
        self.in_time(self.login.renew(self)).await
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Unavailable(format!("no answer within {} ms", self.timeout.as_millis()))),
        }
    }

    /// Sends until there is an answer that stays the same. The caller bounds the time.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        let mut pause = PAUSE_FIRST;
        for _ in 0..3 {
            match self.send_once(method.clone(), path, body, token).await {
                Err(Failure::Unavailable(_)) => {}
                other => return other,
            }
            tokio::time::sleep(pause).await;
            pause *= 4;
        }
        self.send_once(method, path, body, token).await
    }

    async fn send_once(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        let mut request = self.caller.request(method, &format!("{}/{path}", self.base)).map_err(failed)?;
        if let Some(token) = token {
            request = request.header("X-Vault-Token", token);
        }
        if let Some(namespace) = &self.namespace {
            request = request.header("X-Vault-Namespace", namespace);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = self.caller.send(request).await.map_err(failed)?;
        judge(answer.status, &answer.body)
    }
}

/// The meaning of an answer (Vault HTTP API, "HTTP status codes").
fn judge(status: StatusCode, bytes: &[u8]) -> Result<Value, Failure> {
    let said = || {
        let answer: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let errors = answer["errors"]
            .as_array()
            .map(|errors| errors.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; "));
        format!("{status}: {}", errors.filter(|text| !text.is_empty()).unwrap_or_else(|| "no reason given".into()))
    };
    match status.as_u16() {
        204 => Ok(Value::Null),
        200..300 => serde_json::from_slice(bytes)
            .map_err(|error| Failure::Unavailable(format!("its answer is not JSON ({error})"))),
        403 => Err(Failure::Denied(said())),
        404 => Err(Failure::Missing),
        // 412: a replica that has not seen a write yet. 429: a quota. 472, 473: a standby.
        412 | 429 | 472 | 473 | 500.. => Err(Failure::Unavailable(said())),
        _ => Err(Failure::Refused(said())),
    }
}

/// Asking later helps unless it may not be asked at all.
fn failed(error: OutgoingError) -> Failure {
    match error {
        OutgoingError::Url { .. } | OutgoingError::Refused { .. } | OutgoingError::Request(_) => {
            Failure::Refused(error.to_string())
        }
        OutgoingError::NoAnswer(_) | OutgoingError::Late(_) | OutgoingError::TooLong(_) => {
            Failure::Unavailable(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_classified_by_their_remedy() {
        let judge = |status: u16, text: &str| judge(StatusCode::from_u16(status).unwrap(), text.as_bytes());
        assert_eq!(judge(200, r#"{"data":1}"#).unwrap()["data"], 1);
        assert!(matches!(judge(204, ""), Ok(Value::Null)));
        assert!(matches!(judge(200, "<html>"), Err(Failure::Unavailable(_))));
        assert!(matches!(judge(404, r#"{"errors":[]}"#), Err(Failure::Missing)));
        assert!(
            matches!(judge(503, r#"{"errors":["Vault is sealed"]}"#), Err(Failure::Unavailable(text)) if text.contains("sealed"))
        );
        assert!(
            matches!(judge(403, r#"{"errors":["permission denied"]}"#), Err(Failure::Denied(text)) if text.contains("permission denied"))
        );
        assert!(matches!(judge(400, "garbage"), Err(Failure::Refused(_))));
    }
}
