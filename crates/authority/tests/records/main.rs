//! Records that were altered in cluster state without the key service are refused, wherever they are read.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use atoll_authority::{
    Authority, RecordState, SigningError, Verifier, found, rotate, sign_all, sign_records, survey,
};
use atoll_cluster::{
    ClusterClient, ClusterError, ConnectOptions, EmbeddedServer, PrefixWatch, RESERVED, Transaction, WatchEvent,
    keys, kinds,
};
use atoll_keys::{KeyService, LocalKeys};
use serde_json::{Value, json};

mod for_all;

const RECORD: &str = "/atoll/users/AK1";

struct Cluster {
    _server: EmbeddedServer,
    _directory: tempfile::TempDir,
    service: Arc<LocalKeys>,
    /// With cluster state's password only: a host with OSDs.
    stranger: ClusterClient,
    /// A gateway of a host that knows that the cluster is signed.
    holder: ClusterClient,
    /// An OSD of a host without the key service, which has seen the cluster before.
    osd: ClusterClient,
    pinned: Arc<Mutex<Option<String>>>,
}

/// A process without the key service, on a host that has pinned this key.
fn verifier(pinned: &Arc<Mutex<Option<String>>>) -> Arc<Verifier> {
    let (kept, known) = (pinned.clone(), pinned.lock().unwrap().clone());
    let pin = move |key: &str| *kept.lock().unwrap() = Some(key.to_owned());
    Arc::new(Verifier::new(known.as_deref(), Arc::new(pin)))
}

fn local_keys(directory: &Path) -> Arc<LocalKeys> {
    Arc::new(LocalKeys::create(&directory.join("kms.json")).unwrap())
}

impl Cluster {
    async fn unsigned() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
        let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
        let stranger = ClusterClient::connect(&options).await.unwrap();
        let service = local_keys(directory.path());
        let holder = stranger.with_guard(guard(&service, false));
        let pinned = Arc::default();
        let osd = stranger.with_guard(verifier(&pinned));
        Cluster { _server: server, _directory: directory, service, stranger, holder, osd, pinned }
    }

    async fn signed() -> Cluster {
        let cluster = Cluster::unsigned().await;
        found(&cluster.stranger, &*cluster.service, 7).await.unwrap();
        cluster.osd.read_authority().await.unwrap();
        assert!(cluster.pinned.lock().unwrap().is_some());
        Cluster { holder: cluster.stranger.with_guard(guard(&cluster.service, true)), ..cluster }
    }

    /// All later events under a prefix.
    async fn watch_from_now(&self, prefix: &str) -> PrefixWatch {
        let revision = self.holder.list_raw(prefix).await.unwrap().revision;
        self.holder.watch_prefix(prefix, revision + 1)
    }

    /// The value as it is stored.
    async fn stored(&self, key: &str) -> Vec<u8> {
        self.stranger.read_stored(&[key]).await.unwrap().0.pop().unwrap().unwrap().value
    }

    /// Writes past all guards, as `etcdctl put` does.
    async fn put_by_hand(&self, key: &str, value: &[u8]) {
        self.stranger.transact_sealed(&Transaction::new().put_bytes(key, value.to_vec())).await.unwrap();
    }

    /// Deletes past all guards, as `etcdctl del` does.
    async fn delete_by_hand(&self, key: &str) {
        self.stranger.transact_sealed(&Transaction::new().delete(key)).await.unwrap();
    }

    /// A process that has read records before, and one that starts.
    fn readers(&self) -> [ClusterClient; 2] {
        [self.holder.clone(), self.stranger.with_guard(guard(&self.service, false))]
    }

    /// An OSD that starts on a host that has pinned the key.
    fn other_osd(&self) -> ClusterClient {
        self.stranger.with_guard(verifier(&self.pinned))
    }

    /// Refused by a process that has read it before, by one that starts, and by all ways to read it.
    async fn assert_refused(&self, key: &str, what: &str) {
        let all = kinds::is_for_all(key).then(|| [self.osd.clone(), self.other_osd()]);
        for reader in self.readers().into_iter().chain(all.into_iter().flatten()) {
            let read = reader.get::<Value>(key).await;
            assert!(matches!(read, Err(ClusterError::Untrusted { .. })), "{what}: {key}: {read:?}");
            let listed = reader.list::<Value>(key).await;
            assert!(matches!(listed, Err(ClusterError::Untrusted { .. })), "{what}: {key}: {listed:?}");
            let raw = reader.list_raw(key).await.unwrap();
            assert!(raw.entries.iter().all(|(_, value, _)| value.is_empty()), "{what}: {key}");
        }
        let findings = survey(&self.stranger, &guard(&self.service, false)).await.unwrap();
        let is_refused = |state: &RecordState| matches!(state, RecordState::Refused(_));
        assert!(findings.iter().any(|one| one.stored.key == key && is_refused(&one.state)), "{what}: {key}");
    }
}

