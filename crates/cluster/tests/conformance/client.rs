//! Our client, against both servers.

use std::time::Duration;

use atoll_cluster::{
    ClusterClient, ClusterError, ConnectOptions, Lease, LeaseStatus, PrefixWatch, Transaction, WatchEvent,
};

use crate::servers::{Server, free_port, start};

pub async fn all(server: &Server) {
    let client = server.client().await;
    records(&client).await;
    transactions(&client).await;
    prefixes(&client).await;
    leases(&client, server).await;
    watches(&client, server).await;
    upkeep(&client).await;
}

async fn upkeep(client: &ClusterClient) {
    let first = client.put("/upkeep", &1).await.unwrap();
    let second = client.put("/upkeep", &2).await.unwrap();
    let size = client.state_size().await.unwrap();
    assert_eq!((size.revision, size.is_out_of_quota), (second, false));
    assert!(size.bytes > 0 && size.quota_bytes.is_none_or(|quota| size.bytes < quota), "{size:?}");
    client.compact(second).await.unwrap();
    // Somebody else was faster.
    client.compact(first).await.unwrap();
    client.compact(second).await.unwrap();
    assert_eq!(client.get("/upkeep").await.unwrap(), Some((2, second)));
    assert!(client.compact(second + 1_000).await.is_err(), "that has not come");
}

async fn next(watch: &mut PrefixWatch) -> WatchEvent {
    tokio::time::timeout(Duration::from_secs(15), watch.next()).await.expect("an event in time").unwrap()
}

fn put(key: &str, value: &str, mod_revision: i64) -> WatchEvent {
    WatchEvent::Put { key: key.into(), value: value.into(), mod_revision }
}

async fn records(client: &ClusterClient) {
    assert_eq!(client.get::<u32>("/t/a").await.unwrap(), None);
    let first = client.create("/t/a", &1u32).await.unwrap();
    assert!(
        matches!(client.create("/t/a", &2u32).await, Err(ClusterError::AlreadyExists { key }) if key == "/t/a")
    );
    assert_eq!(client.get("/t/a").await.unwrap(), Some((1u32, first)));
    let second = client.compare_and_swap("/t/a", first, &2u32).await.unwrap();
    let conflict = client.compare_and_swap("/t/a", first, &3u32).await.unwrap_err();
    assert!(
        matches!(conflict, ClusterError::Conflict { expected, found, .. } if (expected, found) == (first, second))
    );
    let third = client.put("/t/b", &vec!["x"]).await.unwrap();
    assert!(matches!(client.get::<u32>("/t/b").await, Err(ClusterError::Decode { .. })));
    assert!(matches!(client.delete_if("/t/b", second).await, Err(ClusterError::Conflict { .. })));
    let fourth = client.delete_if("/t/b", third).await.unwrap();
    let listing = client.list::<u32>("/t/").await.unwrap();
    assert_eq!((listing.revision, listing.entries), (fourth, vec![("/t/a".into(), 2u32, second)]));
    assert!(client.delete("/t/a").await.unwrap());
    assert!(!client.delete("/t/a").await.unwrap());
}

async fn transactions(client: &ClusterClient) {
    let made =
        Transaction::new().check("/x/1", 0).check("/x/2", 0).put("/x/1", &1).unwrap().put("/x/2", &2).unwrap();
    let revision = client.transact(&made).await.unwrap();
    let conflict = client.transact(&made).await.unwrap_err();
    assert!(matches!(conflict, ClusterError::Conflict { key, found, .. } if key == "/x/1" && found == revision));
    let moved = Transaction::new().check("/x/2", revision).delete("/x/1").put("/x/3", &3).unwrap();
    client.transact(&moved).await.unwrap();
    let keys: Vec<_> = client.list::<u8>("/x/").await.unwrap().entries.into_iter().map(|entry| entry.0).collect();
    assert_eq!(keys, ["/x/2", "/x/3"]);
}

/// Fails as soon as a lease is lost within this time. A check that no key below a prefix has changed since it was
/// listed.
async fn prefixes(client: &ClusterClient) {
    let nobody_came = |revision| Transaction::new().check_prefix("/p/", revision);
    let listed = async || client.list::<u32>("/p/").await.unwrap().revision;
    let (empty, note) = (listed().await, "/p_note");
    client.transact(&nobody_came(empty).put(note, &1u32).unwrap()).await.unwrap();
    let came = client.put("/p/a", &1u32).await.unwrap();
    let conflict = client.transact(&nobody_came(empty).put(note, &2u32).unwrap()).await.unwrap_err();
    assert!(matches!(conflict, ClusterError::Conflict { found, .. } if found == came), "{conflict}");
    client.put("/p/b", &1u32).await.unwrap();
    let both = listed().await;
    client.transact(&nobody_came(both).put(note, &3u32).unwrap()).await.unwrap();
    assert!(client.delete("/p/a").await.unwrap(), "who leaves is in nobody's way");
    client.transact(&nobody_came(both).put(note, &4u32).unwrap()).await.unwrap();
    client.put("/p/b", &2u32).await.unwrap();
    let conflict = client.transact(&nobody_came(both).delete(note)).await.unwrap_err();
    assert!(matches!(conflict, ClusterError::Conflict { .. }), "{conflict}");
}

