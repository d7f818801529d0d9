//! The part of a URL that its signature of version 2 covers beside the path. Source: "Signing and authenticating
//! REST requests".

/// Parameters of the signature itself.
pub(crate) const QUERY: [&str; 3] = ["AWSAccessKeyId", "Expires", "Signature"];

/// Headers without `x-amz-` that clients put into URLs which they presign with version 2.
pub(crate) const HEADERS: [&str; 2] = ["content-md5", "content-type"];

/// Query parameters that version 2 signs.
const COVERED: &[&str] = &[
    "accelerate",
    "acl",
    "cors",
    "delete",
    "lifecycle",
    "location",
    "logging",
    "notification",
    "object-lock",
    "partNumber",
    "policy",
    "replication",
    "requestPayment",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "tagging",
    "uploadId",
    "uploads",
    "versionId",
    "versioning",
    "versions",
    "website",
];
/// Query parameters that version 2 leaves unsigned by definition: they choose the items of a list.
const UNCOVERED: &[&str] = &[
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "key-marker",
    "list-type",
    "marker",
    "max-buckets",
    "max-keys",
    "max-parts",
    "max-uploads",
    "part-number-marker",
    "prefix",
    "start-after",
    "upload-id-marker",
    "version-id-marker",
];

/// Returns true if a parameter of a query is signed, or can only choose the items of a list.
pub(crate) fn changes_no_operation(name: &str) -> bool {
    COVERED.contains(&name) || UNCOVERED.contains(&name)
}
