//! Authentication data of a request, and the headers that its signature covers. Read before anything else of a
//! request, so that s3s, the query APIs and forms judge by the same reading.

use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use s3s::{S3Error, S3Result, s3_error};

use crate::error::custom_error;
use crate::query::parameters;
use crate::signature_v2;
use crate::signing::unix_ms_of;

const AMZ_DATE: &str = "x-amz-date";
const CONTENT_SHA256: &str = "x-amz-content-sha256";
const VERSION_4: &str = "AWS4-HMAC-SHA256";
/// How a header with a signature of version 2 begins.
const VERSION_2_PREFIX: &[u8] = b"AWS ";
/// The service that signatures of S3 are for.
pub(crate) const SERVICE: &str = "s3";
/// Parameters of a URL that is presigned with version 4: each stands once, or the URL is not presigned.
const VERSION_4_QUERY: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];
/// Parameters that mark a presigned URL by themselves.
const VERSION_4_MARKS: [&str; 4] =
    ["X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders"];
const VERSION_2_MARKS: [&str; 2] = ["AWSAccessKeyId", "Signature"];

/// Place of the signature of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// None: the request is not signed.
    #[default]
    Anonymous,
    /// In the header `Authorization`, with version 4.
    Header,
    /// In the URL, with version 4.
    Query,
    /// In the URL, with version 2.
    QueryOfVersion2,
    /// In the fields of a form, with version 4.
    Form,
    /// In the fields of a form, with version 2.
    FormOfVersion2,
}

/// How a request is signed. Travels with it, as one of its extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Authentication {
    pub mechanism: Mechanism,
    /// When it was signed. Version 2 has no time.
    pub signed_unix_ms: Option<u64>,
    /// True if the scope of the signature names another service.
    pub is_of_other_service: bool,
}

impl Authentication {
    pub(crate) fn is_signed(&self) -> bool {
        self.mechanism != Mechanism::Anonymous
    }

    pub(crate) fn is_of_version_2(&self) -> bool {
        matches!(self.mechanism, Mechanism::QueryOfVersion2 | Mechanism::FormOfVersion2)
    }
}

/// Claims of a request before its signature is verified.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pub authentication: Authentication,
    /// Names between semicolons, as version 4 has them. s3s compares them as they are written.
    signed_headers: String,
    /// The service in the scope of the signature, with version 4.
    service: Option<String>,
}

fn one_mechanism_only() -> S3Error {
    s3_error!(
        InvalidArgument,
        "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string \
         parameter or the Authorization header should be specified"
    )
}

fn malformed_query(text: impl Into<String>) -> S3Error {
    custom_error("AuthorizationQueryParametersError", StatusCode::BAD_REQUEST, text)
}

impl Claim {
    /// A claim that names no headers.
    pub(crate) fn of_mechanism(mechanism: Mechanism) -> Claim {
        Claim { authentication: Authentication { mechanism, ..Authentication::default() }, ..Claim::default() }
    }

    fn new(mechanism: Mechanism, signed_unix_ms: Option<u64>, signed_headers: &str, credential: &str) -> Claim {
        let service = service_of(credential);
        let is_of_other_service = service.as_deref() != Some(SERVICE);
        Claim {
            authentication: Authentication { mechanism, signed_unix_ms, is_of_other_service },
            signed_headers: signed_headers.to_owned(),
            service,
        }
    }

    /// Reads the claims of a request. Refuses requests with signatures in two places, or of an unknown kind.
    pub(crate) fn of(headers: &HeaderMap, uri: &Uri) -> S3Result<Claim> {
        let mut lines = headers.get_all(header::AUTHORIZATION).into_iter();
        let line = lines.next();
        let has = |marks: &[&str]| parameters(uri).any(|parameter| marks.contains(&&*parameter.name));
        let (is_of_4, is_of_2) = (has(&VERSION_4_MARKS), has(&VERSION_2_MARKS));
        if lines.next().is_some() || usize::from(line.is_some()) + usize::from(is_of_4) + usize::from(is_of_2) > 1
        {
            return Err(one_mechanism_only());
        }
        match line {
            Some(line) => Claim::of_header(line, headers),
            None if is_of_4 => Claim::of_query(uri),
            None if is_of_2 => Claim::of_query_of_version_2(uri),
            None => Ok(Claim::default()),
        }
    }

