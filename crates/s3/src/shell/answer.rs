//! Corrections of the answers of s3s.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_keys::random_u64;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use s3s::{Body, S3Error, S3ErrorCode};

use super::refused::Suspicion;

/// The header with a request's id.
pub(crate) const REQUEST_ID: &str = "x-amz-request-id";
/// The end of an error's document.
const ERROR_END: &[u8] = b"</Error>";

/// Returns the answer for an error, with its [`Suspicion`] if it has one.
pub(super) fn error_response(error: S3Error) -> Response<Body> {
    let suspicion = Suspicion::of_code(error.code().as_str());
    let mut response = error.to_http_response().unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    if let Some(suspicion) = suspicion {
        response.extensions_mut().insert(suspicion);
    }
    response
}

/// The answer as S3 would give it, to a HEAD or to GetObjectAttributes if it is one of these.
pub(super) async fn put_right(
    mut response: Response<Body>,
    is_head: bool,
    is_of_attributes: bool,
) -> Response<Body> {
    // hyper leaves the body of a refusal out by itself over HTTP/1 only.
    if is_head {
        *response.body_mut() = Body::empty();
    }
    if is_of_attributes && response.status() == StatusCode::OK {
        response = with_bare_etag(response).await;
    }
    if response.status() == StatusCode::NOT_MODIFIED {
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(header::CONTENT_TYPE);
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    // Some answers have it in their document already.
    if response.headers().contains_key(REQUEST_ID) {
        return response;
    }
    let id = request_id();
    tell_request_id(&mut response, &id);
    response.headers_mut().insert(REQUEST_ID, HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("0")));
    response
}

/// The same answer with the ETag as S3 has it in this one only: without quotes.
async fn with_bare_etag(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let Ok(text) = body.collect().await.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()) else {
        return error_response(S3Error::new(S3ErrorCode::InternalError));
    };
    let text = text.replace("<ETag>&quot;", "<ETag>").replace("<ETag>\"", "<ETag>");
    let text = text.replace("&quot;</ETag>", "</ETag>").replace("\"</ETag>", "</ETag>");
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(text))
}

/// Puts the id of its request into an error, where clients look for it.
fn tell_request_id(response: &mut Response<Body>, id: &str) {
    add_element(response, "RequestId", id);
}

/// Puts an element into an error.
pub(super) fn add_element(response: &mut Response<Body>, name: &str, text: &str) {
    if response.status().is_success() {
        return;
    }
    let Some(document) = response.body().bytes() else { return };
    let Some(before) = document.strip_suffix(ERROR_END) else { return };
    // Of the characters that mean something in XML, names of headers can have this one.
    let text = text.replace('&', "&amp;");
    let told = [before, format!("<{name}>{text}</{name}>").as_bytes(), ERROR_END].concat();
    *response.body_mut() = Body::from(told);
    response.headers_mut().remove(header::CONTENT_LENGTH);
}

/// Unique enough to find a request in a log.
pub(crate) fn request_id() -> String {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(random_u64()));
    format!("{:016X}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_the_id_of_their_request() {
        let told = |status: StatusCode, text: &str| {
            let mut response = Response::new(Body::from(text.to_owned()));
            *response.status_mut() = status;
            tell_request_id(&mut response, "7");
            String::from_utf8(response.body().bytes().unwrap().to_vec()).unwrap()
        };
        let error = "<Error><Code>NoSuchKey</Code></Error>";
        let with_id = "<Error><Code>NoSuchKey</Code><RequestId>7</RequestId></Error>";
        assert_eq!(told(StatusCode::NOT_FOUND, error), with_id);
        assert_eq!(told(StatusCode::OK, error), error, "an object may say anything");
        assert_eq!(
            told(StatusCode::SERVICE_UNAVAILABLE, "the cluster does not answer\n"),
            "the cluster does not answer\n"
        );
    }
}
