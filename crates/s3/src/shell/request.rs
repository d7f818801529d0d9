//! One request: what is refused before s3s sees it, and what is answered beside it.

use std::sync::Arc;
use std::time::Duration;

use atoll_metrics::current_span::within;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::ObjectName;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{Body, S3Error, S3ErrorCode, StdError, s3_error};

use super::answer::{REQUEST_ID, put_right};
use super::arrival::{Arrival, Origin};
use super::cross_origin;
use super::document::Document;
use super::guarded_body::GuardedBody;
use super::measured_body::MeasuredBody;
use super::presigned::{check_expiry, take_presigned_headers};
use super::unsigned_chunks;
use crate::form_upload::{self, is_form};
use crate::gateway::Gateway;
use crate::names::index_object;
use crate::observed::Observed;
use crate::query::Marks;
use crate::query_api::{self, Answered, is_query};
use crate::signing::signing_time;

const AMZ_DATE: &str = "x-amz-date";
const HEALTH_PATH: &str = "/-/health";
/// What metrics call it.
const HEALTH_OPERATION: &str = "Health";
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// For `ATOLL_LOG=...,access=debug`: a line for each request.
const ACCESS_LOG: &str = "access";
/// Header lines that a request may have; clients send about twenty, and metadata.
const HEADER_LINES_MAX: usize = 128;

/// Says in the log who has tried credentials that do not hold.
fn note_refusal(response: &Response<Body>, arrival: &Arrival) {
    if response.status() != StatusCode::FORBIDDEN {
        return;
    }
    let Some(document) = response.body().bytes() else { return };
    let has = |code: &S3ErrorCode| {
        let tag = format!("<Code>{}</Code>", code.as_str());
        document.windows(tag.len()).any(|window| window == tag.as_bytes())
    };
    let client = arrival.client.map_or_else(|| "an unknown peer".into(), |address| address.to_string());
    if has(&S3ErrorCode::SignatureDoesNotMatch) {
        note(
            SecurityEvent::BadSignature,
            client,
            "a request is signed with another secret than that of its access key",
        );
    } else if has(&S3ErrorCode::InvalidAccessKeyId) {
        note(SecurityEvent::UnknownAccessKey, client, "there is no such access key");
    }
}

/// Answers one request, and measures it.
pub(super) async fn answer(
    gateway: &Gateway,
    origin: Origin,
    mut request: Request<Incoming>,
) -> Response<MeasuredBody<Body>> {
    let observed = Observed::begin(gateway.config.audit.clone());
    request.extensions_mut().insert(Arc::clone(&observed));
    let response = match observed.may_be_traced(request.headers()) {
        false => answer_unmeasured(gateway, origin, request, &observed).await,
        true => {
            let answer = answer_unmeasured(gateway, origin, request, &observed);
            Box::pin(within(|| observed.traced(), answer)).await
        }
    };
    observed.is_answered_with(response.status().as_u16());
    if let Some(id) = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()) {
        observed.has_request_id(id);
    }
    response.map(|body| MeasuredBody::new(body, observed))
}

