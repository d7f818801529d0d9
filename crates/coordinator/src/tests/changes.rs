//! Changes of coordinators in cluster state, on the embedded server.

use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, MapWatch, keys};
use atoll_types::coordination::{CoordinatorRecord, SettingsRecord};
use atoll_types::events::EventRecord;
use atoll_types::records::{OsdRecord, PgRecord, PoolRecord};
use atoll_types::{Epoch, OsdId};

use super::{osd, record, up};
use crate::events::Noting;
use crate::round::Rounds;
use crate::{MembershipChange, View, is_settled};

struct State {
    client: ClusterClient,
    server: EmbeddedServer,
    _directory: tempfile::TempDir,
}

impl State {
    async fn start() -> State {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
        let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
        let client = ClusterClient::connect(&options).await.unwrap();
        State { client, server, _directory: directory }
    }

    /// Returns a state with `count` OSDs that are up.
    async fn with_osds(count: u32) -> State {
        let state = State::start().await;
        for id in 0..count {
            state.client.put(&keys::osd(OsdId(id)), &osd(id)).await.unwrap();
            state.client.put(&keys::osd_up(OsdId(id)), &up(id)).await.unwrap();
        }
        state
    }

    async fn osd(&self, id: u32) -> OsdRecord {
        self.client.get(&keys::osd(OsdId(id))).await.unwrap().unwrap().0
    }

    async fn round(&self, rounds: &mut Rounds) {
        let map = MapWatch::start(&self.client).await.unwrap().map().clone();
        rounds.round(&map).await.unwrap();
    }

    /// Acts as the primaries: members become the targets, and active.
    async fn settle(&self) {
        let view = View::read(&self.client).await.unwrap();
        for status in crate::statuses(&view.map) {
            let members: Vec<u32> = status.target.iter().map(|osd| osd.0).collect();
            self.client.put(&keys::pg(status.pg), &record(&members)).await.unwrap();
        }
    }

    /// Makes a pool of 64 PGs.
    async fn with_pool(&self, pool: PoolRecord) -> PoolRecord {
        let pool = PoolRecord { pg_num: 64, ..pool };
        self.client.put(&keys::pool(pool.id), &pool).await.unwrap();
        pool
    }

    /// Returns the events, in the order of time.
    async fn events(&self) -> Vec<EventRecord> {
        let listing = self.client.list(keys::EVENTS).await.unwrap();
        listing.entries.into_iter().map(|(_, event, _)| event).collect()
    }

    async fn set(&self, settings: SettingsRecord) {
        self.client.put(keys::SETTINGS, &settings).await.unwrap();
    }
}

#[tokio::test]
async fn rounds_make_pgs_mark_lost_osds_and_level() {
    let state = State::with_osds(6).await;
    let mut rounds = Rounds::new(state.client.clone());
    let pool = state.with_pool(super::pool(1, 3, 2)).await;
    let settings = SettingsRecord { balance_seconds: 1, ..SettingsRecord::default() };
    state.set(settings.clone()).await;
    state.round(&mut rounds).await;
    let pgs = state.client.list::<PgRecord>(&keys::pgs_of_pool(pool.id)).await.unwrap().entries;
    assert_eq!(pgs.len(), 64);
    assert!(pgs.iter().all(|(_, pg, _)| pg.members.len() == 3 && pg.epoch == Epoch(1)));

    // Not while PGs peer; then in steps.
    assert!(state.client.list_raw(keys::PG_TARGETS).await.unwrap().entries.is_empty());
    let mut steps = 0;
    loop {
        state.settle().await;
        let mut fresh = Rounds::new(state.client.clone());
        let before = state.client.list_raw(keys::PG_TARGETS).await.unwrap().entries;
        state.round(&mut fresh).await;
        let after = state.client.list_raw(keys::PG_TARGETS).await.unwrap().entries;
        if before == after {
            break;
        }
        steps += 1;
        assert!(steps < 50);
    }
    assert!(steps > 0, "chance was not fair here");
    let view = View::read(&state.client).await.unwrap();
    assert!(is_settled(&view.map));
    let counts = crate::pgs_by_osd(&view.map);
    assert!(counts.values().all(|(members, _)| (30..=34).contains(members)), "{counts:?}");

    // An OSD goes away; the time is short here.
    state.set(SettingsRecord { osd_down_out_seconds: 1, ..settings }).await;
    let begun = std::time::Instant::now();
    state.client.delete(&keys::osd_up(OsdId(2))).await.unwrap();
    state.round(&mut rounds).await;
    assert!(!state.osd(2).await.is_out);
    while !state.osd(2).await.is_out {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not marked out");
        tokio::time::sleep(Duration::from_millis(50)).await;
        state.round(&mut rounds).await;
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "it was marked out at once");
    let view = View::read(&state.client).await.unwrap();
    assert!(view.auto_out.contains_key(&OsdId(2)) && view.notes.down_since_unix_ms.contains_key(&OsdId(2)));
    // And comes back.
    let begun = std::time::Instant::now();
    state.client.put(&keys::osd_up(OsdId(2)), &up(2)).await.unwrap();
    state.round(&mut rounds).await;
    assert!(state.osd(2).await.is_out, "it has to stay up for a second");
    while state.osd(2).await.is_out {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not marked in");
        tokio::time::sleep(Duration::from_millis(50)).await;
        state.round(&mut rounds).await;
    }
    assert!(View::read(&state.client).await.unwrap().auto_out.is_empty());
    state.round(&mut rounds).await;
    let told = state.events().await;
    let times = |wanted: &str| told.iter().filter(|event| event.summary.starts_with(wanted)).count();
    for wanted in ["osd.2 is down", "osd.2 was down for too long", "osd.2 is back", "osd.2 is up again"] {
        assert_eq!(times(wanted), 1, "{wanted} in {told:?}");
    }
}

