//! Elements that each operation knows in the document of a request's body. Others are refused, as S3 does by its
//! schema, because s3s passes over them: nothing is accepted and dropped.

use quick_xml::Reader;
use quick_xml::events::Event;
use s3s::{S3Result, s3_error};

const RULE: &[&str] = &["Rule"];
const STATUS: &[&str] = &["Status"];
const TAGS: &[&str] = &["TagSet", "Tag", "Key", "Value"];
const CHECKSUMS: &[&str] =
    &["ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"];
const ACL: &[&str] = &[
    "AccessControlPolicy",
    "AccessControlList",
    "DisplayName",
    "EmailAddress",
    "Grant",
    "Grantee",
    "ID",
    "Owner",
    "Permission",
    "URI",
];

/// The operations whose body is XML, each with groups of the elements' names.
const DOCUMENTS: &[(&str, &[&[&str]])] = &[
    ("CompleteMultipartUpload", &[&["CompleteMultipartUpload", "Part", "ETag", "PartNumber"], CHECKSUMS]),
    (
        "CreateBucket",
        &[
            // Directory buckets are refused by the operation.
            &["CreateBucketConfiguration", "LocationConstraint", "Location", "Bucket"],
            &["Name", "Type", "DataRedundancy"],
        ],
    ),
    ("DeleteObjects", &[&["Delete", "Object", "Key", "VersionId", "ETag", "LastModifiedTime", "Size", "Quiet"]]),
    ("PutBucketAcl", &[ACL]),
    (
        "PutBucketCors",
        &[
            &["CORSConfiguration", "CORSRule", "ID", "AllowedHeader", "AllowedMethod", "AllowedOrigin"],
            &["ExposeHeader", "MaxAgeSeconds"],
        ],
    ),
    (
        "PutBucketEncryption",
        &[
            RULE,
            &["ServerSideEncryptionConfiguration", "ApplyServerSideEncryptionByDefault", "SSEAlgorithm"],
            &["KMSMasterKeyID", "BucketKeyEnabled"],
        ],
    ),
    ("PutBucketOwnershipControls", &[RULE, &["OwnershipControls", "ObjectOwnership"]]),
    ("PutBucketRequestPayment", &[&["RequestPaymentConfiguration", "Payer"]]),
    ("PutBucketTagging", &[TAGS, &["Tagging"]]),
    ("PutBucketVersioning", &[STATUS, &["VersioningConfiguration", "MfaDelete"]]),
    ("PutObjectAcl", &[ACL]),
    ("PutObjectLegalHold", &[STATUS, &["LegalHold"]]),
    (
        "PutObjectLockConfiguration",
        &[RULE, &["ObjectLockConfiguration", "ObjectLockEnabled", "DefaultRetention", "Mode", "Days", "Years"]],
    ),
    ("PutObjectRetention", &[&["Retention", "Mode", "RetainUntilDate"]]),
    ("PutObjectTagging", &[TAGS, &["Tagging"]]),
    (
        "PutPublicAccessBlock",
        &[
            &["PublicAccessBlockConfiguration", "BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy"],
            &["RestrictPublicBuckets"],
        ],
    ),
];

/// The only operation whose body is a document of another kind.
const JSON: &str = "PutBucketPolicy";

fn elements(operation: &str) -> Option<&'static [&'static [&'static str]]> {
    DOCUMENTS.iter().find(|(name, _)| *name == operation).map(|(_, groups)| *groups)
}

/// Returns true if the body of an operation is a document.
pub(crate) fn has_document(operation: &str) -> bool {
    operation == JSON || elements(operation).is_some()
}

/// Refuses a document with elements that its operation does not know. Anything but XML passes: s3s reports its
/// errors.
pub(crate) fn check_elements(operation: &str, document: &[u8]) -> S3Result<()> {
    let Some(groups) = elements(operation) else { return Ok(()) };
    let mut reader = Reader::from_reader(document);
    loop {
        let element = match reader.read_event() {
            Ok(Event::Start(element) | Event::Empty(element)) => element,
            Ok(Event::Eof) | Err(_) => return Ok(()),
            Ok(_) => continue,
        };
        let name = element.local_name();
        if !groups.iter().copied().flatten().any(|known| known.as_bytes() == name.as_ref()) {
            let name = String::from_utf8_lossy(name.as_ref()).into_owned();
            return Err(s3_error!(
                MalformedXML,
                "The XML you provided has an element '{name}' that {operation} does not know"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::known_requests::KNOWN;

    /// Every operation with every element of S3's documents: it knows the element, or refuses it.
    #[test]
    fn no_element_is_dropped() {
        let all: BTreeSet<&str> = DOCUMENTS.iter().flat_map(|(_, groups)| groups.concat()).collect();
        for (operation, groups) in DOCUMENTS {
            for name in all.iter().copied().chain(["Strange"]) {
                let is_taken = groups.concat().contains(&name);
                for document in [format!("<{name}>x</{name}>"), format!("<a:{name} b=\"c\"/>")] {
                    assert_eq!(check_elements(operation, document.as_bytes()).is_ok(), is_taken, "{operation}");
                }
            }
        }
    }

    #[test]
    fn all_operations_with_a_document_are_listed() {
        for known in KNOWN {
            let is_put = known.operation.starts_with("Put") && known.operation != "PutObject";
            let others = ["CompleteMultipartUpload", "CreateBucket", "DeleteObjects"];
            let is_document = is_put || others.contains(&known.operation);
            assert_eq!(has_document(known.operation), is_document, "{}", known.operation);
        }
    }

    #[test]
    fn what_is_no_element_is_passed_over() {
        for document in ["", "<Delete", "{}", "<!-- <A/> --><?xml a?><Delete><Key>&lt;A/&gt;</Key></Delete>"] {
            assert!(check_elements("DeleteObjects", document.as_bytes()).is_ok(), "{document}");
        }
        assert!(check_elements("GetObject", b"<A/>").is_ok());
    }
}
