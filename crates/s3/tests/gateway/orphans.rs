//! Small data that no record names: it is found and removed. Nothing else is, whatever happens meanwhile.

use std::time::Duration;

use crate::support::caller::{Caller, Request, element};
use crate::support::memory_client::Fault;
use crate::support::{DATA_POOL, TestGateway, start, start_with_data_pool};
use bytes::Bytes;

fn caller(gateway: &TestGateway) -> Caller {
    Caller { address: gateway.address, user: gateway.users[0].clone() }
}

fn beside(gateway: &TestGateway) -> Vec<String> {
    gateway.client.names("s3i/").into_iter().filter(|name| name.contains('@')).collect()
}

async fn search(gateway: &TestGateway) -> (u64, u64) {
    let report = gateway.gateway.search_orphans(Duration::ZERO).await.unwrap();
    assert_eq!(report.failures, 0);
    (report.objects, report.suspects)
}

async fn collect(gateway: &TestGateway) -> u64 {
    let report = gateway.gateway.collect_garbage().await.unwrap();
    assert_eq!(report.failures, 0);
    report.orphans
}

/// Data as a gateway leaves it that dies before the change of the index.
async fn leave_data(gateway: &TestGateway, caller: &Caller, key: &str) {
    let before = beside(gateway);
    caller.expect(200, Request::new("PUT", &format!("bucket/{key}")).body(vec![7; 2_000])).await;
    let new: Vec<String> = beside(gateway).into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(new.len(), 1);
    let entry = Bytes::from(format!("o/{key}"));
    gateway.client.each(|_, object| drop(object.omap.remove(&entry)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_without_a_record_is_found_after_its_time() {
    let abandoned_after = Duration::from_millis(300);
    let gateway = start(|config| config.abandoned_after = abandoned_after).await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    for number in 0..20 {
        caller.expect(200, Request::new("PUT", &format!("bucket/live{number}")).body(vec![1; 2_000])).await;
    }
    for number in 0..3 {
        leave_data(&gateway, &caller, &format!("dead{number}")).await;
    }
    assert_eq!(search(&gateway).await, (23, 0), "a gateway may be about to name it");
    tokio::time::sleep(abandoned_after).await;
    assert_eq!(search(&gateway).await, (23, 3));
    assert_eq!(search(&gateway).await, (23, 0), "the collector has them");
    assert_eq!(collect(&gateway).await, 0, "it has just seen them");
    tokio::time::sleep(abandoned_after).await;
    assert_eq!(collect(&gateway).await, 3);
    assert_eq!(beside(&gateway).len(), 20);
    for number in 0..20 {
        let request = Request::new("GET", &format!("bucket/live{number}"));
        assert_eq!(caller.expect(200, request).await, vec![1; 2_000]);
    }
    let mut left = 0;
    gateway.client.each(|_, object| left += object.omap.keys().filter(|key| key.starts_with(b"x/w/")).count());
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_may_name_anything() {
    let gateway = start(|config| config.abandoned_after = Duration::ZERO).await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    caller.expect(200, Request::new("PUT", "bucket/a").body(vec![1; 2_000])).await;
    let mut intact = None;
    gateway.client.each(|_, object| {
        if let Some(record) = object.omap.get_mut(&b"o/a"[..]) {
            intact = Some(record.clone());
            *record = [&[9], &record[1..]].concat().into();
        }
    });
    let report = gateway.gateway.search_orphans(Duration::ZERO).await.unwrap();
    assert_eq!((report.suspects, report.failures), (0, 1));
    gateway.client.each(|_, object| {
        if let Some(record) = object.omap.get_mut(&b"o/a"[..]) {
            *record = intact.clone().unwrap();
        }
    });
    assert_eq!(caller.expect(200, Request::new("GET", "bucket/a")).await, vec![1; 2_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_takes_data_without_a_record_along() {
    let gateway = start(|_| {}).await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    for number in 0..20 {
        leave_data(&gateway, &caller, &format!("dead{number}")).await;
    }
    caller.expect(204, Request::new("DELETE", "bucket")).await;
    assert!(gateway.client.names("").is_empty());
}

/// Small data in a pool of its own, and small parts, have intents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_data_in_chunks_is_found_by_its_intent() {
    let gateway = start_with_data_pool(|config| {
        config.abandoned_after = Duration::ZERO;
        config.garbage_grace = Duration::ZERO;
    })
    .await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    caller.expect(200, Request::new("PUT", "bucket/live").body(vec![1; 2_000])).await;
    gateway.client.set_fault("o/", Fault::Held);
    let put = Request::new("PUT", "bucket/dead").body(vec![1; 2_000]);
    tokio::select! {
        answer = caller.ask(put) => panic!("{} without its index", answer.0),
        () = async {
            while gateway.client.names("s3d/").len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } => {}
    }
    gateway.client.clear_faults();
    for _ in 0..3 {
        collect(&gateway).await;
    }
    assert_eq!(gateway.client.names("s3d/").len(), 1);
    assert_eq!(gateway.client.pools("s3d/").into_iter().collect::<Vec<_>>(), [DATA_POOL]);
    assert_eq!(caller.expect(200, Request::new("GET", "bucket/live")).await, vec![1; 2_000]);
}

/// The record that suspects data (docs/reference/formats.md).
fn suspicion(id: &[u8]) -> Bytes {
    let head = br#"{"renewals":0,"is_suspect":true}"#;
    let length = u32::try_from(head.len()).unwrap().to_le_bytes();
    [&[4][..], &length, head, id, &[0; 60], &1_u64.to_le_bytes()].concat().into()
}

/// Suspects everything that is beside an index, rightly or not.
fn suspect_all(gateway: &TestGateway) {
    let ids: Vec<(String, String)> = beside(gateway)
        .iter()
        .map(|name| name.split_once('@').map(|(index, id)| (index.to_owned(), id.to_owned())).unwrap())
        .collect();
    gateway.client.each(|name, object| {
        for (_, id) in ids.iter().filter(|(index, _)| index == name) {
            let value = suspicion(&hex::decode(id).unwrap());
            object.omap.insert(format!("x/w/{id}").into(), value);
        }
    });
}

/// Asks for the versions of a key.
fn list_of(key: &str) -> Request {
    Request::new("GET", "bucket").query("versions", "").query("prefix", &key["bucket/".len()..])
}

/// Versions come to the front and go back while the collector looks for the record of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspected_data_whose_record_moves_stays() {
    let gateway = start(|config| {
        config.abandoned_after = Duration::ZERO;
        config.garbage_grace = Duration::ZERO;
        config.index_shards = 1;
    })
    .await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    let document = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    caller.expect(200, Request::new("PUT", "bucket").query("versioning", "").body(document)).await;
    let keys: Vec<String> = (0..12).map(|number| format!("bucket/{number:02}")).collect();
    for key in &keys {
        for version in 1..4 {
            caller.expect(200, Request::new("PUT", key).body(vec![version; 2_000])).await;
        }
    }
    // A marker in front of the versions, and away again: the one behind it moves back and forth.
    let moving = async {
        for _ in 0..1_000_000 {
            for key in &keys {
                caller.expect(204, Request::new("DELETE", key)).await;
                let list = caller.expect(200, list_of(key)).await;
                let list = String::from_utf8(list).unwrap();
                let marker = element(list.split_once("<DeleteMarker>").unwrap().1.as_bytes(), "VersionId");
                caller.expect(204, Request::new("DELETE", key).query("versionId", &marker)).await;
            }
        }
    };
    let collecting = async {
        for _ in 0..60 {
            suspect_all(&gateway);
            assert_eq!(collect(&gateway).await, 0);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = collecting => {}
        () = moving => unreachable!("it goes on"),
    }
    assert_eq!(beside(&gateway).len(), keys.len() * 3, "all of it has a record");
    for key in &keys {
        let list = String::from_utf8(caller.expect(200, list_of(key)).await).unwrap();
        let ids = list.split("<Version>").skip(1).map(|one| element(one.as_bytes(), "VersionId"));
        let ids: Vec<String> = ids.collect();
        assert_eq!(ids.len(), 3, "{list}");
        for (number, id) in ids.iter().enumerate() {
            let found = caller.expect(200, Request::new("GET", key).query("versionId", id)).await;
            assert_eq!(found, vec![3 - number as u8; 2_000]);
        }
    }
}

/// A change that comes after its data was taken for left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_comes_too_late_is_refused() {
    let gateway = start(|config| {
        config.abandoned_after = Duration::ZERO;
        config.index_shards = 1;
    })
    .await;
    let caller = caller(&gateway);
    caller.expect(200, Request::new("PUT", "bucket")).await;
    caller.expect(200, Request::new("PUT", "bucket/a").body(vec![1; 3_000])).await;
    gateway.client.set_fault("o/a", Fault::Held);
    let put = caller.ask(Request::new("PUT", "bucket/a").body(vec![2; 3_000]));
    let meanwhile = async {
        while beside(&gateway).len() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(search(&gateway).await.1, 1);
        assert_eq!(collect(&gateway).await, 1);
        gateway.client.clear_faults();
        gateway.client.release();
    };
    let ((status, _), ()) = tokio::join!(put, meanwhile);
    assert!(status >= 500, "it is not done: {status}");
    assert_eq!(caller.expect(200, Request::new("GET", "bucket/a")).await, vec![1; 3_000]);
}
