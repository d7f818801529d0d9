//! Shards that are lost, return, or move.

use atoll_pg::{PgState, is_hidden};
use atoll_sim::{Options, PG, SPLIT_PG, Script, World, block, data_of, half_of, read_block, remove};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Epoch, OsdId};

use crate::{MS, SECOND, holds, is_whole, prepared, serves_without, two_and_two, write_blocks, written};

#[test]
fn any_m_shards_may_be_gone() {
    for lost in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 6);
        written(&mut script, 0, 2, 7);
        serves_without(&mut script, &lost);
        holds(&mut script, 0, 0, 10);
        holds(&mut script, 0, 2, 7);
        holds(&mut script, 0, 5, 15);
        // A partial overwrite with these shards missing.
        written(&mut script, 0, 0, 20);
        holds(&mut script, 0, 0, 20);
        holds(&mut script, 0, 1, 11);
        // They come back, are backfilled, and the others go.
        lost.iter().for_each(|at| script.restart(*at));
        is_whole(&mut script);
        let others: Vec<usize> = (0..4).filter(|at| !lost.contains(at)).collect();
        serves_without(&mut script, &others);
        holds(&mut script, 0, 0, 20);
        holds(&mut script, 0, 1, 11);
        script.finish();
    }
}

#[test]
fn fewer_shards_than_it_takes_wait() {
    let mut script = two_and_two(4);
    written(&mut script, 0, 0, 1);
    [1, 2, 3].into_iter().for_each(|at| script.kill(at));
    // With its lease, and before it hears that they are gone, the primary may read its own shard.
    script.run_while("served", |world| world.state_of(0) == Some(PgState::Active));
    let read = script.start(1, read_block(0, 0));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None, "no member can answer");
    script.restart(2);
    script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
    assert_eq!(data_of(script.answer_of(read)), Some(&block(1)[..]));
    script.finish();
}

