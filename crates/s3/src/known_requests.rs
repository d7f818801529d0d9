//! The parts that each operation knows of a request: its query parameters, its `x-amz-` headers, and the supported
//! values of some headers. Everything else is refused, so that nothing is accepted and dropped. The operations
//! themselves refuse requests that depend on the object.

use http::{HeaderMap, Method, Uri};
use s3s::{S3Error, S3Result, s3_error};

use crate::header_table::{Coverage, coverage};
use crate::query::{is_presigned, is_presigned_with_version_2, parameters};
use crate::signature_v2::{HEADERS, QUERY, changes_no_operation};

/// The known parts of one operation. Headers are in lower case and stand without `x-amz-`.
pub(crate) struct Known {
    pub operation: &'static str,
    /// As S3 spells them: s3s reads no other spelling.
    pub queries: &'static [&'static str],
    /// Groups of headers beside [`COMMON_HEADERS`].
    pub headers: &'static [&'static [&'static str]],
}

/// Headers that any request may carry: its signer and signature, the framing of its body, and the body's checksum.
pub(crate) const COMMON_HEADERS: &[&str] = &[
    "content-sha256",
    "date",
    "decoded-content-length",
    "expected-bucket-owner",
    // It makes a difference only where buckets ask the requester to pay, and none does here.
    "request-payer",
    "sdk-checksum-algorithm",
    // Of temporary credentials.
    "security-token",
    "trailer",
];
const BODY_CHECKSUMS: &[&str] =
    &["checksum-crc32", "checksum-crc32c", "checksum-crc64nvme", "checksum-sha1", "checksum-sha256"];
const CHECKSUM_KIND: &[&str] = &["checksum-algorithm", "checksum-type"];
/// Headers of an upload, repeated with its parts.
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
/// Properties of a new version beside its data.
const TAGS_AND_LOCK: &[&str] =
    &["object-lock-legal-hold", "object-lock-mode", "object-lock-retain-until-date", "tagging"];
const BYPASS: &[&str] = &["bypass-governance-retention"];
const ACL: &[&str] =
    &["acl", "grant-full-control", "grant-read", "grant-read-acp", "grant-write", "grant-write-acp"];
/// Known with some values only.
const STORAGE_CLASS: &[&str] = &["storage-class"];
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
    "partNumber",
    "versionId",
];

