//! Changes of a document that is a list of statements, in few words.

use aws_lc_rs::digest::{SHA256, digest};
use serde::Serialize;
use serde_json::Value;

/// Bytes of statements that are in a record, of those that were added and of those that were removed.
const STATEMENTS_BYTES_MAX: usize = 4 << 10;

/// A policy before and after: its digests, and the statements that are only in one of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DocumentChange {
    /// Which document it is.
    pub document: String,
    /// SHA-256 of the previous document, in hexadecimal; absent if there was none.
    pub before_sha256: Option<String>,
    /// SHA-256 of the new document.
    pub after_sha256: Option<String>,
    /// Statements that are no more.
    pub removed: Vec<Value>,
    /// Statements that came.
    pub added: Vec<Value>,
    /// Statements that changed and found no room here.
    #[serde(skip_serializing_if = "is_zero")]
    pub unlisted: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn statements(document: Option<&str>) -> Vec<Value> {
    let parsed = document.and_then(|text| serde_json::from_str::<Value>(text).ok());
    match parsed.map(|mut document| document["Statement"].take()) {
        Some(Value::Array(statements)) => statements,
        None | Some(Value::Null) => Vec::new(),
        Some(one) => vec![one],
    }
}

/// Those that fit, and how many do not.
fn bounded(statements: Vec<Value>) -> (Vec<Value>, usize) {
    let (mut bytes, all) = (0, statements.len());
    let fits = |statement: &Value| {
        bytes += statement.to_string().len();
        bytes <= STATEMENTS_BYTES_MAX
    };
    let listed: Vec<Value> = statements.into_iter().take_while(fits).collect();
    let unlisted = all - listed.len();
    (listed, unlisted)
}

impl DocumentChange {
    /// Compares; `None` if nothing has changed.
    pub fn new(name: impl Into<String>, before: Option<&str>, after: Option<&str>) -> Option<Self> {
        if before == after {
            return None;
        }
        let sha256 = |text: Option<&str>| text.map(|text| hex::encode(digest(&SHA256, text.as_bytes())));
        let (old, new) = (statements(before), statements(after));
        let only = |one: &[Value], other: &[Value]| {
            bounded(one.iter().filter(|statement| !other.contains(statement)).cloned().collect())
        };
        let ((removed, removed_unlisted), (added, added_unlisted)) = (only(&old, &new), only(&new, &old));
        Some(DocumentChange {
            document: name.into(),
            before_sha256: sha256(before),
            after_sha256: sha256(after),
            removed,
            added,
            unlisted: removed_unlisted + added_unlisted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statements_that_came_and_went_are_told() {
        let text = |statements: Value| json!({ "Version": "2012-10-17", "Statement": statements }).to_string();
        let (a, b) = (json!({ "Sid": "a" }), json!({ "Sid": "b" }));
        let (one, both) = (text(a.clone()), text(json!([a, b])));
        let change = DocumentChange::new("policy", Some(&one), Some(&both)).unwrap();
        assert_eq!((change.removed, change.added, change.unlisted), (vec![], vec![b.clone()], 0));
        assert_ne!(change.before_sha256, change.after_sha256);
        let removed = DocumentChange::new("policy", Some(&both), None).unwrap();
        assert_eq!((removed.removed, removed.after_sha256), (vec![a, b], None));
        assert_eq!(DocumentChange::new("policy", Some(&one), Some(&one)), None);
    }

    #[test]
    fn a_long_policy_is_told_in_part() {
        let many: Vec<Value> = (0..500).map(|number| json!({ "Sid": number.to_string().repeat(10) })).collect();
        let change = DocumentChange::new("p", None, Some(&json!({ "Statement": many }).to_string())).unwrap();
        assert!(serde_json::to_string(&change).unwrap().len() < 2 * STATEMENTS_BYTES_MAX);
        assert!(change.unlisted > 0 && change.added.len() + change.unlisted == 500);
        let strange = DocumentChange::new("p", Some("no JSON"), Some("{}")).unwrap();
        assert!(strange.added.is_empty() && strange.removed.is_empty());
    }
}
