//! Health problems and their age.

use std::collections::BTreeMap;

use atoll_cluster::RefusedChange;
use atoll_types::coordination::AutoOutRecord;
use atoll_types::records::{ClusterFlag, OsdEndsRecord, OsdUsageRecord, PgScrubRecord};
use atoll_types::{Epoch, OsdId, PoolId};

use super::{healthy, pg, record, stop};
use crate::View;
use crate::health::{Health, HealthStatus, Problem, Severity, evaluate, since};
use crate::refused_changes::note;

fn problem(health: &Health, code: &str) -> Problem {
    let found = health.problems.iter().find(|problem| problem.code == code);
    found.unwrap_or_else(|| panic!("{code} is not among {:?}", codes(health))).clone()
}

fn codes(health: &Health) -> Vec<&'static str> {
    health.problems.iter().map(|problem| problem.code).collect()
}

fn usage(view: &mut View, id: u32) -> &mut OsdUsageRecord {
    view.usage.get_mut(&OsdId(id)).unwrap()
}

#[test]
fn nothing_is_wrong_with_a_healthy_cluster() {
    assert_eq!(evaluate(&healthy(4), 1), Health { status: HealthStatus::Ok, problems: Vec::new() });
}

#[test]
fn an_osd_that_is_down_is_a_warning_and_a_pg_without_enough_an_error() {
    let mut view = healthy(3);
    stop(&mut view, &[1]);
    view.notes.down_since_unix_ms.insert(OsdId(1), 7);
    for index in 0..8 {
        view.map.pgs.insert(pg(index), (record(&[0, 1, 2]), 1));
    }
    super::report(&mut view);
    let health = evaluate(&view, 100);
    assert_eq!((health.status, codes(&health)), (HealthStatus::Warning, vec!["OSD_DOWN", "PG_DEGRADED"]));
    assert_eq!(problem(&health, "OSD_DOWN").since_unix_ms, Some(7));
    assert_eq!(problem(&health, "OSD_DOWN").subjects, ["osd.1"]);
    stop(&mut view, &[2]);
    let health = evaluate(&view, 100);
    assert_eq!(health.status, HealthStatus::Error);
    assert_eq!(health.problems[0].code, "PG_INACTIVE", "the worst comes first");
    assert_eq!(health.problems[0].subjects.len(), 8);
}

#[test]
fn refused_changes_of_pgs_are_a_warning_for_a_day() {
    let mut view = healthy(3);
    let refused = |key: &str| RefusedChange { key: key.into(), revision: 9, cause: "by a stranger".into() };
    let first = note(None, &[refused("/atoll/pgs/1.0"), refused("/atoll/pgs/1.1")], 7);
    assert_eq!(note(first.as_ref(), &[], 8), first);
    view.notes.refused_changes = note(first.as_ref(), &[refused("/atoll/pgs/1.2")], 9);
    let found = problem(&evaluate(&view, 10), "CHANGES_OF_PGS_REFUSED");
    assert!(found.summary.starts_with("3 changes"), "{}", found.summary);
    assert_eq!(found.subjects, ["/atoll/pgs/1.2: by a stranger"]);
    let day_ms = 24 * 60 * 60 * 1_000;
    assert_eq!(note(view.notes.refused_changes.as_ref(), &[], 9 + day_ms), None);
    assert!(!codes(&evaluate(&view, 9 + day_ms)).contains(&"CHANGES_OF_PGS_REFUSED"));
}

#[test]
fn a_pg_with_nothing_to_spare_is_a_warning_of_its_own() {
    let mut view = healthy(3);
    view.map.pools.insert(PoolId(1), super::pool(1, 2, 1));
    view.map.pgs.clear();
    view.map.pgs.insert(pg(0), (record(&[0, 1]), 1));
    view.map.pgs.insert(pg(1), (record(&[1, 2]), 1));
    let spare = |view: &View| {
        let health = evaluate(view, 1);
        let found = health.problems.into_iter().find(|problem| problem.code == "PG_NONE_TO_SPARE");
        found.map(|problem| problem.subjects)
    };
    assert_eq!(spare(&view), None);
    stop(&mut view, &[2]);
    assert_eq!(spare(&view), Some(vec!["1.1".to_owned()]));
    view.map.pools.insert(PoolId(1), super::pool(1, 1, 1));
    assert_eq!(spare(&view), None, "a pool of one copy has none to spare by plan");
}

