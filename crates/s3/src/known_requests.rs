//! What each operation knows of a request: its query parameters, its `x-amz-` headers, and of some
//! headers the values that ask for no more than is done. Everything else is refused, so that nothing
//! is accepted and dropped. The operations themselves refuse what depends on the object.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, Method, StatusCode, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::path::S3Path;
use s3s::{S3Error, S3Result, s3_error};

use crate::error::custom_error;
use crate::ops::Service;
use crate::shell::is_aws_chunked;

/// What one operation knows. Names are in lower case; headers stand without `x-amz-`.
pub(crate) struct Known {
    pub operation: &'static str,
    pub queries: &'static [&'static str],
    /// Groups of headers beside [`COMMON_HEADERS`].
    pub headers: &'static [&'static [&'static str]],
}

/// What any request may carry: who signs it and how, how its body is framed, and what the body's
/// checksum is.
const COMMON_HEADERS: &[&str] = &[
    "content-sha256",
    "date",
    "decoded-content-length",
    "expected-bucket-owner",
    // It makes a difference only where buckets ask the requester to pay, and none does here.
    "request-payer",
    "sdk-checksum-algorithm",
    "trailer",
    "user-agent",
];
const BODY_CHECKSUMS: &[&str] =
    &["checksum-crc32", "checksum-crc32c", "checksum-crc64nvme", "checksum-sha1", "checksum-sha256"];
const CHECKSUM_KIND: &[&str] = &["checksum-algorithm", "checksum-type"];
/// What an upload began with, repeated with its parts.
const OF_UPLOAD: &[&str] = &["server-side-encryption", "server-side-encryption-aws-kms-key-id"];
const ENCRYPTION: &[&str] = &[
    "server-side-encryption",
    "server-side-encryption-aws-kms-key-id",
    "server-side-encryption-bucket-key-enabled",
    "server-side-encryption-context",
];
const CUSTOMER_KEY: &[&str] = &[
    "server-side-encryption-customer-algorithm",
    "server-side-encryption-customer-key",
    "server-side-encryption-customer-key-md5",
];
const COPY_SOURCE: &[&str] = &[
    "copy-source",
    "copy-source-if-match",
    "copy-source-if-modified-since",
    "copy-source-if-none-match",
    "copy-source-if-unmodified-since",
    "copy-source-server-side-encryption-customer-algorithm",
    "copy-source-server-side-encryption-customer-key",
    "copy-source-server-side-encryption-customer-key-md5",
    "source-expected-bucket-owner",
];
/// What a new version gets beside its data.
const TAGS_AND_LOCK: &[&str] =
    &["object-lock-legal-hold", "object-lock-mode", "object-lock-retain-until-date", "tagging"];
const BYPASS: &[&str] = &["bypass-governance-retention"];
/// Known with some values only.
const OBJECT_KIND: &[&str] = &["acl", "storage-class"];
/// Known as a prefix: the rest is the client's.
const METADATA: &[&str] = &["meta-"];
/// Objects are never archived, so there is nothing to say about their restoration.
const OPTIONAL_ATTRIBUTES: &[&str] = &["optional-object-attributes"];

const RESPONSE_HEADERS: &[&str] = &[
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "partnumber",
    "versionid",
];