fn guard(service: &Arc<LocalKeys>, is_pinned: bool) -> Arc<Authority> {
    Arc::new(Authority::of_service(service.clone() as Arc<dyn KeyService>, is_pinned))
}

/// A record of each signed kind, with content that is worth altering.
fn samples() -> HashMap<&'static str, Value> {
    let policy = json!({"access": {"policy": "{}", "acl": []}, "public_access_block": {"all": true}});
    let image = json!({"export": {"access": "closed", "clients": ["10.0.0.1"]}, "unsealed_permit": ""});
    HashMap::from([
        ("/atoll/iam/policies/1/p", json!({"document": "{}", "attached": ["a", "b"]})),
        (keys::IDENTITIES_REVISION, json!({"changes": 4})),
        (keys::STS_KEY, json!({"wrapped_key": "local:x"})),
        ("/atoll/iam/accounts/1", json!({"id": "1", "canonical_id": "c"})),
        ("/atoll/iam/kms_keys/k", json!({"name": "k", "account": "1", "policy": "{}"})),
        (RECORD, json!({"access_key": "AK1", "account": "1", "user": "low", "is_disabled": true})),
        ("/atoll/buckets/b", policy),
        ("/atoll/operators/o", json!({"role": "read-only", "salt": "00", "password_argon2id": "11"})),
        ("/atoll/approvals/7", json!({"operator": "o", "approved_by": ["p"]})),
        ("/atoll/operator_sessions/0", json!({"user": "o", "role": "read-only"})),
        (keys::LOGIN_SETTINGS, json!({"session_seconds": 600, "local_login": false})),
        (keys::LOGIN_OIDC, json!({"issuer": "https://i.example", "roles": {"g": "read-only"}})),
        ("/atoll/api_tokens/0", json!({"role": "read-only", "ends_unix_ms": 9})),
        ("/atoll/metrics_tokens/m", json!({"sha256": "22"})),
        ("/atoll/images/i", image.clone()),
        ("/atoll/removed_images/0123", json!({"image": image, "purge_unix_ms": 9})),
        ("/atoll/nvme_hosts/nqn.1", json!({"host": "nqn.1", "secret": {"hash": 1, "wrapped_parts": ["w"]}})),
        ("/atoll/nvme_tls/nqn.1", json!({"host": "nqn.1", "is_plain_allowed": false, "key": {"hash": 1}})),
        ("/atoll/pools/1", json!({"id": 1, "redundancy": {"kind": "replicated", "size": 3, "min_size": 2}})),
        (keys::SETTINGS, json!({"full_percent": 95})),
        (keys::FRAMES, json!({"cluster": "secure", "client": "secure", "unix": "crc"})),
        (keys::MANIFEST, json!({"names": []})),
        ("/atoll/removed_pools/2", json!({"id": 2, "name": "gone"})),
        ("/atoll/authorized_keys/00ff", json!({"role": "osd", "osd": 1, "name": "osd.1"})),
        (keys::FLAGS, json!({"flags": {"noout": 9}})),
    ])
}

