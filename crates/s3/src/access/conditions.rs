//! The condition keys of a request, as policies name them. Source: "Actions, resources, and condition keys for
//! Amazon S3", and "AWS global condition context keys". Values that the gateway cannot know are absent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use atoll_iam::ConditionValues;
use atoll_iam::arn::kms_key_arn;
use http::{HeaderMap, Uri, header};
use s3s::dto::{CopySource, Timestamp, TimestampFormat};

use crate::arrival::Arrival;
use crate::authentication::{Authentication, Mechanism};
use crate::clock::{system_time, unix_ms_of};
use crate::object_lock::{ObjectLock, legal_hold_name, mode_name};
use crate::query::parameter;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// The header, and the condition key, that name a key for SSE-KMS.
pub(super) const KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// The header, and the condition key, that say which bytes of the body a signature covers; and their value for none.
const CONTENT_SHA256: &str = "x-amz-content-sha256";
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// The key of the key service that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedKey {
    pub name: String,
    /// The account that owns it, if one does.
    pub owner: Option<String>,
    pub caller_account: Option<String>,
    pub region: String,
}

/// Keys of one request. Cheap to make: values are looked up when a policy asks for them.
#[derive(Clone, Copy)]
pub(crate) struct RequestConditions<'a> {
    pub headers: &'a HeaderMap,
    pub uri: &'a Uri,
    pub arrival: Option<Arrival>,
    pub authentication: Authentication,
    /// The region that serves it.
    pub region: &'a str,
    /// The operation, by its name in S3's API.
    pub operation: &'static str,
    pub now_ms: u64,
    /// Id of the account that owns the bucket.
    pub resource_account: Option<&'a str>,
    /// Tags of the object that is there.
    pub existing_tags: Option<&'a BTreeMap<String, String>>,
    /// Tags that the body of the request sets; those of a header are found by themselves.
    pub body_tags: Option<&'a BTreeMap<String, String>>,
    /// The lock that the body of the request sets; that of headers is found by itself.
    pub body_lock: Option<&'a ObjectLock>,
    /// The version that is asked for. Of many in one request it is one after the other.
    pub version_id: Option<&'a str>,
    /// Where the body of a CreateBucket says that the bucket is to be.
    pub location: Option<&'a str>,
    /// The key of the key service that a header names.
    pub named_key: Option<&'a NamedKey>,
    /// In the place of the query's prefix: where the question is whether a key may be known to exist.
    pub prefix: Option<&'a str>,
}

/// The region in the scope of a signature: `KEY/20260101/REGION/s3/aws4_request`.
fn region_of_scope(scope: &str) -> Option<&str> {
    // An access key may contain slashes.
    scope.split([',', ' ']).next()?.rsplit('/').nth(2)
}

/// The region of a signature in a header.
pub(crate) fn region_of_header(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    region_of_scope(value.split_once("Credential=")?.1)
}

/// The region of a signature in a header or a URL.
pub(super) fn signed_region(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let of_header = region_of_header(headers).map(str::to_owned);
    of_header.or_else(|| region_of_scope(&parameter(uri, "X-Amz-Credential")?).map(str::to_owned))
}

fn one<'a>(value: impl Into<Cow<'a, str>>) -> Vec<Cow<'a, str>> {
    vec![value.into()]
}

fn time<'a>(unix_ms: u64, format: TimestampFormat) -> Vec<Cow<'a, str>> {
    let mut text = Vec::new();
    match Timestamp::from(system_time(unix_ms)).format(format, &mut text) {
        Ok(()) => one(String::from_utf8_lossy(&text).into_owned()),
        Err(_) => Vec::new(),
    }
}

fn parse_time(text: &str) -> Option<u64> {
    Timestamp::parse(TimestampFormat::DateTime, text).ok().map(unix_ms_of)
}