    fn of_header(line: &HeaderValue, headers: &HeaderMap) -> S3Result<Claim> {
        if line.is_empty() {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        }
        // Version 2 in a header is signed by no client that is kept up.
        if line.as_bytes().starts_with(VERSION_2_PREFIX) {
            return Err(s3_error!(
                InvalidRequest,
                "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
            ));
        }
        let text = line.to_str().unwrap_or_default();
        let (algorithm, rest) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        if algorithm != VERSION_4 {
            return Err(s3_error!(InvalidArgument, "Unsupported Authorization Type"));
        }
        let parts: Vec<&str> = rest.split(',').map(str::trim_start).collect();
        let found = match parts[..] {
            [credential, signed_headers, signature] if signature.starts_with("Signature=") => {
                credential.strip_prefix("Credential=").zip(signed_headers.strip_prefix("SignedHeaders="))
            }
            _ => None,
        };
        let Some((credential, signed_headers)) = found else {
            return Err(s3_error!(
                AuthorizationHeaderMalformed,
                "The authorization header is malformed; it needs Credential, SignedHeaders and Signature, in this \
                 order"
            ));
        };
        let time = headers.get(AMZ_DATE).and_then(|time| time.to_str().ok());
        Ok(Claim::new(Mechanism::Header, time.and_then(unix_ms_of), signed_headers, credential))
    }

    fn of_query(uri: &Uri) -> S3Result<Claim> {
        let [algorithm, credential, date, _, _, signed_headers] =
            unique_values(uri, VERSION_4_QUERY).ok_or_else(|| {
                malformed_query(
                    "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, \
                 X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters, each once.",
                )
            })?;
        if algorithm != VERSION_4 {
            return Err(malformed_query(format!("X-Amz-Algorithm only supports \"{VERSION_4}\"")));
        }
        Ok(Claim::new(Mechanism::Query, unix_ms_of(&date), &signed_headers, &credential))
    }

    fn of_query_of_version_2(uri: &Uri) -> S3Result<Claim> {
        if unique_values(uri, signature_v2::QUERY).is_none() {
            return Err(s3_error!(
                AccessDenied,
                "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters, each once"
            ));
        }
        Ok(Claim::of_mechanism(Mechanism::QueryOfVersion2))
    }

    /// Refuses a signature that is for another service: its key is another.
    pub(crate) fn check_service(&self) -> S3Result<()> {
        if !self.authentication.is_of_other_service {
            return Ok(());
        }
        let service = self.service.as_deref().unwrap_or_default();
        let detail = format!("incorrect service \"{service}\". This endpoint belongs to \"{SERVICE}\".");
        match self.authentication.mechanism {
            Mechanism::Header => {
                Err(s3_error!(AuthorizationHeaderMalformed, "The authorization header is malformed; {detail}"))
            }
            _ => Err(malformed_query(format!("Error parsing the X-Amz-Credential parameter; {detail}"))),
        }
    }

    /// Returns true if `SignedHeaders` names a header.
    pub(crate) fn names(&self, header: &str) -> bool {
        self.signed_headers.split(';').any(|name| name == header)
    }

    /// Returns true if the signature covers all values of a header. s3s passes over values that are not UTF-8, so
    /// no signature covers them.
    pub(crate) fn covers(&self, headers: &HeaderMap, uri: &Uri, name: &str) -> bool {
        let mut values = headers.get_all(name).into_iter();
        let is_text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
        match self.authentication.mechanism {
            // It covers the hash of the body, by whatever name that is sent.
            Mechanism::Header => (self.names(name) || name == CONTENT_SHA256) && values.all(is_text),
            Mechanism::Query => self.names(name) && values.all(is_text) || is_in_query(uri, headers, name),
            // It covers these by its definition; of the two others, it covers what stands there once.
            Mechanism::QueryOfVersion2 if name.starts_with("x-amz-") => values.all(is_text),
            Mechanism::QueryOfVersion2 => {
                let is_covered = ["content-md5", "content-type"].contains(&name);
                is_covered && values.next().is_none_or(is_text) && values.next().is_none()
            }
            Mechanism::Form | Mechanism::FormOfVersion2 | Mechanism::Anonymous => false,
        }
    }
}

