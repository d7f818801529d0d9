//! One request: refusals before s3s sees it, and answers beside it.

use std::sync::Arc;
use std::time::Duration;

use atoll_audit::AuditLog;
use atoll_metrics::current_span::within;
use atoll_security_log::{SecurityEvent, note};
use atoll_types::ObjectName;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use hyper::body::{Body as _, Incoming};
use s3s::{Body, S3Error, S3ErrorCode, StdError, s3_error};

use super::admission::{HEALTH_PATH, admit, why_closed};
use super::answer::{REQUEST_ID, add_element, error_response, put_right};
use super::client_keys::Whose;
use super::cross_origin;
use super::document::Document;
use super::guarded_body::GuardedBody;
use super::measured_body::MeasuredBody;
use super::refused::{Refused, Suspicion};
use super::unsigned_chunks;
use crate::arrival::Arrival;
use crate::asked::{asked_from, take_changes};
use crate::authentication::Authentication;
use crate::form_upload::{self, is_form};
use crate::gateway::Gateway;
use crate::names::index_object;
use crate::observed::Observed;
use crate::query::Marks;
use crate::query_api::{self, Answered, is_query};
use crate::trailers::is_aws_chunked;

/// Name of [`HEALTH_PATH`] in metrics.
const HEALTH_OPERATION: &str = "Health";
/// Identities that are unconfirmed for less are nothing to speak of.
const NOTABLE: Duration = Duration::from_secs(6);
const VERSION_ID: &str = "x-amz-version-id";
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
const NOT_SIGNED: &str = "There were headers present in the request which were not signed";
/// The element of an error that names the unsigned headers.
const HEADERS_NOT_SIGNED: &str = "HeadersNotSigned";
/// For `ATOLL_LOG=...,access=debug`: a line for each request.
const ACCESS_LOG: &str = "access";

/// Logs refused credentials, and refusals for want of an audit log.
fn note_refusal(gateway: &Gateway, response: &Response<Body>, arrival: &Arrival) {
    let client = || arrival.client.map_or_else(|| "an unknown peer".into(), |address| address.to_string());
    if response.status() == StatusCode::SERVICE_UNAVAILABLE
        && gateway.config.audit.as_ref().is_some_and(AuditLog::is_refusing)
    {
        note(SecurityEvent::Unaudited, client(), "a request is refused, for the audit log takes no lines");
    }
    if response.status() != StatusCode::FORBIDDEN {
        return;
    }
    if let Some(Suspicion { event, detail }) = response.extensions().get() {
        note(*event, client(), detail);
    }
}

/// Answers one request, and measures it.
pub(super) async fn answer(
    gateway: &Gateway,
    whose: Whose,
    mut request: Request<Incoming>,
) -> Response<MeasuredBody<Body>> {
    let (origin, place, keys) = whose;
    keys.look_at(request.headers(), is_form(request.method(), request.headers()));
    let observed = Observed::begin(gateway.config.audit.clone(), Some(place));
    request.extensions_mut().insert(Arc::clone(&observed));
    let arrival = origin.arrival(request.headers(), &gateway.trusted_proxies);
    let is_traced = observed.may_be_traced(request.headers());
    let client = arrival.client.map(|client| client.ip());
    let answer = asked_from(client, answer_unmeasured(gateway, arrival, request, &observed));
    let response = match is_traced {
        false => answer.await,
        true => Box::pin(within(|| observed.traced(), answer)).await,
    };
    observed.set_status(response.status().as_u16());
    if let Some(id) = response.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok()) {
        observed.set_request_id(id);
    }
    if let Some(id) = response.headers().get(VERSION_ID).and_then(|id| id.to_str().ok()) {
        observed.set_version(id);
    }
    response.map(|body| MeasuredBody::new(body, observed))
}

