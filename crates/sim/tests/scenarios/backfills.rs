//! Backfills.

use atoll_pg::PgState;
use atoll_sim::{Answer, Options, PG, World, block, write_block, write_blocks};
use atoll_types::{Epoch, Refusal};

use crate::{SECOND, holds, three_osds, with_leases, written};

#[test]
fn a_lost_device_is_backfilled_before_it_counts() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // All go down; the primary's device is replaced while they are.
    (0..3).for_each(|at| script.kill(at));
    script.wipe(0);
    script.restart(0);
    script.run_for(20 * SECOND);
    assert_ne!(script.state_of(0), Some(PgState::Active), "an empty device does not lead");
    script.restart(1);
    script.restart(2);
    script.run_while("not active", |world| world.state_of(world.primary()) != Some(PgState::Active));
    assert!(script.primary() != 0 || script.statistics.learners > 0);
    holds(&mut script, 0, 1);
    let world = script.finish();
    assert!(world.statistics.learners > 0, "the new device was backfilled");
    assert!(world.members[0].store.visible.of(PG).head.sequence > 0, "it has the history now");
}

#[test]
fn too_few_copies_serve_nothing_until_others_are_backfilled() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.kill(1);
    script.kill(2);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(op), None, "min_size is two");
    assert!(matches!(script.state_of(0), Some(PgState::Inactive | PgState::Recovering)));
    assert!(script.cluster.record.epoch > Epoch(2));
    script.restart(1);
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert_ne!(script.answer_of(op), Some(&Answer::Written(Err(Refusal::NotPrimary))));
    script.finish();
}

#[test]
fn a_backfill_that_is_refused_in_part_begins_again() {
    let mut script = three_osds();
    for object in 0..3 {
        written(&mut script, object, object + 1);
    }
    script.kill(2);
    script.wipe(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    script.restart(2);
    script.run_while("not being backfilled", |world| world.statistics.learners == 0);
    // The store takes the start of the backfill and refuses the first data.
    script.members[2].refuses_until = u64::MAX;
    script.run_while("not refused", |world| world.statistics.refused == 0);
    script.members[2].refuses_until = 0;
    let before = script.statistics.learners;
    let world = script.finish();
    assert!(world.statistics.learners > before, "it was backfilled once more");
}

#[test]
fn a_copy_whose_backfill_ends_unfinished_is_deleted() {
    let mut script = with_leases(Options::scripted(4));
    (0..3).for_each(|object| _ = written(&mut script, object, 1));
    script.members[3].slow_until = u64::MAX;
    script.plan(&[0, 1, 3]);
    script
        .run_while("the backfill has not begun", |world| world.members[3].store.visible.of(PG).head.sequence == 0);
    script.plan(&[0, 1, 2]);
    script.run_while("the stray copy stays", |world| world.members[3].store.visible.of(PG).head.sequence > 0);
    assert!(!script.cluster.record.members.contains(&atoll_types::OsdId(4)), "it never was a member");
    // The deleted copy does not count when the OSD becomes a target again.
    script.plan(&[0, 3, 2]);
    script.run_while("not moved", |world| !world.cluster.is_clean());
    (0..3).for_each(|object| holds(&mut script, object, 1));
    script.finish();
}

#[test]
fn a_half_copied_object_does_not_count_as_what_it_was() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let name =
        script.members[0].store.visible.of(PG).log.back().map(|entry| entry.object.clone()).expect("just written");
    script.kill(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    // The primary has a newer version, which the other member never makes durable.
    script.members[1].last_commit = u64::MAX / 2;
    let op = script.start(0, write_blocks(0, 4, 2));
    script.run_while("not ordered", |world| !world.shows(op, 0));
    script.restart(2);
    let half = |world: &World| world.members[2].store.durable.of(PG).objects[&name].blocks[&0][..] == block(2);
    script.run_while("no part has come", |world| !half(world));
    assert_eq!(script.members[2].store.visible.of(PG).objects[&name].blocks.len(), 2, "the others are to come");
    script.kill(0);
    script.kill(1);
    script.restart(1);
    assert!(!script.shows(op, 1), "the newer version is gone");
    script.run_while("not backfilled", |world| !world.cluster.record.members.contains(&atoll_types::OsdId(3)));
    let copies = [1, 2].map(|at: usize| script.members[at].store.visible.of(PG).objects[&name].clone());
    assert!(copies[0] == copies[1], "what was left of the newer version is gone");
    script.finish();
}

#[test]
fn a_backfill_ends_when_the_primary_refuses_a_write() {
    let mut script = three_osds();
    (0..3).for_each(|object| _ = written(&mut script, object, 1));
    script.kill(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    (0..3).for_each(|object| _ = written(&mut script, object, 2));
    script.restart(2);
    script.run_while("not being backfilled", |world| !world.members[2].store.is_incomplete(PG));
    // The learner gets the write as a log entry, because the object is still to be copied.
    script.members[0].refuses_until = u64::MAX;
    let op = script.start(0, write_block(2, 0, 3));
    script.run_while("not refused", |world| world.statistics.refused == 0);
    script.members[0].refuses_until = 0;
    script.run_while("the learner does not hear of it", |world| !world.shows(op, 2));
    assert!(script.members[2].store.is_incomplete(PG), "the object was still to be copied");
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    script.finish();
}
