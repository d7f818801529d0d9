//! The record of a request in the audit log (docs/reference/formats.md, "Audit log").

use std::collections::BTreeSet;
use std::net::IpAddr;

use atoll_audit::{Bounded, DocumentChange};
use atoll_iam::CallerIdentity;
use atoll_types::records::BucketRecord;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// One of the objects that DeleteObjects was to delete.
#[derive(Debug, Serialize)]
pub(crate) struct AuditedDeletion {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// Why it was not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Most bytes of a line for the keys of DeleteObjects, as JSON. Clients choose keys, and escapes make them longer.
const DELETED_BYTES_MAX: usize = 64 << 10;

/// All that one DeleteObjects was to delete.
#[derive(Debug, Default)]
pub(crate) struct AuditedDeletions {
    /// Those that fit into a line.
    pub listed: Vec<AuditedDeletion>,
    /// The number of the others.
    pub unlisted: usize,
    /// Nothing was deleted.
    pub are_refused: bool,
}

impl AuditedDeletions {
    pub fn new(mut all: Vec<AuditedDeletion>) -> Self {
        let are_refused = !all.is_empty() && all.iter().all(|one| one.error.is_some());
        let mut left_bytes = DELETED_BYTES_MAX;
        let fitting = all.iter().take_while(|one| {
            let size_bytes = serde_json::to_string(one).map_or(usize::MAX, |text| text.len());
            let left = left_bytes.checked_sub(size_bytes);
            left_bytes = left.unwrap_or_default();
            left.is_some()
        });
        let (count, all_count) = (fitting.count(), all.len());
        all.truncate(count);
        AuditedDeletions { listed: all, unlisted: all_count - count, are_refused }
    }
}

/// A setting of a bucket that a request has changed.
#[derive(Debug, Serialize)]
pub(crate) struct AuditedSetting {
    /// Its name in the bucket's record.
    pub setting: String,
    /// Null if it was not there.
    pub before: Value,
    /// Null if it is not there any more.
    pub after: Value,
}

/// Fields of a bucket's record that no setting is in, or secrets. Changes of policies have a field of their own.
const NO_SETTINGS: [&str; 5] = ["format", "key_generation", "named_keys", "unsealed_permit", "wrapped_key"];
const OF_POLICY: [&str; 2] = ["policy", "policy_principals"];
/// Most bytes of a line for the value of a setting, as JSON.
const SETTING_BYTES_MAX: usize = 4 << 10;

impl AuditedSetting {
    /// All that differ between two states of a bucket.
    pub fn changed(before: &BucketRecord, after: &BucketRecord) -> Vec<Self> {
        let (mut before, mut after) = (settings_of(before), settings_of(after));
        let names: BTreeSet<String> = before.keys().chain(after.keys()).cloned().collect();
        let changed = names.into_iter().filter_map(|setting| {
            let (before, after) = (before.remove(&setting), after.remove(&setting));
            (before != after).then(|| AuditedSetting { setting, before: bounded(before), after: bounded(after) })
        });
        changed.collect()
    }
}

fn settings_of(record: &BucketRecord) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(record) else { return Map::new() };
    fields.retain(|name, _| !NO_SETTINGS.contains(&&name[..]));
    if let Some(Value::Object(access)) = fields.get_mut("access") {
        access.retain(|name, _| !OF_POLICY.contains(&&name[..]));
    }
    fields
}

fn bounded(value: Option<Value>) -> Value {
    let value = value.unwrap_or_default();
    match value.to_string().len() {
        ..=SETTING_BYTES_MAX => value,
        bytes => format!("left out: {bytes} bytes").into(),
    }
}

