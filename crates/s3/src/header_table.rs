//! The one table of request headers, which is asked before anything reads one. Headers that an operation reads
//! must be covered by the request's signature. A header that is not here is removed from a request unless its
//! signature covers it, so that no operation can obey a header that its signer did not write.

use std::collections::HashSet;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, Uri};

use crate::authentication::{Claim, Mechanism};
use crate::known_requests::{COMMON_HEADERS, KNOWN};

const AMZ: &str = "x-amz-";

/// Headers of HTTP that are read whether or not they are signed, as on AWS. Browsers, proxies and libraries add them
/// after a client has signed; the AWS SDK for PHP signs none of them, `content-type` and `if-match` among them, and
/// that for JavaScript leaves `content-type` out of presigned URLs and `cache-control` out of every signature.
const UNSIGNED: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "authorization",
    "cache-control",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "expect",
    "expires",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "range",
    "referer",
    "te",
    "transfer-encoding",
    "user-agent",
];

/// Headers of HTTP that must be signed when they are sent.
const SIGNED: &[&str] = &["content-md5"];

/// Headers that ask something of S3 that no operation here does, beside those that other operations know. They stand
/// without `x-amz-`; one that ends with a dash is a family.
const NOT_BUILT: &[&str] = &[
    "abort-",
    "acl-",
    "bucket-",
    "checksum-",
    "client-token",
    "copy-",
    "create-session-mode",
    "fwd-",
    "grant-",
    "if-match-",
    "if-none-match-",
    "mfa",
    "object-",
    "rename-source",
    "rename-source-",
    "request-route",
    "request-token",
    "restore-",
    "server-side-encryption-",
    "skip-destination-validation",
    "source-",
    "storage-",
    "tagging-",
    "transition-default-minimum-object-size",
    "website-redirect-location",
    "write-offset-bytes",
];

/// The table's entry of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Something reads it, or asks for something that is not built: it counts only if it is signed.
    Signed,
    /// It is read, and need not be signed.
    Any,
    /// Nothing reads it.
    Unread,
}

/// Returns the table's entry of a header, by its name in lower case.
pub(crate) fn coverage(name: &str) -> Coverage {
    static READ: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let of_operations = KNOWN.iter().flat_map(|known| known.headers.iter().copied().flatten());
        of_operations.chain(COMMON_HEADERS).copied().collect()
    });
    match name.strip_prefix(AMZ) {
        Some(short) if READ.contains(short) || short.starts_with("meta-") || is_not_built(short) => {
            Coverage::Signed
        }
        None if SIGNED.contains(&name) => Coverage::Signed,
        None if UNSIGNED.contains(&name) => Coverage::Any,
        _ => Coverage::Unread,
    }
}

/// Returns true if a header, without `x-amz-`, requests an unsupported feature of S3.
fn is_not_built(short: &str) -> bool {
    NOT_BUILT.iter().any(|known| *known == short || known.ends_with('-') && short.starts_with(known))
}

