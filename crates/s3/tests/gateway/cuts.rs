//! Every operation of several steps, cut at each of its changes of objects and of cluster state: the gateway is
//! killed there, gets a timeout, or stands still until others take it for dead. Another gateway then searches and
//! collects the unfinished work. No acknowledged data is lost, later requests are not blocked, and nothing stays behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::caller::{Caller, Request, element};
use crate::support::cut::{Cut, CutDirectory, CutStore, Mishap};
use crate::support::{POOL, TestGateway, serve, start};
use atoll_s3::{Gateway, GatewayConfig};

/// The bodies of keys; a key that is not there has no object.
type Objects = BTreeMap<&'static str, Vec<u8>>;

/// An operation that is cut.
struct Operation {
    name: &'static str,
    /// True if the bucket has versions.
    has_versions: bool,
    /// Objects that are put first.
    first: Objects,
    /// Objects just before the request.
    before: Objects,
    /// Objects after an acknowledged request.
    after: Objects,
    /// Makes the earlier requests, and the request.
    request: fn(&Caller) -> futures::future::BoxFuture<'_, Request>,
}

const SIZES: [usize; 4] = [100, 2_000, 200_000, 9_000_000];

fn body(name: &str, bytes: usize) -> Vec<u8> {
    name.bytes().cycle().take(bytes).collect()
}

fn object(key: &str) -> String {
    format!("bucket/{key}")
}

fn put(key: &str, body: Vec<u8>) -> Request {
    Request::new("PUT", &object(key)).body(body)
}

/// Begins an upload of one part for the key `a`; its id, and the document that completes it.
async fn upload(caller: &Caller) -> (String, String) {
    let begun = caller.expect(200, Request::new("POST", &object("a")).query("uploads", "")).await;
    let id = element(&begun, "UploadId");
    let part = put("a", body("new", 200_000)).query("partNumber", "1").query("uploadId", &id);
    caller.expect(200, part).await;
    let other = put("a", body("other", 200_000)).query("partNumber", "2").query("uploadId", &id);
    caller.expect(200, other).await;
    let parts = Request::new("GET", &object("a")).query("uploadId", &id);
    let etag = element(&caller.expect(200, parts).await, "ETag");
    let document = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    (id, document)
}

/// The version ids of a key, the newest first.
async fn versions(caller: &Caller, key: &str) -> Vec<String> {
    let list = caller.expect(200, Request::new("GET", "bucket").query("versions", "").query("prefix", key)).await;
    let list = String::from_utf8(list).unwrap();
    let ids = list.split("<VersionId>").skip(1).map(|rest| rest.split_once('<').unwrap().0.to_owned());
    ids.collect()
}

fn replace(size: usize) -> Operation {
    let request: fn(&Caller) -> futures::future::BoxFuture<'_, Request> = match size {
        100 => |_| Box::pin(async { put("a", body("new", 100)) }),
        2_000 => |_| Box::pin(async { put("a", body("new", 2_000)) }),
        200_000 => |_| Box::pin(async { put("a", body("new", 200_000)) }),
        _ => |_| Box::pin(async { put("a", body("new", 9_000_000)) }),
    };
    Operation {
        name: "put",
        has_versions: false,
        first: Objects::from([("a", body("old", 200_000)), ("b", body("b", 100))]),
        before: Objects::from([("a", body("old", 200_000)), ("b", body("b", 100))]),
        after: Objects::from([("a", body("new", size)), ("b", body("b", 100))]),
        request,
    }
}