/// Caller, request and outcome. No secret is in it: of a URL it has the path only.
#[derive(Debug, Serialize)]
pub(crate) struct AuditRecord<'a> {
    /// Always `s3`.
    pub source: &'static str,
    pub time_unix_ms: u64,
    pub request_id: Option<&'a str>,
    pub operation: &'a str,
    /// The action of IAM or STS, as policies name it.
    pub action: Option<&'a str>,
    /// The ARN that the action is about.
    pub subject: Option<Bounded<'a>>,
    pub method: Option<Bounded<'a>>,
    pub path: Bounded<'a>,
    /// Absent if the request was refused before it was known that it may look at it.
    pub bucket: Option<&'a str>,
    /// The version that was asked for, or made.
    pub version_id: Option<Bounded<'a>>,
    /// Source of a copy.
    pub copy_source: Option<Bounded<'a>>,
    /// Keys that DeleteObjects was to delete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted: Option<&'a [AuditedDeletion]>,
    /// The number of those for which the line has no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleted_unlisted: Option<usize>,
    /// Settings of buckets that it has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<&'a [AuditedSetting]>,
    /// Changes of policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<&'a [DocumentChange]>,
    pub account: Option<&'a str>,
    /// The ARN of the user, role or root that has signed.
    #[serde(serialize_with = "as_arn")]
    pub principal: Option<&'a CallerIdentity>,
    pub access_key: Option<&'a str>,
    pub client: Option<IpAddr>,
    pub is_encrypted: Option<bool>,
    pub user_agent: Option<Bounded<'a>>,
    /// Absent if the client left before there was one.
    pub status: Option<u16>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub duration_us: u64,
    /// Names of fields that were cut.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<&'static str>,
}

fn as_arn<S: Serializer>(caller: &Option<&CallerIdentity>, serializer: S) -> Result<S::Ok, S::Error> {
    match caller {
        Some(caller) => serializer.collect_str(&caller.display_arn()),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use atoll_iam::{Account, CallerKind};

    use super::*;

    fn caller(kind: CallerKind) -> CallerIdentity {
        let account = Account { id: "1".into(), canonical_id: "c".into(), name: "n".into() };
        CallerIdentity { account: Arc::new(account), kind, session_issued_unix_ms: None, tags: BTreeMap::new() }
    }

    #[test]
    fn a_caller_is_its_arn_and_its_address() {
        #[derive(Serialize)]
        struct Record<'a> {
            #[serde(serialize_with = "as_arn")]
            principal: Option<&'a CallerIdentity>,
            client: Option<IpAddr>,
        }
        let kinds = [
            CallerKind::Root,
            CallerKind::User { id: "AIDA".into(), name: "an\"n".into(), path: "/team/".into() },
        ];
        for kind in kinds {
            for client in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "fe80::1"] {
                let caller = caller(kind.clone());
                let client: IpAddr = client.parse().unwrap();
                let line =
                    serde_json::to_string(&Record { principal: Some(&caller), client: Some(client) }).unwrap();
                let plain = serde_json::json!({ "principal": caller.arn(), "client": client.to_string() });
                assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), plain);
            }
        }
        let nobody = serde_json::to_string(&Record { principal: None, client: None }).unwrap();
        assert_eq!(nobody, r#"{"principal":null,"client":null}"#);
    }

    #[test]
    fn a_line_has_room_for_some_keys_only() {
        let deletion = |key: &str, error: Option<&str>| AuditedDeletion {
            key: key.to_owned(),
            version_id: None,
            error: error.map(str::to_owned),
        };
        let short = AuditedDeletions::new(vec![deletion("a", None), deletion("b", Some("AccessDenied"))]);
        assert_eq!((short.listed.len(), short.unlisted, short.are_refused), (2, 0, false));
        // Each backslash becomes two.
        let key = "\\".repeat(1_024);
        let long = AuditedDeletions::new((0..1_000).map(|_| deletion(&key, Some("AccessDenied"))).collect());
        assert!((16..32).contains(&long.listed.len()), "{}", long.listed.len());
        assert_eq!((long.listed.len() + long.unlisted, long.are_refused), (1_000, true));
        assert!(serde_json::to_string(&long.listed).unwrap().len() < DELETED_BYTES_MAX + 100);
        assert!(!AuditedDeletions::new(Vec::new()).are_refused);
    }
}
