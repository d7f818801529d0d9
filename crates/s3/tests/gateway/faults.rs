//! Behaviour of the gateway under faults, and the data that it leaves in the cluster.

use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{self, TestGateway, eventually, start};
use bytes::Bytes;

async fn step(gateway: &TestGateway, arguments: &[&str]) -> String {
    support::step(gateway, "faults", arguments).await
}

/// A gateway with a bucket, after a first step.
async fn with_bucket(first: &[&str]) -> TestGateway {
    let gateway = start(|config| {
        config.garbage_grace = Duration::ZERO;
        config.stall_timeout = Duration::from_millis(2_500);
    })
    .await;
    step(&gateway, &["create_bucket"]).await;
    if !first.is_empty() {
        step(&gateway, first).await;
    }
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plaintext_is_stored() {
    let gateway = with_bucket(&["put_canaries"]).await;
    let (mut bytes, mut chunks) = (0, 0);
    gateway.client.each(|name, object| {
        let needle = b"CANARY-OF";
        assert!(!object.data.windows(needle.len()).any(|window| window == needle), "plaintext in {name}");
        for value in object.omap.values() {
            assert!(!value.windows(needle.len()).any(|window| window == needle), "plaintext in {name}");
        }
        bytes += object.data.len();
        chunks += usize::from(name.starts_with("s3d/"));
    });
    assert_eq!((bytes, chunks), (3 * 6_000_000, 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_on_its_way_is_read_again_with_a_check() {
    let gateway = with_bucket(&[]).await;
    gateway.client.change_on_the_way();
    step(&gateway, &["put_canaries"]).await;
    assert!(gateway.client.changed_on_the_way() > 1, "the step reads sealed data");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_cluster_is_told_and_nothing_remains() {
    let gateway = with_bucket(&[]).await;
    gateway.client.set_fault("s3d/", Fault::NoSpace);
    step(&gateway, &["put_fails", "k", "9437184", "507", "InsufficientStorage"]).await;
    gateway.client.clear_faults();
    gateway.client.set_fault("s3i/", Fault::NoSpace);
    step(&gateway, &["put_fails", "k", "200000", "507", "InsufficientStorage"]).await;
    eventually("removal of the data", async || gateway.client.names("s3d/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_stays_when_it_is_uncertain_whether_it_became_visible() {
    let gateway = with_bucket(&[]).await;
    let put = &["put_data_times", "50000", "503", "SlowDown"];
    gateway.client.set_fault("o/", Fault::WriteTimesOut { happens: true });
    step(&gateway, put).await;
    gateway.client.clear_faults();
    tokio::time::sleep(Duration::from_millis(200)).await;
    step(&gateway, &["body_is", "bucket", "k", "data", "50000"]).await;

    gateway.client.set_fault("o/", Fault::WriteTimesOut { happens: false });
    step(&gateway, put).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateway.client.names("s3d/").len(), 2, "nobody knows yet whether it is visible");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_change_is_done_twice_keeps_its_data() {
    // In chunks, beside the index, and in it.
    for times in ["2359296", "10000", "200"] {
        let gateway = with_bucket(&[]).await;
        gateway.client.set_fault("s3i/", Fault::WriteTwice);
        // A new key, and one that is replaced.
        for content in ["one!", "two!"] {
            step(&gateway, &["put_times", content, times]).await;
            gateway.gateway.collect_garbage().await.unwrap();
            step(&gateway, &["body_is", "bucket", "k", content, times]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_data_never_reaches_a_client() {
    let gateway = with_bucket(&["put_zeros", "bucket", "k", "9437184"]).await;
    let get = &["get_fails", "k", "500", "InternalError"];
    let mut saved = Vec::new();
    gateway.client.each(|name, object| saved.push((name.to_owned(), object.clone())));
    let restore = || {
        gateway.client.each(|name, object| {
            *object = saved.iter().find(|(saved, _)| saved == name).unwrap().1.clone();
        });
    };
    let on_chunk = |number: &str, change: &dyn Fn(&mut crate::support::memory_client::MemoryObject)| {
        gateway.client.each(|name, object| {
            if name.starts_with("s3d/") && name.ends_with(number) {
                change(object);
            }
        });
    };

    on_chunk("/0", &|object| object.data[100_000] ^= 1);
    step(&gateway, get).await;
    restore();
    on_chunk("/0", &|object| object.data.truncate(65_536));
    step(&gateway, get).await;
    restore();
    on_chunk("/0", &|object| object.unit = None);
    step(&gateway, get).await;
    restore();
    let other = saved.iter().find(|(name, _)| name.ends_with("/1")).unwrap().1.clone();
    on_chunk("/0", &|object| *object = other.clone());
    step(&gateway, get).await;
    restore();

    // Damage behind what was already sent cuts the connection.
    on_chunk("/2", &|object| object.data[0] ^= 1);
    step(&gateway, &["a_get_is_cut"]).await;
    gateway.client.lose("s3d/");
    step(&gateway, get).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_break_off_leave_nothing() {
    let gateway = with_bucket(&[]).await;
    step(&gateway, &["break_uploads_off"]).await;
    eventually("removal of the data", async || gateway.client.names("s3d/").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_collected_after_its_grace() {
    let grace = Duration::from_secs(2);
    let gateway = start(|config| config.garbage_grace = grace).await;
    step(&gateway, &["make_garbage"]).await;
    assert_eq!(gateway.client.names("s3d/").len(), 30 + 2 * 30 + 2);
    let (mut collected, begun) = ((0, 0), std::time::Instant::now());
    while gateway.client.names("s3d/").len() > 2 * 20 {
        assert!(begun.elapsed() < Duration::from_secs(20), "collected: {collected:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let report = gateway.gateway.collect_garbage().await.unwrap();
        collected = (collected.0 + report.records, collected.1 + report.failures);
    }
    assert_eq!(collected, (30 + 10 + 2, 0));
    assert_eq!(gateway.client.names("s3d/").len(), 2 * 20);
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 0);
    let begun = std::time::Instant::now();
    step(&gateway, &["others_are_there"]).await;
    let records = gateway.gateway.collect_garbage().await.unwrap().records;
    assert!(records == 0 || begun.elapsed() >= grace, "still in its grace");
}

/// Moves the times in the keys of garbage, as the clock of the gateway that wrote them could be wrong.
fn shift_garbage(gateway: &TestGateway, change: impl Fn(u64) -> u64) -> usize {
    let mut moved = 0;
    gateway.client.each(|_, object| {
        let garbage: Vec<Bytes> = object.omap.keys().filter(|key| key.starts_with(b"g/")).cloned().collect();
        for key in garbage {
            let value = object.omap.remove(&key).unwrap();
            let text = std::str::from_utf8(&key[2..]).unwrap();
            let (time, rest) = text.split_once('/').unwrap();
            let time = change(u64::from_str_radix(time, 16).unwrap());
            object.omap.insert(Bytes::from(format!("g/{time:016x}/{rest}")), value);
            moved += 1;
        }
    });
    moved
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_has_its_grace_whatever_clocks_say() {
    let grace = Duration::from_secs(2);
    let gateway = start(|config| config.garbage_grace = grace).await;
    step(&gateway, &["create_bucket"]).await;
    let hour_ms = 3_600_000;
    for (name, shift) in [("behind", -hour_ms), ("ahead", hour_ms)] {
        step(&gateway, &["put_zeros", "bucket", "k", "200000"]).await;
        step(&gateway, &["put_zeros", "bucket", "k", "300000"]).await;
        assert_eq!(shift_garbage(&gateway, |time| time.saturating_add_signed(shift)), 1);
        let seen = std::time::Instant::now();
        let early = gateway.gateway.collect_garbage().await.unwrap().records;
        assert!(early == 0 || seen.elapsed() >= grace, "the clock that wrote is an hour {name}");
        tokio::time::sleep(grace).await;
        assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1, "{name}");
        step(&gateway, &["delete", "bucket", "k"]).await;
        gateway.gateway.collect_garbage().await.unwrap();
        tokio::time::sleep(grace).await;
        assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_that_takes_longer_than_the_grace_keeps_its_data() {
    let grace = Duration::from_millis(1_500);
    let gateway = start(|config| config.garbage_grace = grace).await;
    step(&gateway, &["create_bucket"]).await;
    step(&gateway, &["put_times", "old", "20000000"]).await;
    gateway.client.set_fault("s3d/", Fault::Slow(Duration::from_millis(1)));
    let replace_and_collect = async {
        eventually("a read under way", async || gateway.client.slow_begun() > 0).await;
        gateway.client.clear_faults();
        step(&gateway, &["put_times", "new", "100000"]).await;
        for _ in 0..20 {
            gateway.gateway.collect_garbage().await.unwrap();
            tokio::time::sleep(grace / 6).await;
        }
        assert!(gateway.client.names("s3d/").len() > 10, "what is read is kept");
    };
    tokio::join!(step(&gateway, &["is_read_slowly", "old", "20000000", "8"]), replace_and_collect);
    let begun = std::time::Instant::now();
    while gateway.client.names("s3d/").len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "what was read is collected");
        gateway.gateway.collect_garbage().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    gateway.client.each(|_, object| assert!(!object.omap.keys().any(|key| key.starts_with(b"h/"))));
}

/// Another gateway takes its note for that of a dead completion.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_loses_its_note_succeeds() {
    for call in ["complete_upload", "abort_upload"] {
        let gateway = with_bucket(&[]).await;
        let upload = step(&gateway, &["begin_upload_of_one_part"]).await;
        let record = || {
            let mut found = None;
            gateway.client.each(|_, object| {
                let is_upload = |(key, _): &(&Bytes, &Bytes)| key.starts_with(b"u/");
                found = found.take().or(object.omap.iter().find(is_upload).map(|(_, value)| value.clone()));
            });
            found
        };
        let open = record().unwrap();
        gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(500)));
        let withdraw = async {
            eventually("the note", async || record().unwrap() != open).await;
            gateway.client.each(|_, object| {
                for (_, value) in object.omap.iter_mut().filter(|(key, _)| key.starts_with(b"u/")) {
                    *value = open.clone();
                }
            });
        };
        let arguments: Vec<&str> = [call].into_iter().chain(upload.split_whitespace()).collect();
        tokio::join!(step(&gateway, &arguments), withdraw);
        assert_eq!(record(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_a_deletion_of_their_bucket_exclude_each_other() {
    let gateway = with_bucket(&[]).await;
    gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(2)));
    let said = step(&gateway, &["race_writes_and_a_deletion"]).await;
    assert!(said.contains("BucketNotEmpty"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_cut_short_are_taken_back_or_finished() {
    let abandoned_after = Duration::from_secs(3);
    let gateway = start(|config| {
        config.garbage_grace = Duration::ZERO;
        config.abandoned_after = abandoned_after;
    })
    .await;
    step(&gateway, &["create_bucket"]).await;
    step(&gateway, &["begin_multipart_upload"]).await;
    let mark = |token: &str, is_final: bool| {
        // The clock of whoever set it counts for nothing.
        let mark = format!(r#"{{"format":1,"since_ms":0,"token":"{token}","is_final":{is_final}}}"#);
        gateway.client.each(|name, object| {
            if name.starts_with("s3i/") {
                object.omap.insert(Bytes::from_static(b"x/deleting"), Bytes::from(mark.clone()));
            }
        });
    };

    mark("t", false);
    gateway.gateway.collect_garbage().await.unwrap();
    step(&gateway, &["put_answers", "409", "OperationAborted"]).await;
    tokio::time::sleep(abandoned_after).await;
    gateway.gateway.collect_garbage().await.unwrap();
    step(&gateway, &["put_answers", "200"]).await;
    step(&gateway, &["delete", "bucket", "k"]).await;
    mark("u", false);
    gateway.gateway.collect_garbage().await.unwrap();
    step(&gateway, &["put_answers", "409", "OperationAborted"]).await;

    mark("t", true);
    gateway.gateway.collect_garbage().await.unwrap();
    assert!(gateway.client.names("").is_empty());
    step(&gateway, &["put_answers", "404", "NoSuchBucket"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_completions_and_aborts_one_wins() {
    let gateway = with_bucket(&[]).await;
    gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(1)));
    step(&gateway, &["race_completions_and_aborts"]).await;
    gateway.client.clear_faults();
    // Whatever was not used is garbage now, and after its collection only what is visible remains.
    gateway.gateway.collect_garbage().await.unwrap();
    step(&gateway, &["abort_and_delete_all"]).await;
    gateway.gateway.collect_garbage().await.unwrap();
    assert!(gateway.client.names("s3d/").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_requests_end() {
    let mut gateway = with_bucket(&[]).await;
    gateway.client.set_fault("s3d/", Fault::Slow(Duration::from_millis(1_500)));
    let stop = gateway.stop.take().unwrap();
    let stopping = async {
        eventually("a write under way", async || gateway.client.slow_begun() > 0).await;
        stop.send(()).unwrap();
    };
    let (_, ()) = tokio::join!(step(&gateway, &["put_zeros", "bucket", "k", "200000"]), stopping);
    tokio::time::timeout(Duration::from_secs(5), gateway.served).await.unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(gateway.address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_whose_data_is_collected_begins_anew() {
    // In chunks, beside the index, and in it.
    for (place, times) in [("s3d/", "50000"), ("@", "1000"), ("d/", "1")] {
        let gateway = with_bucket(&["put_times", "old", times]).await;
        gateway.client.set_fault(place, Fault::Held);
        let replace = async {
            eventually("a read under way", async || gateway.client.slow_begun() > 0).await;
            gateway.client.clear_faults();
            step(&gateway, &["put_times", "new", times]).await;
            assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 1);
            gateway.client.release();
        };
        let get = ["body_is", "bucket", "k", "new", times];
        tokio::join!(step(&gateway, &get), replace);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_a_small_memory_budget() {
    let gateway = start(|config| config.memory_max = 1).await;
    step(&gateway, &["work_at_once"]).await;
}

/// A second read of the same data does not wait behind data that other requests read ahead.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_read_again_share_a_small_memory_budget() {
    let gateway = start(|config| config.memory_max = 1).await;
    gateway.client.change_on_the_way();
    step(&gateway, &["work_at_once"]).await;
    assert!(gateway.client.changed_on_the_way() > 1);
}