/// Takes out of a request the headers that nothing may read. On an error it names those that are read and not
/// signed, in their order.
pub(crate) fn admit(headers: &mut HeaderMap, uri: &Uri, claim: &Claim) -> Result<(), Vec<String>> {
    let mechanism = claim.authentication.mechanism;
    let (mut unsigned, mut unread) = (Vec::new(), Vec::new());
    if matches!(mechanism, Mechanism::Header | Mechanism::Query) && !claim.names("host") {
        unsigned.push("host".to_owned());
    }
    for name in headers.keys() {
        let coverage = coverage(name.as_str());
        if coverage == Coverage::Any || claim.covers(headers, uri, name.as_str()) {
            continue;
        }
        match (coverage, mechanism) {
            (Coverage::Unread, _) => unread.push(name.clone()),
            // Nobody has signed anything, and nobody's rights are used.
            (_, Mechanism::Anonymous) => {}
            _ => unsigned.push(name.as_str().to_owned()),
        }
    }
    unread.iter().for_each(|name: &HeaderName| drop(headers.remove(name)));
    unsigned.sort_unstable();
    if unsigned.is_empty() { Ok(()) } else { Err(unsigned) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use http::HeaderValue;

    use super::*;

    const SCOPE: &str = "a/20261124/us-east-1/s3/aws4_request";

    /// How requests are signed, with these names among the signed ones: their headers, and their query.
    fn signed(kind: &str, names: &str) -> (HeaderMap, Uri, Claim) {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("s3"));
        let mut query = String::new();
        match kind {
            "query" => {
                query = format!(
                    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={SCOPE}&X-Amz-Date=20261124T000000Z&\
                     X-Amz-Expires=60&X-Amz-SignedHeaders={names}&X-Amz-Signature=0"
                );
            }
            "header" | "chunked" => {
                let text = format!("AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={names},Signature=0");
                headers.insert("authorization", HeaderValue::try_from(text).unwrap());
                let hash =
                    if kind == "header" { "UNSIGNED-PAYLOAD" } else { "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" };
                headers.insert("x-amz-content-sha256", HeaderValue::from_static(hash));
            }
            _ => {}
        }
        let uri: Uri = format!("/b/k?{query}").parse().unwrap();
        let claim = match kind {
            "form" => Claim::of_mechanism(Mechanism::Form),
            _ => Claim::of(&headers, &uri).unwrap(),
        };
        (headers, uri, claim)
    }

    fn admitted(kind: &str, names: &str, header: &str) -> (Result<(), Vec<String>>, bool) {
        let (mut headers, uri, claim) = signed(kind, names);
        headers.insert(HeaderName::try_from(header).unwrap(), HeaderValue::from_static("x"));
        let admitted = admit(&mut headers, &uri, &claim);
        (admitted, headers.contains_key(header))
    }

    /// Every header that an operation reads, and every one that would ask for more, in every kind of request:
    /// unsigned it is refused, and signed it is there.
    #[test]
    fn what_is_read_is_signed() {
        let of_operations = KNOWN.iter().flat_map(|known| known.headers.iter().copied().flatten());
        let short = of_operations.chain(COMMON_HEADERS).chain(NOT_BUILT).copied();
        let names = short.map(|short| format!("x-amz-{short}{}", if short.ends_with('-') { "a" } else { "" }));
        let names: BTreeSet<String> = names.chain(SIGNED.iter().map(|name| (*name).to_owned())).collect();
        assert!(names.len() > 80, "{}", names.len());
        for name in names {
            for kind in ["query", "header", "chunked", "form"] {
                // The signature covers the hash that stands in the place of the body.
                if name == "x-amz-content-sha256" && ["header", "chunked"].contains(&kind) {
                    continue;
                }
                assert_eq!(admitted(kind, "host", &name).0, Err(vec![name.clone()]), "{kind}");
                if kind != "form" {
                    assert_eq!(
                        admitted(kind, &format!("host;{name}"), &name),
                        (Ok(()), true),
                        "{kind} with {name}"
                    );
                }
            }
            assert_eq!(admitted("anonymous", "", &name), (Ok(()), true), "{name}");
        }
    }

    /// Nothing can read, and obey, a header that is not in the table, unless it is signed.
    #[test]
    fn what_is_not_in_the_table_is_gone() {
        for name in
            ["x-amz-foo", "x-amz-cf-id", "x-amz-te", "x-amz-api-version", "x-minio-extract", "x-forwarded-for"]
        {
            for kind in ["query", "header", "chunked", "form", "anonymous"] {
                assert_eq!(admitted(kind, "host", name), (Ok(()), false), "{kind} with {name}");
            }
            assert_eq!(
                admitted("header", &format!("host;{name}"), name),
                (Ok(()), true),
                "the signature needs it"
            );
        }
    }

    #[test]
    fn what_http_needs_stays() {
        for name in UNSIGNED.iter().filter(|name| !["authorization", "host"].contains(name)) {
            for kind in ["query", "header", "chunked", "form", "anonymous"] {
                assert_eq!(admitted(kind, "host", name), (Ok(()), true), "{kind} with {name}");
            }
        }
    }

    #[test]
    fn the_host_is_signed() {
        for kind in ["query", "header"] {
            let (mut headers, uri, claim) = signed(kind, "x-amz-date");
            assert_eq!(admit(&mut headers, &uri, &claim), Err(vec!["host".to_owned()]), "{kind}");
        }
    }

    fn sources(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let of_entry = |path: std::path::PathBuf| match path.is_dir() {
            true => sources(&path),
            false if path.ends_with("tests.rs") => Vec::new(),
            // Tests name what they like.
            false => {
                let text = std::fs::read_to_string(path).unwrap();
                vec![text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()]
            }
        };
        entries.flat_map(of_entry).collect()
    }

    /// A header that the source names is in the table, so that a new one is not read without it.
    #[test]
    fn every_header_in_the_source_is_in_the_table() {
        // Parameters of URLs and fields of forms, and headers of answers.
        const NO_HEADERS: &[&str] = &[
            "x-amz-",
            "x-amz-algorithm",
            "x-amz-credential",
            "x-amz-expires",
            "x-amz-signature",
            "x-amz-signedheaders",
            "x-amz-user-agent",
            "x-amz-checksum-",
            "x-amz-grant-",
            "x-amz-meta-",
            "x-amz-request-id",
            "x-amz-version-id",
        ];
        let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).concat();
        let literals = sources.split("\"x-amz-").skip(1).filter_map(|rest| rest.split('"').next());
        let is_name = |text: &&str| text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let names: BTreeSet<String> = literals.filter(is_name).map(|short| format!("x-amz-{short}")).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names.iter().filter(|name| !NO_HEADERS.contains(&name.as_str())) {
            assert_eq!(coverage(name), Coverage::Signed, "{name} is read, and the table does not have it");
        }
        let constants = sources.split("header::").skip(1).map(|rest| {
            let end = rest.find(|character: char| !matches!(character, 'A'..='Z' | '0'..='9' | '_'));
            rest[..end.unwrap_or(rest.len())].to_ascii_lowercase().replace('_', "-")
        });
        const OF_ANSWERS: &[&str] = &[
            "access-control-allow-credentials",
            "access-control-allow-headers",
            "access-control-allow-methods",
            "access-control-allow-origin",
            "access-control-expose-headers",
            "access-control-max-age",
            "content-range",
            // Read if it is signed.
            "date",
            "etag",
            "last-modified",
            "location",
            "server",
            "vary",
            "x-amz-delete-marker",
            "x-amz-tagging-count",
            "x-amz-version-id",
        ];
        for name in constants.filter(|name| name.len() > 1 && !OF_ANSWERS.contains(&name.as_str())) {
            assert_ne!(coverage(&name), Coverage::Unread, "{name} is read, and the table does not have it");
        }
    }
}