/// The same record with each of its fields altered, or taken out, one at a time.
fn alterations(record: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    match record {
        Value::Object(fields) => {
            for (name, value) in fields {
                let mut without = fields.clone();
                without.remove(name);
                all.push(Value::Object(without));
                for altered in alterations(value) {
                    let mut with = fields.clone();
                    with.insert(name.clone(), altered);
                    all.push(Value::Object(with));
                }
            }
            let mut more = fields.clone();
            more.insert("added".into(), json!(true));
            all.push(Value::Object(more));
        }
        Value::Array(items) => {
            all.push(Value::Array(items.iter().skip(1).cloned().collect()));
            all.push(Value::Array(items.iter().cloned().chain([json!("*")]).collect()));
        }
        Value::Bool(value) => all.push(json!(!value)),
        Value::Number(number) => all.push(json!(number.as_u64().unwrap() + 1)),
        other => all.push(json!(format!("{}*", other.as_str().unwrap()))),
    }
    all
}

#[tokio::test]
async fn no_field_of_a_signed_record_can_be_altered_in_cluster_state() {
    let cluster = Cluster::signed().await;
    let samples = samples();
    for prefix in kinds::signed_prefixes() {
        assert!(samples.keys().any(|key| key.starts_with(prefix)), "no sample below {prefix}");
    }
    let mut count = 0;
    for (key, record) in &samples {
        let mut record = record.clone();
        record["format"] = json!(1);
        match cluster.holder.get::<Value>(key).await.unwrap() {
            Some((found, _)) => record = found,
            None => drop(cluster.holder.create(key, &record).await.unwrap()),
        }
        assert_eq!(cluster.holder.get::<Value>(key).await.unwrap().unwrap().0, record, "{key}");
        let stored = cluster.stored(key).await;
        let signature = String::from_utf8(stored).unwrap();
        let signature = &signature[signature.rfind(",\"signed\"").unwrap()..];
        for altered in alterations(&record) {
            let altered = altered.to_string();
            let signed = format!("{}{signature}", altered.strip_suffix('}').unwrap());
            for (value, what) in [(&altered, "without a signature"), (&signed, "with the old signature")] {
                cluster.put_by_hand(key, value.as_bytes()).await;
                cluster.assert_refused(key, &format!("{what}: {value}")).await;
                count += 1;
            }
        }
        // The operator puts it right.
        cluster.holder.put(key, &record).await.unwrap();
        assert_eq!(cluster.holder.get::<Value>(key).await.unwrap().unwrap().0, record, "{key}");
    }
    assert!(count > 100, "{count}");
}

#[tokio::test]
async fn an_older_record_or_anothers_is_refused() {
    let cluster = Cluster::signed().await;
    let (other, enabled) = ("/atoll/users/AK2", json!({"format": 1, "is_disabled": false}));
    cluster.holder.create(RECORD, &enabled).await.unwrap();
    cluster.holder.create(other, &json!({"format": 1, "user": "another"})).await.unwrap();
    let created = cluster.stored(RECORD).await;
    cluster.holder.put(RECORD, &json!({"format": 1, "is_disabled": true})).await.unwrap();
    let disabled = cluster.stored(RECORD).await;

    cluster.put_by_hand(RECORD, &created).await;
    cluster.assert_refused(RECORD, "as it was created").await;
    cluster.put_by_hand(RECORD, &cluster.stored(other).await).await;
    cluster.assert_refused(RECORD, "another's").await;
    cluster.put_by_hand(RECORD, &disabled).await;
    cluster.assert_refused(RECORD, "as it was last").await;

    // Whoever removes it first can give it its number of changes, but not the revision of its creation.
    for first in [b"{\"a\":1}", RESERVED] {
        cluster.delete_by_hand(RECORD).await;
        cluster.put_by_hand(RECORD, first).await;
        cluster.put_by_hand(RECORD, &disabled).await;
        cluster.assert_refused(RECORD, "removed, and written twice").await;
    }
}