async fn stays_held(lease: &Lease, duration: Duration) {
    let lost = tokio::time::timeout(duration, lease.lost()).await;
    assert!(lost.is_err() && *lease.status().borrow() == LeaseStatus::Held, "the lease was lost");
}

async fn leases(client: &ClusterClient, server: &Server) {
    let lease = client.grant_lease(Duration::from_millis(1500)).await.unwrap();
    assert_eq!(lease.term(), Duration::from_secs(2));
    client.create_with_lease("/up/1", &1, &lease).await.unwrap();
    client.put_with_lease("/up/2", &2, &lease).await.unwrap();
    stays_held(&lease, 2 * lease.term() + Duration::from_secs(1)).await;
    assert_eq!(client.list::<u8>("/up/").await.unwrap().entries.len(), 2);
    lease.revoke().await.unwrap();
    assert_eq!(client.list::<u8>("/up/").await.unwrap().entries.len(), 0);

    let doomed = client.grant_lease(Duration::from_secs(3)).await.unwrap();
    server.etcd_client().await.lease_revoke(doomed.id()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(4), doomed.lost()).await.expect("a lost lease is noticed");
    assert_eq!(*doomed.status().borrow(), LeaseStatus::Lost);
    doomed.revoke().await.unwrap();
}

async fn watches(client: &ClusterClient, server: &Server) {
    let start = client.put("/w/a", &1).await.unwrap();
    let mut watch = client.watch_prefix("/w/", start);
    assert_eq!(next(&mut watch).await, put("/w/a", "1", start));
    client.put("/v", &0).await.unwrap();
    let second = client.put("/w/b", &2).await.unwrap();
    assert_eq!(next(&mut watch).await, put("/w/b", "2", second));
    client.delete("/w/a").await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Delete { key: "/w/a".into(), mod_revision: second + 1 });
    // What was compacted away is replaced by a list.
    server.etcd_client().await.compact(second + 1, None).await.unwrap();
    let mut late = client.watch_prefix("/w/", start);
    let WatchEvent::Resync { entries, revision } = next(&mut late).await else { panic!("a list is due") };
    assert_eq!((entries, revision), (vec![("/w/b".into(), b"2".to_vec(), second)], second + 1));
    let third = client.put("/w/c", &3).await.unwrap();
    assert_eq!(next(&mut late).await, put("/w/c", "3", third));
    assert_eq!(next(&mut watch).await, put("/w/c", "3", third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_survives_a_restart_of_the_server() {
    let mut server = Server::embedded().await;
    let client = server.client().await;
    let lease = client.grant_lease(Duration::from_secs(5)).await.unwrap();
    client.create_with_lease("/up/1", &1, &lease).await.unwrap();
    let start = client.put("/w/a", &1).await.unwrap();
    let mut watch = client.watch_prefix("/w/", start + 1);
    let mut behind = client.watch_prefix("/up/", start);
    server.restart_embedded().await;
    let second = client.compare_and_swap("/w/a", start, &2).await;
    // The write may have been lost with the old connection, which says so.
    let second = match second {
        Err(ClusterError::Unclear { .. }) => client.compare_and_swap("/w/a", start, &2).await.unwrap(),
        other => other.unwrap(),
    };
    assert_eq!(next(&mut watch).await, put("/w/a", "2", second));
    // This one had seen nothing since a revision that the new server has no events of.
    assert!(matches!(next(&mut behind).await, WatchEvent::Resync { entries, .. } if entries.len() == 1));
    stays_held(&lease, lease.term() + Duration::from_secs(1)).await;
    assert!(client.get::<u8>("/up/1").await.unwrap().is_some());
}

#[tokio::test]
async fn a_server_that_is_away_is_reported() {
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let mut options = ConnectOptions::new([endpoint.clone()]);
    options.request_timeout = Duration::from_millis(300);
    let error = ClusterClient::connect(&options).await.unwrap_err();
    assert!(matches!(error, ClusterError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&endpoint) && error.to_string().contains("refused"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path()).await;
    let mut options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
    options.request_timeout = Duration::from_secs(1);
    let client = ClusterClient::connect(&options).await.unwrap();
    let lease = client.grant_lease(Duration::from_secs(2)).await.unwrap();
    // From here on time passes only while nothing else can be done, however slow the machine is.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let lost = async {
        lease.lost().await;
        begun.elapsed()
    };
    let ((), after) = tokio::join!(server.shutdown(), lost);
    assert!(after < Duration::from_millis(2300), "a lease is lost when its term is over");
    assert!(matches!(client.get::<u8>("/a").await, Err(ClusterError::Unreachable { .. })));
}
