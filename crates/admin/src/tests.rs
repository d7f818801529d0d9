//! Changes of operators in cluster state, on the embedded server.

use std::sync::Arc;
use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, MapWatch, keys};
use atoll_coordinator::{View, missing_pgs};
use atoll_image::ImageAdmin;
use atoll_keys::LocalKeys;
use atoll_placement::first_record;
use atoll_types::approvals::{ApprovalDecision, ApprovalRecord};
use atoll_types::coordination::{AutoOutRecord, NextPoolRecord};
use atoll_types::frames::{FrameMode, FrameModes, FrameScope};
use atoll_types::operators::OperatorRole;
use atoll_types::records::{
    AuthorizedKeyRecord, BucketRecord, ClusterFlag, FailureDomain, ImageRecord, OsdRecord, OsdUpRecord,
    OsdUsageRecord, PeerRole, PgRecord, PgTargetRecord, PoolRecord, Redundancy,
};
use atoll_types::{Epoch, OsdId, PgId, PoolId};

use crate::approvals::{self, ProvedOperator};
use crate::error::AdminError;
use crate::operators::{self, Reach};
use crate::osds::{self, NewLocation, check_drain};
use crate::peer_keys;
use crate::pools::{self, NewPool, PoolChange};
use crate::settings::{self, Setting};
use crate::wrapped_secrets::destroy_bucket_keys;

mod logins;

fn osd(id: u32) -> OsdRecord {
    OsdRecord {
        format: 1,
        id: OsdId(id),
        host: format!("h{id}"),
        public_key: format!("{id:064x}"),
        weight: 1.0,
        device_class: "ssd".into(),
        device_bytes: 1 << 40,
        rack: String::new(),
        zone: String::new(),
        is_out: false,
        store_id: String::new(),
    }
}

fn up(id: u32) -> OsdUpRecord {
    OsdUpRecord {
        format: 1,
        id: OsdId(id),
        address: "127.0.0.1:1".into(),
        local_name: String::new(),
        rdma_address: String::new(),
        process_id: 1,
        process: None,
        incarnation: 1,
        signs_changes: true,
    }
}

fn pool(id: u32, size: u32, min_size: u32) -> PoolRecord {
    PoolRecord {
        format: 1,
        id: PoolId(id),
        name: format!("pool{id}"),
        redundancy: Redundancy::replicated(size, Some(min_size)),
        pg_num: 8,
        pg_num_first: 0,
        failure_domain: FailureDomain::Host,
        device_class: None,
    }
}

/// An erasure-coded pool, with I/O while all data shards and one more are up.
fn coded_pool(id: u32, data: u32, parity: u32) -> PoolRecord {
    PoolRecord { redundancy: Redundancy::erasure(data, parity, None, None), ..pool(id, 1, 1) }
}

/// Returns a view of `osds` OSDs on hosts of their own, all up, and a pool of three copies whose PGs are active on
/// their targets.
fn healthy(osds: u32) -> View {
    let mut view = View {
        coordinator: Some(atoll_types::coordination::CoordinatorRecord {
            format: 1,
            osd: OsdId(0),
            since_unix_ms: 1,
        }),
        ..View::default()
    };
    for id in 0..osds {
        view.map.osds.insert(OsdId(id), osd(id));
        view.map.up.insert(OsdId(id), up(id));
        let usage = OsdUsageRecord { format: 1, total_bytes: 1000, used_bytes: 10, ..OsdUsageRecord::default() };
        view.usage.insert(OsdId(id), usage);
    }
    view.map.pools.insert(PoolId(1), pool(1, 3, 2));
    for (pg, record) in missing_pgs(&view.map) {
        view.map.pgs.insert(pg, (PgRecord { activated_epoch: Epoch(1), ..record }, 1));
    }
    view
}

fn pg(index: u32) -> PgId {
    PgId { pool: PoolId(1), index }
}

fn record(members: &[u32]) -> PgRecord {
    let members = members.iter().map(|id| OsdId(*id)).collect();
    PgRecord { activated_epoch: Epoch(1), ..first_record(members, &pool(1, 3, 2)).unwrap() }
}

struct State {
    client: ClusterClient,
    _server: EmbeddedServer,
    _directory: tempfile::TempDir,
}