fn operations() -> Vec<Operation> {
    let old = || Objects::from([("a", body("old", 200_000)), ("b", body("b", 2_000)), ("c", body("c", 100))]);
    let without = |keys: &[&'static str]| {
        let mut objects = old();
        keys.iter().for_each(|key| drop(objects.remove(key)));
        objects
    };
    let new = |bytes| {
        let mut objects = old();
        objects.insert("a", body("new", bytes));
        objects
    };
    let mut all: Vec<Operation> = SIZES.into_iter().map(replace).collect();
    let mut add = |name, has_versions, after, request| {
        all.push(Operation { name, has_versions, first: old(), before: old(), after, request });
    };
    add("put with versions", true, new(200_000), |_| Box::pin(async { put("a", body("new", 200_000)) }));
    add("copy", false, [old(), Objects::from([("d", body("old", 200_000))])].concat_objects(), |_| {
        Box::pin(async { Request::new("PUT", &object("d")).header("x-amz-copy-source", "bucket/a") })
    });
    for has_versions in [false, true] {
        add("delete", has_versions, without(&["a"]), |_| Box::pin(async { Request::new("DELETE", &object("a")) }));
        add("delete objects", has_versions, without(&["a", "b"]), |_| {
            Box::pin(async {
                let document = "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>";
                let request = Request::new("POST", "bucket").query("delete", "").body(document);
                request.header("content-md5", &md5(document.as_bytes()))
            })
        });
        add("complete", has_versions, new(200_000), |caller| {
            Box::pin(async move {
                let (id, document) = upload(caller).await;
                Request::new("POST", &object("a")).query("uploadId", &id).body(document)
            })
        });
    }
    add("part", false, old(), |caller| {
        Box::pin(async move {
            let (id, _) = upload(caller).await;
            put("a", body("again", 5_000_000)).query("partNumber", "1").query("uploadId", &id)
        })
    });
    add("abort", false, old(), |caller| {
        Box::pin(async move {
            let (id, _) = upload(caller).await;
            Request::new("DELETE", &object("a")).query("uploadId", &id)
        })
    });
    add("delete the newest version", true, old(), |caller| {
        Box::pin(async move {
            caller.expect(200, put("a", body("newest", 2_000))).await;
            let newest = versions(caller, "a").await.remove(0);
            Request::new("DELETE", &object("a")).query("versionId", &newest)
        })
    });
    add("delete an older version", true, new(200_000), |caller| {
        Box::pin(async move {
            caller.expect(200, put("a", body("new", 200_000))).await;
            let oldest = versions(caller, "a").await.remove(1);
            Request::new("DELETE", &object("a")).query("versionId", &oldest)
        })
    });
    for operation in &mut all {
        match operation.name {
            "delete the newest version" => drop(operation.before.insert("a", body("newest", 2_000))),
            "delete an older version" => operation.before = operation.after.clone(),
            _ => {}
        }
    }
    all
}

fn md5(body: &[u8]) -> String {
    use base64::Engine;
    use md5::Digest;
    base64::prelude::BASE64_STANDARD.encode(md5::Md5::digest(body))
}

trait ConcatObjects {
    fn concat_objects(self) -> Objects;
}

impl ConcatObjects for [Objects; 2] {
    fn concat_objects(self) -> Objects {
        self.into_iter().flatten().collect()
    }
}

/// A gateway that collects without delay, and a caller of it.
async fn survivor() -> (TestGateway, Caller) {
    let gateway = start(|config| {
        config.garbage_grace = Duration::ZERO;
        config.abandoned_after = Duration::ZERO;
        config.index_shards = 3;
    })
    .await;
    let caller = Caller { address: gateway.address, user: gateway.users[0].clone() };
    (gateway, caller)
}

/// Another gateway of the same cluster, which a mishap awaits. It ends with the stop.
struct Victim {
    gateway: Gateway,
    caller: Caller,
    cut: Arc<Cut>,
    served: tokio::task::JoinHandle<()>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.served.abort();
    }
}

impl Victim {
    async fn new(survivor: &TestGateway, mishap: Mishap, at: usize) -> Self {
        let cut = Cut::new(mishap, at);
        let mut config = GatewayConfig::new(POOL);
        config.collect_interval = None;
        config.index_shards = 3;
        config.garbage_grace = Duration::ZERO;
        let store = Arc::new(CutStore { client: survivor.client.clone(), cut: cut.clone() });
        let directory = Arc::new(CutDirectory { directory: survivor.directory.clone(), cut: cut.clone() });
        let gateway = Gateway::new(config, store, directory, survivor.keys.clone()).unwrap();
        let (address, stop, served) = serve(&gateway).await;
        let caller = Caller { address, user: survivor.users[0].clone() };
        Victim { gateway, caller, cut, served, _stop: stop }
    }

    /// The status of the answer, or 0 if the gateway died. An answer with an error in its document counts as 500.
    async fn ask(&self, request: Request) -> u16 {
        let (status, body) = tokio::select! {
            answer = self.caller.ask(request) => answer,
            () = self.cut.death() => return 0,
        };
        if String::from_utf8_lossy(&body).contains("<Error>") { status.max(500) } else { status }
    }
}

/// Searches and walks until nothing more is to be done.
async fn collect(gateway: &TestGateway) {
    for _ in 0..3 {
        let searched = gateway.gateway.search_orphans(Duration::ZERO).await.unwrap();
        let report = gateway.gateway.collect_garbage().await.unwrap();
        assert_eq!((searched.failures, report.failures), (0, 0));
    }
}