#[test]
fn a_stale_shard_that_returns_is_backfilled_before_it_counts() {
    let mut script = two_and_two(4);
    written(&mut script, 0, 0, 1);
    serves_without(&mut script, &[0]);
    written(&mut script, 0, 0, 2);
    script.restart(0);
    let op = script.start(1, read_block(0, 0));
    script.run_while("a read is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(data_of(script.answer_of(op)), Some(&block(2)[..]));
    is_whole(&mut script);
    serves_without(&mut script, &[2, 3]);
    holds(&mut script, 0, 0, 2);
    script.finish();
}

#[test]
fn a_lost_device_is_rebuilt_on_a_spare() {
    let mut script = two_and_two(5);
    write_blocks(&mut script, 6);
    script.kill(1);
    script.wipe(1);
    script.plan(&[0, 2, 3, 4]);
    is_whole(&mut script);
    assert!(script.cluster.record.shards.contains(&1), "the spare holds what was lost");
    serves_without(&mut script, &[0, 2]);
    (0..6).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

#[test]
fn an_osd_takes_another_shard_than_it_had() {
    let mut script = two_and_two(5);
    write_blocks(&mut script, 6);
    // OSD 1 is away while its shard is rebuilt elsewhere, and comes back in the place of another.
    script.kill(1);
    script.plan(&[0, 4, 2, 3]);
    is_whole(&mut script);
    script.kill(3);
    script.restart(1);
    script.plan(&[0, 4, 2, 1]);
    is_whole(&mut script);
    let record = script.cluster.record.clone();
    assert_eq!(record.shard_of(OsdId(2)), Some(3), "it had shard 1");
    serves_without(&mut script, &[0, 2]);
    (0..6).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

/// A spare is backfilled with the shard of an elector that lost its device, so that one gets another.
fn an_elector_gets_another_shard() -> Script {
    let mut script = Script::new(Options { min_size: 3, ..Options::scripted_coded(5, 2, 2) });
    script.run_for(SECOND);
    write_blocks(&mut script, 4);
    serves_without(&mut script, &[3]);
    script.kill(2);
    script.wipe(2);
    script.run_while("three members", |world| world.cluster.record.members.len() > 2);
    // A spare is backfilled with shard 2, so the OSD that had that shard gets shard 3.
    script.members[2].slow_until = u64::MAX;
    script.restart(2);
    script.run_while("the elector counts", |world| world.epoch_at(0) < Some(Epoch(6)));
    // The spare is first.
    script.members[2].last_commit = script.now + 20 * MS;
    script.plan(&[0, 1, 4, 2]);
    script.run_while("the backfill of the spare has not begun", |world| {
        !world.members[0].pgs[&PG].learners().any(|learner| matches!(learner, (OsdId(5), Some(_))))
    });
    script
}

#[test]
fn an_elector_that_was_backfilled_with_another_shard_joins_with_that_one() {
    let mut script = an_elector_gets_another_shard();
    script.members[4].last_commit = u64::MAX / 2;
    script.run_while("not served with the shard that it has", |world| {
        let record = &world.cluster.record;
        record.activated_epoch < record.epoch || record.shards != [0, 1, 3]
    });
    assert!(script.cluster.record.epoch.0 < 20, "members do not depose each other");
    script.kill(4);
    script.members[4].last_commit = 0;
    script.restart(4);
    is_whole(&mut script);
    serves_without(&mut script, &[1]);
    (0..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

#[test]
fn an_elector_that_was_backfilled_with_another_shard_does_not_lead_with_it() {
    let mut script = an_elector_gets_another_shard();
    script.members[4].last_commit = u64::MAX / 2;
    script.keep_from_state(0, 10 * SECOND);
    script.run_while("the elector is incomplete", |world| world.members[2].store.is_incomplete(PG));
    // Cluster state never hears that it has shard 3. By its record that elector holds shard 2.
    assert_eq!(script.cluster.record.shard_of(OsdId(3)), Some(2));
    script.kill(0);
    script.keep_from_state(1, 20 * SECOND);
    script.run_for(15 * SECOND);
    assert_ne!(script.cluster.record.primary, OsdId(3), "it would lead with a shard that it lacks");
    script.kill(4);
    script.members[4].last_commit = 0;
    [0, 3, 4].iter().for_each(|at| script.restart(*at));
    is_whole(&mut script);
    (0..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

#[test]
fn a_backfill_begins_by_forgetting_pre_images() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 3);
    let has_pre_image = |world: &World| {
        let objects = &world.members[3].store.visible.of(PG).objects;
        objects.keys().any(|object| is_hidden(object) && object.as_str() != PG_META_OBJECT)
    };
    prepared(&mut script, remove(0), &[0, 1, 2, 3], &[]);
    assert!(has_pre_image(&script));
    serves_without(&mut script, &[3]);
    written(&mut script, 0, 0, 5);
    let head = script.members[3].store.durable.of(PG).head;
    script.restart(3);
    assert!(has_pre_image(&script), "it does not know yet that all have the removal");
    script.run_while("its backfill has not begun", |world| world.members[3].store.visible.of(PG).head == head);
    assert!(!has_pre_image(&script));
    script.finish();
}

#[test]
fn a_shard_from_before_a_split_does_not_count_as_another_one() {
    let mut script = Script::new(Options { min_size: 3, ..Options::scripted_coded(5, 2, 2) });
    script.run_for(SECOND);
    let goes = (0..).find(|object| half_of(*object) != PG).unwrap();
    for at in 0..4 {
        written(&mut script, goes, at, 10 + at);
    }
    serves_without(&mut script, &[0]);
    script.keep_from_state(1, 5 * SECOND);
    script.split();
    let has_split = |world: &World, at: usize| world.members[at].store.durable.of(SPLIT_PG).head.sequence > 0;
    script.run_while("not split", |world| !(1..4).all(|at| has_split(world, at)));
    assert!(script.cluster.split_off.is_none(), "cluster state does not know of it");
    // Too few are left to serve. A spare gets shard 0, and the OSD that had it shard 1.
    script.kill(1);
    script.plan(&[2, 3, 4, 0]);
    script.run_while("the backfill of the spare has not begun", |world| {
        let is_spare = |learner: (OsdId, Option<_>)| matches!(learner, (OsdId(5), Some(_)));
        world.primary() == 1 || !world.members[world.primary()].pgs[&PG].learners().any(is_spare)
    });
    script.members[4].last_commit = u64::MAX / 2;
    script.restart(0);
    script.run_while("it has no other shard", |world| {
        let record = &world.cluster.record;
        record.members.len() < 3 || record.shard_of(OsdId(1)) != Some(1)
    });
    script.kill(4);
    script.run_while("the PG that is split off has no third shard", |world| {
        let record = world.cluster.of(SPLIT_PG).map(|state| &state.record);
        record.is_none_or(|record| record.members.len() < 3 || record.activated_epoch < record.epoch)
    });
    script.members[4].last_commit = 0;
    [1, 4].iter().for_each(|at| script.restart(*at));
    is_whole(&mut script);
    assert!(script.cluster.split_off.is_some());
    (0..4).for_each(|at| holds(&mut script, goes, at, 10 + at));
    script.finish();
}

#[test]
fn a_shard_whose_backfill_ends_unfinished_is_deleted() {
    let mut script = two_and_two(5);
    write_blocks(&mut script, 6);
    script.members[4].slow_until = u64::MAX;
    script.plan(&[0, 1, 2, 4]);
    script
        .run_while("the backfill has not begun", |world| world.members[4].store.visible.of(PG).head.sequence == 0);
    script.plan(&[0, 1, 2, 3]);
    script.run_while("the stray copy stays", |world| world.members[4].store.visible.of(PG).head.sequence > 0);
    assert!(!script.cluster.record.members.contains(&OsdId(5)), "it never was a member");
    script.finish();
}