impl State {
    async fn start() -> State {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
        let options = ConnectOptions::new([format!("http://{}", server.local_addr())]);
        let client = ClusterClient::connect(&options).await.unwrap();
        State { client, _server: server, _directory: directory }
    }

    /// Returns a state with `count` OSDs that are up.
    async fn with_osds(count: u32) -> State {
        let state = State::start().await;
        for id in 0..count {
            osds::add(&state.client, &osd(id)).await.unwrap();
            state.client.put(&keys::osd_up(OsdId(id)), &up(id)).await.unwrap();
        }
        state
    }

    async fn osd(&self, id: u32) -> OsdRecord {
        self.client.get(&keys::osd(OsdId(id))).await.unwrap().unwrap().0
    }
}

fn new_pool(name: &str) -> NewPool {
    NewPool {
        name: name.into(),
        pg_num: 64,
        redundancy: Redundancy::replicated(3, None),
        failure_domain: FailureDomain::Host,
        device_class: None,
    }
}

fn with(redundancy: Redundancy) -> NewPool {
    NewPool { redundancy, ..new_pool("x") }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, AdminError>) -> String {
    match result.unwrap_err() {
        AdminError::Cluster(error) => panic!("{error}"),
        other => other.to_string(),
    }
}

#[test]
fn an_osd_is_drained_only_where_all_copies_have_a_place() {
    let why =
        |view: &View, id: u32, more_bytes: u64| check_drain(view, OsdId(id), more_bytes).unwrap_err().to_string();
    let mut view = healthy(4);
    assert!(check_drain(&view, OsdId(3), 800).is_ok(), "3000 bytes at 85% take 40 and three times 800");
    assert!(why(&view, 3, 900).contains("no room"));
    assert!(why(&view, 7, 0).contains("osd.7"));
    assert!(why(&healthy(3), 0, 0).contains("no place for 3 copies"));
    // With one parity shard for two of data, every byte takes one and a half.
    let mut coded = healthy(4);
    coded.map.pools.insert(PoolId(1), coded_pool(1, 2, 1));
    assert!(check_drain(&coded, OsdId(3), 1600).is_ok());
    assert!(why(&coded, 3, 1700).contains("no room"));
    coded.map.pools.insert(PoolId(1), coded_pool(1, 2, 2));
    assert!(why(&coded, 3, 0).contains("no place for 4 shards"));
    view.map.up.remove(&OsdId(3));
    assert!(why(&view, 3, 0).contains("not up and in"));
}

#[tokio::test]
async fn operators_mark_osds_out_and_the_coordinator_leaves_them() {
    let state = State::with_osds(2).await;
    let mark = AutoOutRecord { format: 1, since_unix_ms: 1 };
    state.client.put(&keys::auto_out(OsdId(0)), &mark).await.unwrap();
    assert!(osds::set_out(&state.client, OsdId(0), true).await.unwrap().is_out);
    assert!(View::read(&state.client).await.unwrap().auto_out.is_empty(), "now it is the operator's wish");
    assert!(!osds::set_out(&state.client, OsdId(0), false).await.unwrap().is_out);
    assert!(refusal(osds::set_out(&state.client, OsdId(7), true).await).contains("osd.7"));
    assert_eq!(osds::reweight(&state.client, OsdId(1), 2.5).await.unwrap().weight, 2.5);
    assert!(refusal(osds::reweight(&state.client, OsdId(1), f64::NAN).await).contains("NaN"));
    assert!(refusal(osds::reweight(&state.client, OsdId(1), -1.0).await).contains("-1"));
}

#[tokio::test]
async fn racks_and_zones_are_given_to_whole_hosts() {
    let state = State::with_osds(3).await;
    let place = |host: &str, rack: &str| NewLocation {
        host: (!host.is_empty()).then(|| host.to_owned()),
        rack: Some(rack.to_owned()),
        zone: None,
    };
    let changed = osds::set_location(&state.client, &[OsdId(1)], &place("h0", "r1")).await.unwrap();
    assert_eq!(changed.len(), 2, "osd.1 joins host h0, and osd.0 is there already");
    assert_eq!((state.osd(0).await.rack, state.osd(1).await.host), ("r1".into(), "h0".into()));
    assert_eq!(state.osd(2).await, osd(2));
    let changed = osds::set_location(&state.client, &[OsdId(0)], &place("", "")).await.unwrap();
    assert_eq!(changed.len(), 2, "back to the default rack");
    assert!(refusal(osds::set_location(&state.client, &[OsdId(0)], &place("a b", "r")).await).contains("a b"));
    assert!(refusal(osds::set_location(&state.client, &[OsdId(8)], &place("", "r")).await).contains("osd.8"));
}

