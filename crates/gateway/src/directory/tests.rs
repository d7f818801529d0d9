//! The directory while cluster state is away.

use atoll_cluster::{ConnectOptions, EmbeddedServer};
use atoll_types::PoolId;
use atoll_types::records::{FailureDomain, RECORD_FORMAT, Redundancy};
use tokio::time::timeout;

use super::*;

fn bucket(name: &str) -> BucketRecord {
    BucketRecord {
        format: RECORD_FORMAT,
        id: "0123456789abcdef".into(),
        name: name.into(),
        owner: "u".into(),
        pool: PoolId(2),
        data_pool: None,
        index_shards: 1,
        wrapped_key: String::new(),
        created_unix_ms: 1,
        named_keys: Default::default(),
        key_generation: 0,
        default_encryption: None,
        unsealed_permit: None,
        versioning: None,
        object_lock: None,
        tags: Default::default(),
        public_access_block: None,
        cors: Vec::new(),
        access: None,
    }
}

fn pool() -> PoolRecord {
    PoolRecord {
        format: RECORD_FORMAT,
        id: PoolId(2),
        name: "objects".into(),
        redundancy: Redundancy::replicated(3, Some(2)),
        pg_num: 8,
        pg_num_first: 0,
        failure_domain: FailureDomain::Host,
        device_class: None,
    }
}

fn user() -> AccessKeyRecord {
    AccessKeyRecord {
        format: RECORD_FORMAT,
        access_key: "u".into(),
        wrapped_secret_key: String::new(),
        display_name: String::new(),
        created_unix_ms: 1,
        account: None,
        user: None,
        is_disabled: false,
        policy: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_continue_without_cluster_state() {
    let temporary = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, temporary.path(), None).await.unwrap();
    let address = server.local_addr();
    let state = ClusterClient::connect(&ConnectOptions::new([format!("http://{address}")])).await.unwrap();
    state.create(&keys::access_key("u"), &user()).await.unwrap();
    state.create(&keys::pool(PoolId(2)), &pool()).await.unwrap();
    state.create(&keys::bucket("before"), &bucket("before")).await.unwrap();
    let directory = EtcdDirectory::start(state.clone()).await.unwrap();
    assert!(directory.create_bucket(&bucket("after")).await.unwrap().is_none());
    assert!(directory.create_bucket(&bucket("gone")).await.unwrap().is_none());
    assert!(directory.delete_bucket(&bucket("gone")).await.unwrap());
    assert!(directory.bucket("none").await.unwrap().is_none());
    // The watch may need a moment to bring it.
    while lock(&directory.copy).records.len() != 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    server.shutdown().await;
    let reads = async {
        assert_eq!(directory.bucket("before").await.unwrap(), Some(bucket("before")));
        for _ in 0..100 {
            assert_eq!(directory.bucket("after").await.unwrap(), Some(bucket("after")));
            assert_eq!(directory.identities().access_key("u").unwrap().record, user());
            assert!(directory.current_identities().await.unwrap().access_key("u").is_some());
            assert_eq!(directory.buckets().await.unwrap().len(), 2);
        }
    };
    timeout(Duration::from_secs(10), reads).await.expect("not every read waits for cluster state");
    for name in ["none", "gone"] {
        assert!(matches!(directory.bucket(name).await, Err(DirectoryError::Unavailable(_))), "it may exist");
    }

    let changes = async {
        for changed in [
            directory.create_bucket(&bucket("new")).await.map(|_| true),
            directory.delete_bucket(&bucket("before")).await,
        ] {
            assert!(matches!(changed, Err(DirectoryError::Unavailable(_))), "{changed:?}");
        }
    };
    timeout(Duration::from_secs(3), changes).await.expect("it is known that nobody answers");

    let server = EmbeddedServer::start(address, temporary.path(), None).await.unwrap();
    while directory.bucket("none").await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let other = ClusterClient::connect(&ConnectOptions::new([format!("http://{address}")])).await.unwrap();
    other.create(&keys::bucket("late"), &bucket("late")).await.unwrap();
    assert_eq!(directory.bucket("late").await.unwrap(), Some(bucket("late")), "it is asked again");
    server.shutdown().await;
}

/// A request that makes a bucket has seen its pool and its account before. Both may have been removed since, because no
/// bucket needed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_not_made_for_what_is_gone() {
    let temporary = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, temporary.path(), None).await.unwrap();
    let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
    let state = ClusterClient::connect(&options).await.unwrap();
    let account = AccountRecord {
        format: RECORD_FORMAT,
        id: "200000000000".into(),
        name: "second".into(),
        email: None,
        canonical_id: "second's".into(),
        created_unix_ms: 1,
    };
    let account_key = key_of(&RecordName::Account(account.id.clone()));
    state.create(&account_key, &account).await.unwrap();
    state.create(&keys::pool(PoolId(2)), &pool()).await.unwrap();
    let other_pool = PoolRecord { id: PoolId(3), name: "archive".into(), ..pool() };
    state.create(&keys::pool(PoolId(3)), &other_pool).await.unwrap();
    let directory = EtcdDirectory::start(state.clone()).await.unwrap();
    let of = |name: &str| BucketRecord { owner: "second's".into(), data_pool: Some(PoolId(3)), ..bucket(name) };
    assert_eq!(directory.create_bucket(&of("first")).await.unwrap(), None);
    assert_eq!(directory.create_bucket(&of("first")).await.unwrap(), Some(of("first")));

    state.delete(&keys::pool(PoolId(3))).await.unwrap();
    let made = directory.create_bucket(&of("pool")).await;
    assert!(matches!(made, Err(DirectoryError::Gone(_))), "{made:?}");
    state.create(&keys::pool(PoolId(3)), &other_pool).await.unwrap();
    assert_eq!(directory.create_bucket(&of("pool")).await.unwrap(), None);

    let removed = IdentityStore::new(state.clone());
    let revision = IdentitiesRevision { format: RECORD_FORMAT, changes: 1 };
    state.put(keys::IDENTITIES_REVISION, &revision).await.unwrap();
    state.delete(&account_key).await.unwrap();
    assert!(removed.current().await.unwrap().account_by_canonical_id("second's").is_none());
    let made = directory.create_bucket(&of("account")).await;
    assert!(matches!(made, Err(DirectoryError::Gone(_))), "{made:?}");
    assert_eq!(state.get::<BucketRecord>(&keys::bucket("account")).await.unwrap(), None);
}