/// Returns true if the URL, which its signature covers, has the same values as a header.
fn is_in_query(uri: &Uri, headers: &HeaderMap, name: &str) -> bool {
    let mut found = parameters(uri).filter(|parameter| parameter.name.eq_ignore_ascii_case(name));
    let (Some(parameter), None) = (found.next(), found.next()) else { return false };
    let value = parameter.value();
    headers.get_all(name).into_iter().all(|header| header.as_bytes() == value.as_bytes())
}

/// The values of parameters, if each stands once.
fn unique_values<const COUNT: usize>(uri: &Uri, names: [&str; COUNT]) -> Option<[String; COUNT]> {
    let mut values = [const { None }; COUNT];
    for parameter in parameters(uri) {
        let Some(place) = names.iter().position(|name| *name == parameter.name) else { continue };
        if values[place].replace(parameter.value().into_owned()).is_some() {
            return None;
        }
    }
    values.iter().all(Option::is_some).then(|| values.map(Option::unwrap_or_default))
}

/// The service in `KEY/20260101/REGION/SERVICE/aws4_request`. An access key may contain slashes.
fn service_of(credential: &str) -> Option<String> {
    credential.rsplit('/').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    const HEADER: &str = "AWS4-HMAC-SHA256 Credential=a/b/20261124/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-acl,Signature=0";
    const QUERY: &str = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20261124%2Fr%2Fs3%2Faws4_request&\
         X-Amz-Date=20231114T221320Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host%3Bx-amz-acl&X-Amz-Signature=0";
    const QUERY_OF_2: &str = "AWSAccessKeyId=a&Expires=1&Signature=s";

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn claim(lines: &[&str], query: &str) -> Result<Claim, String> {
        let lines: Vec<(&str, &[u8])> = lines.iter().map(|line| ("authorization", line.as_bytes())).collect();
        let uri = format!("/b/k?{query}").parse().unwrap();
        let claim = Claim::of(&headers(&lines), &uri);
        claim
            .and_then(|claim| claim.check_service().map(|()| claim))
            .map_err(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn a_request_is_signed_in_one_place() {
        let mechanism = |lines: &[&str], query| claim(lines, query).map(|claim| claim.authentication.mechanism);
        assert_eq!(mechanism(&[], "x=1"), Ok(Mechanism::Anonymous));
        assert_eq!(mechanism(&[HEADER], "x=1"), Ok(Mechanism::Header));
        assert_eq!(mechanism(&[], QUERY), Ok(Mechanism::Query));
        assert_eq!(mechanism(&[], QUERY_OF_2), Ok(Mechanism::QueryOfVersion2));
        let two = format!("{QUERY}&{QUERY_OF_2}");
        for (lines, query) in [
            (&[HEADER][..], QUERY),
            (&["junk"], QUERY),
            (&[""], QUERY),
            (&[HEADER], QUERY_OF_2),
            (&["junk"], QUERY_OF_2),
            (&[HEADER], "X-Amz-Signature=0"),
            (&[HEADER], "%58-Amz-Algorithm"),
            (&[HEADER, HEADER], ""),
            (&[HEADER, "junk"], ""),
            (&[], &two),
        ] {
            assert_eq!(mechanism(lines, query), Err("InvalidArgument".into()), "{lines:?} {query}");
        }
    }

    #[test]
    fn half_a_signature_is_none() {
        for parameter in QUERY.split('&') {
            let less: Vec<&str> = QUERY.split('&').filter(|other| *other != parameter).collect();
            let code = Err("AuthorizationQueryParametersError".into());
            assert_eq!(claim(&[], &less.join("&")), code, "without {parameter}");
            assert_eq!(claim(&[], &format!("{QUERY}&{parameter}")), code, "{parameter} twice");
        }
        for query in ["Signature=s", "AWSAccessKeyId=a", "Signature=s&Expires=1"] {
            assert_eq!(claim(&[], query), Err("AccessDenied".into()), "{query}");
        }
        assert_eq!(claim(&[], &format!("{QUERY_OF_2}&Signature=t")), Err("AccessDenied".into()));
    }

    /// Whatever s3s would take for another text than this reading does is refused.
    #[test]
    fn authorizations_have_one_form() {
        let scope = "Credential=a/20261124/r/s3/aws4_request";
        for (line, code) in [
            ("", "AccessDenied"),
            ("AWS a:b", "InvalidRequest"),
            ("Basic dTpw", "InvalidArgument"),
            ("AWS4-HMAC-SHA1 Credential=a/b/c/s3/aws4_request,SignedHeaders=host,Signature=0", "InvalidArgument"),
            ("aws4-hmac-sha256 x", "InvalidArgument"),
            ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
            (&format!("AWS4-HMAC-SHA256 {scope},Signature=0,SignedHeaders=host"), "AuthorizationHeaderMalformed"),
            (&format!("AWS4-HMAC-SHA256 {scope},SignedHeaders=host"), "AuthorizationHeaderMalformed"),
            (
                &format!("AWS4-HMAC-SHA256 {scope},SignedHeaders=host,SignedHeaders=x,Signature=0"),
                "AuthorizationHeaderMalformed",
            ),
        ] {
            assert_eq!(claim(&[line], ""), Err(code.to_owned()), "{line}");
        }
        // s3s does not trim these, so it covers no header of this name.
        let spaced = format!("AWS4-HMAC-SHA256 {scope}, SignedHeaders=host; x-amz-acl;x-amz-tagging ,Signature=0");
        let claim = claim(&[&spaced], "").unwrap();
        assert!(claim.names("host") && !claim.names("x-amz-acl") && !claim.names("x-amz-tagging"));
    }

    #[test]
    fn a_signature_for_another_service_is_none() {
        for service in ["sts", "iam", "S3", "", "s3express"] {
            let header = HEADER.replace("/s3/", &format!("/{service}/"));
            assert_eq!(claim(&[&header], ""), Err("AuthorizationHeaderMalformed".into()), "{service}");
            let query = QUERY.replace("%2Fs3%2F", &format!("%2F{service}%2F"));
            assert_eq!(claim(&[], &query), Err("AuthorizationQueryParametersError".into()), "{service}");
        }
    }

    #[test]
    fn signatures_cover_what_they_name() {
        let covers = |claim: &Claim, query: &str, lines: &[(&str, &[u8])]| {
            claim.covers(&headers(lines), &format!("/b/k?{query}").parse().unwrap(), lines[0].0)
        };
        let of_header = claim(&[HEADER], "").unwrap();
        assert!(covers(&of_header, "", &[("x-amz-acl", b"private"), ("x-amz-acl", b"x")]));
        assert!(!covers(&of_header, "", &[("x-amz-acl", b"\xff")]), "s3s passes over it");
        assert!(!covers(&of_header, "", &[("x-amz-acl", b"private"), ("x-amz-acl", b"\xff")]));
        assert!(!covers(&of_header, "", &[("x-amz-tagging", b"a=b")]));
        let of_query = claim(&[], QUERY).unwrap();
        assert!(covers(&of_query, QUERY, &[("x-amz-acl", b"private")]));
        assert!(!covers(&of_query, QUERY, &[("x-amz-tagging", b"a=b")]));
        let with_tags = format!("{QUERY}&x-amz-tagging=a%3Db");
        assert!(covers(&of_query, &with_tags, &[("x-amz-tagging", b"a=b")]));
        assert!(!covers(&of_query, &with_tags, &[("x-amz-tagging", b"a=c")]));
        assert!(!covers(&of_query, &with_tags, &[("x-amz-tagging", b"a=b"), ("x-amz-tagging", b"a=c")]));
        let of_version_2 = claim(&[], QUERY_OF_2).unwrap();
        assert!(covers(&of_version_2, "", &[("x-amz-tagging", b"a=b")]), "s3s signs all of these");
        assert!(!covers(&of_version_2, "", &[("x-amz-tagging", b"\xff")]));
        assert!(covers(&of_version_2, "", &[("content-md5", b"x")]));
        assert!(!covers(&of_version_2, "", &[("content-md5", b"x"), ("content-md5", b"y")]));
        assert!(!covers(&of_version_2, "", &[("range", b"bytes=0-1")]));
    }
}