impl<'a> RequestConditions<'a> {
    fn header(&self, name: &str) -> Vec<Cow<'a, str>> {
        let values = self.headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.map(Cow::Borrowed).collect()
    }

    fn query(&self, name: &str) -> Vec<Cow<'a, str>> {
        parameter(self.uri, name).map(one).unwrap_or_default()
    }

    fn request_tags(&self) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
        if let Some(tags) = self.body_tags {
            return tags.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
        }
        let header = self.headers.get("x-amz-tagging").map(|value| value.as_bytes()).unwrap_or_default();
        form_urlencoded::parse(header).collect()
    }

    fn of_aws(&self, name: &str) -> Vec<Cow<'a, str>> {
        match name {
            "sourceip" => {
                let client = self.arrival.and_then(|arrival| arrival.client);
                client.map(|client| one(client.ip().to_canonical().to_string())).unwrap_or_default()
            }
            "securetransport" => {
                let is_encrypted = self.arrival.is_some_and(|arrival| arrival.is_encrypted);
                one(if is_encrypted { "true" } else { "false" })
            }
            "currenttime" => time(self.now_ms, TimestampFormat::DateTime),
            "epochtime" => one((self.now_ms / 1_000).to_string()),
            "useragent" => self.header(header::USER_AGENT.as_str()),
            "referer" => self.header(header::REFERER.as_str()),
            "resourceaccount" => self.resource_account.map(one).unwrap_or_default(),
            "requestedregion" => one(self.region),
            // No service of AWS asks on behalf of anybody.
            "viaawsservice" => one("false"),
            _ => Vec::new(),
        }
    }

    /// Returns `s3:TlsVersion` of our own TLS, since proxies do not report theirs.
    fn tls_version(&self) -> Option<&'static str> {
        self.arrival.and_then(|arrival| arrival.tls_version)
    }

    /// Returns `s3:authType`; unsigned requests have none.
    fn authentication_type(&self) -> Option<&'static str> {
        Some(match self.authentication.mechanism {
            Mechanism::Anonymous => return None,
            Mechanism::Header => "REST-HEADER",
            Mechanism::Query | Mechanism::QueryOfVersion2 => "REST-QUERY-STRING",
            Mechanism::Form | Mechanism::FormOfVersion2 => "POST",
        })
    }

    /// `s3:signatureversion`.
    fn signature_version(&self) -> Option<&'static str> {
        match self.authentication {
            authentication if !authentication.is_signed() => None,
            authentication if authentication.is_of_version_2() => Some("AWS"),
            _ => Some("AWS4-HMAC-SHA256"),
        }
    }

    /// `s3:signatureAge`, in milliseconds. A signature that is of later than now, by its clock, has the age of none.
    fn signature_age(&self) -> Option<String> {
        let signed_ms = self.authentication.signed_unix_ms?;
        Some(self.now_ms.saturating_sub(signed_ms).to_string())
    }

    fn of_s3(&self, name: &str) -> Vec<Cow<'a, str>> {
        match name {
            "prefix" if self.prefix.is_some() => self.prefix.map(one).unwrap_or_default(),
            "prefix" | "delimiter" | "max-keys" => self.query(name),
            "versionid" => self.version_id.map(one).unwrap_or_default(),
            "objectcreationoperation" => self.creates_object().map(one).unwrap_or_default(),
            "signatureversion" => self.signature_version().map(one).unwrap_or_default(),
            "tlsversion" => self.tls_version().map(one).unwrap_or_default(),
            "signatureage" => self.signature_age().map(one).unwrap_or_default(),
            "authtype" => self.authentication_type().map(one).unwrap_or_default(),
            _ if name.starts_with("object-lock-") => self.of_lock(name),
            "if-match" | "if-none-match" => self.header(name),
            "resourceaccount" => self.resource_account.map(one).unwrap_or_default(),
            "requestobjecttagkeys" => self.request_tags().into_iter().map(|(key, _)| key).collect(),
            "x-amz-copy-source" => self.copy_source(),
            "locationconstraint" => self.location.map(one).unwrap_or_default(),
            KEY_ID => self.key_ids(),
            CONTENT_SHA256 => self.content_sha256(),
            _ if name.starts_with("x-amz-") => self.header(name),
            _ => self.of_tags(name),
        }
    }

    /// `s3:x-amz-copy-source` as it is obeyed, however a client spells it: decoded, without a version, and both with a slash
    /// before the bucket and without one, since policies are written either way.
    fn copy_source(&self) -> Vec<Cow<'a, str>> {
        let spelled = self.header("x-amz-copy-source");
        let sources = spelled.iter().filter_map(|text| CopySource::parse(text).ok());
        let of_buckets = sources.filter_map(|source| match source {
            CopySource::Bucket { bucket, key, .. } => Some(format!("/{bucket}/{key}")),
            _ => None,
        });
        of_buckets.flat_map(|path| [Cow::Owned(path[1..].to_owned()), Cow::Owned(path)]).collect()
    }

    /// `s3:x-amz-server-side-encryption-aws-kms-key-id` by every name of the key that is meant, however a client spells it:
    /// its ARN, its name and its alias.
    fn key_ids(&self) -> Vec<Cow<'a, str>> {
        let Some(key) = self.named_key else { return self.header(KEY_ID) };
        // A key without an owner is each account's.
        let accounts = match &key.owner {
            Some(owner) => vec![owner.as_str()],
            None => key.caller_account.as_deref().into_iter().chain(self.resource_account).collect(),
        };
        let arns = accounts.into_iter().map(|account| kms_key_arn(&key.region, account, &key.name).into());
        let names = [key.name.as_str().into(), format!("alias/{}", key.name).into()];
        arns.chain(names).collect()
    }

    /// `s3:x-amz-content-sha256`. Where nothing compares a header with the body, its value does not count.
    fn content_sha256(&self) -> Vec<Cow<'a, str>> {
        let is_compared = matches!(self.authentication.mechanism, Mechanism::Header | Mechanism::Query);
        let of_header = if is_compared { self.header(CONTENT_SHA256) } else { Vec::new() };
        if of_header.is_empty() { one(UNSIGNED_PAYLOAD) } else { of_header }
    }

    /// `s3:ObjectCreationOperation`: an upload in parts makes its object when it is completed.
    fn creates_object(&self) -> Option<&'static str> {
        match self.operation {
            "CompleteMultipartUpload" | "CopyObject" | "PostObject" | "PutObject" => Some("true"),
            "CreateMultipartUpload" | "UploadPart" | "UploadPartCopy" => Some("false"),
            _ => None,
        }
    }

    /// Returns the values of a request for the lock of an object, in its body or in its headers.
    fn of_lock(&self, name: &str) -> Vec<Cow<'a, str>> {
        let Some(lock) = self.body_lock else {
            return match name {
                "object-lock-remaining-retention-days" => {
                    let text = self.headers.get("x-amz-object-lock-retain-until-date");
                    let until = text.and_then(|text| text.to_str().ok()).and_then(parse_time);
                    until.map(|until_ms| one(self.days_until(until_ms))).unwrap_or_default()
                }
                _ => self.header(&format!("x-amz-{name}")),
            };
        };
        let retention = lock.retention.as_ref();
        let value = match name {
            "object-lock-mode" => retention.map(|retention| one(mode_name(retention.mode))),
            "object-lock-retain-until-date" => {
                retention.map(|retention| time(retention.until_ms, TimestampFormat::DateTime))
            }
            "object-lock-remaining-retention-days" => {
                retention.map(|retention| one(self.days_until(retention.until_ms)))
            }
            "object-lock-legal-hold" => lock.legal_hold.map(|is_on| one(legal_hold_name(is_on))),
            _ => None,
        };
        value.unwrap_or_default()
    }

    /// Days that are left; one that has begun counts.
    fn days_until(&self, until_ms: u64) -> String {
        until_ms.saturating_sub(self.now_ms).div_ceil(DAY_MS).to_string()
    }

    fn of_tags(&self, name: &str) -> Vec<Cow<'a, str>> {
        let Some((kind, key)) = name.split_once('/') else { return Vec::new() };
        match kind {
            "existingobjecttag" => {
                let value = self.existing_tags.and_then(|tags| tags.get(key));
                value.map(|value| one(value.as_str())).unwrap_or_default()
            }
            "requestobjecttag" => {
                let found = self.request_tags().into_iter().find(|(found, _)| found == key);
                found.map(|(_, value)| vec![value]).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }
}

