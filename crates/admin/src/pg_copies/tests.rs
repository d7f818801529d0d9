//! Advice on PGs of a made-up cluster.

use atoll_types::pg_copies::Incompleteness;
use atoll_types::records::{FailureDomain, OsdRecord, OsdUpRecord};
use atoll_types::{Epoch, PoolId, Version};

use super::*;

pub(super) const PG: PgId = PgId { pool: PoolId(1), index: 0 };

/// A pool with one PG, whose members are OSDs 0, 1, ... and were active in epoch 5.
pub(super) fn map(redundancy: Redundancy, members: u32, up: &[u32]) -> ClusterMap {
    let mut map = ClusterMap::default();
    let is_coded = matches!(redundancy, Redundancy::Erasure { .. });
    let pool = PoolRecord {
        format: 1,
        id: PG.pool,
        name: "p".into(),
        redundancy,
        pg_num: 1,
        pg_num_first: 0,
        failure_domain: FailureDomain::Osd,
        device_class: None,
    };
    map.pools.insert(PG.pool, pool);
    for id in up.iter().map(|id| OsdId(*id)) {
        let up = OsdUpRecord {
            format: 1,
            id,
            address: "127.0.0.1:1".into(),
            local_name: String::new(),
            rdma_address: String::new(),
            process_id: 1,
            process: None,
            incarnation: 1,
            signs_changes: true,
        };
        map.up.insert(id, up);
    }
    let members: Vec<OsdId> = (0..members).map(OsdId).collect();
    let shards: Vec<u8> = if is_coded { (0..members.len() as u8).collect() } else { Vec::new() };
    let record = PgRecord {
        format: 1,
        epoch: Epoch(6),
        primary: members[0],
        activated_epoch: Epoch(5),
        last_active_members: members.clone(),
        last_active_shards: shards.clone(),
        members,
        shards,
        pg_num: 0,
        accepted: None,
    };
    map.pgs.insert(PG, (record, 17));
    map
}

pub(super) fn copy(osd: u32, sequence: u64, incomplete: Option<Incompleteness>, shard: Option<u8>) -> PgCopy {
    PgCopy {
        pg: PG.to_string(),
        osd: OsdId(osd),
        state: "member".into(),
        epoch: Epoch(6),
        promised: Epoch(6),
        head: Version { epoch: Epoch(5), sequence },
        committed_sequence: sequence,
        rolls_back_to: sequence,
        incomplete,
        shard,
        waits_for: vec!["something".into()],
        age_ms: 0,
    }
}

/// An OSD on a host of its own.
pub(super) fn osd(id: u32) -> OsdRecord {
    OsdRecord {
        format: 1,
        id: OsdId(id),
        host: format!("host{id}"),
        public_key: String::new(),
        weight: 1.0,
        device_class: "ssd".into(),
        device_bytes: 1,
        rack: String::new(),
        zone: String::new(),
        is_out: false,
        store_id: String::new(),
    }
}

pub(super) const OLD: Option<Incompleteness> = Some(Incompleteness::OldDevice);
pub(super) const TORN: Option<Incompleteness> = Some(Incompleteness::Torn);

pub(super) fn copies(size: u32) -> Redundancy {
    Redundancy::replicated(size, Some(1))
}

pub(super) fn shards() -> Redundancy {
    Redundancy::erasure(2, 1, None, None)
}

fn command(why: &PgWhy) -> Option<&str> {
    why.accept_command.as_deref()
}

#[test]
fn a_pg_that_serves_waits_for_nothing() {
    let serving = PgCopy { state: "active".into(), ..copy(0, 9, None, None) };
    let why = why(&map(copies(1), 1, &[0]), PG, &[serving]).unwrap();
    assert!(why.serves && why.waits_for.is_empty() && why.advice.is_empty());
}

#[test]
fn an_old_device_is_named_with_the_command_that_accepts_it() {
    let map = map(copies(1), 1, &[0]);
    let why = why(&map, PG, &[copy(0, 9, OLD, None)]).unwrap();
    assert!(!why.serves && why.waits_for.iter().any(|what| what.contains("osd.0 is incomplete: its device")));
    assert_eq!(command(&why), Some("atoll pg accept 1.0 --from osd.0"));
    assert!(why.advice.last().unwrap().contains("--from osd.0"));
    assert_eq!(not_serving(&map, &[copy(0, 9, OLD, None)]).unwrap().len(), 1);
}

#[test]
fn whole_copies_precede_torn_ones_and_down_osds_are_to_be_started() {
    let told = [copy(0, 90, TORN, None), copy(1, 9, OLD, None)];
    let why = why(&map(copies(3), 3, &[0, 1]), PG, &told).unwrap();
    assert!(why.advice[0].contains("start osd.2"), "{:?}", why.advice);
    assert_eq!(command(&why), Some("atoll pg accept 1.0 --from osd.1"));
}

#[test]
fn shards_of_one_time_are_proposed() {
    let map = map(shards(), 3, &[0, 1, 2]);
    let told = [copy(0, 50, OLD, Some(0)), copy(1, 50, OLD, Some(1)), copy(2, 90, None, Some(2))];
    assert_eq!(command(&why(&map, PG, &told).unwrap()), Some("atoll pg accept 1.0 --from osd.0 --from osd.1"));
    let told = [copy(0, 50, OLD, Some(0)), copy(2, 90, None, Some(2))];
    let of_two = why(&map, PG, &told).unwrap();
    assert_eq!(command(&of_two), None, "no two are of one time");
    assert!(of_two.waits_for.iter().any(|what| what.contains("osd.1 is up and does not report")));
}

#[test]
fn too_few_whole_copies_are_reported_with_the_pools_min_size() {
    let redundancy = Redundancy::replicated(2, Some(2));
    let waiting = PgCopy { state: "recovering".into(), ..copy(0, 9, None, None) };
    let why = why(&map(redundancy, 1, &[0]), PG, &[waiting]).unwrap();
    assert!(why.advice[0].contains("atoll pool set p min_size 1"), "{:?}", why.advice);
    assert_eq!(command(&why), None);
}
