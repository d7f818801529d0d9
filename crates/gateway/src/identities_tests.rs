//! Changes of identities in cluster state, and their distribution.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, Transaction, keys};
use atoll_iam::operations::{Context, IamError, NewAccessKey, Operation, Outcome, Parameters, RANDOM_BYTES};
use atoll_iam::{Identities, KeyLookup, RecordName};
use atoll_identities::{ChangeCondition, IdentityError, IdentityStore, key_of, name_of};
use atoll_s3::BucketDirectory;
use atoll_types::identities::{AccessKeyRecord, FIRST_ACCOUNT, LastUsedRecord};
use atoll_types::records::RECORD_FORMAT;

use crate::EtcdDirectory;

struct State {
    server: EmbeddedServer,
    cluster: ClusterClient,
    _temporary: tempfile::TempDir,
}

async fn state() -> State {
    let temporary = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, temporary.path(), None).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    let cluster = ClusterClient::connect(&ConnectOptions::new([endpoint])).await.unwrap();
    let first = AccessKeyRecord {
        format: RECORD_FORMAT,
        access_key: "FIRST".into(),
        wrapped_secret_key: "local:1:x".into(),
        display_name: "admin".into(),
        created_unix_ms: 1,
        account: None,
        user: None,
        is_disabled: false,
        policy: None,
    };
    cluster.create(&keys::access_key("FIRST"), &first).await.unwrap();
    State { server, cluster, _temporary: temporary }
}