impl ConditionValues for RequestConditions<'_> {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        match key.split_once(':') {
            Some(("aws", name)) => self.of_aws(name),
            Some(("s3", name)) => self.of_s3(name),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_types::records::RetentionMode;
    use http::HeaderValue;

    use super::*;
    use crate::object_lock::Retention;

    #[test]
    fn a_key_has_all_its_names_in_conditions() {
        let (headers, uri) = (HeaderMap::new(), Uri::from_static("/b/k"));
        let named = |owner: Option<&str>| NamedKey {
            name: "project".into(),
            owner: owner.map(str::to_owned),
            caller_account: Some("200000000000".into()),
            region: "us-east-1".into(),
        };
        let values = |key: &NamedKey| {
            let conditions = RequestConditions {
                headers: &headers,
                uri: &uri,
                arrival: None,
                authentication: Authentication::default(),
                region: "us-east-1",
                operation: "PutObject",
                now_ms: 0,
                resource_account: Some("100000000000"),
                existing_tags: None,
                body_tags: None,
                body_lock: None,
                version_id: None,
                location: None,
                named_key: Some(key),
                prefix: None,
            };
            let values = conditions.values("s3:x-amz-server-side-encryption-aws-kms-key-id");
            values.into_iter().map(Cow::into_owned).collect::<Vec<_>>()
        };
        let arn = |account: &str| format!("arn:aws:kms:us-east-1:{account}:key/project");
        assert_eq!(values(&named(Some("300000000000"))), [&arn("300000000000"), "project", "alias/project"]);
        let of_each = [&arn("200000000000"), &arn("100000000000"), "project", "alias/project"];
        assert_eq!(values(&named(None)), of_each);
    }

    #[test]
    fn keys_are_found_where_requests_have_them() {
        let headers: HeaderMap = [
            ("x-amz-acl", "public-read"),
            ("x-amz-tagging", "color=light+blue&size=4"),
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-object-lock-mode", "GOVERNANCE"),
            ("x-amz-object-lock-retain-until-date", "2023-11-24T22:13:20Z"),
            ("user-agent", "curl"),
        ]
        .into_iter()
        .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
        let uri = Uri::from_static("/b?list-type=2&Prefix=x&pre%66ix=a%2Fb&max-keys=7&versionId=v&Delimiter=x");
        let tags = BTreeMap::from([("Owner".to_owned(), "Ann".to_owned())]);
        let conditions = RequestConditions {
            headers: &headers,
            uri: &uri,
            arrival: Some(Arrival {
                is_encrypted: true,
                tls_version: Some("1.3"),
                client: Some("10.1.2.3:0".parse().unwrap()),
            }),
            authentication: Authentication {
                mechanism: Mechanism::Query,
                signed_unix_ms: Some(1_699_999_940_000),
                ..Authentication::default()
            },
            region: "eu-west-1",
            operation: "PutObject",
            now_ms: 1_700_000_000_000,
            resource_account: Some("100000000000"),
            existing_tags: Some(&tags),
            body_tags: None,
            body_lock: None,
            version_id: Some("v"),
            location: Some("pool:images"),
            named_key: None,
            prefix: None,
        };
        for (key, expected) in [
            ("aws:sourceip", &["10.1.2.3"][..]),
            ("aws:securetransport", &["true"]),
            ("aws:epochtime", &["1700000000"]),
            ("aws:currenttime", &["2023-11-14T22:13:20.000Z"]),
            ("aws:useragent", &["curl"]),
            ("aws:referer", &[]),
            ("aws:requestedregion", &["eu-west-1"]),
            ("aws:viaawsservice", &["false"]),
            ("s3:tlsversion", &["1.3"]),
            ("s3:prefix", &["a/b"]),
            ("s3:max-keys", &["7"]),
            ("s3:locationconstraint", &["pool:images"]),
            ("s3:delimiter", &[]),
            ("s3:versionid", &["v"]),
            ("s3:objectcreationoperation", &["true"]),
            ("s3:object-lock-mode", &["GOVERNANCE"]),
            ("s3:object-lock-retain-until-date", &["2023-11-24T22:13:20Z"]),
            ("s3:object-lock-remaining-retention-days", &["10"]),
            ("s3:object-lock-legal-hold", &[]),
            ("s3:x-amz-acl", &["public-read"]),
            ("s3:x-amz-server-side-encryption", &["AES256"]),
            ("s3:requestobjecttag/color", &["light blue"]),
            ("s3:requestobjecttag/Color", &[]),
            ("s3:requestobjecttagkeys", &["color", "size"]),
            ("s3:existingobjecttag/Owner", &["Ann"]),
            ("s3:existingobjecttag/owner", &[]),
            ("s3:resourceaccount", &["100000000000"]),
            ("s3:authtype", &["REST-QUERY-STRING"]),
            ("s3:signatureversion", &["AWS4-HMAC-SHA256"]),
            ("s3:signatureage", &["60000"]),
            ("ec2:region", &[]),
        ] {
            assert_eq!(conditions.values(key), expected, "{key}");
        }
        for (mechanism, kind, version) in [
            (Mechanism::Anonymous, None, None),
            (Mechanism::Header, Some("REST-HEADER"), Some("AWS4-HMAC-SHA256")),
            (Mechanism::QueryOfVersion2, Some("REST-QUERY-STRING"), Some("AWS")),
            (Mechanism::Form, Some("POST"), Some("AWS4-HMAC-SHA256")),
            (Mechanism::FormOfVersion2, Some("POST"), Some("AWS")),
        ] {
            let authentication = Authentication { mechanism, ..Authentication::default() };
            let conditions = RequestConditions { authentication, ..conditions };
            assert_eq!(conditions.values("s3:authtype"), Vec::from_iter(kind), "{mechanism:?}");
            assert_eq!(conditions.values("s3:signatureversion"), Vec::from_iter(version), "{mechanism:?}");
            assert!(conditions.values("s3:signatureage").is_empty());
        }
        let lock = ObjectLock {
            retention: Some(Retention { mode: RetentionMode::Compliance, until_ms: 1_700_000_000_001 }),
            legal_hold: Some(true),
        };
        let of_body = RequestConditions { body_lock: Some(&lock), ..conditions };
        for (key, expected) in [
            ("s3:object-lock-mode", "COMPLIANCE"),
            ("s3:object-lock-retain-until-date", "2023-11-14T22:13:20.001Z"),
            ("s3:object-lock-remaining-retention-days", "1"),
            ("s3:object-lock-legal-hold", "ON"),
        ] {
            assert_eq!(of_body.values(key), [expected], "{key}");
        }
        let none = RequestConditions { body_lock: Some(&ObjectLock::default()), ..conditions };
        assert!(none.values("s3:object-lock-mode").is_empty(), "the body counts, and no header");
        let hidden = RequestConditions { prefix: Some("private/x"), ..conditions };
        assert_eq!(hidden.values("s3:prefix"), ["private/x"]);
        for spelled in ["from/a/plan", "/from/a/plan", "from%2Fa/%70lan", "%2Ffrom/a/plan?versionId=null"] {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-amz-copy-source"),
                HeaderValue::from_static(spelled),
            )]);
            let copies = RequestConditions { headers: &headers, ..conditions };
            assert_eq!(copies.values("s3:x-amz-copy-source"), ["from/a/plan", "/from/a/plan"], "{spelled}");
        }
    }

    /// A policy that refuses bodies without a signature must see those that no signature can cover.
    #[test]
    fn bodies_without_a_signature_are_told() {
        let uri = Uri::from_static("/b/k?X-Amz-Credential=a%2F20261124%2Fmade-up%2Fs3%2Faws4_request");
        let values = |mechanism: Mechanism, header: Option<&'static str>| {
            let header =
                header.map(|value| (http::HeaderName::from_static(CONTENT_SHA256), value.parse().unwrap()));
            let headers = HeaderMap::from_iter(header);
            let conditions = RequestConditions {
                headers: &headers,
                uri: &uri,
                arrival: None,
                authentication: Authentication { mechanism, ..Authentication::default() },
                region: "eu-west-1",
                operation: "PutObject",
                now_ms: 0,
                resource_account: None,
                existing_tags: None,
                body_tags: None,
                body_lock: None,
                version_id: None,
                location: None,
                named_key: None,
                prefix: None,
            };
            assert_eq!(conditions.values("aws:requestedregion"), ["eu-west-1"], "{mechanism:?}");
            conditions.values("s3:x-amz-content-sha256").into_iter().map(Cow::into_owned).collect::<Vec<_>>()
        };
        let unsigned = ["UNSIGNED-PAYLOAD"];
        assert_eq!(values(Mechanism::Header, Some("e3b0")), ["e3b0"]);
        assert_eq!(values(Mechanism::Query, Some("e3b0")), ["e3b0"], "the body is compared");
        assert_eq!(values(Mechanism::Query, None), unsigned);
        for mechanism in
            [Mechanism::QueryOfVersion2, Mechanism::Form, Mechanism::FormOfVersion2, Mechanism::Anonymous]
        {
            assert_eq!(values(mechanism, None), unsigned, "{mechanism:?}");
            assert_eq!(values(mechanism, Some("e3b0")), unsigned, "{mechanism:?}");
        }
    }
}