#[tokio::test]
async fn two_coordinators_at_once_do_no_harm() {
    let state = State::with_osds(4).await;
    state.with_pool(super::pool(1, 3, 2)).await;
    let map = MapWatch::start(&state.client).await.unwrap().map().clone();
    let (mut one, mut other) = (Rounds::new(state.client.clone()), Rounds::new(state.client.clone()));
    let outcomes = tokio::join!(one.round(&map), other.round(&map));
    assert!(outcomes.0.is_ok() || outcomes.1.is_ok(), "{outcomes:?}");
    state.round(&mut one).await;
    assert_eq!(state.client.list_raw(keys::PGS).await.unwrap().entries.len(), 64);

    // A late decision meets what an operator has done meanwhile.
    let noting = Noting { unix_ms: 1 };
    state.client.put(&keys::osd(OsdId(1)), &OsdRecord { is_out: true, ..osd(1) }).await.unwrap();
    one.change_membership(MembershipChange::In(OsdId(1)), &noting).await.unwrap();
    assert!(state.osd(1).await.is_out, "out by the operator's wish");
    one.change_membership(MembershipChange::Out(OsdId(1)), &noting).await.unwrap();
    assert!(View::read(&state.client).await.unwrap().auto_out.is_empty(), "it is not the coordinator's");
    other.change_membership(MembershipChange::Out(OsdId(9)), &noting).await.unwrap();
}

#[tokio::test]
async fn a_pool_that_is_removed_meanwhile_gets_no_pgs() {
    let state = State::with_osds(3).await;
    let pool = state.with_pool(super::pool(1, 3, 2)).await;
    let stale = MapWatch::start(&state.client).await.unwrap().map().clone();
    state.client.delete(&keys::pool(pool.id)).await.unwrap();
    Rounds::new(state.client.clone()).round(&stale).await.unwrap();
    assert!(state.client.list_raw(keys::PGS).await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn one_coordinates_at_a_time_and_another_takes_over() {
    let state = State::with_osds(2).await;
    let tasks = [0, 1].map(|id| tokio::spawn(crate::run(state.client.clone(), OsdId(id))));
    let leader = async || loop {
        match state.client.get::<CoordinatorRecord>(keys::COORDINATOR).await.unwrap() {
            Some((record, _)) => break record.osd,
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let first = leader().await;
    tasks[first.0 as usize].abort();
    // Its lease runs out.
    let taken_over = async {
        while leader().await == first {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), taken_over).await.unwrap();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    drop(tasks);
    state.server.shutdown().await;
}

#[tokio::test]
async fn groups_of_erasure_coded_pools_have_shards() {
    let state = State::with_osds(6).await;
    let pool = state.with_pool(super::coded_pool(1, 4, 2)).await;
    state.round(&mut Rounds::new(state.client.clone())).await;
    let pgs = state.client.list::<PgRecord>(&keys::pgs_of_pool(pool.id)).await.unwrap().entries;
    assert_eq!(pgs.len(), 64);
    assert!(pgs.iter().all(|(_, pg, _)| pg.members.len() == 6 && pg.shards == [0, 1, 2, 3, 4, 5]));
}
