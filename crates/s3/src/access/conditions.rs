//! The condition keys of a request, as policies name them. Source: "Actions, resources, and condition keys
//! for Amazon S3", and "AWS global condition context keys". What the gateway cannot know is absent.

use std::borrow::Cow;
use std::collections::BTreeMap;

use atoll_iam::ConditionValues;
use http::{HeaderMap, Uri, header};
use s3s::dto::{Timestamp, TimestampFormat};

use super::gate::signed_region;
use crate::authentication::{Authentication, Mechanism};
use crate::clock::system_time;
use crate::query::parameter;
use crate::shell::Arrival;

/// Keys of one request. Cheap to make: values are looked up when a policy asks for them.
#[derive(Clone, Copy)]
pub(crate) struct RequestConditions<'a> {
    pub headers: &'a HeaderMap,
    pub uri: &'a Uri,
    pub arrival: Option<Arrival>,
    pub authentication: Authentication,
    pub now_ms: u64,
    /// Id of the account that owns the bucket.
    pub resource_account: Option<&'a str>,
    /// Tags of the object that is there.
    pub existing_tags: Option<&'a BTreeMap<String, String>>,
    /// Tags that the body of the request sets; those of a header are found by themselves.
    pub body_tags: Option<&'a BTreeMap<String, String>>,
    /// In the place of the query's prefix: where the question is whether a key may be known to exist.
    pub prefix: Option<&'a str>,
}

fn one<'a>(value: impl Into<Cow<'a, str>>) -> Vec<Cow<'a, str>> {
    vec![value.into()]
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

    fn time(&self, format: TimestampFormat) -> Vec<Cow<'a, str>> {
        let mut text = Vec::new();
        match Timestamp::from(system_time(self.now_ms)).format(format, &mut text) {
            Ok(()) => one(String::from_utf8_lossy(&text).into_owned()),
            Err(_) => Vec::new(),
        }
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
            "currenttime" => self.time(TimestampFormat::DateTime),
            "epochtime" => one((self.now_ms / 1_000).to_string()),
            "useragent" => self.header(header::USER_AGENT.as_str()),
            "referer" => self.header(header::REFERER.as_str()),
            "resourceaccount" => self.resource_account.map(one).unwrap_or_default(),
            "requestedregion" => signed_region(self.headers, self.uri).map(one).unwrap_or_default(),
            // No service of AWS asks on behalf of anybody.
            "viaawsservice" => one("false"),
            _ => Vec::new(),
        }
    }

    /// `s3:TlsVersion`: of our own TLS, since proxies do not tell theirs.
    fn tls_version(&self) -> Option<&'static str> {
        self.arrival.and_then(|arrival| arrival.tls_version)
    }

    /// `s3:authType`; what nobody has signed has none.
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
            "versionid" => self.query("versionId"),
            "signatureversion" => self.signature_version().map(one).unwrap_or_default(),
            "tlsversion" => self.tls_version().map(one).unwrap_or_default(),
            "signatureage" => self.signature_age().map(one).unwrap_or_default(),
            "authtype" => self.authentication_type().map(one).unwrap_or_default(),
            "object-lock-mode" | "object-lock-retain-until-date" | "object-lock-legal-hold" => {
                self.header(&format!("x-amz-{name}"))
            }
            "if-match" | "if-none-match" => self.header(name),
            "resourceaccount" => self.resource_account.map(one).unwrap_or_default(),
            "requestobjecttagkeys" => self.request_tags().into_iter().map(|(key, _)| key).collect(),
            _ if name.starts_with("x-amz-") => self.header(name),
            _ => self.of_tags(name),
        }
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
    use http::HeaderValue;

    use super::*;

    #[test]
    fn keys_are_found_where_requests_have_them() {
        let headers: HeaderMap = [
            ("x-amz-acl", "public-read"),
            ("x-amz-tagging", "color=light+blue&size=4"),
            ("x-amz-server-side-encryption", "AES256"),
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
            now_ms: 1_700_000_000_000,
            resource_account: Some("100000000000"),
            existing_tags: Some(&tags),
            body_tags: None,
            prefix: None,
        };
        for (key, expected) in [
            ("aws:sourceip", &["10.1.2.3"][..]),
            ("aws:securetransport", &["true"]),
            ("aws:epochtime", &["1700000000"]),
            ("aws:currenttime", &["2023-11-14T22:13:20.000Z"]),
            ("aws:useragent", &["curl"]),
            ("aws:referer", &[]),
            ("aws:viaawsservice", &["false"]),
            ("s3:tlsversion", &["1.3"]),
            ("s3:prefix", &["a/b"]),
            ("s3:max-keys", &["7"]),
            ("s3:delimiter", &[]),
            ("s3:versionid", &["v"]),
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
        let hidden = RequestConditions { prefix: Some("private/x"), ..conditions };
        assert_eq!(hidden.values("s3:prefix"), ["private/x"]);
    }
}