#[test]
fn out_by_wish_is_a_note_and_out_by_itself_a_warning() {
    let mut view = healthy(5);
    view.map.osds.get_mut(&OsdId(4)).unwrap().is_out = true;
    let health = evaluate(&view, 1);
    assert_eq!(health.status, HealthStatus::Ok);
    assert!(codes(&health).contains(&"OSD_OUT") && codes(&health).contains(&"PG_MISPLACED"));
    view.auto_out.insert(OsdId(4), AutoOutRecord { format: 1, since_unix_ms: 1 });
    stop(&mut view, &[4]);
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "OSD_AUTO_OUT").severity, Severity::Warning);
    assert!(!codes(&health).contains(&"OSD_DOWN"), "once is enough");
}

#[test]
fn space_and_damage() {
    let mut view = healthy(4);
    usage(&mut view, 0).is_full = true;
    let of_full_file_system = usage(&mut view, 3);
    (of_full_file_system.is_full, of_full_file_system.is_file_system_full) = (true, true);
    usage(&mut view, 1).used_bytes = 850;
    usage(&mut view, 2).used_bytes = 849;
    usage(&mut view, 3).corrupt_block_count = 2;
    // Of an OSD that was removed.
    view.usage.insert(OsdId(9), OsdUsageRecord { is_full: true, ..OsdUsageRecord::default() });
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "OSD_FULL").subjects.len(), 1);
    assert_eq!(problem(&health, "OSD_FULL").severity, Severity::Error);
    assert_eq!(problem(&health, "OSD_FILE_SYSTEM_FULL").subjects, ["osd.3 (10 B of 1000 B)"]);
    assert_eq!(problem(&health, "OSD_NEAR_FULL").subjects, ["osd.1 (850 B of 1000 B)"]);
    assert_eq!(problem(&health, "OSD_DAMAGED_BLOCKS").subjects, ["osd.3 (2)"]);
}

#[test]
fn groups_by_record_and_by_report() {
    let mut view = healthy(4);
    let mut peering = record(&[0, 1, 2]);
    peering.epoch = Epoch(2);
    view.map.pgs.insert(pg(0), (peering, 1));
    view.map.pgs.insert(pg(1), (record(&[0, 1]), 1));
    super::report(&mut view);
    let states = &mut usage(&mut view, 0).primary_pg_states;
    *states.get_mut("active").unwrap() -= 1;
    states.insert("peering".to_owned(), 1);
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "PG_PEERING").subjects, ["1.0"]);
    assert_eq!(problem(&health, "PG_UNDERSIZED").subjects, ["1.1"]);
    assert!(!codes(&health).contains(&"PG_NOT_ACTIVE"), "the report says no more than the records");
    let (_, primaries) = crate::pgs_by_osd(&view.map)[&OsdId(0)];
    assert!(primaries >= 2);
    // Others may be of a pool that was removed.
    let states = [("active+degraded".to_owned(), primaries as u32 - 2), ("inactive".to_owned(), 7)];
    usage(&mut view, 0).primary_pg_states = BTreeMap::from(states);
    assert_eq!(problem(&evaluate(&view, 1), "PG_NOT_ACTIVE").subjects, ["osd.0 (2)"]);
    // What it said before it went down means nothing.
    stop(&mut view, &[0]);
    assert!(!codes(&evaluate(&view, 1)).contains(&"PG_NOT_ACTIVE"));
}

#[test]
fn pgs_that_split_and_pgs_that_a_scrub_could_not_repair() {
    let mut view = healthy(3);
    let pool = view.map.pools.get_mut(&PoolId(1)).unwrap();
    (pool.pg_num_first, pool.pg_num) = (pool.pg_num, pool.pg_num * 2);
    let (first, all) = (pool.pg_num_first, pool.pg_num);
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "PG_SPLITTING").severity, Severity::Note);
    assert_eq!(problem(&health, "PG_SPLITTING").subjects, [format!("pool 'pool1' ({first} of {all})")]);
    assert!(!codes(&health).contains(&"PG_MISSING"), "the coordinator does not make them");
    assert!(crate::missing_pgs(&view.map).is_empty());
    assert!(!crate::is_settled(&view.map), "the balancer waits");
    // An older record of the pool, and one of the PGs that were split off already.
    let of_first = view.map.pgs[&pg(0)].clone();
    view.map.pgs.insert(pg(first), of_first);
    assert!(!codes(&evaluate(&view, 1)).contains(&"POOL_PG_NUM"));
    view.map.pools.get_mut(&PoolId(1)).unwrap().pg_num = first;
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "POOL_PG_NUM").subjects, [format!("pool 'pool1' ({first} of {all})")]);
    assert!(!crate::is_settled(&view.map), "the balancer waits");
    view.map.pools.get_mut(&PoolId(1)).unwrap().pg_num = all;
    let scrub = |unrepaired| PgScrubRecord {
        format: 1,
        light_unix_ms: 1,
        deep_unix_ms: 1,
        osd: OsdId(0),
        is_deep: true,
        objects: 7,
        errors: 2,
        repaired: 2 - unrepaired,
        unrepaired,
        members: Vec::new(),
    };
    view.map.pg_scrubs.extend([(pg(0), scrub(0)), (pg(1), scrub(2))]);
    assert_eq!(problem(&evaluate(&view, 1), "PG_DAMAGED").subjects, ["1.1 (2 of 7 objects)"]);
}