#[tokio::test]
async fn only_an_osd_that_holds_nothing_or_is_lost_is_removed() {
    let state = State::with_osds(2).await;
    assert!(refusal(osds::remove(&state.client, OsdId(1), true).await).contains("running"));
    state.client.delete(&keys::osd_up(OsdId(1))).await.unwrap();
    state.client.put(&keys::pg(pg(0)), &record(&[0, 1])).await.unwrap();
    let text = refusal(osds::remove(&state.client, OsdId(1), false).await);
    assert!(text.contains("1 PGs") && text.contains("--lost"), "{text}");
    osds::remove(&state.client, OsdId(1), true).await.unwrap();
    assert!(refusal(osds::remove(&state.client, OsdId(1), true).await).contains("no osd.1"));
    let keys_left = state.client.list::<AuthorizedKeyRecord>(keys::AUTHORIZED_KEYS).await.unwrap().entries;
    assert_eq!(keys_left.len(), 1, "its key is revoked");
    let again = osds::add(&state.client, &osd(0)).await.unwrap_err();
    assert!(matches!(again, AdminError::Cluster(_)), "{again}");
    let text = refusal(osds::add(&state.client, &osd(1)).await);
    assert!(text.contains("osd.1") && text.contains("not given again"), "{text}");
    osds::add(&state.client, &osd(2)).await.unwrap();
}

#[tokio::test]
async fn pools_are_made_changed_and_removed() {
    let state = State::start().await;
    let client = &state.client;
    client.put(&keys::pool(PoolId(2)), &pool(2, 3, 2)).await.unwrap();
    let made = pools::create(client, &new_pool("one")).await.unwrap();
    assert_eq!((made.id, made.redundancy), (PoolId(3), pool(2, 3, 2).redundancy));
    assert!(refusal(pools::create(client, &new_pool("one")).await).contains("already"));
    for (wrong, word) in [
        (NewPool { pg_num: 48, ..new_pool("x") }, "power of two"),
        (with(Redundancy::replicated(0, None)), "0"),
        (with(Redundancy::replicated(9, None)), "9"),
        (with(Redundancy::replicated(3, Some(4))), "min_size 4"),
        (NewPool { device_class: Some(String::new()), ..new_pool("x") }, "class"),
        (new_pool("a/b"), "a/b"),
        (new_pool(""), "name"),
    ] {
        let text = refusal(pools::create(client, &wrong).await);
        assert!(text.contains(word), "{text}");
    }
    assert!(refusal(pools::change(client, "one", &PoolChange::Size(1)).await).contains("lower min_size first"));
    pools::change(client, "one", &PoolChange::MinSize(1)).await.unwrap();
    pools::change(client, "one", &PoolChange::Size(1)).await.unwrap();
    assert!(refusal(pools::change(client, "one", &PoolChange::Name("pool2".into())).await).contains("already"));
    pools::change(client, "one", &PoolChange::Name("uno".into())).await.unwrap();
    assert!(refusal(pools::change(client, "one", &PoolChange::Size(1)).await).contains("no pool 'one'"));

    let mut image = ImageRecord {
        format: 1,
        id: "1".into(),
        name: "disk".into(),
        size_bytes: 1,
        object_bytes: 1,
        pool: made.id,
        key: atoll_types::image_key::ImageKey::WrappedKey(String::new()),
        attach_ids: Vec::new(),
        writer_generation: 0,
        changer: None,
        created_unix_ms: 0,
        states: None,
        work: None,
        flattening: None,
        hold: None,
        export: None,
        metadata: Default::default(),
    };
    client.put(&keys::image("disk"), &image).await.unwrap();
    let text = refusal(pools::remove(client, "uno").await);
    assert!(text.contains("the image 'disk'") && text.contains("atoll image rm disk"), "{text}");
    image.pool = PoolId(2);
    client.put(&keys::image("disk"), &image).await.unwrap();
    let of = |pool, index| atoll_types::PgId { pool, index };
    for pool in [made.id, PoolId(2)] {
        client.put(&keys::pg(of(pool, 0)), &record(&[0])).await.unwrap();
        let wish = PgTargetRecord { format: 1, members: vec![OsdId(0)] };
        client.put(&keys::pg_target(of(pool, 0)), &wish).await.unwrap();
    }
    pools::remove(client, "uno").await.unwrap();
    assert_eq!(client.list::<PoolRecord>(keys::POOLS).await.unwrap().entries.len(), 1);
    assert_eq!(client.list_raw(keys::PGS).await.unwrap().entries.len(), 1, "only the other pool's");
    assert_eq!(client.list_raw(keys::PG_TARGETS).await.unwrap().entries.len(), 1);
    let again = pools::create(client, &new_pool("one")).await.unwrap();
    assert_eq!(again.id, PoolId(4), "numbers are not given twice");
}