#[tokio::test]
async fn a_record_that_was_removed_cannot_be_put_back() {
    let cluster = Cluster::signed().await;
    for (key, mut record) in samples().into_iter().filter(|(key, _)| *key != keys::MANIFEST) {
        record["format"] = json!(1);
        let mut states = Vec::new();
        cluster.holder.create(key, &record).await.unwrap();
        states.push(cluster.stored(key).await);
        cluster.holder.put(key, &record).await.unwrap();
        states.push(cluster.stored(key).await);
        assert!(cluster.holder.delete(key).await.unwrap());
        assert!(cluster.holder.get::<Value>(key).await.unwrap().is_none(), "{key}");
        for state in &states {
            // At once, as its second version, and as its third.
            for writes in [&[state][..], &[&RESERVED.to_vec(), state], &[state, state, state]] {
                for write in writes {
                    cluster.put_by_hand(key, write).await;
                }
                cluster.assert_refused(key, &format!("put back with {} writes", writes.len())).await;
                cluster.delete_by_hand(key).await;
            }
        }
        // A holder can make it again.
        cluster.holder.create(key, &record).await.unwrap();
        assert_eq!(cluster.holder.get::<Value>(key).await.unwrap().unwrap().0, record, "{key}");
    }
}

#[tokio::test]
async fn a_key_that_is_reserved_is_no_record() {
    let cluster = Cluster::signed().await;
    // Its creator has died, or somebody has written it by hand.
    cluster.put_by_hand(RECORD, RESERVED).await;
    for reader in cluster.readers().into_iter().chain([cluster.stranger.clone()]) {
        assert!(reader.get::<Value>(RECORD).await.unwrap().is_none());
        assert!(reader.list::<Value>(keys::ACCESS_KEYS).await.unwrap().entries.is_empty());
    }
    // A transaction that wants it absent finds it absent.
    let wants_it_absent = Transaction::new().check(RECORD, 0).put("/t/x", &1).unwrap();
    cluster.holder.transact(&wants_it_absent).await.unwrap();
    let record = json!({"format": 1, "user": "low"});
    let holders = cluster.readers();
    let [one, other] = holders.each_ref().map(|holder| holder.create(RECORD, &record));
    let made = tokio::join!(one, other);
    let failures: Vec<_> = [made.0, made.1].into_iter().filter_map(Result::err).collect();
    assert!(matches!(failures[..], [ClusterError::AlreadyExists { .. }]), "{failures:?}");
    assert_eq!(cluster.holder.get::<Value>(RECORD).await.unwrap().unwrap().0, record);
    assert!(matches!(
        cluster.holder.transact(&wants_it_absent).await,
        Err(ClusterError::Conflict { expected: 0, .. })
    ));
    // Nothing is reserved by a transaction whose checks fail.
    let other = "/atoll/users/AK2";
    let in_vain = Transaction::new().check("/t/x", 1).put(other, &record).unwrap();
    assert!(matches!(cluster.holder.transact(&in_vain).await, Err(ClusterError::Conflict { .. })));
    assert!(cluster.stranger.read_stored(&[other]).await.unwrap().0[0].is_none());
}

/// Keys of the records that the manifest names, with a sample of each.
fn named() -> Vec<(&'static str, Value)> {
    let mut named: Vec<_> = samples().into_iter().filter(|(key, _)| kinds::is_named(key)).collect();
    named.iter_mut().for_each(|(_, record)| record["format"] = json!(1));
    for prefix in kinds::named_prefixes() {
        assert!(named.iter().any(|(key, _)| key.starts_with(prefix)), "no sample below {prefix}");
    }
    named
}

#[tokio::test]
async fn what_loosens_by_its_absence_cannot_be_removed_by_hand() {
    let cluster = Cluster::signed().await;
    for (key, record) in named() {
        assert!(cluster.holder.get::<Value>(key).await.unwrap().is_none(), "{key}");
        cluster.holder.put(key, &record).await.unwrap();
        let mut watch = cluster.watch_from_now(key).await;
        for by in ["deleted", "reserved"] {
            match by {
                "deleted" => cluster.delete_by_hand(key).await,
                _ => cluster.put_by_hand(key, RESERVED).await,
            }
            let event = watch.next().await.unwrap();
            assert!(matches!(&event, WatchEvent::Put { value, .. } if value.is_empty()), "{key}: {event:?}");
            cluster.assert_refused(key, by).await;
            // It does not come to be by a start that finds nothing there.
            assert!(matches!(cluster.holder.create(key, &record).await, Err(ClusterError::Untrusted { .. })));
        }
        // Another of its kind that never was is absent as ever.
        if key.contains("nqn") {
            assert!(cluster.holder.get::<Value>(&format!("{key}2")).await.unwrap().is_none());
        }
        // The operator accepts it, and makes it again.
        assert!(cluster.holder.delete(key).await.unwrap());
        assert!(!cluster.holder.delete(key).await.unwrap());
        assert!(cluster.holder.get::<Value>(key).await.unwrap().is_none());
        cluster.holder.create(key, &record).await.unwrap();
        assert_eq!(cluster.holder.get::<Value>(key).await.unwrap().unwrap().0, record);
        // Who holds no key removes nothing.
        let removed = cluster.stranger.delete(key).await;
        assert!(matches!(removed, Err(ClusterError::NoAuthority { .. })), "{removed:?}");
    }
    let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
    assert!(findings.iter().all(|one| one.state == RecordState::Signed), "{findings:?}");
}

