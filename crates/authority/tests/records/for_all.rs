//! Records that processes without the key service obey: their signatures, successors of the key, and the upgrade.

use std::sync::{Arc, Mutex};

use atoll_authority::{RecordState, found, rotate, sign_all, sign_records, survey, without_signature};
use atoll_cluster::{ClusterError, RESERVED, Transaction, keys};
use atoll_keys::KeyService;
use aws_lc_rs::hmac;
use serde_json::{Value, json};

use super::{Cluster, guard, verifier};

#[tokio::test]
async fn osds_follow_the_successors_of_the_key_they_know_and_nobody_else() {
    let cluster = Cluster::signed().await;
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    let (pool, record) = ("/atoll/pools/1", json!({"format": 1, "id": 1, "name": "a"}));
    cluster.holder.create(pool, &record).await.unwrap();
    let first = cluster.pinned.lock().unwrap().clone().unwrap();
    // One OSD runs meanwhile, and one is down for two rotations.
    for _ in 0..2 {
        rotate(&cluster.stranger, service.clone(), 9).await.unwrap();
        assert_eq!(cluster.osd.get::<Value>(pool).await.unwrap().unwrap().0, record);
    }
    let newest = cluster.pinned.lock().unwrap().clone().unwrap();
    assert_ne!(first, newest);
    let late = Arc::new(Mutex::new(Some(first)));
    let sleeper = cluster.stranger.with_guard(verifier(&late));
    assert_eq!(sleeper.get::<Value>(pool).await.unwrap().unwrap().0, record);
    assert_eq!(late.lock().unwrap().clone().unwrap(), newest);

    // Somebody has a key of his own, and writes that it follows.
    let foreign = Cluster::signed().await;
    foreign.holder.create(pool, &json!({"format": 1, "id": 1, "name": "b"})).await.unwrap();
    let own: Value = serde_json::from_slice(&without_signature(&foreign.stored(keys::AUTHORITY).await)).unwrap();
    let mut forged: Value =
        serde_json::from_slice(&without_signature(&cluster.stored(keys::AUTHORITY).await)).unwrap();
    forged["public_keys"].as_array_mut().unwrap().push(own["public_keys"][0].clone());
    for keys_of in [&forged, &own] {
        cluster.put_by_hand(keys::AUTHORITY, keys_of.to_string().as_bytes()).await;
        for reader in [&cluster.osd, &cluster.other_osd()] {
            assert_eq!(reader.get::<Value>(pool).await.unwrap().unwrap().0, record, "its key is known");
        }
    }
    cluster.delete_by_hand(pool).await;
    for value in [RESERVED.to_vec(), foreign.stored(pool).await] {
        cluster.put_by_hand(pool, &value).await;
    }
    let read = cluster.other_osd().get::<Value>(pool).await;
    assert!(matches!(read, Err(ClusterError::Untrusted { .. })), "{read:?}");
    assert_eq!(cluster.pinned.lock().unwrap().clone().unwrap(), newest);
}

/// Signs a record as an earlier release did, by docs/reference/formats.md.
async fn signed_by_hand(cluster: &Cluster, key: &str, record: &Value) -> Vec<u8> {
    let authority: Value =
        serde_json::from_slice(&without_signature(&cluster.stored(keys::AUTHORITY).await)).unwrap();
    let id = authority["keys"][0]["id"].as_str().unwrap();
    let wrapped = authority["keys"][0]["wrapped_key"].as_str().unwrap();
    let secret = cluster.service.unwrap(&format!("signed records {id}"), wrapped).await.unwrap();
    let found = cluster.stranger.read_stored(&[key]).await.unwrap().0.pop().unwrap().unwrap();
    let (version, created) = (found.version + 1, found.create_revision);
    let record = record.to_string();
    let mut covered = b"signed record 1".to_vec();
    for part in [key.as_bytes(), &version.to_be_bytes(), &created.to_be_bytes(), record.as_bytes()] {
        covered.extend((part.len() as u64).to_be_bytes());
        covered.extend(part);
    }
    let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.expose()), &covered);
    let body = record.strip_suffix('}').unwrap();
    format!("{body},\"signed\":\"{id}.{version:016x}.{created:016x}.{}\"}}", hex::encode(mac)).into_bytes()
}