async fn answer_unmeasured(
    gateway: &Gateway,
    origin: Origin,
    mut request: Request<Incoming>,
    observed: &Arc<Observed>,
) -> Response<Body> {
    let arrival = origin.arrival(request.headers(), &gateway.trusted_proxies);
    request.extensions_mut().insert(arrival);
    observed.is_of(&request, arrival);
    let line = tracing::enabled!(target: ACCESS_LOG, tracing::Level::DEBUG)
        .then(|| format!("{} {} {:?}", request.method(), request.uri().path(), request.version()));
    let is_http_1 = request.version() < Version::HTTP_2;
    let marks = Marks::of(request.uri());
    let refusal = refuse(gateway, &request, &marks);
    let (mut parts, body) = request.into_parts();
    if let Some(date) = date_of_signature(&parts.headers) {
        parts.headers.insert(AMZ_DATE, date);
    }
    let refusal = refusal.or_else(|| take_presigned_headers(&mut parts, &marks).err());
    let cors = cross_origin::answer_headers(gateway, &parts).await;
    let is_chunked = is_aws_chunked(&parts.headers);
    let is_signed = marks.is_presigned || parts.headers.contains_key(header::AUTHORIZATION);
    let expects_continue = parts.headers.contains_key(header::EXPECT);
    let has_no_body = body.is_end_stream();
    let is_head = parts.method == Method::HEAD;
    let is_of_attributes = marks.is_of_attributes && parts.method == Method::GET;
    let (body, unread) = GuardedBody::new(
        body,
        is_chunked && is_signed,
        expects_continue,
        gateway.config.stall_timeout,
        Arc::clone(observed),
    );
    let mut response = match refusal {
        Some(error) => {
            drop(body);
            error_response(error)
        }
        None if parts.uri.path() == HEALTH_PATH => {
            observed.is_of_operation(HEALTH_OPERATION);
            health(gateway, &parts.method).await
        }
        None if parts.method == Method::OPTIONS => match cross_origin::check_preflight(&parts, &cors) {
            Ok(()) => Response::new(Body::empty()),
            Err(error) => error_response(error),
        },
        None if is_form(&parts.method, &parts.headers) => upload_form(gateway, arrival, parts, body).await,
        None if is_query(&parts) => call_query_api(gateway, parts, body).await,
        None if is_chunked && !is_signed => match unsigned_chunks::decoded(&mut parts, body) {
            Ok(body) => call_operation(gateway, parts, body).await,
            Err(error) => error_response(error),
        },
        None if [Method::PUT, Method::POST].contains(&parts.method) => call_operation(gateway, parts, body).await,
        None => call_s3s(gateway, Request::from_parts(parts, Body::http_body_unsync(body))).await,
    };
    // A client would use the connection again. The rest of a body blocks it; and botocore, which asks
    // for "100 Continue" for an empty body, too, and gets none, reads the next answer wrongly.
    // HTTP/2 ends the stream alone.
    if is_http_1 && (unread.is_some_left() || expects_continue && has_no_body) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    note_refusal(&response, &arrival);
    response = put_right(response, is_head, is_of_attributes).await;
    response.headers_mut().extend(cors.unwrap_or_default());
    response.headers_mut().insert(header::SERVER, HeaderValue::from_static("Atoll"));
    if let Some(line) = line {
        let client = arrival.client.map_or_else(|| "unknown".into(), |address| address.to_string());
        let status = response.status().as_u16();
        tracing::debug!(target: ACCESS_LOG, %client, is_encrypted = arrival.is_encrypted, status, "{line}");
    }
    response
}

/// s3s never sees a form: it would collect all of it in memory before it looks at its signature.
async fn upload_form(gateway: &Gateway, arrival: Arrival, parts: Parts, body: GuardedBody) -> Response<Body> {
    let address = cross_origin::form_address(gateway.config.domain.as_deref(), &parts, arrival.is_encrypted);
    let body = Body::http_body_unsync(body);
    form_upload::upload(gateway, parts, address, body).await.unwrap_or_else(error_response)
}

/// IAM and STS; what is neither goes on to s3s.
async fn call_query_api(gateway: &Gateway, parts: Parts, body: GuardedBody) -> Response<Body> {
    match query_api::answer(gateway, &parts, Body::http_body_unsync(body)).await {
        Answered::Here(response) => response,
        Answered::NotHere(body) => call_s3s(gateway, Request::from_parts(parts, Body::from(body))).await,
    }
}

/// With a body that may be a document.
async fn call_operation<B>(gateway: &Gateway, mut parts: Parts, body: B) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError>,
{
    let document = Document::default();
    parts.extensions.insert(document.clone());
    let budget = gateway.service.budget_of(&parts.extensions);
    let body = Body::http_body_unsync(document.watch(body, budget));
    let response = call_s3s(gateway, Request::from_parts(parts, body)).await;
    document.failure().map_or(response, error_response)
}

async fn call_s3s(gateway: &Gateway, request: Request<Body>) -> Response<Body> {
    gateway.s3.call(request).await.unwrap_or_else(|error| {
        tracing::error!(?error, "s3s could not make an answer");
        error_response(S3Error::new(S3ErrorCode::InternalError))
    })
}

