//! Changes of PGs by a host that has the right to write all of them, as every OSD host has in an etcd.

use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, MapChange, MapWatch, Transaction, keys};
use atoll_types::records::{PeerRole, PgRecord};
use atoll_types::{OsdId, PgId, PoolId};
use atoll_wire::KeyPair;
use serde_json::{Value, json};

use crate::servers::Server;

const PG: PgId = PgId { pool: PoolId(1), index: 0 };

fn pair(osd: u8) -> KeyPair {
    KeyPair::from_private([osd + 1; 32])
}

fn record(epoch: u64, members: &[u32]) -> Value {
    json!({
        "format": 1, "epoch": epoch, "members": members, "primary": members[0],
        "activated_epoch": epoch, "last_active_members": members,
    })
}

async fn client_of(server: &Server, osd: u8) -> ClusterClient {
    let options = ConnectOptions { proposer: Some(pair(osd).into()), ..server.connect_options() };
    ClusterClient::connect(&options).await.unwrap()
}

async fn next(watch: &mut MapWatch) -> Vec<MapChange> {
    tokio::time::timeout(Duration::from_secs(10), watch.next()).await.expect("a change comes").unwrap()
}

fn members(watch: &MapWatch) -> Vec<OsdId> {
    watch.map().pgs[&PG].0.members.clone()
}

/// A pool with a PG on OSDs 0 and 1, and three OSDs.
async fn make(maker: &ClusterClient) {
    let pool = json!({
        "format": 1, "id": 1, "name": "a", "redundancy": {"kind": "replicated", "size": 2, "min_size": 1},
        "pg_num": 1, "failure_domain": "osd", "device_class": null,
    });
    maker.put(&keys::pool(PG.pool), &pool).await.unwrap();
    for osd in 0..3_u8 {
        let key = json!({"format": 1, "role": PeerRole::Osd, "osd": osd, "name": format!("osd.{osd}")});
        maker.put(&keys::authorized_key(&hex::encode(pair(osd).public())), &key).await.unwrap();
    }
    maker.put(&keys::pg(PG), &record(3, &[0, 1])).await.unwrap();
    // What came before counts as it is.
    maker.put(keys::SETTINGS, &json!({"format": 1, "pg_signatures_required": true})).await.unwrap();
}

async fn write(client: &ClusterClient, epoch: u64, osds: &[u32]) -> i64 {
    let key = keys::pg(PG);
    let revision = client.get::<PgRecord>(&key).await.unwrap().map_or(0, |(_, revision)| revision);
    let change = Transaction::new().check(&key, revision).put(&key, &record(epoch, osds)).unwrap();
    client.transact(&change).await.unwrap()
}

pub async fn all(server: &Server) {
    let maker = server.client().await;
    make(&maker).await;
    let (member, stranger) = (client_of(server, 0).await, client_of(server, 2).await);
    let mut watch = MapWatch::start(&maker).await.unwrap();
    // An OSD that is no member, and somebody without a key.
    for writer in [&stranger, &maker] {
        let revision = write(writer, 9, &[2]).await;
        let changes = next(&mut watch).await;
        let [MapChange::Refused(refused)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((refused.revision, &refused.key[..]), (revision, &keys::pg(PG)[..]));
        assert_eq!(members(&watch), [OsdId(0), OsdId(1)]);
        // A process that starts at this moment reads what was there before, too.
        let late = MapWatch::start(&maker).await.unwrap();
        assert_eq!((members(&late), late.map().refused[&keys::pg(PG)]), (members(&watch), revision));
    }
    // A member changes what counts, over what stands.
    write(&member, 4, &[0, 1]).await;
    assert!(matches!(next(&mut watch).await[..], [MapChange::Pg(PG, Some(_))]));
    let before = maker.read_stored(&[&keys::pg(PG)]).await.unwrap().0.pop().unwrap().unwrap();
    write(&member, 5, &[0, 1, 2]).await;
    next(&mut watch).await;
    assert_eq!(members(&watch), [OsdId(0), OsdId(1), OsdId(2)]);
    // What the member has signed before is put back, or taken away, by hand.
    let by_hand = maker.transact_sealed(&Transaction::new().put_bytes(&keys::pg(PG), before.value)).await;
    by_hand.unwrap();
    assert!(matches!(next(&mut watch).await[..], [MapChange::Refused(_)]));
    maker.delete(&keys::pg(PG)).await.unwrap();
    let changes = next(&mut watch).await;
    assert!(matches!(&changes[..], [MapChange::Refused(refused)] if refused.revision == 0), "{changes:?}");
    assert_eq!((members(&watch).len(), watch.map().refused[&keys::pg(PG)]), (3, 0));
    // Now that it is a member, the third one puts it back.
    write(&stranger, 5, &[0, 1, 2]).await;
    assert!(matches!(next(&mut watch).await[..], [MapChange::Pg(PG, Some(_))]));
    assert!(watch.map().refused.is_empty());
    // Who reads it first reads the same.
    assert_eq!(members(&MapWatch::start(&maker).await.unwrap()), members(&watch));
}
