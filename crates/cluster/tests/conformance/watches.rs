//! Watches: from now, from the past, several on a stream, filtered, cancelled, too late.

use std::time::Duration;

use etcd_client::{
    Client, DeleteOptions, EventType, Txn, TxnOp, WatchFilterType, WatchOptions, WatchResponse, WatchStream,
};

use crate::servers::Server;

pub async fn all(server: &Server) {
    let mut client = server.etcd_client().await;
    from_now(&mut client).await;
    from_the_past(&mut client).await;
    several_on_a_stream(&mut client).await;
    compacted(&mut client).await;
}

pub async fn message(stream: &mut WatchStream) -> WatchResponse {
    tokio::time::timeout(Duration::from_secs(10), stream.message())
        .await
        .expect("an answer in time")
        .unwrap()
        .unwrap()
}

/// `+key=value@mod_revision(previous)` or `-key@...`.
pub fn describe(response: &WatchResponse) -> Vec<String> {
    let event = |event: &etcd_client::Event| {
        let entry = event.kv().unwrap();
        let key = entry.key_str().unwrap();
        let before = event.prev_kv().map_or("-".into(), |before| before.value_str().unwrap().to_owned());
        match event.event_type() {
            EventType::Put => format!("+{key}={}@{}({before})", entry.value_str().unwrap(), entry.mod_revision()),
            EventType::Delete => format!("-{key}@{}({before})", entry.mod_revision()),
        }
    };
    response.events().iter().map(event).collect()
}

/// Reads until that many events have come.
async fn events(stream: &mut WatchStream, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let response = message(stream).await;
        assert!(!response.canceled(), "{response:?}");
        found.extend(describe(&response));
    }
    found
}

async fn from_now(client: &mut Client) {
    client.put("w/old", "", None).await.unwrap();
    let options = WatchOptions::new().with_prefix().with_prev_key();
    let mut stream = client.watch("w/", Some(options)).await.unwrap();
    let created = message(&mut stream).await;
    assert!(created.created() && !created.canceled() && created.events().is_empty());
    assert_eq!((created.watch_id(), created.header().unwrap().revision()), (0, 2));
    client.put("w/a", "1", None).await.unwrap();
    client.put("x", "unseen", None).await.unwrap();
    client.put("w/a", "2", None).await.unwrap();
    client.delete("w/a", None).await.unwrap();
    let expected = ["+w/a=1@3(-)", "+w/a=2@5(1)", "-w/a@6(2)"];
    assert_eq!(events(&mut stream, 3).await, expected);
    // All of one revision comes at once.
    let txn = Txn::new().and_then([
        TxnOp::put("w/b", "1", None),
        TxnOp::delete("w/o", Some(DeleteOptions::new().with_prefix())),
        TxnOp::put("w/a", "3", None),
    ]);
    client.txn(txn).await.unwrap();
    let response = message(&mut stream).await;
    assert_eq!(describe(&response), ["+w/b=1@7(-)", "-w/old@7()", "+w/a=3@7(-)"]);
    assert_eq!(response.header().unwrap().revision(), 7);
    // A progress report carries the revision up to which everything was sent.
    stream.request_progress().await.unwrap();
    let progress = message(&mut stream).await;
    assert!(progress.events().is_empty() && !progress.created());
    assert_eq!((progress.watch_id(), progress.header().unwrap().revision()), (-1, 7));
}

async fn from_the_past(client: &mut Client) {
    let options =
        WatchOptions::new().with_all_keys().with_start_revision(4).with_filters([WatchFilterType::NoDelete]);
    let mut stream = client.watch("", Some(options)).await.unwrap();
    assert!(message(&mut stream).await.created());
    let expected = ["+x=unseen@4(-)", "+w/a=2@5(-)", "+w/b=1@7(-)", "+w/a=3@7(-)"];
    assert_eq!(events(&mut stream, 4).await, expected);
    // From a revision that is still to come.
    let options = WatchOptions::new().with_start_revision(9).with_filters([WatchFilterType::NoPut]);
    let mut later = client.watch("f", Some(options)).await.unwrap();
    assert!(message(&mut later).await.created());
    client.put("f", "8", None).await.unwrap();
    client.delete("f", None).await.unwrap();
    client.put("f", "10", None).await.unwrap();
    client.delete("f", None).await.unwrap();
    assert_eq!(events(&mut later, 2).await, ["-f@9(-)", "-f@11(-)"]);
}

async fn several_on_a_stream(client: &mut Client) {
    let mut stream = client.watch("s/1", None).await.unwrap();
    let first = message(&mut stream).await.watch_id();
    stream.watch("s/2", Some(WatchOptions::new().with_watch_id(77))).await.unwrap();
    assert_eq!(message(&mut stream).await.watch_id(), 77);
    client.put("s/1", "a", None).await.unwrap();
    client.put("s/2", "b", None).await.unwrap();
    let (one, two) = (message(&mut stream).await, message(&mut stream).await);
    assert_eq!((one.watch_id(), describe(&one)), (first, vec!["+s/1=a@12(-)".to_owned()]));
    assert_eq!((two.watch_id(), describe(&two)), (77, vec!["+s/2=b@13(-)".to_owned()]));

    stream.watch("s/3", Some(WatchOptions::new().with_watch_id(77))).await.unwrap();
    let refused = message(&mut stream).await;
    assert!(refused.created() && refused.canceled() && refused.watch_id() == -1);
    stream.cancel(first).await.unwrap();
    let cancelled = message(&mut stream).await;
    assert!(cancelled.canceled() && cancelled.watch_id() == first && cancelled.compact_revision() == 0);
    client.put("s/1", "unseen", None).await.unwrap();
    client.put("s/2", "seen", None).await.unwrap();
    assert_eq!(events(&mut stream, 1).await, ["+s/2=seen@15(-)"]);
}

async fn compacted(client: &mut Client) {
    client.compact(10, None).await.unwrap();
    let options = WatchOptions::new().with_start_revision(5);
    let mut stream = client.watch("f", Some(options)).await.unwrap();
    assert!(message(&mut stream).await.created());
    let cancelled = message(&mut stream).await;
    assert!(cancelled.canceled());
    assert_eq!(cancelled.compact_revision(), 10);
    // etcd 3.4 gives no reason, later releases do.
    assert!(["", "etcdserver: mvcc: required revision has been compacted"].contains(&cancelled.cancel_reason()));
}