/// The time of a signature that covers `Date` in place of `x-amz-date`, as s3s looks for it.
fn date_of_signature(headers: &HeaderMap) -> Option<HeaderValue> {
    let authorization = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, signed) = authorization.split_once("SignedHeaders=")?;
    let mut signed = signed.split(',').next()?.split(';');
    if headers.contains_key(AMZ_DATE) || !signed.any(|name| name == "date") {
        return None;
    }
    let date = headers.get(header::DATE)?.to_str().ok()?;
    // As mail has it, and botocore, too.
    let date = date.strip_suffix("-0000").map_or_else(|| date.to_owned(), |time| format!("{time}GMT"));
    let time = signing_time(&Timestamp::parse(TimestampFormat::HttpDate, &date).ok()?)?;
    HeaderValue::from_str(&time).ok()
}

pub(super) fn error_response(error: S3Error) -> Response<Body> {
    error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

/// Whether a request's body is in aws-chunked framing, perhaps with trailers.
pub(crate) fn is_aws_chunked(headers: &HeaderMap) -> bool {
    let sha256 = headers.get("x-amz-content-sha256");
    sha256.is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-"))
}

fn refuse(gateway: &Gateway, request: &Request<Incoming>, marks: &Marks) -> Option<S3Error> {
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes > gateway.config.header_bytes_max || headers.len() > HEADER_LINES_MAX {
        let mut error = s3_error!(
            RequestHeaderSectionTooLarge,
            "Your request header section exceeds the maximum allowed: {} bytes in {HEADER_LINES_MAX} lines",
            gateway.config.header_bytes_max
        );
        error.set_status_code(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        return Some(error);
    }
    // A preflight asks before anything is signed, and its URL may be one that is presigned.
    if request.method() == Method::OPTIONS {
        return None;
    }
    // Version 2 signatures rest on HMAC-SHA1 and do not cover the body.
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    if authorization.is_empty() && headers.contains_key(header::AUTHORIZATION) {
        return Some(s3_error!(AccessDenied, "Signature is required"));
    }
    if authorization.starts_with(b"AWS ") || marks.is_of_version_2 {
        return Some(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
    check_expiry(marks).err()
}

/// 200 if cluster state and the pool of new buckets answer.
async fn health(gateway: &Gateway, method: &Method) -> Response<Body> {
    if method != Method::GET && method != Method::HEAD {
        return error_response(s3_error!(MethodNotAllowed));
    }
    let mut response = match tokio::time::timeout(HEALTH_TIMEOUT, probe(gateway)).await {
        Ok(Ok(())) => Response::new(Body::from("ok\n".to_owned())),
        Ok(Err(detail)) => unhealthy(detail),
        Err(_) => unhealthy("the cluster did not answer in time".into()),
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn unhealthy(detail: String) -> Response<Body> {
    let mut response = Response::new(Body::from(detail + "\n"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

async fn probe(gateway: &Gateway) -> Result<(), String> {
    let service = &gateway.service;
    // Without cluster state objects are served all the same, so it is not asked.
    // Any object will do: that it does not exist is an answer, too.
    let object: ObjectName = index_object("health-probe", 0);
    let stat = service.store.send_read(service.pool, object, atoll_types::ReadRequest::Stat).await;
    match stat {
        Err(error) if !error.is_no_such_object() => Err(error.to_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_date_serves_in_place_of_amz_date() {
        let found = |signed: &str, date: &str| {
            let authorization = format!("AWS4-HMAC-SHA256 Credential=x, SignedHeaders={signed}, Signature=y");
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
            headers.insert(header::DATE, date.parse().unwrap());
            date_of_signature(&headers)
        };
        assert_eq!(found("date;host", "Tue, 24 Nov 2026 08:09:10 GMT").unwrap(), "20261124T080910Z");
        assert_eq!(found("date;host", "Tue, 24 Nov 2026 08:09:10 -0000").unwrap(), "20261124T080910Z");
        assert_eq!(found("host", "Tue, 24 Nov 2026 08:09:10 GMT"), None, "not signed");
        assert_eq!(found("date;host", "yesterday"), None);
    }
}