/// Removes all versions and uploads of a bucket, and then it.
async fn remove_all(gateway: &TestGateway, caller: &Caller) {
    let (mut keys, mut uploads) = (Vec::new(), Vec::new());
    gateway.client.each(|_, index| {
        for key in index.omap.keys().filter_map(|key| std::str::from_utf8(key).ok()) {
            let rest = key.get(2..).unwrap_or_default().to_owned();
            match &key[..2.min(key.len())] {
                "o/" => keys.push(rest),
                "v/" => keys.push(rest.split_once('\0').unwrap().0.to_owned()),
                "u/" => uploads.push(rest),
                _ => {}
            }
        }
    });
    for (key, id) in uploads.iter().map(|upload| upload.split_once('\0').unwrap()) {
        caller.expect(204, Request::new("DELETE", &object(key)).query("uploadId", id)).await;
    }
    keys.sort();
    keys.dedup();
    for key in keys {
        for id in versions(caller, &key).await {
            caller.expect(204, Request::new("DELETE", &object(&key)).query("versionId", &id)).await;
        }
    }
    caller.expect(204, Request::new("DELETE", "bucket")).await;
}

/// Waits for a victim's work. If the victim pauses, others take it for dead, and then it continues.
async fn while_others_collect<T>(victim: &Victim, survivor: &TestGateway, work: impl Future<Output = T>) -> T {
    let others = async {
        victim.cut.comes().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        collect(survivor).await;
        victim.cut.continues();
        std::future::pending().await
    };
    tokio::select! {
        done = work => done,
        () = others, if victim.cut.pauses() => unreachable!("it waits for the victim"),
    }
}

fn left(gateway: &TestGateway) -> Vec<String> {
    let mut left = Vec::new();
    gateway.client.each(|name, object| {
        left.push(format!("{name} with {} bytes, {} records", object.data.len(), object.omap.len()));
    });
    left
}

async fn check_objects(caller: &Caller, operation: &Operation, is_done: bool, what: &str) {
    let keys = operation.before.keys().chain(operation.after.keys());
    for key in keys {
        let (status, found) = caller.ask(Request::new("GET", &object(key))).await;
        assert!(status == 200 || status == 404, "{what}: GET of {key} is answered with {status}");
        let found = (status == 200).then_some(found);
        let (before, after) = (operation.before.get(key), operation.after.get(key));
        let is_right = found.as_ref() == after || (!is_done && found.as_ref() == before);
        assert!(is_right, "{what}: {key} has {:?} bytes", found.map(|found| found.len()));
    }
}