#[tokio::test]
async fn a_record_of_a_kind_that_was_not_named_is_named_by_signing() {
    let cluster = Cluster::signed().await;
    for (key, record) in named() {
        cluster.holder.put(key, &record).await.unwrap();
    }
    // As an earlier release has left it.
    cluster.holder.put(keys::MANIFEST, &json!({"format": 1, "names": []})).await.unwrap();
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    let unnamed = async || {
        let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
        assert!(findings.iter().all(|one| one.is_signed()), "{findings:?}");
        findings.into_iter().filter(|one| one.state == RecordState::Unnamed).count()
    };
    assert_eq!(unnamed().await, named().len());
    for (key, record) in named() {
        assert_eq!(
            cluster.holder.get::<Value>(key).await.unwrap().unwrap().0,
            record,
            "{key}: the cluster goes on"
        );
    }
    let signed = sign_all(&cluster.stranger, service, false, 9, &|_| {}).await.unwrap();
    assert_eq!((signed, unnamed().await), (named().len() as u64, 0));
    for (key, _) in named() {
        cluster.delete_by_hand(key).await;
        cluster.assert_refused(key, "named, and removed").await;
    }
}

#[tokio::test]
async fn an_operator_signs_what_is_there_when_keys_and_named_records_are_gone() {
    let cluster = Cluster::signed().await;
    for (key, record) in named() {
        cluster.holder.put(key, &record).await.unwrap();
        cluster.delete_by_hand(key).await;
    }
    cluster.delete_by_hand(keys::AUTHORITY).await;
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    sign_all(&cluster.stranger, service.clone(), true, 9, &|_| {}).await.unwrap();
    let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
    assert!(findings.iter().all(|one| one.state == RecordState::Signed), "{findings:?}");
    for (key, record) in named() {
        assert!(cluster.holder.get::<Value>(key).await.unwrap().is_none(), "{key}");
        cluster.holder.put(key, &record).await.unwrap();
    }
}

#[tokio::test]
async fn without_the_manifest_nothing_that_it_names_is_taken_for_absent() {
    let cluster = Cluster::signed().await;
    let (host, other) = ("/atoll/nvme_hosts/nqn.1", "/atoll/nvme_hosts/nqn.2");
    let older = cluster.stored(keys::MANIFEST).await;
    cluster.holder.create(keys::FRAMES, &json!({"format": 1, "cluster": "secure"})).await.unwrap();
    cluster.holder.create(host, &json!({"format": 1, "host": "nqn.1"})).await.unwrap();
    let newer = cluster.stored(keys::MANIFEST).await;
    for by in [None, Some(&older), Some(&newer)] {
        cluster.delete_by_hand(keys::MANIFEST).await;
        if let Some(value) = by {
            cluster.put_by_hand(keys::MANIFEST, value).await;
        }
        for reader in cluster.readers() {
            let read = reader.get::<Value>(other).await;
            assert!(
                matches!(&read, Err(ClusterError::Untrusted { key, .. }) if key == keys::MANIFEST),
                "{read:?}"
            );
            // A reader that takes what is not listed for absent gets no list at all.
            for range in [keys::NVME_HOSTS, keys::IDENTITIES, keys::SETTINGS] {
                assert!(reader.list::<Value>(range).await.is_err(), "{range}");
                let raw = reader.list_raw(range).await;
                assert!(
                    matches!(&raw, Err(ClusterError::Untrusted { key, .. }) if key == keys::MANIFEST),
                    "{range}: {raw:?}"
                );
            }
            assert!(reader.list_raw(keys::FRAMES).await.is_ok(), "what is there needs no manifest");
            assert!(reader.get::<Value>(host).await.unwrap().is_some(), "it is signed");
        }
        let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
        assert!(findings.iter().any(|one| one.stored.key == keys::MANIFEST && one.is_refused()), "{findings:?}");
    }
    // The operator has looked at what is there.
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    sign_all(&cluster.stranger, service, true, 9, &|_| {}).await.unwrap();
    assert!(cluster.holder.get::<Value>(other).await.unwrap().is_none());
    cluster.delete_by_hand(host).await;
    cluster.assert_refused(host, "removed after the manifest was made again").await;
}