#[tokio::test]
async fn a_cluster_that_signed_for_holders_only_goes_on_until_it_signs_for_all() {
    let cluster = Cluster::unsigned().await;
    found(&cluster.stranger, &*cluster.service, 7).await.unwrap();
    // As an earlier release has left it: no public key, a MAC on pools, flags without a signature.
    for key in [keys::AUTHORITY, keys::MANIFEST] {
        let mut record: Value = serde_json::from_slice(&without_signature(&cluster.stored(key).await)).unwrap();
        let fields = record.as_object_mut().unwrap();
        fields.remove("public_keys");
        fields.remove("signs_for_all");
        cluster.put_by_hand(key, &signed_by_hand(&cluster, key, &record).await).await;
    }
    let pool = json!({"format": 1, "id": 1, "name": "a"});
    let flags = json!({"format": 1, "flags": {"noout": 7}});
    let holder = cluster.stranger.with_guard(guard(&cluster.service, true));
    holder.create("/atoll/pools/1", &pool).await.unwrap();
    cluster.put_by_hand(keys::FLAGS, flags.to_string().as_bytes()).await;
    let state_of = async |key: &str| {
        let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
        findings.into_iter().find(|one| one.stored.key == key).unwrap().state
    };
    assert_eq!(state_of("/atoll/pools/1").await, RecordState::SignedForHolders);
    assert_eq!(state_of(keys::FLAGS).await, RecordState::Unsigned);
    for reader in [&holder, &cluster.osd, &cluster.other_osd()] {
        assert_eq!(reader.get::<Value>("/atoll/pools/1").await.unwrap().unwrap().0, pool);
        assert_eq!(reader.get::<Value>(keys::FLAGS).await.unwrap().unwrap().0, flags);
    }
    assert!(cluster.pinned.lock().unwrap().is_none());

    let service = cluster.service.clone() as Arc<dyn KeyService>;
    assert_eq!(sign_all(&cluster.stranger, service, false, 9, &|_| {}).await.unwrap(), 3, "with the manifest");
    let findings = survey(&cluster.stranger, &guard(&cluster.service, true)).await.unwrap();
    assert!(findings.iter().all(|one| one.state == RecordState::Signed), "{findings:?}");
    cluster.osd.read_authority().await.unwrap();
    assert!(cluster.pinned.lock().unwrap().is_some(), "a process that ran before learns of it");
    for (key, record) in [("/atoll/pools/1", pool), (keys::FLAGS, flags)] {
        for reader in [&holder, &cluster.osd, &cluster.other_osd()] {
            assert_eq!(reader.get::<Value>(key).await.unwrap().unwrap().0, record);
        }
        cluster.put_by_hand(key, record.to_string().as_bytes()).await;
        cluster.assert_refused(key, "without a signature").await;
        let by_mac = signed_by_hand(&cluster, key, &record).await;
        cluster.put_by_hand(key, &by_mac).await;
        cluster.assert_refused(key, "signed for holders only").await;
    }
}

/// A host without the key service writes the keys of its own processes, which count when an operator has signed them.
#[tokio::test]
async fn a_key_of_a_process_counts_when_it_is_signed() {
    let cluster = Cluster::signed().await;
    let (key, record) =
        ("/atoll/authorized_keys/00ff", json!({"format": 1, "role": "osd", "osd": 1, "name": "osd.1"}));
    cluster.osd.create(key, &record).await.unwrap();
    cluster.assert_refused(key, "without a signature").await;
    let with_another = Transaction::new().put(key, &record).unwrap().put("/atoll/pools/1", &record).unwrap();
    let refused = cluster.osd.transact(&with_another).await;
    assert!(matches!(refused, Err(ClusterError::NoAuthority { .. })), "{refused:?}");
    let service = cluster.service.clone() as Arc<dyn KeyService>;
    sign_records(&cluster.stranger, service, &[key.into()]).await.unwrap();
    for reader in [&cluster.osd, &cluster.other_osd(), &cluster.holder] {
        assert_eq!(reader.get::<Value>(key).await.unwrap().unwrap().0, record);
    }
}
