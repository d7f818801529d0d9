//! The policy of a form: the uploads that its signer allows.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use s3s::dto::{Timestamp, TimestampFormat};
use s3s::{S3Error, S3Result, s3_error};
use serde::Deserialize;
use serde_json::Value;

use super::fields::Fields;

/// Fields that no condition needs to name, beside `x-ignore-`: the policy itself, the parts of its signature, and
/// checksums, which allow nothing.
const UNCONDITIONAL_FIELDS: &[&str] = &[
    "awsaccesskeyid",
    "file",
    "policy",
    "signature",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-signature",
];

/// How long a file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LengthRange {
    pub min: u64,
    pub max: u64,
}

impl LengthRange {
    pub(super) const ANY: LengthRange = LengthRange { min: 0, max: u64::MAX };
}

/// A condition; the names of fields are in lower case.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    Equal { name: String, value: String },
    StartsWith { name: String, value: String },
    Length(LengthRange),
}

/// A policy.
#[derive(Debug)]
pub(super) struct Policy {
    expiration: Timestamp,
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    expiration: String,
    conditions: Vec<Value>,
}

fn invalid(detail: impl std::fmt::Display) -> S3Error {
    s3_error!(InvalidPolicyDocument, "Invalid Policy: {detail}")
}

fn denied(detail: impl std::fmt::Display) -> S3Error {
    s3_error!(AccessDenied, "Invalid according to Policy: {detail}")
}

impl Policy {
    /// From the field of a form: JSON in Base64.
    pub(super) fn parse(field: &str) -> S3Result<Self> {
        let json = BASE64.decode(field).map_err(|_| invalid("it must be in Base64"))?;
        let document: Document = serde_json::from_slice(&json).map_err(invalid)?;
        let expiration = parse_time(&document.expiration)
            .ok_or_else(|| invalid(format!("the expiration '{}' is no time", document.expiration)))?;
        let conditions = document.conditions.iter().map(Condition::parse).collect::<S3Result<_>>()?;
        Ok(Policy { expiration, conditions })
    }

    /// Checks if a form meets the policy. The length of its file shows later.
    pub(super) fn check(&self, fields: &Fields, now: SystemTime) -> S3Result<LengthRange> {
        if self.expiration <= Timestamp::from(now) {
            return Err(denied("Policy expired."));
        }
        let mut range = LengthRange::ANY;
        for condition in &self.conditions {
            if let Condition::Length(LengthRange { min, max }) = *condition {
                range = LengthRange { min: range.min.max(min), max: range.max.min(max) };
            } else if !condition.holds(fields) {
                return Err(denied(format!("Policy Condition failed: {condition}")));
            }
        }
        let is_named = |name: &str| self.conditions.iter().any(|condition| condition.name() == Some(name));
        let unnamed = |name: &&str| !UNCONDITIONAL_FIELDS.contains(name) && !is_named(name);
        let unnamed: Vec<&str> = fields.iter().map(|(name, _)| name).filter(unnamed).collect();
        if unnamed.is_empty() {
            Ok(range)
        } else {
            Err(denied(format!("Extra input fields: {}", unnamed.join(", "))))
        }
    }
}

impl Condition {
    fn parse(condition: &Value) -> S3Result<Self> {
        match condition {
            Value::Object(properties) => {
                let mut properties = properties.iter();
                let (Some((name, Value::String(value))), None) = (properties.next(), properties.next()) else {
                    return Err(invalid(
                        "a simple condition must have exactly one property, whose value is a text",
                    ));
                };
                Ok(Condition::Equal { name: name.to_ascii_lowercase(), value: value.clone() })
            }
            Value::Array(parts) => Self::parse_parts(parts),
            _ => Err(invalid("a condition must be an object or a list")),
        }
    }

    fn parse_parts(parts: &[Value]) -> S3Result<Self> {
        let wrong = || invalid(format!("the condition {} cannot be read", Value::Array(parts.to_vec())));
        let [Value::String(operator), second, third] = parts else { return Err(wrong()) };
        let operator = operator.to_ascii_lowercase();
        if operator == "content-length-range" {
            let (min, max) = (number(second).ok_or_else(wrong)?, number(third).ok_or_else(wrong)?);
            return if min <= max { Ok(Condition::Length(LengthRange { min, max })) } else { Err(wrong()) };
        }
        let (Value::String(name), Value::String(value)) = (second, third) else { return Err(wrong()) };
        let name = name.strip_prefix('$').ok_or_else(wrong)?.to_ascii_lowercase();
        match operator.as_str() {
            "eq" => Ok(Condition::Equal { name, value: value.clone() }),
            "starts-with" => Ok(Condition::StartsWith { name, value: value.clone() }),
            _ => Err(wrong()),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Condition::Equal { name, .. } | Condition::StartsWith { name, .. } => Some(name),
            Condition::Length(_) => None,
        }
    }