/// An operation of an operator in the first account.
fn operation(
    name: &'static str,
    parameters: &[(&str, &str)],
) -> impl Fn(&Identities) -> Result<Outcome, IamError> + Send + Sync + use<> {
    let parameters: Parameters = parameters.iter().copied().collect();
    move |identities| {
        let new = NewAccessKey {
            access_key: "AKIANEW".into(),
            secret: "secret".into(),
            wrapped_secret: "local:1:y".into(),
        };
        let context = Context {
            identities,
            account: identities.account(FIRST_ACCOUNT).unwrap().clone(),
            caller: None,
            now_ms: 1,
            random: [0; RANDOM_BYTES],
            new_access_key: Some(&new),
            last_used: None,
        };
        Operation::find(name)?.run(&context, parameters.clone())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_that_changes_identities_has_them_at_once() {
    let state = state().await;
    let directory = Arc::new(EtcdDirectory::start(state.cluster.clone()).await.unwrap());
    for round in 0..20 {
        let name = format!("user-{round}");
        directory.change_identities(&operation("CreateUser", &[("UserName", &name)])).await.unwrap();
        assert!(directory.identities().user(FIRST_ACCOUNT, &name).is_some(), "{name}");
    }
    directory.change_identities(&operation("CreateAccessKey", &[("UserName", "user-3")])).await.unwrap();
    assert!(matches!(directory.identities().caller("AKIANEW"), KeyLookup::Found(_)));
    assert_eq!(directory.identities().changes(), 21);
    assert!(directory.change_identities(&operation("CreateUser", &[("UserName", "USER-3")])).await.is_err());

    // When the key goes, what was noted of it goes, too.
    let used = LastUsedRecord { format: RECORD_FORMAT, used_unix_ms: 5, service: "s3".into(), region: "x".into() };
    directory.note_last_use("AKIANEW", &used).await.unwrap();
    assert_eq!(directory.last_used("AKIANEW").await.unwrap(), Some(used));
    directory.change_identities(&operation("DeleteAccessKey", &[("AccessKeyId", "AKIANEW")])).await.unwrap();
    assert_eq!(directory.last_used("AKIANEW").await.unwrap(), None);
    assert!(matches!(directory.identities().caller("AKIANEW"), KeyLookup::Unknown));
    state.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_changes_are_seen_by_reads_and_do_not_get_lost() {
    let state = state().await;
    let directory = EtcdDirectory::start(state.cluster.clone()).await.unwrap();
    let stores = [IdentityStore::new(state.cluster.clone()), IdentityStore::new(state.cluster.clone())];
    for round in 0..10 {
        let name = format!("user-{round}");
        stores[round % 2].change(&operation("CreateUser", &[("UserName", &name)])).await.unwrap();
        assert!(directory.current_identities().await.unwrap().user(FIRST_ACCOUNT, &name).is_some(), "{name}");
    }
    // A key that the command line has just made works with its first request.
    stores[0].change(&operation("CreateAccessKey", &[("UserName", "user-1")])).await.unwrap();
    let found = directory.identities_with("AKIANEW").await.unwrap().unwrap();
    assert!(matches!(found.caller("AKIANEW"), KeyLookup::Found(_)));
    assert!(directory.identities_with("AKIAOTHER").await.unwrap().is_none());

    let adding = stores.each_ref().map(|store| async {
        for round in 10..20 {
            let name = format!("user-{round}");
            let made = store.change(&operation("CreateUser", &[("UserName", &name)])).await;
            assert!(made.is_ok() || matches!(made, Err(IdentityError::Refused(_))), "{made:?}");
        }
    });
    let [one, two] = adding;
    tokio::join!(one, two);
    let users = stores[0].current().await.unwrap().users(FIRST_ACCOUNT).count();
    assert_eq!(users, 20, "each was made by one of both");
    state.server.shutdown().await;
}

/// Each conflict means that another writer has made a change, so with enough others one of them would never be
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_change_at_once_are_all_done() {
    let state = state().await;
    let mut changes = tokio::task::JoinSet::new();
    for number in 0..40 {
        let store = IdentityStore::new(state.cluster.clone());
        changes.spawn(async move {
            store.change(&operation("CreateUser", &[("UserName", &format!("user-{number}"))])).await
        });
    }
    for changed in changes.join_all().await {
        changed.unwrap();
    }
    let current = IdentityStore::new(state.cluster.clone()).current().await.unwrap();
    assert_eq!(current.users(FIRST_ACCOUNT).count(), 40);
    state.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_records_stay_and_stop_nothing() {
    let state = state().await;
    let key = key_of(&RecordName::user(FIRST_ACCOUNT, "alice"));
    let later = serde_json::json!({ "format": 99, "name": "alice" });
    state.cluster.create(&key, &later).await.unwrap();
    let directory = EtcdDirectory::start(state.cluster.clone()).await.unwrap();
    assert!(matches!(directory.identities().caller("FIRST"), KeyLookup::Found(_)));
    let made =
        IdentityStore::new(state.cluster.clone()).change(&operation("CreateUser", &[("UserName", "Alice")])).await;
    assert!(matches!(&made, Err(IdentityError::Unreadable(found)) if *found == key), "{made:?}");
    directory.change_identities(&operation("CreateUser", &[("UserName", "bob")])).await.unwrap();
    state.server.shutdown().await;
}

/// A secret that was rewrapped meanwhile is not overwritten by one that was read before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewrapped_records_are_read_again() {
    let state = state().await;
    let store = IdentityStore::new(state.cluster.clone());
    store.current().await.unwrap();
    let key = keys::access_key("FIRST");
    let (mut record, revision) = state.cluster.get::<AccessKeyRecord>(&key).await.unwrap().unwrap();
    record.wrapped_secret_key = "local:2:anew".into();
    state.cluster.compare_and_swap(&key, revision, &record).await.unwrap();
    store
        .change(&operation("UpdateAccessKey", &[("AccessKeyId", "FIRST"), ("Status", "Inactive")]))
        .await
        .unwrap();
    let (record, _) = state.cluster.get::<AccessKeyRecord>(&key).await.unwrap().unwrap();
    assert!(record.is_disabled && record.wrapped_secret_key == "local:2:anew", "{record:?}");
    state.server.shutdown().await;
}

#[test]
fn keys_lead_back_to_names() {
    for name in [
        RecordName::Account("1".into()),
        RecordName::user("1", "a"),
        RecordName::AccessKey("AKIAX".into()),
        RecordName::StsKey,
        RecordName::Revision,
    ] {
        assert_eq!(name_of(&key_of(&name)), Some(name));
    }
    assert_eq!(key_of(&RecordName::StsKey), keys::STS_KEY);
    assert_eq!(key_of(&RecordName::Revision), keys::IDENTITIES_REVISION);
    assert_eq!(key_of(&RecordName::Account("1".into())), format!("{}1", keys::ACCOUNTS));
    assert_eq!(key_of(&RecordName::AccessKey("K".into())), "/atoll/users/K");
    assert_eq!(name_of("/atoll/buckets/b"), None);
}

/// Condition that ends once, while the change is being made.
struct Overtaken {
    key: String,
    is_over: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl ChangeCondition for Overtaken {
    async fn check(&self, state: &ClusterClient, _: &Identities) -> Result<Transaction, IdentityError> {
        let buckets = state.list_raw(keys::BUCKETS).await?;
        if !buckets.entries.is_empty() {
            return Err(IamError::DeleteConflict("there is a bucket".into()).into());
        }
        if !self.is_over.swap(true, std::sync::atomic::Ordering::SeqCst) {
            state.put(&self.key, &1).await?;
        }
        Ok(Transaction::new().check_prefix(keys::BUCKETS, buckets.revision))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_not_made_when_its_condition_ends_meanwhile() {
    let state = state().await;
    let store = IdentityStore::new(state.cluster.clone());
    let condition = Overtaken { key: keys::bucket("new"), is_over: false.into() };
    let changed = store.change_if(&condition, &operation("CreateUser", &[("UserName", "ann")])).await;
    assert!(matches!(changed, Err(IdentityError::Refused(IamError::DeleteConflict(_)))), "{changed:?}");
    assert!(store.current().await.unwrap().user(FIRST_ACCOUNT, "ann").is_none());
    state.cluster.delete(&keys::bucket("new")).await.unwrap();
    store.change_if(&condition, &operation("CreateUser", &[("UserName", "ann")])).await.unwrap();
    assert!(store.current().await.unwrap().user(FIRST_ACCOUNT, "ann").is_some());
    drop(state.server);
}
