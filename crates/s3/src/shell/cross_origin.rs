//! Cross-origin resource sharing where requests pass: the headers by which a browser lets a script read an answer,
//! on errors, too, and the answers to preflights, which are never signed.

use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Version, header};
use s3s::host::{S3Host, SingleDomain};
use s3s::path::check_bucket_name;
use s3s::{S3Error, S3Result, s3_error};

use crate::cors;
use crate::error::{GatewayError, custom_error};
use crate::form_upload::Address;
use crate::gateway::Gateway;

/// Returns the headers by which a browser lets a script read the answer to a request. Only requests of a script's
/// name its origin; the others have nothing looked up for them.
pub(super) async fn answer_headers(gateway: &Gateway, request: &Parts) -> Result<HeaderMap, GatewayError> {
    if !request.headers.contains_key(header::ORIGIN) {
        return Ok(HeaderMap::new());
    }
    let Some(bucket) = bucket_name(gateway.config.domain.as_deref(), request) else { return Ok(HeaderMap::new()) };
    match gateway.service.buckets.get(&bucket).await {
        Ok(bucket) => Ok(cors::answer_headers(&bucket.record.cors, &request.method, &request.headers)),
        Err(GatewayError::NoSuchBucket(_)) => Ok(HeaderMap::new()),
        Err(error) => {
            tracing::debug!(bucket, %error, "the CORS rules of a bucket cannot be looked up");
            Err(error)
        }
    }
}

/// Checks if a browser may send the request that a preflight announces, by the result of [`answer_headers`]. An
/// unsigned caller learns no more than the rules: not if a bucket without rules exists.
pub(super) fn check_preflight(request: &Parts, found: &Result<HeaderMap, GatewayError>) -> S3Result<()> {
    for name in [header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD] {
        if !request.headers.contains_key(&name) {
            return Err(insufficient(&name));
        }
    }
    match found {
        Ok(headers) if headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) => Ok(()),
        Ok(_) => Err(custom_error(
            "AccessForbidden",
            StatusCode::FORBIDDEN,
            "CORSResponse: This CORS request is not allowed: no CORS rule of the bucket fits its Origin, \
             Access-Control-Request-Method and Access-Control-Request-Headers; the bucket's owner can set rules \
             with PutBucketCors",
        )),
        Err(_) => {
            Err(s3_error!(ServiceUnavailable, "The CORS rules of the bucket cannot be looked up; retry later"))
        }
    }
}

fn insufficient(name: &header::HeaderName) -> S3Error {
    let message = format!("Insufficient information. {name} request header needed.");
    custom_error("BadRequest", StatusCode::BAD_REQUEST, message)
}

/// The bucket of a request as s3s will find it, or none. Names need no decoding, so a path that is
/// encoded otherwise gets no headers rather than those of another bucket.
fn bucket_name(domain: Option<&str>, request: &Parts) -> Option<String> {
    bucket_and_key(domain, request).map(|(bucket, _)| bucket)
}

/// Where a form is sent, in the same way.
pub(super) fn form_address(domain: Option<&str>, request: &Parts, is_encrypted: bool) -> Option<Address> {
    let (bucket, key) = bucket_and_key(domain, request)?;
    let path = request.uri.path();
    let path = path[..path.len() - key.len()].trim_end_matches('/');
    let scheme = if is_encrypted { "https" } else { "http" };
    let url = format!("{scheme}://{}{path}/", request_host(request).unwrap_or_default());
    Some(Address { bucket, key: key.to_owned(), url })
}

fn bucket_and_key<'a>(domain: Option<&str>, request: &'a Parts) -> Option<(String, &'a str)> {
    let path = request.uri.path().strip_prefix('/').unwrap_or_default();
    let in_host = || {
        let host = SingleDomain::new(domain?).ok()?;
        let name = request_host(request).filter(|name| !is_address(name))?;
        Some((host.parse_host_header(name).ok()?.bucket()?.to_owned(), path))
    };
    let (in_path, key) = path.split_once('/').unwrap_or((path, ""));
    let found = in_host().unwrap_or_else(|| (in_path.to_owned(), key));
    Some(found).filter(|(name, _)| check_bucket_name(name))
}

fn request_host(request: &Parts) -> Option<&str> {
    let authority =
        || request.uri.authority().filter(|_| request.version >= Version::HTTP_2).map(Authority::as_str);
    request.headers.get(header::HOST).and_then(|host| host.to_str().ok()).or_else(authority)
}

fn is_address(host: &str) -> bool {
    host.parse::<std::net::SocketAddr>().is_ok() || host.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn found(domain: Option<&str>, host: &str, uri: &str) -> Option<String> {
        let request = Request::builder().uri(uri).header(header::HOST, host).body(()).unwrap();
        bucket_name(domain, &request.into_parts().0)
    }

    #[test]
    fn buckets_are_in_hosts_and_paths() {
        let domain = Some("s3.example.com:9000");
        for (domain, host, uri, bucket) in [
            (None, "a.example.com", "/one/key", Some("one")),
            (None, "a.example.com", "/one?cors", Some("one")),
            (None, "a.example.com", "/", None),
            (None, "a.example.com", "//one/key", None),
            (None, "a.example.com", "/one%2Ftwo/key", None),
            (None, "a.example.com", "/-/health", None),
            (domain, "s3.example.com:9000", "/one/key", Some("one")),
            (domain, "two.s3.example.com:9000", "/one/key", Some("two")),
            (domain, "three.example.org", "/one/key", Some("three.example.org")),
            (domain, "127.0.0.1:9000", "/one/key", Some("one")),
            (domain, "[::1]:9000", "/one/key", Some("one")),
            (domain, "_.s3.example.com:9000", "/one/key", None),
        ] {
            assert_eq!(found(domain, host, uri).as_deref(), bucket, "{host}{uri} with {domain:?}");
        }
        let address = |host: &str, uri: &str, is_encrypted| {
            let request = Request::post(uri).header(header::HOST, host).body(()).unwrap();
            let address = form_address(domain, &request.into_parts().0, is_encrypted).unwrap();
            (address.bucket, address.key, address.url)
        };
        for (host, uri, is_encrypted, bucket, key, url) in [
            ("127.0.0.1:9000", "/one", false, "one", "", "http://127.0.0.1:9000/one/"),
            ("127.0.0.1:9000", "/one/", true, "one", "", "https://127.0.0.1:9000/one/"),
            ("127.0.0.1:9000", "/one/k/l", true, "one", "k/l", "https://127.0.0.1:9000/one/"),
            ("two.s3.example.com:9000", "/?x", true, "two", "", "https://two.s3.example.com:9000/"),
        ] {
            assert_eq!(address(host, uri, is_encrypted), (bucket.into(), key.into(), url.into()), "{host}{uri}");
        }
        let mut request = Request::get("https://two.s3.example.com:9000/key").body(()).unwrap();
        *request.version_mut() = Version::HTTP_2;
        assert_eq!(bucket_name(domain, &request.into_parts().0).as_deref(), Some("two"));
    }
}