async fn answer_unmeasured(
    gateway: &Gateway,
    arrival: Arrival,
    mut request: Request<Incoming>,
    observed: &Arc<Observed>,
) -> Response<Body> {
    request.extensions_mut().insert(arrival);
    observed.set_request(&request, arrival);
    let line = tracing::enabled!(target: ACCESS_LOG, tracing::Level::DEBUG)
        .then(|| format!("{} {} {:?}", request.method(), request.uri().path(), request.version()));
    let is_http_1 = request.version() < Version::HTTP_2;
    let marks = Marks::of(request.uri());
    let (mut parts, body) = request.into_parts();
    let admitted = admit(gateway, &mut parts, &marks);
    // A presigned URL may name it, too.
    observed.copies_from(&parts.headers);
    let cors = cross_origin::answer_headers(gateway, &parts).await;
    let is_chunked = is_aws_chunked(&parts.headers);
    let is_signed = admitted.as_ref().is_ok_and(Authentication::is_signed);
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
    let mut response = match admitted {
        Err(refused) => {
            drop(body);
            refusal_response(refused, &parts)
        }
        Ok(_) if parts.uri.path() == HEALTH_PATH => {
            observed.set_operation(HEALTH_OPERATION);
            health(gateway, &parts.method).await
        }
        Ok(_) if parts.method == Method::OPTIONS => match cross_origin::check_preflight(&parts, &cors) {
            Ok(()) => Response::new(Body::empty()),
            Err(error) => error_response(error),
        },
        Ok(_) if is_form(&parts.method, &parts.headers) => upload_form(gateway, arrival, parts, body).await,
        Ok(_) if is_query(&parts) => call_query_api(gateway, parts, body).await,
        Ok(_) if is_chunked && !is_signed => match unsigned_chunks::decoded(&mut parts, body) {
            Ok(body) => call_operation(gateway, parts, body).await,
            Err(error) => error_response(error),
        },
        Ok(_) if [Method::PUT, Method::POST].contains(&parts.method) => call_operation(gateway, parts, body).await,
        Ok(_) => call_s3s(gateway, Request::from_parts(parts, Body::http_body_unsync(body))).await,
    };
    observed.changes_settings(take_changes());
    // A client would use the connection again. The rest of a body blocks it; and botocore, which asks
    // for "100 Continue" for an empty body, too, and gets none, reads the next answer wrongly.
    // HTTP/2 ends the stream alone.
    if is_http_1 && (unread.is_some_left() || expects_continue && has_no_body) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    note_refusal(gateway, &response, &arrival);
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

/// Returns the refusal of a request, in the form of the API that it calls.
fn refusal_response(refused: Refused, parts: &Parts) -> Response<Body> {
    match refused {
        refused if is_query(parts) => query_api::refusal(refused),
        Refused::Malformed(error) => error_response(error),
        Refused::Unsigned(names) => {
            let mut response = error_response(s3_error!(AccessDenied, "{NOT_SIGNED}"));
            add_element(&mut response, HEADERS_NOT_SIGNED, &names.join(", "));
            response.extensions_mut().insert(Suspicion::UNSIGNED_HEADERS);
            response
        }
    }
}

/// s3s never sees a form: it would collect all of it in memory before it looks at its signature.
async fn upload_form(gateway: &Gateway, arrival: Arrival, parts: Parts, body: GuardedBody) -> Response<Body> {
    let address = cross_origin::form_address(gateway.config.domain.as_deref(), &parts, arrival.is_encrypted);
    let body = Body::http_body_unsync(body);
    form_upload::upload(gateway, parts, address, body).await.unwrap_or_else(error_response)
}

/// IAM and STS; other requests are passed to s3s.
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
    let mut response = gateway.s3.call(request).await.unwrap_or_else(|error| {
        tracing::error!(?error, "s3s could not make an answer");
        error_response(S3Error::new(S3ErrorCode::InternalError))
    });
    if response.status() == StatusCode::FORBIDDEN {
        let suspicion = response.body().bytes().and_then(|document| Suspicion::of_document(&document));
        if let Some(suspicion) = suspicion {
            response.extensions_mut().insert(suspicion);
        }
    }
    response
}

/// 200 if the pool of new buckets answers, and cluster state has confirmed identities lately enough for requests to be
/// served. The text says for how long it has not.
async fn health(gateway: &Gateway, method: &Method) -> Response<Body> {
    if method != Method::GET && method != Method::HEAD {
        return error_response(s3_error!(MethodNotAllowed));
    }
    let mut response = match tokio::time::timeout(HEALTH_TIMEOUT, probe(gateway)).await {
        Ok(Ok(unconfirmed_for)) if unconfirmed_for < NOTABLE => Response::new(Body::from("ok\n".to_owned())),
        Ok(Ok(unconfirmed_for)) => Response::new(Body::from(format!(
            "ok, but cluster state has not confirmed identities for {} s; requests are served for {} s\n",
            unconfirmed_for.as_secs(),
            gateway.config.identity_lifetime.as_secs()
        ))),
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

/// For how long identities are unconfirmed, if requests are served.
async fn probe(gateway: &Gateway) -> Result<Duration, String> {
    let service = &gateway.service;
    // Without cluster state objects are served for a while, so it is not asked.
    if let Some(why) = why_closed(gateway) {
        return Err(why);
    }
    // Any object will do: that it does not exist is an answer, too.
    let object: ObjectName = index_object("health-probe", 0);
    let stat = service.store.send_read(service.pool, object, atoll_types::ReadRequest::Stat).await;
    match stat {
        Err(error) if !error.is_no_such_object() => Err(error.to_string()),
        _ => Ok(service.directory.unconfirmed_for()),
    }
}
