//! The console: pages, scripts and styles, which are part of the program.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use include_dir::{Dir, File, include_dir};

use crate::shared::Shared;

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/assets");
const START_PAGE: &str = "index.html";

/// Nothing from elsewhere, nothing inline, in no frame, and nothing is sent elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (STRICT_TRANSPORT_SECURITY, "max-age=31536000"),
    // Asked for each time, and not sent again if it is the same.
    (CACHE_CONTROL, "no-cache"),
];

pub(crate) fn routes() -> Router<Arc<Shared>> {
    let start = |headers: HeaderMap| async move { file(START_PAGE, &headers) };
    let other = |Path(path): Path<String>, headers: HeaderMap| async move { file(&path, &headers) };
    Router::new().route("/", get(start)).route("/{*path}", get(other))
}

fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.get_file(path) else {
        return (StatusCode::NOT_FOUND, "there is no such page\n").into_response();
    };
    let etag = etag(file);
    let is_known = headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, content_type(path))], file.contents()).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
}

fn etag(file: &File<'_>) -> String {
    let digest = atoll_keys::sha256(file.contents());
    format!("\"{}\"", hex::encode(&digest[..16]))
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(directory: &'static Dir<'static>) -> Vec<&'static File<'static>> {
        directory.files().chain(directory.dirs().flat_map(all)).collect()
    }

    #[test]
    fn every_file_has_a_type_and_nothing_that_the_policy_forbids() {
        let files = all(&FILES);
        assert!(files.len() > 30);
        for file in files {
            let path = file.path().to_str().unwrap();
            assert_ne!(content_type(path), "application/octet-stream", "{path}");
            let text = file.contents_utf8().unwrap();
            for forbidden in
                ["innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "style=\"", "onclick=\"", "http://"]
            {
                let is_name_space = forbidden == "http://" && text.contains("http://www.w3.org/");
                assert!(is_name_space || !text.contains(forbidden), "{path} has {forbidden}");
            }
        }
    }

    #[test]
    fn the_start_page_is_there_and_is_not_sent_twice() {
        let first = file(START_PAGE, &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CONTENT_SECURITY_POLICY], POLICY);
        let known = HeaderMap::from_iter([(IF_NONE_MATCH, first.headers()[ETAG].clone())]);
        assert_eq!(file(START_PAGE, &known).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(file("../Cargo.toml", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
