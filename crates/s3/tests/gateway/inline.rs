//! Small objects, whose data is in the bucket index.
use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{self, POOL, TestGateway, start_with_data_pool};
use bytes::Bytes;

async fn step(gateway: &TestGateway, arguments: &[&str]) -> String {
    support::step(gateway, "inline", arguments).await
}

/// With a bucket of that name and a pool for data that knows no omap.
async fn with_bucket() -> TestGateway {
    let gateway = start_with_data_pool(|config| config.garbage_grace = Duration::ZERO).await;
    step(&gateway, &["create_bucket"]).await;
    gateway
}

/// Returns the records of the indexes under keys with a prefix.
fn records(gateway: &TestGateway, prefix: &str) -> Vec<(Bytes, Bytes)> {
    let mut found = Vec::new();
    gateway.client.each(|_, object| {
        let records = object.omap.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes()));
        found.extend(records.map(|(key, value)| (key.clone(), value.clone())));
    });
    found
}

/// How many bodies are in the index and in chunks, and how many records wait to be collected.
fn counts(gateway: &TestGateway) -> (usize, usize, usize) {
    (records(gateway, "d/").len(), gateway.client.names("s3d/").len(), records(gateway, "g/").len())
}

/// Changes that all objects have seen so far.
fn changes(gateway: &TestGateway) -> u64 {
    let mut sum = 0;
    gateway.client.each(|_, object| sum += object.version);
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_is_one_change_of_the_index() {
    let gateway = with_bucket().await;
    for (bytes, inline, chunks) in [(0, 0, 0), (1, 1, 0), (1_023, 2, 0), (1_024, 3, 0), (1_025, 3, 1)] {
        let before = changes(&gateway);
        step(&gateway, &["put_and_look", &bytes.to_string()]).await;
        assert_eq!(counts(&gateway), (inline, chunks, 0), "with {bytes} bytes");
        // Data in a chunk has an intent.
        assert_eq!(changes(&gateway) - before, 1 + 2 * chunks as u64, "with {bytes} bytes");
    }
    assert_eq!(gateway.client.pools("s3i/").into_iter().collect::<Vec<_>>(), [POOL]);
    for (key, value) in records(&gateway, "d/") {
        assert_eq!(key.len(), 2 + 32);
        assert!(!value.windows(6).any(|window| window == b"CANARY"), "plaintext in the index");
    }
    step(&gateway, &["sizes_are_listed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_or_deleted_is_collected_and_nothing_else() {
    let gateway = with_bucket().await;
    let steps: [(&[&str], _, _); 6] = [
        (&["put_three"], (2, 1, 0), (2, 1)),
        (&["put", "bucket", "k", "2"], (3, 1, 1), (2, 1)),
        (&["put_zeros", "bucket", "k", "3000"], (2, 2, 1), (1, 2)),
        (&["put", "bucket", "k", "3"], (2, 2, 1), (2, 1)),
        (&["put", "bucket", "k", ""], (2, 1, 1), (1, 1)),
        (&["put_and_delete"], (2, 1, 2), (1, 1)),
    ];
    for (arguments, before, (inline, chunks)) in steps {
        step(&gateway, arguments).await;
        assert_eq!(counts(&gateway), before, "after {arguments:?}");
        let report = gateway.gateway.collect_garbage().await.unwrap();
        assert_eq!((report.records, report.failures), (before.2 as u64, 0), "after {arguments:?}");
        assert_eq!(counts(&gateway), (inline, chunks, 0), "collected after {arguments:?}");
    }
    step(&gateway, &["others_are_there"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_sealed_anew_and_parts_are_never_in_the_index() {
    let gateway = with_bucket().await;
    step(&gateway, &["copy"]).await;
    assert_eq!(counts(&gateway), (4, 0, 1));
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1);
    assert_eq!(counts(&gateway), (3, 0, 0));
    let mut values: Vec<Bytes> = records(&gateway, "d/").into_iter().map(|(_, value)| value).collect();
    values.sort();
    values.dedup();
    assert_eq!(values.len(), 3);
    step(&gateway, &["upload_with_a_copied_part"]).await;
    assert_eq!(counts(&gateway), (3, 2 + 1 + 1, 1), "an object that was one small part has a chunk, too");
    step(&gateway, &["copy_one"]).await;
    assert_eq!(counts(&gateway), (4, 2 + 1 + 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_takes_its_small_objects_along() {
    let gateway = with_bucket().await;
    step(&gateway, &["fill_and_delete_the_bucket"]).await;
    assert!(gateway.client.names("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_in_the_index_never_reaches_a_client() {
    let gateway = with_bucket().await;
    step(&gateway, &["put_two_kilobytes"]).await;
    let intact = records(&gateway, "d/");
    let set = |values: [Option<Bytes>; 2]| {
        gateway.client.each(|_, object| {
            for ((key, _), value) in intact.iter().zip(&values) {
                // All index objects get both, which is no harm: each is looked for in one of them.
                match value {
                    Some(value) => drop(object.omap.insert(key.clone(), value.clone())),
                    None => drop(object.omap.remove(key)),
                }
            }
        });
    };
    let good: &[&str] = &["ranges_get", "200"];
    let bad: &[&str] = &["ranges_get", "500", "InternalError"];
    let [first, second] = [&intact[0].1, &intact[1].1];
    let flipped = |value: &Bytes| {
        let mut value = value.to_vec();
        value[500] ^= 1;
        Some(Bytes::from(value))
    };
    let longer = |value: &Bytes| Some(Bytes::from([&value[..], &[0]].concat()));
    set([flipped(first), flipped(second)]);
    step(&gateway, bad).await;
    set([first, second].map(|value| Some(value.slice(..value.len() - 1))));
    step(&gateway, bad).await;
    set([first, second].map(|value| Some(value.slice(..20))));
    step(&gateway, bad).await;
    set([longer(first), longer(second)]);
    step(&gateway, bad).await;
    set([Some(second.clone()), Some(first.clone())]);
    step(&gateway, bad).await;
    set([None, None]);
    step(&gateway, bad).await;
    set([Some(first.clone()), Some(second.clone())]);
    step(&gateway, good).await;
    // A format of a later release, and one in which the data would be in chunks.
    for (format, answer) in [(3, bad), (1, bad), (2, good)] {
        gateway.client.each(|_, object| {
            for (_, value) in object.omap.iter_mut().filter(|(key, _)| key.starts_with(b"o/")) {
                *value = [&[format], &value[1..]].concat().into();
            }
        });
        step(&gateway, answer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_put_happens_whole_or_not_at_all() {
    let gateway = with_bucket().await;
    gateway.client.set_fault("s3i/", Fault::NoSpace);
    step(&gateway, &["put_data", "507", "InsufficientStorage"]).await;
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: false });
    step(&gateway, &["put_data", "503", "SlowDown"]).await;
    assert_eq!(counts(&gateway), (0, 0, 0), "and no orphan");
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::WriteTimesOut { happens: true });
    step(&gateway, &["put_data", "503", "SlowDown"]).await;
    gateway.client.clear_faults();
    step(&gateway, &["conditions_hold"]).await;
    assert_eq!(counts(&gateway), (3, 0, 1), "two objects, and one that was replaced");
}