/// One operation with one mishap; whether the mishap came.
async fn run(operation: &Operation, mishap: Mishap, at: usize) -> bool {
    let what = format!("{}, {mishap:?} at change {at}", operation.name);
    let (gateway, caller) = survivor().await;
    caller.expect(200, Request::new("PUT", "bucket")).await;
    if operation.has_versions {
        let document = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        caller.expect(200, Request::new("PUT", "bucket").query("versioning", "").body(document)).await;
    }
    for (key, body) in &operation.first {
        caller.expect(200, put(key, body.clone())).await;
    }
    let request = (operation.request)(&caller).await;
    let victim = Victim::new(&gateway, mishap, at).await;
    let status = while_others_collect(&victim, &gateway, victim.ask(request)).await;
    let is_over = victim.cut.is_over();
    let is_done = (200..300).contains(&status);
    assert!(is_done || is_over, "{what}: {status} without a mishap");
    // What the gateway does after its answer, if it lives.
    tokio::time::sleep(Duration::from_millis(if mishap == Mishap::Death { 0 } else { 30 })).await;
    collect(&gateway).await;
    check_objects(&caller, operation, is_done, &what).await;
    for key in operation.before.keys().chain(operation.after.keys()) {
        caller.expect(200, put(key, body("last", 100))).await;
    }
    victim.cut.arrives(&gateway.client).await;
    for key in operation.before.keys().chain(operation.after.keys()) {
        let (status, found) = caller.ask(Request::new("GET", &object(key))).await;
        assert!(status == 200 && found == body("last", 100), "{what}: {key} is no more what was written last");
    }
    remove_all(&gateway, &caller).await;
    collect(&gateway).await;
    let left = left(&gateway);
    // A chunk that comes late may stay.
    let is_late = mishap == Mishap::Late && left.iter().all(|name| name.starts_with("s3d/"));
    assert!(left.is_empty() || is_late, "{what}: left are {left:?}");
    is_over
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_on_objects() {
    for operation in operations() {
        for mishap in [Mishap::Death, Mishap::LostAnswer, Mishap::LostRequest, Mishap::Late, Mishap::Pause] {
            let mut at = 0;
            while run(&operation, mishap, at).await {
                at += 1;
            }
            println!("{}: {at} changes, {mishap:?}", operation.name);
            assert!(at > 0, "the operation changes something");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_of_buckets() {
    for mishap in [Mishap::Death, Mishap::LostAnswer, Mishap::LostRequest, Mishap::Pause] {
        let mut at = 0;
        loop {
            let what = format!("{mishap:?} at change {at}");
            let (gateway, caller) = survivor().await;
            caller.expect(200, Request::new("PUT", "bucket")).await;
            // Garbage in chunks and beside the index, and an upload.
            for bytes in [2_000, 200_000, 5_000_000] {
                caller.expect(200, put("a", body("a", bytes))).await;
            }
            upload(&caller).await;
            caller.expect(204, Request::new("DELETE", &object("a"))).await;
            let victim = Victim::new(&gateway, mishap, at).await;
            let deletion = victim.ask(Request::new("DELETE", "bucket"));
            let status = while_others_collect(&victim, &gateway, deletion).await;
            assert!(status == 204 || victim.cut.is_over(), "{what}: {status} without a mishap");
            tokio::time::sleep(Duration::from_millis(if mishap == Mishap::Death { 0 } else { 30 })).await;
            collect(&gateway).await;
            let (found, _) = caller.ask(Request::new("GET", "bucket")).await;
            assert!(found == 404 || (found == 200 && status != 204), "{what}: {status}, then {found}");
            // It can be used, and made anew.
            if found == 200 {
                caller.expect(200, put("a", body("a", 100))).await;
                caller.expect(204, Request::new("DELETE", &object("a"))).await;
                caller.expect(204, Request::new("DELETE", "bucket")).await;
            }
            assert!(left(&gateway).is_empty(), "{what}: left are {:?}", left(&gateway));
            caller.expect(200, Request::new("PUT", "bucket")).await;
            caller.expect(200, put("a", body("a", 100))).await;
            if !victim.cut.is_over() {
                break;
            }
            at += 1;
        }
        assert!(at > 3 * 3, "all its changes were met: {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn makings_of_buckets() {
    for mishap in [Mishap::Death, Mishap::LostAnswer, Mishap::LostRequest, Mishap::Pause] {
        let mut at = 0;
        loop {
            let what = format!("{mishap:?} at change {at}");
            let (gateway, caller) = survivor().await;
            let victim = Victim::new(&gateway, mishap, at).await;
            let making = victim.ask(Request::new("PUT", "bucket"));
            let status = while_others_collect(&victim, &gateway, making).await;
            let is_over = victim.cut.is_over();
            assert!(status == 200 || is_over, "{what}: {status} without a mishap");
            collect(&gateway).await;
            caller.expect(200, Request::new("PUT", "bucket")).await;
            caller.expect(200, put("a", body("a", 100))).await;
            caller.expect(204, Request::new("DELETE", &object("a"))).await;
            caller.expect(204, Request::new("DELETE", "bucket")).await;
            collect(&gateway).await;
            // The index of a bucket that has no record is empty, and nobody knows its name.
            let is_empty = |left: &String| left.contains("s3i/") && left.ends_with(" 0 bytes, 0 records");
            assert!(left(&gateway).iter().all(is_empty), "{what}: left are {:?}", left(&gateway));
            assert!(is_over || left(&gateway).is_empty());
            if !is_over {
                break;
            }
            at += 1;
        }
    }
}

/// The collector itself is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn collections() {
    for mishap in [Mishap::Death, Mishap::LostAnswer, Mishap::LostRequest, Mishap::Pause] {
        let mut at = 0;
        loop {
            let (gateway, caller) = survivor().await;
            caller.expect(200, Request::new("PUT", "bucket")).await;
            for (key, bytes) in
                [("a", 2_000), ("b", 200_000), ("c", 100), ("a", 100), ("b", 9_000_000), ("c", 3_000)]
            {
                caller.expect(200, put(key, body(key, bytes))).await;
            }
            let victim = Victim::new(&gateway, mishap, at).await;
            let collection = async {
                tokio::select! {
                    report = victim.gateway.collect_garbage() => drop(report),
                    () = victim.cut.death() => {}
                }
            };
            while_others_collect(&victim, &gateway, collection).await;
            collect(&gateway).await;
            for (key, bytes) in [("a", 100), ("b", 9_000_000), ("c", 3_000)] {
                assert!(caller.expect(200, Request::new("GET", &object(key))).await == body(key, bytes));
            }
            assert_eq!((gateway.client.names("s3d/").len(), gateway.client.names("s3i/").len()), (3, 3 + 1));
            if !victim.cut.is_over() {
                break;
            }
            at += 1;
        }
        assert!(at >= 4, "two objects and the records that name them: {at}");
    }
}