/// Every operation of the gateway. What is not here is refused by s3s as not implemented.
pub(crate) const KNOWN: &[Known] = &[
    Known { operation: "AbortMultipartUpload", queries: &["uploadid"], headers: &[] },
    Known {
        operation: "CompleteMultipartUpload",
        queries: &["uploadid"],
        headers: &[CUSTOMER_KEY, BODY_CHECKSUMS, OF_UPLOAD, &["checksum-type", "mp-object-size"]],
    },
    Known {
        operation: "CopyObject",
        queries: &[],
        headers: &[
            COPY_SOURCE,
            METADATA,
            OBJECT_KIND,
            ENCRYPTION,
            CUSTOMER_KEY,
            TAGS_AND_LOCK,
            &["checksum-algorithm", "metadata-directive", "tagging-directive"],
        ],
    },
    Known {
        operation: "CreateBucket",
        queries: &[],
        headers: &[&["acl", "bucket-object-lock-enabled", "object-ownership"]],
    },
    Known {
        operation: "CreateMultipartUpload",
        queries: &["uploads"],
        headers: &[METADATA, OBJECT_KIND, TAGS_AND_LOCK, ENCRYPTION, CUSTOMER_KEY, CHECKSUM_KIND],
    },
    Known { operation: "DeleteBucket", queries: &[], headers: &[] },
    Known { operation: "DeleteBucketCors", queries: &["cors"], headers: &[] },
    Known { operation: "DeleteBucketEncryption", queries: &["encryption"], headers: &[] },
    Known { operation: "DeleteBucketLifecycle", queries: &["lifecycle"], headers: &[] },
    Known { operation: "DeleteBucketPolicy", queries: &["policy"], headers: &[] },
    Known { operation: "DeleteBucketTagging", queries: &["tagging"], headers: &[] },
    Known { operation: "DeleteBucketWebsite", queries: &["website"], headers: &[] },
    Known {
        operation: "DeleteObject",
        queries: &["versionid"],
        headers: &[BYPASS, &["if-match-last-modified-time", "if-match-size"]],
    },
    Known { operation: "DeleteObjectTagging", queries: &["tagging", "versionid"], headers: &[] },
    Known { operation: "DeleteObjects", queries: &["delete"], headers: &[BODY_CHECKSUMS, BYPASS] },
    Known { operation: "DeletePublicAccessBlock", queries: &["publicaccessblock"], headers: &[] },
    Known { operation: "GetBucketAccelerateConfiguration", queries: &["accelerate"], headers: &[] },
    Known { operation: "GetBucketAcl", queries: &["acl"], headers: &[] },
    Known { operation: "GetBucketCors", queries: &["cors"], headers: &[] },
    Known { operation: "GetBucketEncryption", queries: &["encryption"], headers: &[] },
    Known { operation: "GetBucketLifecycleConfiguration", queries: &["lifecycle"], headers: &[] },
    Known { operation: "GetBucketLocation", queries: &["location"], headers: &[] },
    Known { operation: "GetBucketLogging", queries: &["logging"], headers: &[] },
    Known { operation: "GetBucketNotificationConfiguration", queries: &["notification"], headers: &[] },
    Known { operation: "GetBucketOwnershipControls", queries: &["ownershipcontrols"], headers: &[] },
    Known { operation: "GetBucketPolicy", queries: &["policy"], headers: &[] },
    Known { operation: "GetBucketPolicyStatus", queries: &["policystatus"], headers: &[] },
    Known { operation: "GetBucketReplication", queries: &["replication"], headers: &[] },
    Known { operation: "GetBucketRequestPayment", queries: &["requestpayment"], headers: &[] },
    Known { operation: "GetBucketTagging", queries: &["tagging"], headers: &[] },
    Known { operation: "GetBucketVersioning", queries: &["versioning"], headers: &[] },
    Known { operation: "GetBucketWebsite", queries: &["website"], headers: &[] },
    Known { operation: "GetObject", queries: RESPONSE_HEADERS, headers: &[CUSTOMER_KEY, &["checksum-mode"]] },
    Known { operation: "GetObjectAcl", queries: &["acl", "versionid"], headers: &[] },
    Known {
        operation: "GetObjectAttributes",
        queries: &["attributes", "versionid"],
        headers: &[CUSTOMER_KEY, &["max-parts", "object-attributes", "part-number-marker"]],
    },
    Known { operation: "GetObjectLegalHold", queries: &["legal-hold", "versionid"], headers: &[] },
    Known { operation: "GetObjectLockConfiguration", queries: &["object-lock"], headers: &[] },
    Known { operation: "GetObjectRetention", queries: &["retention", "versionid"], headers: &[] },
    Known { operation: "GetObjectTagging", queries: &["tagging", "versionid"], headers: &[] },
    Known { operation: "GetPublicAccessBlock", queries: &["publicaccessblock"], headers: &[] },
    Known { operation: "HeadBucket", queries: &[], headers: &[] },
    Known { operation: "HeadObject", queries: RESPONSE_HEADERS, headers: &[CUSTOMER_KEY, &["checksum-mode"]] },
    Known { operation: "ListBuckets", queries: &["continuation-token", "max-buckets", "prefix"], headers: &[] },
    Known {
        operation: "ListMultipartUploads",
        queries: &[
            "delimiter",
            "encoding-type",
            "key-marker",
            "max-uploads",
            "prefix",
            "upload-id-marker",
            "uploads",
        ],
        headers: &[],
    },
    Known {
        operation: "ListObjectVersions",
        queries: &[
            "delimiter",
            "encoding-type",
            "key-marker",
            "max-keys",
            "prefix",
            "version-id-marker",
            "versions",
        ],
        headers: &[OPTIONAL_ATTRIBUTES],
    },
    Known {
        operation: "ListObjects",
        queries: &["delimiter", "encoding-type", "marker", "max-keys", "prefix"],
        headers: &[OPTIONAL_ATTRIBUTES],
    },
    Known {
        operation: "ListObjectsV2",
        queries: &[
            "continuation-token",
            "delimiter",
            "encoding-type",
            "fetch-owner",
            "list-type",
            "max-keys",
            "prefix",
            "start-after",
        ],
        headers: &[OPTIONAL_ATTRIBUTES],
    },
    Known { operation: "ListParts", queries: &["max-parts", "part-number-marker", "uploadid"], headers: &[] },
    Known { operation: "PostObject", queries: &[], headers: &[] },
    Known { operation: "PutBucketAcl", queries: &["acl"], headers: &[BODY_CHECKSUMS, &["acl"]] },
    Known { operation: "PutBucketCors", queries: &["cors"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketEncryption", queries: &["encryption"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketOwnershipControls", queries: &["ownershipcontrols"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketRequestPayment", queries: &["requestpayment"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketTagging", queries: &["tagging"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketVersioning", queries: &["versioning"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "PutObject",
        queries: &[],
        headers: &[METADATA, OBJECT_KIND, TAGS_AND_LOCK, ENCRYPTION, CUSTOMER_KEY, BODY_CHECKSUMS, CHECKSUM_KIND],
    },
    Known { operation: "PutObjectAcl", queries: &["acl", "versionid"], headers: &[BODY_CHECKSUMS, &["acl"]] },
    Known { operation: "PutObjectLegalHold", queries: &["legal-hold", "versionid"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutObjectLockConfiguration", queries: &["object-lock"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "PutObjectRetention",
        queries: &["retention", "versionid"],
        headers: &[BODY_CHECKSUMS, BYPASS],
    },
    Known { operation: "PutObjectTagging", queries: &["tagging", "versionid"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutPublicAccessBlock", queries: &["publicaccessblock"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "UploadPart",
        queries: &["partnumber", "uploadid"],
        headers: &[CUSTOMER_KEY, BODY_CHECKSUMS, OF_UPLOAD, &["checksum-algorithm"]],
    },
    Known {
        operation: "UploadPartCopy",
        queries: &["partnumber", "uploadid"],
        headers: &[COPY_SOURCE, CUSTOMER_KEY, &["copy-source-range"]],
    },
];

/// Parameters of presigned requests, and the name of the call that some SDKs add.
const COMMON_QUERIES: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-signature",
    "x-amz-signedheaders",
    "x-amz-user-agent",
    "x-id",
];

/// Names of S3 that a GET must not carry without effect, beside those in [`KNOWN`]. Other parameters
/// with a value are the client's own, as in S3.
const OTHER_QUERIES: &[&str] = &[
    "analytics",
    "bucket-region",
    "intelligent-tiering",
    "inventory",
    "metadataconfiguration",
    "metadatatable",
    "metrics",
    "renameobject",
    "restore",
    "select",
    "select-type",
    "session",
    "torrent",
];

impl Known {
    fn find(operation: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.operation == operation)
    }

    fn knows_header(&self, name: &str) -> bool {
        let mut known = COMMON_HEADERS.iter().chain(self.headers.iter().copied().flatten()).copied();
        known.any(|known| known == name || known.ends_with('-') && name.starts_with(known))
    }

    fn check_headers(&self, headers: &HeaderMap) -> S3Result<()> {
        for (name, value) in headers {
            let Some(short) = name.as_str().strip_prefix("x-amz-") else { continue };
            if !self.knows_header(short) {
                return Err(self.unknown_header(short));
            }
            check_value(short, value.as_bytes())?;
        }
        Ok(())
    }

    fn unknown_header(&self, name: &str) -> S3Error {
        let is_read = matches!(self.operation, "GetObject" | "HeadObject");
        match name {
            "security-token" => s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid"),
            _ if is_read && name.starts_with("server-side-encryption") => s3_error!(
                InvalidArgument,
                "x-amz-{name} is not applicable to {}: it says how an object is to be stored",
                self.operation
            ),
            _ if name.starts_with("grant-") => acl_not_supported(),
            _ => s3_error!(NotImplemented, "The header x-amz-{name} of {} is not supported", self.operation),
        }
    }

    fn check_query(&self, method: &Method, query: &str) -> S3Result<()> {
        let is_read = method == Method::GET || method == Method::HEAD;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let name = name.to_ascii_lowercase();
            if COMMON_QUERIES.contains(&&*name) || self.queries.contains(&&*name) {
                continue;
            }
            let is_of_s3 = OTHER_QUERIES.contains(&&*name)
                || name.starts_with("x-amz-")
                || KNOWN.iter().any(|known| known.queries.contains(&&*name));
            if name == "x-amz-security-token" {
                return Err(self.unknown_header("security-token"));
            }
            if !is_read || is_of_s3 || value.is_empty() {
                return Err(s3_error!(
                    NotImplemented,
                    "The query parameter '{name}' of {} is not supported",
                    self.operation
                ));
            }
        }
        Ok(())
    }
}

pub(crate) fn acl_not_supported() -> S3Error {
    custom_error(
        "AccessControlListNotSupported",
        StatusCode::BAD_REQUEST,
        "The bucket does not allow ACLs: everything in it belongs to the owner of the bucket",
    )
}

/// Refuses the values of a known header that ask for more than is done.
fn check_value(name: &str, value: &[u8]) -> S3Result<()> {
    let fits = match name {
        "acl" => matches!(value, b"private" | b"bucket-owner-full-control"),
        "object-ownership" => value == b"BucketOwnerEnforced",
        "storage-class" => value == b"STANDARD",
        _ => true,
    };
    let value = String::from_utf8_lossy(value);
    match name {
        _ if fits => Ok(()),
        "acl" => Err(acl_not_supported()),
        "storage-class" => {
            Err(s3_error!(InvalidStorageClass, "The only storage class is STANDARD, not '{value}'"))
        }
        _ => Err(s3_error!(NotImplemented, "The value '{value}' of x-amz-{name} is not supported")),
    }
}

/// Seconds for which a presigned request may be valid: a week.
const EXPIRES_SECONDS_MAX: u64 = 604_800;

fn check_expiry(uri: &Uri) -> S3Result<()> {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    let Some(seconds) = parameters.find_map(|one| one.strip_prefix("X-Amz-Expires=")) else { return Ok(()) };
    match seconds.parse::<u64>() {
        Ok(seconds) if seconds > EXPIRES_SECONDS_MAX => Err(custom_error(
            "AuthorizationQueryParametersError",
            StatusCode::BAD_REQUEST,
            format!("X-Amz-Expires must be less than a week (in seconds); that is, {EXPIRES_SECONDS_MAX}"),
        )),
        _ => Ok(()),
    }
}

/// The region in the scope of a signature: `Credential=KEY/20260101/REGION/s3/aws4_request`.
fn signed_region(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let of_header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let of_header = of_header.and_then(|value| value.split_once("Credential=")).map(|(_, scope)| scope);
    let parameters = uri.query().unwrap_or_default().split('&');
    let of_query = || parameters.filter_map(|one| one.strip_prefix("X-Amz-Credential=")).next();
    let scope = of_header.or_else(of_query)?.replace("%2F", "/").replace("%2f", "/");
    let scope = scope.split([',', ' ']).next()?;
    // An access key may contain slashes.
    scope.rsplit('/').nth(2).map(str::to_owned)
}

/// Lets only requests through that are signed and known.
pub(crate) struct KnownRequests(pub Arc<Service>);

impl KnownRequests {
    fn check_region(&self, headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
        let expected = &self.0.region;
        match signed_region(headers, uri) {
            Some(region) if region != *expected => Err(s3_error!(
                AuthorizationHeaderMalformed,
                "The authorization header is malformed; the region '{region}' is wrong; expecting '{expected}'"
            )),
            _ => Ok(()),
        }
    }

    /// An upload by form, before its fields are read. It is they who sign it and say what is wanted.
    pub(crate) fn check_form(&self, headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
        let query = uri.query().unwrap_or_default();
        let is_presigned = query.split('&').any(|one| one.to_ascii_lowercase().starts_with("x-amz-signature="));
        if is_presigned || headers.contains_key(http::header::AUTHORIZATION) {
            return Err(s3_error!(InvalidRequest, "A form is signed in its fields, not in a header or its URL"));
        }
        if is_aws_chunked(headers) {
            return Err(s3_error!(NotImplemented, "Forms in aws-chunked framing are not supported"));
        }
        let Some(known) = Known::find("PostObject") else { return Ok(()) };
        known.check_headers(headers)?;
        known.check_query(&Method::POST, query)
    }

    /// The same upload's fields, as headers of a PutObject.
    pub(crate) async fn check_form_fields(&self, bucket: &str, headers: &HeaderMap) -> S3Result<()> {
        if let Some(known) = Known::find("PutObject") {
            known.check_headers(headers)?;
        }
        self.check_owner(headers, "x-amz-expected-bucket-owner", bucket).await
    }

    async fn check_owner(&self, headers: &HeaderMap, header: &str, bucket: &str) -> S3Result<()> {
        let Some(expected) = headers.get(header) else { return Ok(()) };
        let bucket = self.0.buckets.get(bucket).await?;
        if bucket.record.owner.as_bytes() == expected.as_bytes() {
            return Ok(());
        }
        Err(s3_error!(AccessDenied, "The bucket belongs to somebody else than {header} says"))
    }
}

#[async_trait]
impl S3Access for KnownRequests {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(s3_error!(AccessDenied, "Signature is required"));
        }
        self.check_region(context.headers(), context.uri())?;
        check_expiry(context.uri())?;
        // s3s refuses the operations that are not here.
        let Some(known) = Known::find(context.s3_op().name()) else { return Ok(()) };
        known.check_headers(context.headers())?;
        known.check_query(context.method(), context.uri().query().unwrap_or_default())?;
        if let (S3Path::Bucket { bucket } | S3Path::Object { bucket, .. }, false) =
            (context.s3_path(), known.operation == "CreateBucket")
        {
            self.check_owner(context.headers(), "x-amz-expected-bucket-owner", bucket).await?;
        }
        if let Some(source) = source_bucket(context.headers()) {
            self.check_owner(context.headers(), "x-amz-source-expected-bucket-owner", &source).await?;
        }
        Ok(())
    }
}

