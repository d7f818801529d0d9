//! Objects whose data is beside the bucket index, and GETs that guess the entry.

use std::sync::Arc;
use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{self, POOL, Store, TestGateway, eventually, serve, start};
use atoll_s3::{Gateway, GatewayConfig};
use atoll_types::{ObjectName, pg_of_object};

async fn step(gateway: &TestGateway, arguments: &[&str]) -> String {
    support::step(gateway, "beside", arguments).await
}

/// With a bucket of that name, and one pool.
async fn with_bucket() -> TestGateway {
    let gateway = start(|config| config.garbage_grace = Duration::ZERO).await;
    step(&gateway, &["create_bucket"]).await;
    gateway
}

/// The objects beside the index.
fn beside(gateway: &TestGateway) -> Vec<String> {
    gateway.client.names("s3i/").into_iter().filter(|name| name.contains('@')).collect()
}

/// How many bodies are beside the index and in chunks, and how many records wait to be collected.
fn counts(gateway: &TestGateway) -> (usize, usize, usize) {
    let mut garbage = 0;
    gateway.client.each(|_, object| garbage += object.omap.keys().filter(|key| key.starts_with(b"g/")).count());
    (beside(gateway).len(), gateway.client.names("s3d/").len(), garbage)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_beside_its_index_up_to_a_limit() {
    let gateway = with_bucket().await;
    for (bytes, beside, chunks) in [(1_024, 0, 0), (1_025, 1, 0), (65_536, 2, 0), (65_537, 2, 1)] {
        support::step(&gateway, "inline", &["put_and_look", &bytes.to_string()]).await;
        assert_eq!(counts(&gateway), (beside, chunks, 0), "with {bytes} bytes");
    }
    for name in beside(&gateway) {
        let index = name.split('@').next().unwrap();
        let [index, name] = [index, &name].map(|name| ObjectName::new(name).unwrap());
        assert_eq!(pg_of_object(POOL, &index, 1 << 16), pg_of_object(POOL, &name, 1 << 16));
    }
    gateway.client.each(|name, object| {
        assert!(!object.data.windows(6).any(|window| window == b"CANARY"), "plaintext in {name}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replaced_or_deleted_is_collected_and_nothing_else() {
    let gateway = with_bucket().await;
    let steps: [(&[&str], _, _); 6] = [
        (&["put_zeros", "bucket", "k", "2000"], (1, 0, 0), (1, 0)),
        (&["put_zeros", "bucket", "other", "60000"], (2, 0, 0), (2, 0)),
        (&["put_zeros", "bucket", "k", "3000"], (3, 0, 1), (2, 0)),
        (&["put_zeros", "bucket", "k", "200000"], (2, 1, 1), (1, 1)),
        (&["copies_and_versions"], (4, 1, 2), (2, 1)),
        (&["delete_all"], (2, 1, 3), (0, 0)),
    ];
    for (arguments, before, (beside, chunks)) in steps {
        step(&gateway, arguments).await;
        assert_eq!(counts(&gateway), before, "after {arguments:?}");
        let report = gateway.gateway.collect_garbage().await.unwrap();
        assert_eq!((report.records, report.failures), (before.2 as u64, 0), "after {arguments:?}");
        assert_eq!(counts(&gateway), (beside, chunks, 0), "collected after {arguments:?}");
    }
    step(&gateway, &["put_zeros", "bucket", "k", "2000"]).await;
    step(&gateway, &["put_zeros", "bucket", "k", "2000"]).await;
    step(&gateway, &["empty_and_delete_bucket"]).await;
    assert!(gateway.client.names("").is_empty(), "a bucket takes what is beside its index along");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_happens_whole_or_not_at_all() {
    let gateway = with_bucket().await;
    let fails: &[&str] = &["put_fails", "k", "2000", "507", "InsufficientStorage"];
    // Without its data.
    gateway.client.set_fault("@", Fault::NoSpace);
    step(&gateway, fails).await;
    assert_eq!(counts(&gateway), (0, 0, 0));
    gateway.client.clear_faults();
    gateway.client.set_fault("@", Fault::WriteTimesOut { happens: false });
    step(&gateway, &["put_fails", "k", "2000", "503", "SlowDown"]).await;
    gateway.client.clear_faults();
    step(&gateway, &["is_missing", "k"]).await;
    // The change of the index shows that the data is there, whatever became of the answer.
    gateway.client.set_fault("@", Fault::WriteTimesOut { happens: true });
    step(&gateway, &["put_zeros", "bucket", "k", "2000"]).await;
    gateway.client.clear_faults();
    step(&gateway, &["is_zeros", "k", "2000"]).await;
    assert_eq!(counts(&gateway), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_waits_for_its_data() {
    let gateway = with_bucket().await;
    // The change of the index comes first, and is refused.
    gateway.client.set_fault("@", Fault::Slow(Duration::from_millis(100)));
    step(&gateway, &["put_zeros", "bucket", "k", "2000"]).await;
    gateway.client.clear_faults();
    step(&gateway, &["is_zeros", "k", "2000"]).await;
    assert_eq!(counts(&gateway), (1, 0, 0));
    // Of writers that create the same object one does it, and the others leave nothing.
    gateway.client.set_fault("@", Fault::Slow(Duration::from_millis(20)));
    step(&gateway, &["one_of_many_creates", "many"]).await;
    gateway.client.clear_faults();
    step(&gateway, &["one_of_many_creates", "again"]).await;
    eventually("removal of the data", async || counts(&gateway) == (3, 0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_never_reaches_a_client() {
    let gateway = with_bucket().await;
    step(&gateway, &["put_zeros", "bucket", "k", "10000"]).await;
    let get: &[&str] = &["get_fails", "k", "500", "InternalError"];
    let name = beside(&gateway).remove(0);
    let mut intact = None;
    let mut change = |change: &dyn Fn(&mut support::memory_client::MemoryObject)| {
        gateway.client.each(|each, object| {
            if each == name {
                *object = intact.get_or_insert_with(|| object.clone()).clone();
                change(object);
            }
        });
    };
    change(&|object| object.data[9_999] ^= 1);
    step(&gateway, get).await;
    change(&|object| object.data.truncate(8_192));
    step(&gateway, get).await;
    change(&|object| object.unit = None);
    step(&gateway, get).await;
    change(&|_| {});
    step(&gateway, &["is_zeros", "k", "10000"]).await;
    gateway.client.lose(&name);
    step(&gateway, get).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_of_what_the_gateway_knows_is_one_round() {
    let gateway = with_bucket().await;
    for bytes in ["1000", "2000", "200000"] {
        step(&gateway, &["put_zeros", "bucket", "k", bytes]).await;
        gateway.client.set_fault("s3", Fault::Slow(Duration::from_millis(50)));
        let before = gateway.client.slow_begun();
        step(&gateway, &["is_zeros", "k", bytes]).await;
        assert_eq!(gateway.client.slow_begun() - before, 2, "the entry and the data");
        assert_eq!(gateway.client.slow_at_once(), 2, "of {bytes} bytes, at the same time");
        gateway.client.clear_faults();
    }
}

/// An entry known to one gateway is changed by another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_guess_is_never_answered() {
    let mut gateway = with_bucket().await;
    let mut config = GatewayConfig::new(POOL);
    config.garbage_grace = Duration::ZERO;
    config.collect_interval = None;
    let store = Arc::new(Store(gateway.client.clone()));
    let other = Gateway::new(config, store, gateway.directory.clone(), gateway.keys.clone()).unwrap();
    let (address, _stop, _served) = serve(&other).await;
    let addresses = [gateway.address, address];
    // The data of what was replaced is there at first, and then it is not.
    for (bytes, collects) in [("2000", false), ("3000", true), ("500", true), ("200000", true), ("4000", false)] {
        gateway.address = addresses[1];
        step(&gateway, &["put_zeros", "bucket", "k", bytes]).await;
        if collects {
            gateway.gateway.collect_garbage().await.unwrap();
        }
        gateway.address = addresses[0];
        step(&gateway, &["is_zeros", "k", bytes]).await;
    }
    gateway.address = addresses[1];
    step(&gateway, &["tag", "k"]).await;
    gateway.address = addresses[0];
    step(&gateway, &["is_tagged", "k"]).await;
    gateway.address = addresses[1];
    step(&gateway, &["delete", "k"]).await;
    gateway.address = addresses[0];
    step(&gateway, &["is_missing", "k"]).await;
}