fn own_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clusters_time_advances_between_updates() {
    let temporary = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, temporary.path(), None).await.unwrap();
    let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
    let state = ClusterClient::connect(&options).await.unwrap();
    let silent = EtcdDirectory::start(state.clone()).await.unwrap();
    assert_eq!(silent.cluster_unix_ms(), None, "nobody has said what time it is");
    drop(silent);

    let behind = own_unix_ms() - 7_200_000;
    state.put(keys::CLOCK, &ClockRecord { format: RECORD_FORMAT, unix_ms: behind }).await.unwrap();
    let directory = EtcdDirectory::start(state.clone()).await.unwrap();
    let first = directory.cluster_unix_ms().unwrap();
    assert!((behind..behind + 60_000).contains(&first), "{first}, {behind}");
    assert!((7_100_000..7_300_000).contains(&clock_ahead_ms()), "{}", clock_ahead_ms());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(directory.cluster_unix_ms().unwrap() >= first + 50);

    state.put(keys::CLOCK, &ClockRecord { format: RECORD_FORMAT, unix_ms: own_unix_ms() }).await.unwrap();
    let follows = async {
        while own_unix_ms().abs_diff(directory.cluster_unix_ms().unwrap()) > 30_000 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), follows).await.unwrap();
}

/// A key of the key service without its record would be open to every account: an unreadable record closes it.
#[test]
fn a_key_that_cannot_be_read_is_closed() {
    let key = format!("{}kms_keys/project", keys::IDENTITIES);
    let record = br#"{"format": 1, "name": "project", "account": "100000000000"}"#;
    let mut copy = Copy::default();
    copy.apply(&key, Some(record));
    assert!(copy.identities.kms_key("project").unwrap().policy.is_none());
    let of_another = br#"{"format": 1, "name": "other", "account": "100000000000"}"#;
    for unreadable in [&b"{"[..], br#"{"format": 99, "name": "project"}"#, of_another] {
        copy.apply(&key, Some(unreadable));
        copy.records.insert(key.clone(), unreadable.to_vec());
        for _ in 0..2 {
            let found = copy.identities.kms_key("project").expect("it is not every account's");
            assert!(found.policy.is_some() && found.record.account.is_empty());
            copy.read_identities();
        }
    }
    copy.apply(&key, None);
    assert!(copy.identities.kms_key("project").is_none());
}