fn bucket(name: &str) -> BucketRecord {
    BucketRecord {
        format: 1,
        id: "1".into(),
        name: name.into(),
        owner: String::new(),
        pool: PoolId(1),
        data_pool: None,
        index_shards: 1,
        wrapped_key: String::new(),
        created_unix_ms: 0,
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

#[tokio::test]
async fn a_pool_with_the_data_of_a_bucket_stays() {
    let state = State::start().await;
    for name in ["index", "data"] {
        pools::create(&state.client, &new_pool(name)).await.unwrap();
    }
    let bucket = BucketRecord { pool: PoolId(1), data_pool: Some(PoolId(2)), ..bucket("photos") };
    state.client.put(&keys::bucket("photos"), &bucket).await.unwrap();
    for name in ["index", "data"] {
        assert!(refusal(pools::remove(&state.client, name).await).contains("'photos'"));
    }
}

/// A second operator would have to approve it, and was not asked.
#[tokio::test]
async fn keys_are_not_destroyed_of_a_bucket_that_was_locked_or_replaced_meanwhile() {
    let state = State::start().await;
    let client = &state.client;
    let seen = BucketRecord { wrapped_key: "local:1:aa".into(), ..bucket("photos") };
    let locked = BucketRecord { object_lock: Some(Default::default()), ..seen.clone() };
    let other = BucketRecord { id: "2".into(), ..seen.clone() };
    let now = async || client.get::<BucketRecord>(&keys::bucket("photos")).await.unwrap().unwrap().0;
    for changed in [&locked, &other] {
        client.put(&keys::bucket("photos"), changed).await.unwrap();
        assert!(refusal(destroy_bucket_keys(client, &seen).await).contains("meanwhile"));
        assert_eq!(&now().await, changed);
    }
    client.put(&keys::bucket("photos"), &locked).await.unwrap();
    destroy_bucket_keys(client, &locked).await.unwrap();
    let destroyed = now().await;
    assert_eq!((destroyed.wrapped_key.as_str(), destroyed.key_generation), ("", 1));
}

#[tokio::test]
async fn a_number_is_not_given_twice_without_a_counter() {
    let state = State::start().await;
    state.client.put(&keys::pool(PoolId(2)), &pool(2, 3, 2)).await.unwrap();
    pools::remove(&state.client, "pool2").await.unwrap();
    let (next, _) = state.client.get::<NextPoolRecord>(keys::NEXT_POOL).await.unwrap().unwrap();
    assert_eq!(next.next, PoolId(3));
    assert_eq!(pools::create(&state.client, &new_pool("one")).await.unwrap().id, PoolId(3));
}

/// Its data would be in a pool that is none.
#[tokio::test]
async fn a_pool_is_not_removed_while_an_image_comes_to_it() {
    let state = State::start().await;
    let client = &state.client;
    let directory = tempfile::tempdir().unwrap();
    let service = Arc::new(LocalKeys::create(&directory.path().join("kms.json")).unwrap());
    let images = ImageAdmin::new(client.clone(), service);
    for round in 0..20 {
        let pool = pools::create(client, &new_pool("passing")).await.unwrap();
        let later = async {
            tokio::time::sleep(Duration::from_micros(200) * round).await;
            pools::remove(client, "passing").await
        };
        let name = format!("disk{round}");
        let (made, removed) = tokio::join!(images.create(&name, 1 << 20, pool.id, true), later);
        assert!(made.is_ok() != removed.is_ok(), "{made:?} {removed:?}");
        if made.is_ok() {
            client.delete(&keys::image(&name)).await.unwrap();
            pools::remove(client, "passing").await.unwrap();
        }
    }
}

#[tokio::test]
async fn two_operators_do_not_overwrite_each_other() {
    let state = State::with_osds(1).await;
    let client = &state.client;
    let (one, other) = tokio::join!(
        settings::set_flags(client, &[ClusterFlag::NoOut], true, 1),
        settings::set_flags(client, &[ClusterFlag::NoScrub], true, 2),
    );
    assert!(one.is_ok() && other.is_ok());
    let set = settings::set_flags(client, &[ClusterFlag::NoOut], true, 9).await.unwrap();
    assert_eq!(set.flags.into_iter().collect::<Vec<_>>(), [(ClusterFlag::NoOut, 1), (ClusterFlag::NoScrub, 2)]);
    let left =
        settings::set_flags(client, &[ClusterFlag::NoOut, ClusterFlag::NoBackfill], false, 9).await.unwrap();
    assert_eq!(left.flags.len(), 1);
    let pool = new_pool("a");
    let (one, other) = tokio::join!(pools::create(client, &pool), pools::create(client, &pool));
    assert!(one.is_ok() != other.is_ok(), "one name, one pool: {one:?} {other:?}");
    assert!(refusal(settings::set(client, Setting::NearFullPercent, 101).await).contains("101"));
    assert!(refusal(settings::set(client, Setting::BalanceSeconds, 0).await).contains("norebalance"));
}

#[tokio::test]
async fn keys_are_listed_revoked_and_given_back() {
    let state = State::with_osds(2).await;
    let client = &state.client;
    let names = async || -> Vec<String> {
        peer_keys::list(client).await.unwrap().into_iter().map(|(_, record)| record.name).collect()
    };
    let (first, second) = ("a1".repeat(32), "a2".repeat(32));
    peer_keys::add(client, "client@h1", Some(&first)).await.unwrap();
    peer_keys::add(client, "gateway@h1", Some(&second)).await.unwrap();
    assert_eq!(names().await, ["client@h1", "gateway@h1", "osd.0", "osd.1"]);
    assert!(refusal(peer_keys::add(client, "client@h2", Some(&first)).await).contains("already"));

    let (key, record) = peer_keys::revoke(client, "client@h1").await.unwrap();
    assert_eq!((key.as_str(), record.role), (first.as_str(), PeerRole::Client));
    peer_keys::revoke(client, &second[..8].to_uppercase()).await.unwrap();
    assert!(refusal(peer_keys::revoke(client, "client@h1").await).contains("key ls"));
    assert!(refusal(peer_keys::revoke(client, "o").await).contains("no key"));
    peer_keys::revoke(client, "osd.1").await.unwrap();
    assert_eq!(names().await, ["osd.0"]);

    let (key, record) = peer_keys::add(client, "osd.1", None).await.unwrap();
    assert_eq!((key, record.osd), (osd(1).public_key, Some(OsdId(1))));
    for (name, key, words) in [
        ("client@h1", None, "--public-key"),
        ("client@h1", Some("xyz"), "64 hexadecimal"),
        ("client@", Some(first.as_str()), "client@HOST"),
        ("osd.7", None, "no osd.7"),
        ("osd.0", Some(first.as_str()), "says its record"),
    ] {
        let text = refusal(peer_keys::add(client, name, key).await);
        assert!(text.contains(words), "{name}: {text}");
    }
    for key in [&first, &second] {
        peer_keys::add(client, "client@twice", Some(key)).await.unwrap();
    }
    assert!(refusal(peer_keys::revoke(client, "client@twice").await).contains("first digits"));
}

#[tokio::test]
async fn frame_modes_are_set_by_role() {
    let state = State::start().await;
    let set =
        settings::set_frame_mode(&state.client, FrameScope::Role(PeerRole::Client), FrameMode::Crc).await.unwrap();
    assert_eq!(set.modes, FrameModes { client: FrameMode::Crc, ..FrameModes::default() });
    assert!(refusal(settings::set_rekey_seconds(&state.client, 0).await).contains("3600"));
    settings::set_rekey_seconds(&state.client, 60).await.unwrap();
    let map = MapWatch::start(&state.client).await.unwrap().map().clone();
    assert_eq!((map.frames.modes, map.frames.rekey_seconds), (set.modes, 60));
}

/// An OSD of an earlier release could change no PG any more.
#[tokio::test]
async fn signatures_are_required_when_all_osds_sign() {
    let state = State::start().await;
    let key = keys::osd_up(OsdId(1));
    state.client.put(&keys::osd_up(OsdId(0)), &up(0)).await.unwrap();
    state.client.put(&key, &OsdUpRecord { signs_changes: false, ..up(1) }).await.unwrap();
    assert!(refusal(settings::set_pg_signatures_required(&state.client, true).await).contains("osd.1 is of an"));
    settings::set_pg_signatures_required(&state.client, false).await.unwrap();
    state.client.put(&key, &up(1)).await.unwrap();
    let set = settings::set_pg_signatures_required(&state.client, true).await.unwrap();
    assert!(set.pg_signatures_required);
}

#[tokio::test]
async fn erasure_codes_are_validated_and_kept() {
    let state = State::start().await;
    let client = &state.client;
    let code = |data, parity| with(Redundancy::erasure(data, parity, None, None));
    let sized = |chunk_bytes, min_size| with(Redundancy::erasure(4, 2, chunk_bytes, min_size));
    for (wrong, word) in [
        (code(1, 1), "data shards, and not 1"),
        (code(17, 1), "not 17"),
        (code(u32::MAX, u32::MAX), "data shards"),
        (code(2, 0), "parity shards, and not 0"),
        (code(2, 5), "not 5"),
        (sized(Some(2048), None), "2048"),
        (sized(Some(96 << 10), None), "power of two"),
        (sized(Some(2 << 20), None), "1.0 MiB"),
        (sized(None, Some(3)), "choose 4 to 6"),
        (sized(None, Some(7)), "4 data and 2 parity shards"),
    ] {
        let text = refusal(pools::create(client, &wrong).await);
        assert!(text.contains(word), "{text}");
    }
    for fits in [code(16, 4), sized(Some(4096), Some(4)), sized(Some(1 << 20), Some(6))] {
        pools::create(client, &fits).await.unwrap();
        pools::remove(client, &fits.name).await.unwrap();
    }
    let made = pools::create(client, &code(4, 2)).await.unwrap();
    let redundancy = Redundancy::Erasure { data: 4, parity: 2, chunk_bytes: 64 << 10, min_size: 5 };
    assert_eq!(made.redundancy, redundancy);
    assert!(refusal(pools::change(client, "x", &PoolChange::Size(5)).await).contains("--ec"));
    assert!(refusal(pools::change(client, "x", &PoolChange::MinSize(3)).await).contains("nothing can be read"));
    let changed = pools::change(client, "x", &PoolChange::MinSize(4)).await.unwrap();
    assert_eq!((changed.redundancy.min_size(), changed.redundancy.size()), (4, 6));
}

#[tokio::test]
async fn a_second_operator_approves_once() {
    let state = State::start().await;
    let client = &state.client;
    for (name, role) in [("ann", OperatorRole::Admin), ("eve", OperatorRole::ReadOnly)] {
        operators::create(client, name, &role.into(), "a long password", Reach::All).await.unwrap();
    }
    let [ann, bob, eve, late] = ["ann", "bob", "eve", "late"].map(ProvedOperator::by_session);
    let act = |operator: &ProvedOperator| {
        let operator = operator.clone();
        async move { approvals::require(client, "key destroy --key x", &operator).await }
    };
    assert!(ProvedOperator::by_password(client, "ann", "another password", None).await.is_err());
    assert!(ProvedOperator::by_password(client, "ann", "a long password", None).await.is_ok());
    assert!(refusal(act(&eve).await).contains("role admin"));
    assert!(refusal(act(&ann).await).contains("atoll operator create"), "there is nobody else");

    operators::create(client, "bob", &OperatorRole::Admin.into(), "a long password", Reach::All).await.unwrap();
    assert!(refusal(act(&ann).await).contains("a second operator has to approve"));
    assert!(refusal(act(&ann).await).contains("a second operator has to approve"));
    let [(id, _)] = &approvals::list(client).await.unwrap()[..] else { panic!("one request") };
    // Times have milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    operators::create(client, "late", &OperatorRole::Admin.into(), "a long password", Reach::All).await.unwrap();
    // People whom a provider names may be the same as an operator.
    let named = ProvedOperator::by_session("oidc:bob");
    for (operator, why) in
        [(&ann, "another operator"), (&eve, "role admin"), (&named, "role admin"), (&late, "after the request")]
    {
        assert!(refusal(approvals::decide(client, id, operator, true).await).contains(why));
    }
    assert!(refusal(approvals::decide(client, "other", &bob, true).await).contains("no request"));
    approvals::decide(client, id, &bob, true).await.unwrap();
    assert!(refusal(approvals::decide(client, id, &bob, false).await).contains("approved it already"));
    assert!(refusal(act(&bob).await).contains("a second operator"), "it is another's, and his own is new");
    let other = approvals::require(client, "key destroy --key y", &ann).await;
    assert!(refusal(other).contains("a second operator"), "it is for what it says");
    assert_eq!(act(&ann).await.unwrap(), "bob");
    assert!(refusal(act(&ann).await).contains("a second operator"), "it was good once");
}

/// The requester may be able to give another a password, or a role.
#[tokio::test]
async fn who_was_changed_after_a_request_does_not_approve_it() {
    let state = State::start().await;
    let client = &state.client;
    for (name, role) in [
        ("ann", OperatorRole::Admin),
        ("bob", OperatorRole::Admin),
        ("carl", OperatorRole::Admin),
        ("eve", OperatorRole::Storage),
    ] {
        operators::create(client, name, &role.into(), "a long password", Reach::All).await.unwrap();
    }
    let [ann, bob, carl, eve] = ["ann", "bob", "carl", "eve"].map(ProvedOperator::by_session);
    assert!(approvals::require(client, "x", &ann).await.is_err());
    let (id, _) = approvals::list(client).await.unwrap().remove(0);
    operators::set(client, "bob", None, Some("another long password"), Reach::All).await.unwrap();
    operators::set(client, "eve", Some(&OperatorRole::Admin.into()), None, Reach::All).await.unwrap();
    for operator in [&bob, &eve] {
        assert!(refusal(approvals::decide(client, &id, operator, true).await).contains("after the request"));
    }
    operators::end_sessions(client, "carl").await.unwrap();
    approvals::decide(client, &id, &carl, true).await.unwrap();
    assert_eq!(approvals::require(client, "x", &ann).await.unwrap(), "carl");
}

#[tokio::test]
async fn denied_and_expired_requests_are_not_executed() {
    let state = State::start().await;
    let client = &state.client;
    for name in ["ann", "bob"] {
        operators::create(client, name, &OperatorRole::Admin.into(), "a long password", Reach::All).await.unwrap();
    }
    let [ann, bob] = ["ann", "bob"].map(ProvedOperator::by_session);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(approvals::require(client, "x", &ann).await.is_err());
    let (id, record) = approvals::list(client).await.unwrap().remove(0);
    approvals::decide(client, &id, &bob, false).await.unwrap();
    assert!(refusal(approvals::require(client, "x", &ann).await).contains("'bob' has denied it"));
    assert!(approvals::list(client).await.unwrap().is_empty());

    let approved = ApprovalDecision { operator: "bob".into(), is_approved: true, unix_ms: 1 };
    let over = ApprovalRecord { expires_unix_ms: 2, decision: Some(approved), ..record };
    client.put(&keys::approval("old"), &over).await.unwrap();
    assert!(refusal(approvals::require(client, "x", &ann).await).contains("a second operator has to approve"));
    assert!(client.get::<ApprovalRecord>(&keys::approval("old")).await.unwrap().is_none(), "it is forgotten");
}
