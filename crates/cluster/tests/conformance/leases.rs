//! Leases: granting, renewing, listing, revoking, running out.

use std::time::{Duration, Instant};

use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, WatchOptions};
use tonic::Code;

use crate::keys::code;
use crate::servers::Server;
use crate::watches::{describe, message};

pub async fn all(server: &Server) {
    let mut client = server.etcd_client().await;
    let with = |lease| Some(PutOptions::new().with_lease(lease));
    let keys = || Some(LeaseTimeToLiveOptions::new().with_keys());

    // One that runs out while the rest goes on.
    let begun = Instant::now();
    let shortest = client.lease_grant(1, None).await.unwrap();
    assert_eq!(shortest.ttl(), 2, "the shortest term");
    client.lease_revoke(shortest.id()).await.unwrap();
    let short = client.lease_grant(5, None).await.unwrap();
    let mut stream = client.watch("l/", Some(WatchOptions::new().with_prefix().with_prev_key())).await.unwrap();
    assert!(message(&mut stream).await.created());
    client.put("l/b", "", with(short.id())).await.unwrap();
    client.put("l/a", "", with(short.id())).await.unwrap();

    let own = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(5))).await.unwrap();
    assert_eq!((own.id(), own.ttl()), (5, 60));
    let again = client.lease_grant(60, Some(LeaseGrantOptions::new().with_id(5))).await;
    assert_eq!(code(again), (Code::FailedPrecondition, "etcdserver: lease already exists".into()));
    client.put("m", "", with(5)).await.unwrap();
    let left = client.lease_time_to_live(5, keys()).await.unwrap();
    assert!((57..=60).contains(&left.ttl()), "{left:?}");
    assert_eq!((left.granted_ttl(), left.keys()), (60, &[b"m".to_vec()][..]));
    assert_eq!(client.lease_time_to_live(6, None).await.unwrap().ttl(), -1);
    let mut ids: Vec<_> = client.leases().await.unwrap().leases().iter().map(|lease| lease.id()).collect();
    ids.sort_unstable();
    let mut expected = vec![5, short.id()];
    expected.sort_unstable();
    assert_eq!(ids, expected);

    // A put without a lease takes the key off its lease; one that ignores leases does not.
    client.put("m2", "", with(5)).await.unwrap();
    client.put("m2", "v", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    client.put("m", "", None).await.unwrap();
    assert_eq!(client.lease_time_to_live(5, keys()).await.unwrap().keys(), [b"m2".to_vec()]);
    let before = client.get("m", None).await.unwrap().header().unwrap().revision();
    let revoked = client.lease_revoke(5).await.unwrap();
    assert_eq!(revoked.header().unwrap().revision(), before + 1);
    assert_eq!(client.get("m2", None).await.unwrap().count(), 0);
    assert_eq!(client.get("m", None).await.unwrap().count(), 1);
    assert_eq!(code(client.lease_revoke(5).await).0, Code::NotFound);
    assert!(client.lease_keep_alive(5).await.is_err());

    // One that is kept alive outlives its term.
    let kept = client.lease_grant(2, None).await.unwrap().id();
    client.put("kept", "", with(kept)).await.unwrap();
    let (mut keeper, mut answers) = client.lease_keep_alive(kept).await.unwrap();

    let mut gone = Vec::new();
    while gone.len() < 4 {
        keeper.keep_alive().await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().ttl(), 2);
        if let Ok(response) = tokio::time::timeout(Duration::from_millis(500), stream.message()).await {
            gone.extend(describe(&response.unwrap().unwrap()));
        }
        assert!(begun.elapsed() < Duration::from_secs(13), "the lease runs out");
    }
    assert!(begun.elapsed() >= Duration::from_secs(5), "not before its time");
    assert!(gone[2].starts_with("-l/a@") && gone[3].starts_with("-l/b@"), "{gone:?}");
    assert_eq!(gone[2].split_once('@').unwrap().1, gone[3].split_once('@').unwrap().1, "at one revision");
    assert_eq!(client.get("kept", None).await.unwrap().count(), 1);
}
