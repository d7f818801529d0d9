//! Calls within bounds.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Certificate, Client, ClientBuilder, Method, RequestBuilder, Response, StatusCode, Url, redirect};
use tokio::sync::Semaphore;

use crate::resolver::{Lookup, Resolver, system};
use crate::{Chooser, Refusal, Rules};

/// Connections that nothing uses are closed so soon, so that one that has become forbidden does not live on.
const IDLE: Duration = Duration::from_secs(30);

/// Bounds of calls, and whom they believe.
#[derive(Clone, Debug)]
pub struct CallerSettings {
    /// Origin of the addresses.
    pub chooser: Chooser,
    /// Time of a call: resolving, connecting, asking and reading the answer.
    pub time: Duration,
    /// Part of it for connecting.
    pub connect_time: Duration,
    /// Largest body of an answer.
    pub answer_bytes_max: usize,
    /// Calls at once; others wait, within their time.
    pub at_once: usize,
    /// Certificates of the authorities to believe, in place of the system's.
    pub authorities: Option<Vec<Certificate>>,
}

impl CallerSettings {
    /// 10 s, 1 MiB, 16 at once, the system's authorities.
    #[must_use]
    pub fn of(chooser: Chooser) -> Self {
        CallerSettings {
            chooser,
            time: Duration::from_secs(10),
            connect_time: Duration::from_secs(5),
            answer_bytes_max: 1 << 20,
            at_once: 16,
            authorities: None,
        }
    }
}

/// Why a call has no answer. It may disclose much about the target: log it, and return none of it to strangers.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// The text is not a URL.
    #[error("'{url}' is no URL: {detail}")]
    Url {
        /// The text.
        url: String,
        /// The reason.
        detail: String,
    },
    /// It may not be called.
    #[error("{url} is not called: {refusal}")]
    Refused {
        /// Where the call would have gone, without a query.
        url: String,
        /// Why not.
        refusal: Refusal,
    },
    /// The request cannot be made.
    #[error("the request cannot be made: {0}")]
    Request(String),
    /// There is no connection, or no answer of HTTP.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The answer has not come in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// The answer is too long.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    /// Its status. A redirect is an answer like others.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Vec<u8>,
}

/// Calls addresses that others have chosen.
pub struct Caller {
    guard: Arc<Guard>,
    settings: CallerSettings,
    lookup: Lookup,
    /// Made at the first call: a host may have no certificates of authorities, and need none.
    over_tls: OnceLock<Client>,
    in_clear: OnceLock<Client>,
    places: Semaphore,
}

/// Rules that hold for all calls of one caller.
pub(crate) struct Guard {
    chooser: Chooser,
    /// In place of those of the cluster.
    fixed: Option<Rules>,
}

impl Guard {
    pub fn rules(&self) -> Rules {
        self.fixed.clone().unwrap_or_else(|| Rules::of(self.chooser))
    }
}

impl Caller {
    /// Makes a caller, which asks for its networks at each call, so that a setting holds at once.
    #[must_use]
    pub fn new(settings: CallerSettings) -> Self {
        let guard = Guard { chooser: settings.chooser, fixed: None };
        Self::with(settings, guard, system())
    }

    /// A caller with rules of its own.
    #[must_use]
    pub fn with_rules(settings: CallerSettings, rules: Rules) -> Self {
        let guard = Guard { chooser: rules.chooser, fixed: Some(rules) };
        Self::with(settings, guard, system())
    }

    pub(crate) fn with(settings: CallerSettings, guard: Guard, lookup: Lookup) -> Self {
        let places = Semaphore::new(settings.at_once.max(1));
        let (over_tls, in_clear) = (OnceLock::new(), OnceLock::new());
        Caller { guard: Arc::new(guard), settings, lookup, over_tls, in_clear, places }
    }

    /// Returns a request to a URL; headers and a body can be added.
    pub fn request(&self, method: Method, url: &str) -> Result<RequestBuilder, OutgoingError> {
        let parsed = Url::parse(url);
        let url = parsed.map_err(|error| OutgoingError::Url {
            url: url.chars().take(200).collect(),
            detail: error.to_string(),
        })?;
        Ok(self.client(&url)?.request(method, url))
    }

    /// Sends a request, if it may go to its address, and reads the answer.
    pub async fn send(&self, request: RequestBuilder) -> Result<Answer, OutgoingError> {
        let request = request.build().map_err(|error| OutgoingError::Request(causes(&error)))?;
        // What was made with another client is checked here, too.
        let client = self.client(request.url())?;
        let url = shown(request.url());
        let call = async {
            let _place = self.places.acquire().await.expect("places are never closed");
            let answer = client.execute(request).await.map_err(|error| failed(&url, &error))?;
            read(answer, self.settings.answer_bytes_max).await
        };
        let answer = tokio::time::timeout(self.settings.time, call).await;
        answer.unwrap_or(Err(OutgoingError::Late(self.settings.time)))
    }

    /// The client for a URL, if it may be called.
    fn client(&self, url: &Url) -> Result<&Client, OutgoingError> {
        let checked = self.guard.rules().check_url(url);
        checked.map_err(|refusal| OutgoingError::Refused { url: shown(url), refusal })?;
        let is_plain = url.scheme() == "http";
        let place = if is_plain { &self.in_clear } else { &self.over_tls };
        match place.get() {
            Some(client) => Ok(client),
            None => {
                let made = self.make(is_plain).map_err(|error| OutgoingError::Request(causes(&error)))?;
                Ok(place.get_or_init(|| made))
            }
        }
    }

    fn make(&self, is_plain: bool) -> Result<Client, reqwest::Error> {
        let resolver = Resolver { guard: Arc::clone(&self.guard), lookup: Arc::clone(&self.lookup), is_plain };
        let builder = bounded(&self.settings).https_only(!is_plain).dns_resolver(Arc::new(resolver));
        let authorities = match is_plain {
            true => Some(Vec::new()),
            false => self.settings.authorities.clone(),
        };
        match authorities {
            Some(authorities) => builder.tls_certs_only(authorities).build(),
            None => builder.build(),
        }
    }
}

fn bounded(settings: &CallerSettings) -> ClientBuilder {
    Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(settings.connect_time)
        .timeout(settings.time)
        .pool_idle_timeout(IDLE)
}

async fn read(mut answer: Response, bytes_max: usize) -> Result<Answer, OutgoingError> {
    let (status, headers, mut body) = (answer.status(), answer.headers().clone(), Vec::new());
    while let Some(piece) = answer.chunk().await.map_err(|error| OutgoingError::NoAnswer(causes(&error)))? {
        if body.len() + piece.len() > bytes_max {
            return Err(OutgoingError::TooLong(bytes_max));
        }
        body.extend_from_slice(&piece);
    }
    Ok(Answer { status, headers, body })
}

/// Returns the URL without its possibly secret parts.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Neither fails for a URL that has a host, and one without is refused.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

fn failed(url: &str, error: &reqwest::Error) -> OutgoingError {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return OutgoingError::Refused { url: url.to_owned(), refusal: refusal.clone() };
        }
        cause = inner.source();
    }
    OutgoingError::NoAnswer(causes(error))
}

/// Returns the causes of an error: reqwest's own text names only the URL.
fn causes(error: &reqwest::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        texts.push(inner.to_string());
        cause = inner.source();
    }
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}

#[cfg(test)]
mod tests;
