//! The query APIs of AWS's IAM and STS: a signed form with an action in it, and XML as the answer.
//!
//! Taken before s3s, which knows neither the services nor their signatures. The actions of IAM are
//! operations of `atoll-iam`; those of STS, which give out temporary credentials, are here.

mod authentication;
mod conditions;
mod error;
mod form;
mod iam;
mod signature_v4;
mod sts;
mod xml;

use std::sync::Arc;

use atoll_iam::operations::Answer;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use s3s::Body;

use crate::gateway::Gateway;
use crate::observed::Observed;
use crate::shell::{REQUEST_ID, Refused, Suspicion, request_id};

use error::{BODY_BYTES_MAX, QueryError};
use form::Form;
pub(crate) use sts::Issuers;

/// An API and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    Iam,
    Sts,
}

impl Api {
    const ALL: [Api; 2] = [Api::Iam, Api::Sts];

    /// The service that requests are signed for.
    fn name(self) -> &'static str {
        match self {
            Api::Iam => "iam",
            Api::Sts => "sts",
        }
    }

    /// Returns the name of its requests in metrics: an action's name may be anything.
    fn operation(self) -> &'static str {
        match self {
            Api::Iam => "Iam",
            Api::Sts => "Sts",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Api::Iam => "2010-05-08",
            Api::Sts => "2011-06-15",
        }
    }
}

/// A request of either API.
struct QueryRequest<'a> {
    gateway: &'a Gateway,
    parts: &'a Parts,
    body: &'a [u8],
    form: Form,
}

impl QueryRequest<'_> {
    /// Notes something about the request, which is observed where a gateway serves it.
    fn observe(&self, note: impl FnOnce(&Observed)) {
        if let Some(observed) = self.parts.extensions.get::<Arc<Observed>>() {
            note(observed);
        }
    }
}

/// Result of a request.
pub(crate) enum Answered {
    /// The answer.
    Here(Response<Body>),
    /// It belongs to neither API. This is its body.
    NotHere(Bytes),
}

/// Returns true if a request can be one of these APIs, before its body is read.
pub(crate) fn is_query(parts: &Parts) -> bool {
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    parts.method == Method::POST
        && parts.uri.path() == "/"
        && parts.uri.query().is_none_or(str::is_empty)
        && kind.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

/// Answers a request that [`is_query`], if it names an action.
pub(crate) async fn answer(gateway: &Gateway, parts: &Parts, body: Body) -> Answered {
    let id = request_id();
    let body = match read(gateway, parts, body).await {
        Ok(body) => body,
        Err(error) => return Answered::Here(error_response(Api::Iam, &error, &id)),
    };
    let form = match Form::parse(&body) {
        Ok(Some(form)) => form,
        Ok(None) => return Answered::NotHere(body),
        Err(error) => return Answered::Here(error_response(Api::Iam, &error, &id)),
    };
    let Some(api) = Api::ALL.into_iter().find(|api| api.version() == form.version) else {
        let error = QueryError::InvalidAction { action: form.action, version: form.version };
        return Answered::Here(error_response(Api::Iam, &error, &id));
    };
    let request = QueryRequest { gateway, parts, body: &body, form };
    request.observe(|observed| observed.set_operation(api.operation()));
    let done = match api {
        Api::Iam => iam::perform(&request).await,
        Api::Sts => sts::perform(&request).await,
    };
    Answered::Here(match done {
        Ok(answer) => response(StatusCode::OK, xml::answer(api, &request.form.action, &answer, &id), &id),
        Err(error) => error_response(api, &error, &id),
    })
}

/// Returns the reason for refusing a request that [`is_query`].
pub(crate) fn refusal(refused: Refused) -> Response<Body> {
    let error = match refused {
        Refused::Unsigned(names) => QueryError::denied(format!(
            "There were headers present in the request which were not signed: {}",
            names.join(", ")
        )),
        Refused::Malformed(error) => {
            QueryError::IncompleteSignature(error.message().unwrap_or("The request cannot be read").to_owned())
        }
    };
    error_response(Api::Iam, &error, &request_id())
}

async fn read(gateway: &Gateway, parts: &Parts, body: Body) -> Result<Bytes, QueryError> {
    let bytes = body.size_hint().upper().unwrap_or(u64::MAX).min(BODY_BYTES_MAX as u64);
    let _share = gateway.service.budget_of(&parts.extensions).for_write(bytes).await?;
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(QueryError::RequestTooLarge),
        Err(error) => Err(QueryError::BrokenBody(error.to_string())),
    }
}

fn error_response(api: Api, error: &QueryError, id: &str) -> Response<Body> {
    if let QueryError::Internal(detail) = error {
        tracing::error!(api = api.name(), detail, "a request fails");
    }
    let mut response = response(error.status(), xml::error(api, error, id), id);
    if let Some(suspicion) = Suspicion::of_code(error.code()) {
        response.extensions_mut().insert(suspicion);
    }
    response
}

fn response(status: StatusCode, document: String, id: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(document));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"));
    let id = HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static("0"));
    response.headers_mut().insert("x-amzn-requestid", id.clone());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Answer of an action.
type Done = Result<Answer, QueryError>;

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn queries_are_told_from_other_requests() {
        let is = |method: Method, uri: &str, content_type: &str| {
            let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, content_type);
            is_query(&request.body(()).unwrap().into_parts().0)
        };
        let form = "application/x-www-form-urlencoded";
        assert!(is(Method::POST, "/", form));
        assert!(is(Method::POST, "/", "Application/X-WWW-Form-Urlencoded ; charset=utf-8"));
        assert!(is(Method::POST, "http://host:1/", form));
        assert!(!is(Method::GET, "/", form));
        assert!(!is(Method::POST, "/bucket", form));
        assert!(!is(Method::POST, "/?delete", form), "a client that sends what curl does");
        assert!(!is(Method::POST, "/", "multipart/form-data"));
        assert!(!is(Method::POST, "/", ""));
    }
}