    /// A field that is not there is empty.
    fn holds(&self, fields: &Fields) -> bool {
        let field = |name: &str| fields.get(name).unwrap_or_default().to_owned();
        match self {
            Condition::Equal { name, value } => field(name) == *value,
            // Some browsers send the types of several files in one field.
            Condition::StartsWith { name, value } if name == "content-type" => {
                field(name).split(',').all(|one| one.trim_start().starts_with(value))
            }
            Condition::StartsWith { name, value } => field(name).starts_with(value),
            Condition::Length(_) => true,
        }
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Condition::Equal { name, value } => serde_json::json!(["eq", format!("${name}"), value]),
            Condition::StartsWith { name, value } => serde_json::json!(["starts-with", format!("${name}"), value]),
            Condition::Length(range) => serde_json::json!(["content-length-range", range.min, range.max]),
        };
        text.fmt(formatter)
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// `2026-11-24T08:09:10Z`, perhaps with a fraction of the second: other forms of ISO 8601 are no times
/// for S3.
fn parse_time(text: &str) -> Option<Timestamp> {
    let has_form = text.as_bytes().get(10) == Some(&b'T') && text.ends_with('Z');
    has_form.then(|| Timestamp::parse(TimestampFormat::DateTime, text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(json: &str) -> S3Result<Policy> {
        Policy::parse(&BASE64.encode(json))
    }

    fn with(conditions: &str) -> String {
        format!(r#"{{"expiration":"2100-01-01T00:00:00.000Z","conditions":[{conditions}]}}"#)
    }

    fn check<const COUNT: usize>(conditions: &str, fields: [(&str, &str); COUNT]) -> Result<LengthRange, String> {
        let checked = parse(&with(conditions)).unwrap().check(&fields.into(), SystemTime::now());
        checked.map_err(|error| {
            assert_eq!(error.code().as_str(), "AccessDenied");
            error.message().unwrap().trim_start_matches("Invalid according to Policy: ").to_owned()
        })
    }

    #[test]
    fn documents_that_s3_does_not_take_are_refused() {
        assert!(parse(&with("")).is_ok());
        assert!(parse(&with(r#"["content-length-range",0,0],["Content-Length-Range","1","5"]"#)).is_ok());
        for conditions in [
            "{}",
            r#"{"a":"b","c":"d"}"#,
            r#"{"success_action_status":201}"#,
            "[]",
            "1",
            r#"["eq","key","a"]"#,
            r#"["eq","$key"]"#,
            r#"["eq","$key","a","b"]"#,
            r#"["ends-with","$key","a"]"#,
            r#"["content-length-range",0]"#,
            r#"["content-length-range",-1,0]"#,
            r#"["content-length-range",2,1]"#,
            r#"["content-length-range",0.5,1]"#,
        ] {
            let error = parse(&with(conditions)).unwrap_err();
            assert_eq!(error.code().as_str(), "InvalidPolicyDocument", "{conditions}");
        }
        for document in [
            "",
            "[]",
            r#"{"conditions":[]}"#,
            r#"{"expiration":"2100-01-01T00:00:00Z"}"#,
            r#"{"EXPIRATION":"2100-01-01T00:00:00Z","conditions":[]}"#,
            r#"{"expiration":"2100-01-01T00:00:00Z","CONDITIONS":[]}"#,
            r#"{"expiration":"2100-01-01T00:00:00Z","conditions":[],"more":1}"#,
            r#"{"expiration":"2100-01-01 00:00:00Z","conditions":[]}"#,
            r#"{"expiration":"2100-01-01 00:00:00.5+00:00","conditions":[]}"#,
            r#"{"expiration":"2100-01-01T00:00:00+02:00","conditions":[]}"#,
            r#"{"expiration":"2100-13-01T00:00:00Z","conditions":[]}"#,
            r#"{"expiration":1,"conditions":[]}"#,
        ] {
            assert_eq!(parse(document).unwrap_err().code().as_str(), "InvalidPolicyDocument", "{document}");
        }
        assert!(Policy::parse("no Base64!").is_err());
    }

    #[test]
    fn conditions_bind_fields() {
        let key = r#"["StArTs-WiTh","$KeY","user/"],{"aCl":"private"}"#;
        let fields = |key, acl| [("key", key), ("acl", acl), ("policy", "p"), ("x-amz-checksum-sha1", "s")];
        assert_eq!(check(key, fields("user/a", "private")), Ok(LengthRange::ANY));
        let wrong = check(key, fields("other/a", "private")).unwrap_err();
        assert_eq!(wrong, r#"Policy Condition failed: ["starts-with","$key","user/"]"#);
        let wrong = check(key, fields("user/a", "public-read")).unwrap_err();
        assert_eq!(wrong, r#"Policy Condition failed: ["eq","$acl","private"]"#);
        let wrong = check(key, [("key", "user/a"), ("acl", "private"), ("tagging", ""), ("expires", "")]);
        assert_eq!(wrong.unwrap_err(), "Extra input fields: tagging, expires");
        assert!(check(r#"["starts-with","$tagging",""]"#, []).is_ok(), "what is not there is empty");
        assert!(check(r#"["starts-with","$x-amz-meta-a","b"]"#, []).is_err());
        assert!(check(r#"["eq","$x-amz-meta-a",""]"#, [("x-amz-meta-a", "b")]).is_err());
        assert!(check(r#"["starts-with","$key","\\$a"]"#, [("key", r"\$a.txt")]).is_ok(), "nothing is unescaped");
    }

    #[test]
    fn types_may_be_a_list() {
        let images = r#"["starts-with","$Content-Type","image/"]"#;
        assert!(check(images, [("content-type", "image/png")]).is_ok());
        assert!(check(images, [("content-type", "image/png, image/gif")]).is_ok());
        assert!(check(images, [("content-type", "image/png,text/html")]).is_err());
        assert!(check(images, []).is_err());
    }

    #[test]
    fn all_ranges_hold() {
        let ranges = r#"["content-length-range",1,10],["content-length-range",0,5]"#;
        assert_eq!(check(ranges, []), Ok(LengthRange { min: 1, max: 5 }));
    }

    #[test]
    fn a_policy_ends() {
        let policy = parse(r#"{"expiration":"2026-11-24T08:09:10Z","conditions":[]}"#).unwrap();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_507_750);
        assert!(policy.check(&Fields::default(), end - Duration::from_millis(1)).is_ok());
        let error = policy.check(&Fields::default(), end).unwrap_err();
        assert_eq!(error.message(), Some("Invalid according to Policy: Policy expired."));
    }
}