#[test]
fn pools_without_pgs_or_places() {
    let mut view = healthy(3);
    view.map.pools.insert(PoolId(2), super::pool(2, 4, 2));
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "PG_MISSING").subjects, ["pool 'pool2' (8 of 8)"]);
    assert_eq!(problem(&health, "POOL_TOO_FEW_DOMAINS").subjects, ["pool 'pool2' (4 copies, 3 hosts)"]);
    view.map.pools.insert(PoolId(2), super::coded_pool(2, 4, 2));
    let health = evaluate(&view, 1);
    assert_eq!(problem(&health, "POOL_TOO_FEW_DOMAINS").subjects, ["pool 'pool2' (6 shards, 3 hosts)"]);
}

#[test]
fn an_osd_that_ended_by_itself_is_told_for_a_day() {
    let mut view = healthy(3);
    let reason = "metadata page 7 is damaged".to_owned();
    let ends = OsdEndsRecord { format: 1, store_id: "a".into(), count: 3, reason, last_unix_ms: 1_000 };
    view.osd_ends.extend([(OsdId(1), ends.clone()), (OsdId(9), ends)]);
    let health = evaluate(&view, 2_000);
    assert_eq!(health.status, HealthStatus::Warning);
    assert_eq!(problem(&health, "OSD_ENDED").summary, "osd.1 ended 3 times: metadata page 7 is damaged");
    assert_eq!(evaluate(&view, 1_000 + 24 * 60 * 60 * 1_000).status, HealthStatus::Ok);
}

#[test]
fn flags_and_the_coordinator() {
    let mut view = healthy(3);
    view.map.flags.flags.insert(ClusterFlag::NoOut, 44);
    view.map.flags.flags.insert(ClusterFlag::NoScrub, 33);
    view.coordinator = None;
    let health = evaluate(&view, 100);
    assert_eq!(problem(&health, "FLAGS_SET").subjects, ["noout", "noscrub"]);
    assert_eq!(problem(&health, "FLAGS_SET").since_unix_ms, Some(33));
    assert_eq!(problem(&health, "NO_COORDINATOR").since_unix_ms, None);
    assert_eq!(Health::unreachable("no answer").status, HealthStatus::Error);
}

#[test]
fn a_problem_keeps_the_time_at_which_it_was_first_seen() {
    let mut view = healthy(3);
    view.coordinator = None;
    view.notes.problem_since_unix_ms = since(&evaluate(&view, 100), 100);
    view.notes.problem_since_unix_ms = since(&evaluate(&view, 200), 200);
    assert_eq!(problem(&evaluate(&view, 300), "NO_COORDINATOR").since_unix_ms, Some(100));
    view.notes.problem_since_unix_ms = since(&evaluate(&healthy(3), 300), 300);
    assert_eq!(problem(&evaluate(&view, 400), "NO_COORDINATOR").since_unix_ms, None, "it went away meanwhile");
}

#[test]
fn pgs_that_do_not_serve_for_long_or_at_all_are_an_error() {
    let mut view = healthy(3);
    let peering = |view: &mut View, id| {
        let states = &mut usage(view, id).primary_pg_states;
        let number = states.remove("active").unwrap();
        states.insert("peering".into(), number);
    };
    peering(&mut view, 0);
    let severity = |view: &View, now| problem(&evaluate(view, now), "PG_NOT_ACTIVE").severity;
    assert_eq!(severity(&view, 1), Severity::Warning);
    view.notes.problem_since_unix_ms.insert("PG_NOT_ACTIVE".into(), 1);
    assert_eq!(severity(&view, 10_001), Severity::Warning);
    assert_eq!(severity(&view, 10_002), Severity::Error);
    view.notes.problem_since_unix_ms.clear();
    (1..3).for_each(|id| peering(&mut view, id));
    assert_eq!(severity(&view, 1), Severity::Error);
}
