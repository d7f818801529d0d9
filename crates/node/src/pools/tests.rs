//! The first pools, on the embedded server.

use atoll_cluster::{ConnectOptions, EmbeddedServer};
use atoll_types::records::{FailureDomain, PgRecord};

use super::*;
use crate::members::{OsdPlace, osd_record};

struct State {
    client: ClusterClient,
    _server: EmbeddedServer,
    _directory: tempfile::TempDir,
}

impl State {
    async fn new() -> State {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
        let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
        let client = ClusterClient::connect(&options).await.unwrap();
        State { client, _server: server, _directory: directory }
    }

    /// OSDs on hosts of their own.
    async fn add_osds(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let place = OsdPlace { host: Some(format!("h{number}")), ..OsdPlace::default() };
            let record = osd_record(OsdId(number), String::new(), 1 << 40, &place);
            self.client.put(&keys::osd(record.id), &record).await.unwrap();
        }
    }

    async fn pools(&self) -> Vec<PoolRecord> {
        let listing = self.client.list::<PoolRecord>(keys::POOLS).await.unwrap();
        listing.entries.into_iter().map(|(_, pool, _)| pool).collect()
    }
}

fn wanted(ec: Option<Redundancy>) -> FirstPools {
    FirstPools { copies: 3, failure_domain: FailureDomain::Host, ec }
}

#[tokio::test]
async fn pools_are_made_together_when_all_have_room() {
    let state = State::new().await;
    let code = Redundancy::erasure(4, 2, None, None);
    state.add_osds(0..5).await;
    let missing = make_pools(&state.client, wanted(Some(code))).await.unwrap();
    assert!(missing.is_some_and(|text| text.contains("OSDs in 6 hosts (5 so far")));
    assert!(state.pools().await.is_empty() && !has_pools(&state.client).await.unwrap());
    state.add_osds(5..6).await;
    for _ in 0..2 {
        assert_eq!(make_pools(&state.client, wanted(Some(code))).await.unwrap(), None);
    }
    assert!(has_pools(&state.client).await.unwrap());
    let pools = state.pools().await;
    let names: Vec<_> = pools.iter().map(|pool| (pool.id.0, pool.name.as_str(), pool.redundancy)).collect();
    let copies = Redundancy::Replicated { size: 3, min_size: 2 };
    assert_eq!(names, [(1, POOL_IMAGES, copies), (2, POOL_OBJECTS, copies), (3, POOL_DATA, code)]);
    let pgs = state.client.list::<PgRecord>(&keys::pgs_of_pool(PoolId(3))).await.unwrap().entries;
    assert_eq!(pgs.len(), PG_NUM as usize);
    assert!(pgs.iter().all(|(_, pg, _)| pg.members.len() == 6 && pg.shards == [0, 1, 2, 3, 4, 5]));

    assert!(refuse_other_code(&state.client, code).await.is_ok());
    let other = refuse_other_code(&state.client, Redundancy::erasure(2, 1, None, None)).await.unwrap_err();
    assert!(other.to_string().contains("another redundancy (erasure code 4+2"), "{other}");
}

#[tokio::test]
async fn without_a_code_there_are_two_pools() {
    let state = State::new().await;
    state.add_osds(0..3).await;
    assert_eq!(make_pools(&state.client, wanted(None)).await.unwrap(), None);
    assert_eq!(state.pools().await.len(), 2);
    let text =
        refuse_other_code(&state.client, Redundancy::erasure(2, 1, None, None)).await.unwrap_err().to_string();
    assert!(text.contains("--ec 2+1") && text.contains("'atoll pool create data --ec 2+1'"), "{text}");
}
