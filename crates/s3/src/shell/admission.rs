//! Checks of a request before anything else: the size of its headers, its signature, and that its signature covers
//! all headers that are read.

use atoll_audit::AuditLog;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Result, s3_error};

use super::presigned::{check_expiry, take_presigned_headers};
use super::refused::Refused;
use crate::authentication::{Authentication, Claim, Mechanism};
use crate::form_upload::is_form;
use crate::gateway::Gateway;
use crate::header_table;
use crate::query::Marks;
use crate::query_api::is_query;
use crate::signing::signing_time;

/// Path at which the gateway says if it serves requests.
pub(super) const HEALTH_PATH: &str = "/-/health";
const AMZ_DATE: &str = "x-amz-date";
/// Header lines that a request may have; clients send about twenty, and metadata.
const HEADER_LINES_MAX: usize = 128;

/// Lets a request in, with those of its headers that may be read, and with its [`Authentication`] as an extension.
pub(super) fn admit(gateway: &Gateway, parts: &mut Parts, marks: &Marks) -> Result<Authentication, Refused> {
    check_size(gateway, &parts.headers)?;
    if let Some(why) = why_closed(gateway).filter(|_| parts.uri.path() != HEALTH_PATH) {
        return Err(s3_error!(ServiceUnavailable, "{why}").into());
    }
    let claim = claim(gateway, parts, marks)?;
    header_table::admit(&mut parts.headers, &parts.uri, &claim).map_err(Refused::Unsigned)?;
    if let Some(date) = date_of_signature(&parts.headers, &claim) {
        parts.headers.insert(AMZ_DATE, date);
    }
    take_presigned_headers(parts, claim.authentication.mechanism)?;
    parts.extensions.insert(claim.authentication);
    Ok(claim.authentication)
}

/// Returns the reason for refusing all requests now: identities are not confirmed any more, or requests would
/// leave no line.
pub(super) fn why_closed(gateway: &Gateway) -> Option<String> {
    if gateway.config.audit.as_ref().is_some_and(AuditLog::is_refusing) {
        let why =
            "the audit log takes no lines, and this gateway refuses requests until it does (--audit-on-failure)";
        return Some(why.to_owned());
    }
    let (unconfirmed_for, lifetime) =
        (gateway.service.directory.unconfirmed_for(), gateway.config.identity_lifetime);
    (unconfirmed_for > lifetime).then(|| {
        format!(
            "cluster state has not confirmed rights for {} s, and they count for {} s \
             (--identity-lifetime-seconds): retry when cluster state answers",
            unconfirmed_for.as_secs(),
            lifetime.as_secs()
        )
    })
}

fn check_size(gateway: &Gateway, headers: &HeaderMap) -> S3Result<()> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if bytes <= gateway.config.header_bytes_max && headers.len() <= HEADER_LINES_MAX {
        return Ok(());
    }
    let mut error = s3_error!(
        RequestHeaderSectionTooLarge,
        "Your request header section exceeds the maximum allowed: {} bytes in {HEADER_LINES_MAX} lines",
        gateway.config.header_bytes_max
    );
    error.set_status_code(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    Err(error)
}

/// How a request says that it is signed.
fn claim(gateway: &Gateway, parts: &Parts, marks: &Marks) -> S3Result<Claim> {
    // A preflight asks before anything is signed, and its URL may be one that is presigned.
    if parts.method == Method::OPTIONS || parts.uri.path() == HEALTH_PATH {
        return Ok(Claim::default());
    }
    // A form says it in its fields, and refuses what is signed elsewhere, too.
    if is_form(&parts.method, &parts.headers) {
        return Ok(Claim::of_mechanism(Mechanism::Form));
    }
    let claim = Claim::of(&parts.headers, &parts.uri)?;
    if claim.authentication.is_of_version_2() && !gateway.config.allows_version_2 {
        return Err(s3_error!(
            InvalidRequest,
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
        ));
    }
    // The query APIs look at their own.
    if !is_query(parts) {
        claim.check_service()?;
    }
    check_expiry(marks)?;
    Ok(claim)
}

/// The time of a signature that covers `Date` in place of `x-amz-date`, as s3s looks for it.
fn date_of_signature(headers: &HeaderMap, claim: &Claim) -> Option<HeaderValue> {
    let is_of_header = claim.authentication.mechanism == Mechanism::Header;
    if !is_of_header || headers.contains_key(AMZ_DATE) || !claim.names(header::DATE.as_str()) {
        return None;
    }
    let date = headers.get(header::DATE)?.to_str().ok()?;
    // As mail has it, and botocore, too.
    let date = date.strip_suffix("-0000").map_or_else(|| date.to_owned(), |time| format!("{time}GMT"));
    let time = signing_time(&Timestamp::parse(TimestampFormat::HttpDate, &date).ok()?)?;
    HeaderValue::from_str(&time).ok()
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;

    #[test]
    fn a_signed_date_serves_in_place_of_amz_date() {
        let found = |signed: &str, date: &str| {
            let scope = "x/20261124/us-east-1/s3/aws4_request";
            let authorization =
                format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={signed}, Signature=y");
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
            headers.insert(header::DATE, date.parse().unwrap());
            let claim = Claim::of(&headers, &Uri::from_static("/b/k")).unwrap();
            date_of_signature(&headers, &claim)
        };
        assert_eq!(found("date;host", "Tue, 24 Nov 2026 08:09:10 GMT").unwrap(), "20261124T080910Z");
        assert_eq!(found("date;host", "Tue, 24 Nov 2026 08:09:10 -0000").unwrap(), "20261124T080910Z");
        assert_eq!(found("host", "Tue, 24 Nov 2026 08:09:10 GMT"), None, "not signed");
        assert_eq!(found("date;host", "yesterday"), None);
    }
}
