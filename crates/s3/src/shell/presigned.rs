//! Presigned URLs: their checks before s3s verifies their signature.

use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use s3s::{S3Error, S3Result, s3_error};

use crate::authentication::Mechanism;
use crate::error::custom_error;
use crate::known_requests::is_common_query;
use crate::query::{Marks, parameters};
use crate::signature_v2;

/// Seconds for which a presigned request may be valid: a week.
const EXPIRES_SECONDS_MAX: i64 = 604_800;

/// Refuses a presigned URL that is valid for too long, or was never. When it ended, s3s knows.
pub(super) fn check_expiry(marks: &Marks) -> S3Result<()> {
    match marks.expires_seconds.filter(|_| marks.is_presigned) {
        Some(..0) => Err(s3_error!(AccessDenied, "Request has expired")),
        Some(seconds) if seconds > EXPIRES_SECONDS_MAX => Err(custom_error(
            "AuthorizationQueryParametersError",
            StatusCode::BAD_REQUEST,
            format!("X-Amz-Expires must be less than a week (in seconds); that is, {EXPIRES_SECONDS_MAX}"),
        )),
        _ => Ok(()),
    }
}

/// A presigned URL may have `x-amz-` headers as parameters, which its signature covers: they count like
/// headers.
pub(super) fn take_presigned_headers(parts: &mut Parts, mechanism: Mechanism) -> Result<(), S3Error> {
    let is_of_version_2 = match mechanism {
        Mechanism::Query => false,
        Mechanism::QueryOfVersion2 => true,
        _ => return Ok(()),
    };
    for parameter in parameters(&parts.uri) {
        let name = parameter.name.to_ascii_lowercase();
        // Version 2 signs them as headers; version 4 where they stand, and the others are looked at there.
        let is_header = match is_of_version_2 {
            true => name.starts_with("x-amz-") || signature_v2::HEADERS.contains(&&*name),
            false => name.starts_with("x-amz-") && !is_common_query(&parameter.name),
        };
        if !is_header {
            continue;
        }
        let value = parameter.value();
        let malformed = || s3_error!(InvalidArgument, "The query parameter {name} is malformed");
        let header = HeaderName::try_from(&name).map_err(|_| malformed())?;
        let value = HeaderValue::try_from(&*value).map_err(|_| malformed())?;
        match parts.headers.get(&header) {
            Some(found) if *found != value => {
                return Err(s3_error!(InvalidArgument, "{name} differs between the URL and the headers"));
            }
            _ => drop(parts.headers.insert(header, value)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Request};

    use super::*;
    use crate::authentication::Claim;

    const SIGNATURE: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/s3/aws4_request&X-Amz-Date=1&\
         X-Amz-Expires=60&X-Amz-SignedHeaders=host&X%2DAmz-Signature=0";
    const SIGNATURE_OF_VERSION_2: &str = "AWSAccessKeyId=k&Expires=1&Signature=s";

    #[test]
    fn headers_of_presigned_urls_count() {
        let taken = |query: &str, header: Option<&str>| {
            let mut request = Request::builder().uri(format!("/b/k?{query}"));
            if let Some(value) = header {
                request = request.header("x-amz-acl", value);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let claim = Claim::of(&HeaderMap::new(), &parts.uri).unwrap();
            take_presigned_headers(&mut parts, claim.authentication.mechanism).map(|()| parts.headers)
        };
        let presigned = format!("{SIGNATURE}&x-amz-acl=public-read&x-amz-meta-a=b%20c");
        let headers = taken(&presigned, None).unwrap();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["x-amz-acl"], "public-read");
        assert_eq!(headers["x-amz-meta-a"], "b c");
        let encoded = taken(&format!("{SIGNATURE}&x-amz%2Dmeta-a=b=c%3D"), None).unwrap();
        assert_eq!(encoded["x-amz-meta-a"], "b=c=");
        assert!(taken(&presigned, Some("public-read")).is_ok());
        assert!(taken(&presigned, Some("private")).is_err());
        assert!(taken(&format!("{SIGNATURE}&x-amz-acl=a%0Ab"), None).is_err());
        assert!(taken("x-amz-acl=public-read", None).unwrap().is_empty(), "nobody signed it");
        let of_2 = format!("{SIGNATURE_OF_VERSION_2}&x-amz-security-token=t&content-type=text%2Fplain");
        let headers = taken(&of_2, None).unwrap();
        assert_eq!(headers["x-amz-security-token"], "t");
        assert_eq!(headers["content-type"], "text/plain");
    }

    #[test]
    fn a_week_is_the_longest_validity() {
        let code = |query: &str| {
            let checked = check_expiry(&Marks::of(&format!("/b/k?{query}").parse().unwrap()));
            checked.err().map(|error| error.code().as_str().to_owned())
        };
        let of_seconds = |seconds: &str| code(&format!("X-Amz-Expires={seconds}&X-Amz-Signature=0"));
        assert_eq!(of_seconds("604800"), None);
        assert_eq!(of_seconds("604801").as_deref(), Some("AuthorizationQueryParametersError"));
        assert_eq!(of_seconds("99999999999").as_deref(), Some("AuthorizationQueryParametersError"));
        assert_eq!(of_seconds("0"), None);
        assert_eq!(of_seconds("-1").as_deref(), Some("AccessDenied"));
        assert_eq!(of_seconds("soon"), None, "s3s refuses it");
        assert_eq!(code("X-Amz-Expires=-1"), None, "nobody signed it");
    }
}