/// The bucket of a copy's source.
fn source_bucket(headers: &HeaderMap) -> Option<String> {
    let source = headers.get("x-amz-copy-source")?.to_str().ok()?;
    let bucket = source.trim_start_matches('/').split('/').next()?;
    Some(bucket.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::{HeaderName, HeaderValue};

    use super::*;

    /// Headers of S3 that no operation of the gateway knows.
    const OTHER_HEADERS: &[&str] = &[
        "abort-date",
        "grant-full-control",
        "grant-read",
        "grant-read-acp",
        "grant-write",
        "grant-write-acp",
        "if-match-initiated-time",
        "mfa",
        "rename-source",
        "security-token",
        "transition-default-minimum-object-size",
        "website-redirect-location",
        "write-offset-bytes",
    ];

    fn headers(name: &str, value: &'static str) -> HeaderMap {
        let name = HeaderName::try_from(format!("x-amz-{name}")).unwrap();
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    /// Every operation with every header of S3: it knows the header, or refuses it.
    #[test]
    fn no_header_is_dropped() {
        let all = KNOWN.iter().flat_map(|known| known.headers.iter().copied().flatten());
        let all: BTreeSet<&str> = all.chain(COMMON_HEADERS).chain(OTHER_HEADERS).copied().collect();
        for known in KNOWN {
            for name in &all {
                let is_listed = known.knows_header(name);
                let is_refused = known.check_headers(&headers(name, "x")).is_err();
                assert!(is_listed || is_refused, "{} with x-amz-{name}", known.operation);
            }
            for name in OTHER_HEADERS {
                assert!(known.check_headers(&headers(name, "x")).is_err(), "{} with {name}", known.operation);
            }
        }
    }

    /// Every operation with every query parameter of S3: it knows the parameter, or refuses it.
    #[test]
    fn no_query_parameter_is_dropped() {
        let all = KNOWN.iter().flat_map(|known| known.queries);
        let all: BTreeSet<&str> = all.chain(OTHER_QUERIES).copied().collect();
        for known in KNOWN {
            for name in &all {
                for (method, query) in [
                    (Method::GET, (*name).to_owned()),
                    (Method::GET, format!("{name}=1")),
                    (Method::PUT, format!("a=&{name}=1")),
                ] {
                    let is_taken = known.check_query(&method, query.trim_start_matches("a=&")).is_ok();
                    assert_eq!(is_taken, known.queries.contains(name), "{} with ?{query}", known.operation);
                }
            }
        }
    }

    #[test]
    fn parameters_of_clients_pass_where_they_change_nothing() {
        let get = Known::find("GetObject").unwrap();
        assert!(get.check_query(&Method::GET, "cache-buster=7&x-id=GetObject").is_ok());
        let put = Known::find("PutObject").unwrap();
        assert!(put.check_query(&Method::PUT, "x-id=PutObject&X-Amz-Expires=60&X-Amz-SignedHeaders=host").is_ok());
        assert!(put.check_query(&Method::PUT, "cache-buster=7").is_err());
        assert!(put.check_query(&Method::PUT, "renameObject").is_err());
        assert!(put.check_query(&Method::PUT, "x-amz-acl=public-read").is_err(), "a header in the query");
    }

    #[test]
    fn values_that_ask_for_more_are_refused() {
        let put = Known::find("PutObject").unwrap();
        for (name, value, is_taken) in [
            ("acl", "private", true),
            ("acl", "public-read", false),
            ("storage-class", "STANDARD", true),
            ("storage-class", "GLACIER", false),
            ("meta-color", "blue", true),
        ] {
            assert_eq!(put.check_headers(&headers(name, value)).is_ok(), is_taken, "{name}: {value}");
        }
    }

    #[test]
    fn the_region_of_a_signature_is_found() {
        let header = "AWS4-HMAC-SHA256 Credential=a/b/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host";
        let signed = HeaderMap::from_iter([(http::header::AUTHORIZATION, HeaderValue::from_static(header))]);
        assert_eq!(signed_region(&signed, &Uri::from_static("/")).as_deref(), Some("eu-west-1"));
        let presigned =
            Uri::from_static("/b/k?X-Amz-Credential=key%2F20260101%2Fus-east-1%2Fs3%2Faws4_request&x=1");
        assert_eq!(signed_region(&HeaderMap::new(), &presigned).as_deref(), Some("us-east-1"));
        assert_eq!(signed_region(&HeaderMap::new(), &Uri::from_static("/b/k?a=b")), None);
    }
}
