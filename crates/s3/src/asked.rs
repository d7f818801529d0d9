//! The request that a task serves: its sender, and the buckets that it has seen.

use std::cell::RefCell;
use std::net::IpAddr;

use atoll_types::records::BucketRecord;
use tokio::task_local;

use crate::audit::AuditedSetting;
use crate::seen_buckets::Seen;

/// The request that a task serves.
struct Asked {
    /// The address of its sender.
    asker: Option<IpAddr>,
    seen: RefCell<Seen>,
}

task_local! {
    static ASKED: Asked;
}

/// Serves a request of this address.
pub(crate) async fn asked_from<F: Future>(address: Option<IpAddr>, answer: F) -> F::Output {
    ASKED.scope(Asked { asker: address, seen: RefCell::default() }, answer).await
}

/// Returns the address of the sender of this task's request; `None` beside requests.
pub(crate) fn address() -> Option<IpAddr> {
    ASKED.try_with(|asked| asked.asker).unwrap_or_default()
}

/// Gives the buckets that the request of this task has seen; `None` beside requests.
fn with_seen<T>(use_seen: impl FnOnce(&mut Seen) -> T) -> Option<T> {
    ASKED.try_with(|asked| use_seen(&mut asked.seen.borrow_mut())).ok()
}

/// Notes that a request sees a bucket; returns false if it has seen another one of the same name. True beside requests.
pub(crate) fn is_same(record: &BucketRecord) -> bool {
    with_seen(|seen| seen.is_same(record)).unwrap_or(true)
}

/// Notes that a request has changed a bucket. Beside requests nobody is to be named.
pub(crate) fn changed(before: &BucketRecord, after: &BucketRecord) {
    with_seen(|seen| seen.changes.extend(AuditedSetting::changed(before, after)));
}

/// Takes the changes of the request of this task.
pub(crate) fn take_changes() -> Vec<AuditedSetting> {
    with_seen(|seen| std::mem::take(&mut seen.changes)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(name: &str, id: &str) -> BucketRecord {
        let record = serde_json::json!({
            "format": 1, "id": id, "name": name, "owner": "o", "pool": 1, "index_shards": 1, "wrapped_key": "",
            "created_unix_ms": 0,
        });
        serde_json::from_value(record).unwrap()
    }

    #[tokio::test]
    async fn a_request_sees_one_bucket_of_a_name() {
        let (first, second, other) = (bucket("b", "1"), bucket("b", "2"), bucket("c", "2"));
        asked_from(None, async {
            assert!(is_same(&first) && is_same(&other));
            tokio::task::yield_now().await;
            assert!(is_same(&first) && !is_same(&second) && is_same(&other));
        })
        .await;
        asked_from(None, async { assert!(is_same(&second) && !is_same(&first)) }).await;
        assert!(is_same(&first) && is_same(&second), "no request");
    }

    #[tokio::test]
    async fn changed_settings_of_buckets_are_told_without_secrets() {
        let (before, mut after) = (bucket("b", "1"), bucket("b", "1"));
        after.tags.insert("of".into(), "ann".into());
        after.wrapped_key = "secret".into();
        after.access.get_or_insert_default().policy = Some("a policy has its own field".into());
        after.settle_format();
        let changes_to = |after: &BucketRecord| {
            let (before, after) = (before.clone(), after.clone());
            asked_from(None, async move {
                changed(&before, &after);
                take_changes()
            })
        };
        let changes = changes_to(&after).await;
        let told = serde_json::to_string(&changes).unwrap();
        assert!(told.contains(r#"{"setting":"tags","before":null,"after":{"of":"ann"}}"#), "{told}");
        assert!(!told.contains("secret") && !told.contains("policy"), "{told}");
        after.tags = (0..1_000).map(|number| (format!("tag {number}"), "long".repeat(10))).collect();
        let changes = changes_to(&after).await;
        let told = serde_json::to_string(&changes).unwrap();
        assert!(
            told.contains(r#""setting":"tags","before":null,"after":"left out: "#) && told.len() < 500,
            "{told}"
        );
    }
}