#[tokio::test]
async fn a_watch_gives_nothing_of_what_is_refused() {
    let cluster = Cluster::signed().await;
    cluster.holder.create(RECORD, &json!({"format": 1, "user": "low"})).await.unwrap();
    let mut watch = cluster.watch_from_now(keys::ACCESS_KEYS).await;
    cluster.put_by_hand(RECORD, br#"{"format":1}"#).await;
    let put = |event: Option<WatchEvent>| match event {
        Some(WatchEvent::Put { value, .. }) => value,
        other => panic!("{other:?}"),
    };
    assert_eq!(put(watch.next().await), b"");
    cluster.holder.put(RECORD, &json!({"format": 1})).await.unwrap();
    assert_eq!(put(watch.next().await), br#"{"format":1}"#, "without its signature");
}

#[tokio::test]
async fn a_host_without_the_key_service_reads_signed_records_and_writes_none() {
    let cluster = Cluster::signed().await;
    cluster.holder.create(RECORD, &json!({"format": 1, "user": "low"})).await.unwrap();
    assert_eq!(cluster.stranger.get::<Value>(RECORD).await.unwrap().unwrap().0["user"], "low");
    for error in [
        cluster.stranger.put(RECORD, &json!({"format": 1})).await.unwrap_err(),
        cluster.stranger.create("/atoll/operators/o", &json!({"format": 1})).await.unwrap_err(),
    ] {
        assert!(matches!(error, ClusterError::NoAuthority { .. }), "{error}");
        assert!(error.to_string().contains("keys/kms.json"), "{error}");
    }
    // Who has another key service cannot read the cluster's keys.
    let directory = tempfile::tempdir().unwrap();
    let foreign = cluster.stranger.with_guard(guard(&local_keys(directory.path()), false));
    assert!(matches!(foreign.get::<Value>(RECORD).await, Err(ClusterError::KeyService { .. })));
}

#[tokio::test]
async fn a_cluster_of_an_earlier_release_works_until_it_is_signed_and_only_signed_then() {
    let cluster = Cluster::unsigned().await;
    let holder = &cluster.holder;
    cluster.stranger.create(RECORD, &json!({"format": 1, "user": "low"})).await.unwrap();
    holder.create("/atoll/buckets/b", &json!({"format": 1})).await.unwrap();
    assert_eq!(holder.get::<Value>(RECORD).await.unwrap().unwrap().0["user"], "low");

    let service = cluster.service.clone() as Arc<dyn KeyService>;
    // It takes longer than what was read of the keys counts.
    let slow = |number: u64| {
        if number == 1 {
            std::thread::sleep(std::time::Duration::from_millis(5_100));
        }
    };
    assert_eq!(sign_all(&cluster.stranger, service.clone(), false, 7, &slow).await.unwrap(), 2);
    assert_eq!(holder.get::<Value>(RECORD).await.unwrap().unwrap().0["user"], "low");
    // A process that was there before signs from its next change on.
    holder.put("/atoll/buckets/c", &json!({"format": 1})).await.unwrap();
    let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
    assert!(findings.len() == 4 && findings.iter().all(|one| one.state == RecordState::Signed), "{findings:?}");
    cluster.put_by_hand(RECORD, br#"{"format":1}"#).await;
    cluster.assert_refused(RECORD, "without a signature").await;

    // Signing the cluster again does not sign what was altered; naming it does.
    assert_eq!(sign_all(&cluster.stranger, service.clone(), false, 8, &|_| {}).await.unwrap(), 0);
    cluster.assert_refused(RECORD, "after signing").await;
    sign_records(&cluster.stranger, service.clone(), &[RECORD.into()]).await.unwrap();
    assert_eq!(holder.get::<Value>(RECORD).await.unwrap().unwrap().0, json!({"format": 1}));
    let none = sign_records(&cluster.stranger, service, &["/atoll/pgs/1.0".into()]).await;
    assert!(matches!(none, Err(SigningError::NoSuchRecord(_))));
}

#[tokio::test]
async fn without_the_record_of_keys_nothing_unsigned_is_accepted() {
    let cluster = Cluster::signed().await;
    cluster.holder.create(RECORD, &json!({"format": 1, "user": "low"})).await.unwrap();
    cluster.holder.create("/atoll/buckets/b", &json!({"format": 1})).await.unwrap();
    let keys_before = cluster.stored(keys::AUTHORITY).await;
    cluster.stranger.delete(keys::AUTHORITY).await.unwrap();
    cluster.put_by_hand(RECORD, br#"{"format":1}"#).await;
    // A process that runs, and one that starts on a host that knows.
    for reader in [cluster.holder.clone(), cluster.stranger.with_guard(guard(&cluster.service, true))] {
        assert!(matches!(reader.get::<Value>(RECORD).await, Err(ClusterError::Untrusted { .. })));
    }
    // An older record of keys in another place is none.
    cluster.stranger.transact(&Transaction::new().put_bytes(keys::AUTHORITY, keys_before)).await.unwrap();
    let fresh = cluster.stranger.with_guard(guard(&cluster.service, false));
    assert!(matches!(fresh.get::<Value>(RECORD).await, Err(ClusterError::Untrusted { .. })));

    // An operator who has looked at all of them makes other keys.
    cluster.stranger.delete(keys::AUTHORITY).await.unwrap();
    cluster.holder.delete(RECORD).await.unwrap();
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    assert_eq!(sign_all(&cluster.stranger, service.clone(), false, 9, &|_| {}).await.unwrap(), 0);
    let fresh = cluster.stranger.with_guard(guard(&cluster.service, false));
    let read = fresh.get::<Value>("/atoll/buckets/b").await;
    assert!(matches!(read, Err(ClusterError::Untrusted { .. })), "signed by a key that is gone: {read:?}");
    assert_eq!(sign_all(&cluster.stranger, service, true, 9, &|_| {}).await.unwrap(), 1);
    assert!(cluster.holder.get::<Value>("/atoll/buckets/b").await.unwrap().is_some());
}

#[tokio::test]
async fn the_key_rotates_under_way_and_the_old_one_signs_nothing() {
    let cluster = Cluster::signed().await;
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    for number in 0..20 {
        cluster.holder.create(&format!("/atoll/buckets/{number}"), &json!({"format": 1})).await.unwrap();
    }
    cluster.holder.create(RECORD, &json!({"format": 1, "user": "low"})).await.unwrap();
    cluster.put_by_hand(RECORD, br#"{"format":1}"#).await;
    let writes = async {
        for number in 0..20 {
            cluster
                .holder
                .put(&format!("/atoll/buckets/{number}"), &json!({"format": 1, "n": number}))
                .await
                .unwrap();
        }
    };
    let (rotated, ()) = tokio::join!(rotate(&cluster.stranger, service, 9), writes);
    let (_, refused) = rotated.unwrap();
    assert!(refused.len() == 1 && refused[0].stored.key == RECORD, "{refused:?}");
    let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
    let refused = findings.iter().filter(|one| one.state != RecordState::Signed).count();
    assert_eq!((findings.len(), refused), (22, 1), "with the manifest");
    let ids: std::collections::BTreeSet<_> = findings.iter().map(|one| one.key_id.clone()).collect();
    assert_eq!(ids.len(), 2, "the new key, and none: {ids:?}");
    assert_eq!(cluster.holder.get::<Value>("/atoll/buckets/7").await.unwrap().unwrap().0["n"], 7);
}
