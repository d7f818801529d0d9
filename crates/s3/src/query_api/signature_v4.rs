//! Signatures of version 4 in the header of a request, for any service. Source: "Create a signed AWS API
//! request". s3s verifies those for `s3`, and no others.

use atoll_keys::sha256;
use aws_lc_rs::hmac;
use http::request::Parts;
use http::{HeaderMap, header};

use super::error::QueryError;
use crate::signing::{Scope, is_signing_time, signing_key, signing_time_of};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const AMZ_DATE: &str = "x-amz-date";
const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// How far the clocks of clients may be off.
const SKEW_MS: u64 = 15 * 60 * 1_000;

/// The signature of a request, taken apart.
#[derive(Debug)]
pub(super) struct Signature<'a> {
    pub access_key: &'a str,
    pub scope: Scope<'a>,
    signed_headers: &'a str,
    /// In hexadecimal.
    signature: &'a str,
    /// Value of `x-amz-date`.
    time: &'a str,
}

fn incomplete<T>(text: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::IncompleteSignature(text.into()))
}

fn mismatch<T>(text: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::SignatureDoesNotMatch(text.into()))
}

impl<'a> Signature<'a> {
    /// Parses the headers of a request; the values are not checked yet.
    pub(super) fn find(headers: &'a HeaderMap) -> Result<Self, QueryError> {
        let mut lines = headers.get_all(header::AUTHORIZATION).into_iter();
        let line = match (lines.next(), lines.next()) {
            (None, _) => return Err(QueryError::MissingAuthenticationToken),
            (Some(line), None) => line.to_str().unwrap_or_default(),
            (Some(_), Some(_)) => return incomplete("There is more than one Authorization header."),
        };
        let Some(rest) = line.strip_prefix(ALGORITHM).filter(|rest| rest.starts_with([' ', '\t'])) else {
            return incomplete(format!("The Authorization header must begin with {ALGORITHM}."));
        };
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for part in rest.split(',').map(str::trim) {
            let place = match part.split_once('=') {
                Some(("Credential", value)) => (&mut credential, value),
                Some(("SignedHeaders", value)) => (&mut signed_headers, value),
                Some(("Signature", value)) => (&mut signature, value),
                _ => return incomplete("The Authorization header has a part that is not known."),
            };
            if place.0.replace(place.1).is_some() {
                return incomplete("The Authorization header has a part twice.");
            }
        }
        let (Some(credential), Some(signed_headers), Some(signature)) = (credential, signed_headers, signature)
        else {
            return incomplete("Authorization header requires 'Credential', 'SignedHeaders' and 'Signature'.");
        };
        let (access_key, scope) = scope(credential)?;
        let time = headers.get(AMZ_DATE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !is_signing_time(time) || headers.get_all(AMZ_DATE).into_iter().count() > 1 {
            return incomplete("Date must be in ISO-8601 'basic format', in one 'X-Amz-Date' header.");
        }
        let is_signed = |name: &str| signed_headers.split(';').any(|signed| signed == name);
        if !is_signed("host") || !is_signed(AMZ_DATE) {
            return incomplete("'host' and 'x-amz-date' must be 'SignedHeaders' in the AWS Authorization.");
        }
        Ok(Signature { access_key, scope, signed_headers, signature, time })
    }

    /// Makes sure that it is for this service, in one of these regions, and that it is of now.
    pub(super) fn check_scope(&self, service: &str, regions: &[&str], now_ms: u64) -> Result<(), QueryError> {
        let Scope { date, region, service: signed } = self.scope;
        if signed != service {
            return mismatch(format!("Credential should be scoped to correct service: '{service}'. "));
        }
        if !regions.contains(&region) {
            let all = regions.join("', '");
            return mismatch(format!(
                "Credential should be scoped to a valid region: '{all}', and not '{region}'. "
            ));
        }
        if self.time.get(..8) != Some(date) {
            return mismatch(format!("Date in Credential scope does not match that of '{}'. ", self.time));
        }
        // Texts of this form are ordered as the times are.
        let [earliest, now, latest] =
            [now_ms.saturating_sub(SKEW_MS), now_ms, now_ms + SKEW_MS].map(signing_time_of);
        let time = self.time;
        if *time < *earliest {
            return mismatch(format!(
                "Signature expired: {time} is now earlier than {earliest} ({now} - 15 min.)"
            ));
        }
        if *time > *latest {
            return mismatch(format!(
                "Signature not yet current: {time} is still later than {latest} ({now} + 15 min.)"
            ));
        }
        Ok(())
    }

    /// Checks that a holder of the secret has signed the request. Takes the same time for every wrong signature.
    pub(super) fn verify(&self, secret: &str, parts: &Parts, body: &[u8]) -> Result<(), QueryError> {
        let differs = || {
            QueryError::SignatureDoesNotMatch(
                "The request signature we calculated does not match the signature you provided. Check your AWS \
                 Secret Access Key and signing method. Consult the service documentation for details."
                    .into(),
            )
        };
        let body_hash = hex::encode(sha256(body));
        let told_hash = parts.headers.get(CONTENT_SHA256);
        if told_hash.is_some_and(|told| told.as_bytes() != body_hash.as_bytes()) {
            return Err(differs());
        }
        let canonical = self.canonical_request(parts, &body_hash)?;
        let Scope { date, region, service } = self.scope;
        let text = format!(
            "{ALGORITHM}\n{}\n{date}/{region}/{service}/aws4_request\n{}",
            self.time,
            hex::encode(sha256(canonical.as_bytes()))
        );
        let signature = hex::decode(self.signature).map_err(|_| differs())?;
        hmac::verify(&signing_key(secret, &self.scope), text.as_bytes(), &signature).map_err(|_| differs())
    }

    /// Requests of the query APIs have neither a path nor a query.
    fn canonical_request(&self, parts: &Parts, body_hash: &str) -> Result<String, QueryError> {
        let mut lines = String::new();
        for name in self.signed_headers.split(';') {
            let Some(value) = header_value(parts, name) else {
                return incomplete(format!("The signed header '{name}' is not in the request."));
            };
            lines.extend([name, ":", &value, "\n"]);
        }
        Ok(format!("{}\n/\n\n{lines}\n{}\n{body_hash}", parts.method, self.signed_headers))
    }
}

/// Access key and scope of `KEY/20261124/us-east-1/iam/aws4_request`.
fn scope(credential: &str) -> Result<(&str, Scope<'_>), QueryError> {
    // An access key may contain slashes.
    let parts: Vec<&str> = credential.rsplitn(5, '/').collect();
    match parts[..] {
        ["aws4_request", service, region, date, access_key] if !access_key.is_empty() => {
            Ok((access_key, Scope { date, region, service }))
        }
        _ => incomplete(format!(
            "Credential must be KEY/YYYYMMDD/REGION/SERVICE/aws4_request, and not '{credential}'."
        )),
    }
}

/// All lines of a header as signatures have them. In HTTP/2 the host is no header.
fn header_value(parts: &Parts, name: &str) -> Option<String> {
    let values: Vec<&str> =
        parts.headers.get_all(name).into_iter().map(|value| value.to_str().ok()).collect::<Option<_>>()?;
    if values.is_empty() {
        return if name == "host" { parts.uri.authority().map(|host| host.as_str().to_owned()) } else { None };
    }
    let trimmed = values.into_iter().map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "));
    Some(trimmed.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests;