/// Every operation of the gateway. s3s refuses other operations as not implemented.
pub(crate) const KNOWN: &[Known] = &[
    Known { operation: "AbortMultipartUpload", queries: &["uploadId"], headers: &[] },
    Known {
        operation: "CompleteMultipartUpload",
        queries: &["uploadId"],
        headers: &[CUSTOMER_KEY, BODY_CHECKSUMS, OF_UPLOAD, &["checksum-type", "mp-object-size"]],
    },
    Known {
        operation: "CopyObject",
        queries: &[],
        headers: &[
            COPY_SOURCE,
            METADATA,
            ACL,
            STORAGE_CLASS,
            ENCRYPTION,
            CUSTOMER_KEY,
            TAGS_AND_LOCK,
            &["checksum-algorithm", "metadata-directive", "tagging-directive"],
        ],
    },
    Known {
        operation: "CreateBucket",
        queries: &[],
        headers: &[ACL, &["bucket-object-lock-enabled", "object-ownership"]],
    },
    Known {
        operation: "CreateMultipartUpload",
        queries: &["uploads"],
        headers: &[METADATA, ACL, STORAGE_CLASS, TAGS_AND_LOCK, ENCRYPTION, CUSTOMER_KEY, CHECKSUM_KIND],
    },
    Known { operation: "DeleteBucket", queries: &[], headers: &[] },
    Known { operation: "DeleteBucketCors", queries: &["cors"], headers: &[] },
    Known { operation: "DeleteBucketEncryption", queries: &["encryption"], headers: &[] },
    Known { operation: "DeleteBucketLifecycle", queries: &["lifecycle"], headers: &[] },
    Known { operation: "DeleteBucketOwnershipControls", queries: &["ownershipControls"], headers: &[] },
    Known { operation: "DeleteBucketPolicy", queries: &["policy"], headers: &[] },
    Known { operation: "DeleteBucketTagging", queries: &["tagging"], headers: &[] },
    Known { operation: "DeleteBucketWebsite", queries: &["website"], headers: &[] },
    Known {
        operation: "DeleteObject",
        queries: &["versionId"],
        headers: &[BYPASS, &["if-match-last-modified-time", "if-match-size"]],
    },
    Known { operation: "DeleteObjectTagging", queries: &["tagging", "versionId"], headers: &[] },
    Known { operation: "DeleteObjects", queries: &["delete"], headers: &[BODY_CHECKSUMS, BYPASS] },
    Known { operation: "DeletePublicAccessBlock", queries: &["publicAccessBlock"], headers: &[] },
    Known { operation: "GetBucketAccelerateConfiguration", queries: &["accelerate"], headers: &[] },
    Known { operation: "GetBucketAcl", queries: &["acl"], headers: &[] },
    Known { operation: "GetBucketCors", queries: &["cors"], headers: &[] },
    Known { operation: "GetBucketEncryption", queries: &["encryption"], headers: &[] },
    Known { operation: "GetBucketLifecycleConfiguration", queries: &["lifecycle"], headers: &[] },
    Known { operation: "GetBucketLocation", queries: &["location"], headers: &[] },
    Known { operation: "GetBucketLogging", queries: &["logging"], headers: &[] },
    Known { operation: "GetBucketNotificationConfiguration", queries: &["notification"], headers: &[] },
    Known { operation: "GetBucketOwnershipControls", queries: &["ownershipControls"], headers: &[] },
    Known { operation: "GetBucketPolicy", queries: &["policy"], headers: &[] },
    Known { operation: "GetBucketPolicyStatus", queries: &["policyStatus"], headers: &[] },
    Known { operation: "GetBucketReplication", queries: &["replication"], headers: &[] },
    Known { operation: "GetBucketRequestPayment", queries: &["requestPayment"], headers: &[] },
    Known { operation: "GetBucketTagging", queries: &["tagging"], headers: &[] },
    Known { operation: "GetBucketVersioning", queries: &["versioning"], headers: &[] },
    Known { operation: "GetBucketWebsite", queries: &["website"], headers: &[] },
    Known { operation: "GetObject", queries: RESPONSE_HEADERS, headers: &[CUSTOMER_KEY, &["checksum-mode"]] },
    Known { operation: "GetObjectAcl", queries: &["acl", "versionId"], headers: &[] },
    Known {
        operation: "GetObjectAttributes",
        queries: &["attributes", "versionId"],
        headers: &[CUSTOMER_KEY, &["max-parts", "object-attributes", "part-number-marker"]],
    },
    Known { operation: "GetObjectLegalHold", queries: &["legal-hold", "versionId"], headers: &[] },
    Known { operation: "GetObjectLockConfiguration", queries: &["object-lock"], headers: &[] },
    Known { operation: "GetObjectRetention", queries: &["retention", "versionId"], headers: &[] },
    Known { operation: "GetObjectTagging", queries: &["tagging", "versionId"], headers: &[] },
    Known { operation: "GetPublicAccessBlock", queries: &["publicAccessBlock"], headers: &[] },
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
    Known { operation: "ListParts", queries: &["max-parts", "part-number-marker", "uploadId"], headers: &[] },
    Known { operation: "PostObject", queries: &[], headers: &[] },
    Known { operation: "PutBucketAcl", queries: &["acl"], headers: &[BODY_CHECKSUMS, ACL] },
    Known { operation: "PutBucketCors", queries: &["cors"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketEncryption", queries: &["encryption"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketOwnershipControls", queries: &["ownershipControls"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "PutBucketPolicy",
        queries: &["policy"],
        // The owner's root can always set another policy, so nobody locks itself out.
        headers: &[BODY_CHECKSUMS, &["confirm-remove-self-bucket-access"]],
    },
    Known { operation: "PutBucketRequestPayment", queries: &["requestPayment"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketTagging", queries: &["tagging"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutBucketVersioning", queries: &["versioning"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "PutObject",
        queries: &[],
        headers: &[
            METADATA,
            ACL,
            STORAGE_CLASS,
            TAGS_AND_LOCK,
            ENCRYPTION,
            CUSTOMER_KEY,
            BODY_CHECKSUMS,
            CHECKSUM_KIND,
        ],
    },
    Known { operation: "PutObjectAcl", queries: &["acl", "versionId"], headers: &[BODY_CHECKSUMS, ACL] },
    Known { operation: "PutObjectLegalHold", queries: &["legal-hold", "versionId"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutObjectLockConfiguration", queries: &["object-lock"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "PutObjectRetention",
        queries: &["retention", "versionId"],
        headers: &[BODY_CHECKSUMS, BYPASS],
    },
    Known { operation: "PutObjectTagging", queries: &["tagging", "versionId"], headers: &[BODY_CHECKSUMS] },
    Known { operation: "PutPublicAccessBlock", queries: &["publicAccessBlock"], headers: &[BODY_CHECKSUMS] },
    Known {
        operation: "UploadPart",
        queries: &["partNumber", "uploadId"],
        headers: &[CUSTOMER_KEY, BODY_CHECKSUMS, OF_UPLOAD, &["checksum-algorithm"]],
    },
    Known {
        operation: "UploadPartCopy",
        queries: &["partNumber", "uploadId"],
        headers: &[COPY_SOURCE, CUSTOMER_KEY, &["copy-source-range"]],
    },
];

/// Parameters of presigned requests, and the name of the call that some SDKs add, in lower case.
const COMMON_QUERIES: &[&str] = &[
    "x-amz-algorithm",
    "x-amz-content-sha256",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-security-token",
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
    "metadataConfiguration",
    "metadataTable",
    "metrics",
    "renameObject",
    "restore",
    "select",
    "select-type",
    "session",
    "torrent",
];

impl Known {
    pub(crate) fn find(operation: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.operation == operation)
    }

    fn knows_header(&self, name: &str) -> bool {
        let mut known = COMMON_HEADERS.iter().chain(self.headers.iter().copied().flatten()).copied();
        known.any(|known| known == name || known.ends_with('-') && name.starts_with(known))
    }

    pub(crate) fn check_headers(&self, headers: &HeaderMap) -> S3Result<()> {
        for (name, value) in headers {
            let Some(short) = name.as_str().strip_prefix("x-amz-") else { continue };
            if self.knows_header(short) {
                check_value(short, value.as_bytes())?;
            } else if coverage(name.as_str()) == Coverage::Signed {
                return Err(self.unknown_header(short));
            }
        }
        Ok(())
    }

    fn unknown_header(&self, name: &str) -> S3Error {
        let is_read = matches!(self.operation, "GetObject" | "HeadObject");
        match name {
            _ if is_read && name.starts_with("server-side-encryption") => s3_error!(
                InvalidArgument,
                "x-amz-{name} is not applicable to {}: it says how an object is to be stored",
                self.operation
            ),
            _ => s3_error!(NotImplemented, "The header x-amz-{name} of {} is not supported", self.operation),
        }
    }

    pub(crate) fn check_query(&self, method: &Method, uri: &Uri) -> S3Result<()> {
        let is_read = method == Method::GET || method == Method::HEAD;
        let is_of_version_2 = is_presigned_with_version_2(uri);
        for parameter in parameters(uri) {
            let name = &parameter.name;
            if is_of_version_2 {
                check_query_of_version_2(name)?;
            }
            if is_common_query(name) || self.queries.contains(&&**name) {
                continue;
            }
            let lower = name.to_ascii_lowercase();
            // The shell has made headers of the parameters of a presigned URL.
            let is_header = is_presigned(uri) || is_of_version_2;
            if is_header && lower.strip_prefix("x-amz-").is_some_and(|short| self.knows_header(short)) {
                continue;
            }
            let is_signature = QUERY.contains(&&**name) || HEADERS.contains(&&*lower);
            if is_of_version_2 && is_signature {
                continue;
            }
            if !is_read || parameter.value().is_empty() || is_of_s3(&lower) {
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

/// Refuses a parameter that asks for another operation, or for more, and that a signature of version 2 does not cover.
fn check_query_of_version_2(name: &str) -> S3Result<()> {
    if changes_no_operation(name) || !is_of_s3(name) || name.to_ascii_lowercase().starts_with("x-amz-") {
        return Ok(());
    }
    Err(s3_error!(
        AccessDenied,
        "A signature of version 2 does not cover the query parameter '{name}'. Please use AWS4-HMAC-SHA256."
    ))
}

/// Returns true if a query parameter belongs to a signature, or requests nothing.
pub(crate) fn is_common_query(name: &str) -> bool {
    COMMON_QUERIES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns true if a query parameter would request something of S3, were it spelled right or sent to another
/// operation.
fn is_of_s3(lower_name: &str) -> bool {
    let mut named = KNOWN.iter().flat_map(|known| known.queries).chain(OTHER_QUERIES);
    lower_name.starts_with("x-amz-") || named.any(|known| known.eq_ignore_ascii_case(lower_name))
}

/// Storage classes that are kept with objects and shown. All are stored alike, and can be read at once:
/// an archive would promise something else.
const STORAGE_CLASSES: [&str; 6] =
    ["STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "REDUCED_REDUNDANCY", "GLACIER_IR"];

/// Refuses the values of a known header that ask for more than is done.
fn check_value(name: &str, value: &[u8]) -> S3Result<()> {
    let fits = match name {
        "storage-class" => STORAGE_CLASSES.iter().any(|class| class.as_bytes() == value),
        _ => true,
    };
    let value = String::from_utf8_lossy(value);
    match name {
        _ if fits => Ok(()),
        "storage-class" => {
            let all = STORAGE_CLASSES.join(", ");
            Err(s3_error!(InvalidStorageClass, "'{value}' is not one of the storage classes {all}"))
        }
        _ => Err(s3_error!(NotImplemented, "The value '{value}' of x-amz-{name} is not supported")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::{HeaderName, HeaderValue};

    use super::*;

    /// Headers of S3 that no operation of the gateway knows.
    const OTHER_HEADERS: &[&str] = &[
        "abort-date",
        "checksum-xxhash64",
        "if-match-initiated-time",
        "mfa",
        "rename-source",
        "server-side-encryption-new",
        "transition-default-minimum-object-size",
        "website-redirect-location",
        "write-offset-bytes",
    ];
    /// Headers of clients and proxies that no operation reads, and unknown ones.
    const STRANGE_HEADERS: &[&str] = &["api-version", "cf-id", "foo", "id-2", "te", "user-agent"];

    fn uri(query: &str) -> Uri {
        format!("/b/k?{query}").parse().unwrap()
    }

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

    /// Unread headers pass: clients, libraries and proxies send them.
    #[test]
    fn what_nothing_reads_passes() {
        for known in KNOWN {
            for name in STRANGE_HEADERS {
                assert!(known.check_headers(&headers(name, "x")).is_ok(), "{} with {name}", known.operation);
            }
        }
    }

    /// With version 2, each parameter of each operation is signed, chooses the items of a list, or is refused.
    #[test]
    fn version_2_changes_no_operation() {
        for known in KNOWN {
            for name in known.queries {
                let query = format!("{name}=1&AWSAccessKeyId=k&Expires=1&Signature=s");
                let is_taken = known.check_query(&Method::PUT, &uri(&query)).is_ok();
                assert_eq!(is_taken, changes_no_operation(name), "{} with {name}", known.operation);
            }
        }
        let put = Known::find("PutObject").unwrap();
        let of_put = |query: &str| put.check_query(&Method::PUT, &uri(query)).is_ok();
        let signature = "AWSAccessKeyId=k&Expires=1&Signature=s";
        assert!(of_put(&format!("x-amz-acl=private&content-type=text%2Fplain&{signature}")));
        assert!(!of_put("content-type=text%2Fplain"), "nobody signed it");
        assert!(!of_put("Expires=1"), "nobody signed it");
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
                    let is_taken = known.check_query(&method, &uri(query.trim_start_matches("a=&"))).is_ok();
                    assert_eq!(is_taken, known.queries.contains(name), "{} with ?{query}", known.operation);
                }
            }
        }
    }

    /// s3s takes them for parameters of the client's own, in whatever request.
    #[test]
    fn no_misspelled_query_parameter_is_dropped() {
        for known in KNOWN {
            for name in known.queries {
                let of_get = |query: String| known.check_query(&Method::GET, &uri(&query));
                assert!(of_get(format!("{}=1", name.to_ascii_uppercase())).is_err(), "{name}");
                let encoded = format!("%{:02X}{}", name.as_bytes()[0], &name[1..]);
                assert!(of_get(format!("{encoded}=1")).is_ok(), "{encoded} of {}", known.operation);
            }
        }
        let get = Known::find("GetObject").unwrap();
        assert!(get.check_query(&Method::GET, &uri("acl=1")).is_err());
        assert!(get.check_query(&Method::GET, &uri("%61cl=1")).is_err());
    }

    #[test]
    fn parameters_of_clients_pass_where_they_change_nothing() {
        let get = Known::find("GetObject").unwrap();
        assert!(get.check_query(&Method::GET, &uri("cache-buster=7&x-id=GetObject")).is_ok());
        let put = Known::find("PutObject").unwrap();
        assert!(
            put.check_query(&Method::PUT, &uri("x-id=PutObject&X-Amz-Expires=60&X-Amz-SignedHeaders=host"))
                .is_ok()
        );
        assert!(put.check_query(&Method::PUT, &uri("cache-buster=7")).is_err());
        assert!(put.check_query(&Method::PUT, &uri("renameObject")).is_err());
        assert!(put.check_query(&Method::PUT, &uri("x-amz-acl=public-read")).is_err(), "a header in the query");
        assert!(put.check_query(&Method::PUT, &uri("x-amz-acl=public-read&X-Amz-Signature=0")).is_ok());
        assert!(put.check_query(&Method::PUT, &uri("x-amz-mfa=1&X-Amz-Signature=0")).is_err());
    }

    #[test]
    fn values_that_ask_for_more_are_refused() {
        let put = Known::find("PutObject").unwrap();
        for (name, value, is_taken) in [
            ("storage-class", "STANDARD", true),
            ("storage-class", "STANDARD_IA", true),
            ("storage-class", "GLACIER", false),
            ("meta-color", "blue", true),
        ] {
            assert_eq!(put.check_headers(&headers(name, value)).is_ok(), is_taken, "{name}: {value}");
        }
    }
}
