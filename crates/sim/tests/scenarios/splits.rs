//! Splits of PGs.

use atoll_pg::PgState;
use atoll_sim::{
    Answer, Kind, Options, PG, SPLIT_PG, World, block, data_of, half_of, read_block, remove, write_block,
};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{ReadRequest, Refusal};
use bytes::Bytes;

use crate::{MS, SECOND, holds, three_osds, with_leases, written};

/// Objects of both halves of the PG: one that stays, and one that goes to the new PG.
fn one_of_each_half() -> (u64, u64) {
    let of = |pg| (0..3).find(|object| half_of(*object) == pg).expect("names are spread");
    (of(PG), of(SPLIT_PG))
}

#[test]
fn a_primary_dies_while_its_pg_splits() {
    let (stays, goes) = one_of_each_half();
    for reached in [false, true] {
        let mut script = three_osds();
        written(&mut script, stays, 1);
        written(&mut script, goes, 2);
        if !reached {
            script.cut_one_way(0, 2, 10 * SECOND);
        }
        script.split();
        let has_split = |world: &World, at: usize| world.members[at].store.durable.of(SPLIT_PG).head.sequence > 0;
        script.run_while("not split", |world| !has_split(world, 1) || reached && !has_split(world, 2));
        assert!(script.cluster.split_off.is_none(), "cluster state does not know of it");
        script.kill(0);
        script.run_while("nobody goes on with it", |world| world.cluster.split_off.is_none());
        assert!(has_split(&script, 2), "the member that lacked it has it, too");
        written(&mut script, stays, 3);
        holds(&mut script, goes, 2);
        script.finish();
    }
}

#[test]
fn requests_for_a_split_off_pg_wait_for_cluster_state() {
    let (stays, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, goes, 1);
    script.keep_from_state(0, 30 * SECOND);
    script.split();
    script.run_while("not split", |world| world.members[0].store.durable.of(PG).pg_num != Some(2));
    script.run_for(10 * MS);
    let waits = script.start(1, write_block(goes, 0, 2));
    written(&mut script, stays, 3);
    script.run_for(SECOND);
    assert_eq!(script.answer_of(waits), None, "the old PG must not change it, and there is no other yet");
    script.kill(0);
    script.run_while("not answered", |world| world.answer_of(waits).is_none());
    assert!(script.cluster.split_off.is_some(), "the next primary has told cluster state");
    holds(&mut script, goes, 2);
    script.finish();
}

#[test]
fn a_member_was_away_while_its_pg_split() {
    let (stays, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    script.kill(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    script.split();
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    written(&mut script, goes, 3);
    let removal = script.start(1, remove(stays));
    script.run_while("not removed", |world| world.answer_of(removal).is_none());
    script.restart(2);
    let world = script.finish();
    for pg in [PG, SPLIT_PG] {
        assert_eq!(world.cluster.of(pg).map(|state| state.record.members.len()), Some(3), "{pg} has all members");
    }
}

#[test]
fn a_late_proposal_adds_no_member_to_a_pg_that_splits() {
    let (stays, goes) = one_of_each_half();
    let mut script = with_leases(Options::scripted(4));
    let is_member = |world: &World| world.cluster.record.members.contains(&atoll_types::OsdId(4));
    written(&mut script, stays, 1);
    script.plan(&[0, 1, 2, 3]);
    script.run_while("no backfill", |world| world.members[3].store.visible.of(PG).head.sequence == 0);
    // The proposal that makes the learner a member arrives before any later one.
    script.keep_from_state(0, 3 * SECOND);
    script.run_for(100 * MS);
    script.keep_from_state(0, 6 * SECOND);
    script.plan(&[0, 1, 2]);
    script.kill(3);
    written(&mut script, goes, 2);
    script.split();
    script.restart(3);
    assert!(!is_member(&script), "it is no member yet");
    script.run_while("the proposal is lost", |world| !is_member(world));
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    let has_new_pg = |at: usize| script.members[at].store.durable.of(SPLIT_PG).head.sequence > 0;
    for (at, osd) in (1..=4).map(atoll_types::OsdId).enumerate() {
        let is_member = script.cluster.record.members.contains(&osd);
        assert!(!is_member || has_new_pg(at), "{osd} is a member and lacks what was split off");
    }
    holds(&mut script, goes, 2);
    script.finish();
}

#[test]
fn a_split_that_no_other_member_has_is_undone() {
    let (stays, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    // No other member hears that the pool is to have more PGs, nor of the split.
    for other in [1, 2] {
        script.stand_still(other, 50 * MS);
        script.cut_one_way(0, other, 10 * SECOND);
    }
    script.split();
    script.run_while("not split", |world| world.members[0].store.durable.of(PG).pg_num != Some(2));
    script.policy.pg_num = 1;
    script.kill(0);
    script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
    assert_eq!(script.members[1].store.visible.of(PG).pg_num, None, "it has no split");
    written(&mut script, stays, 3);
    script.restart(0);
    let world = script.finish();
    let state = world.members[0].store.visible.of(PG);
    assert!(state.pg_num == Some(1) && state.objects.len() > 2, "everything is in one PG again");
}

#[test]
fn a_member_that_was_backfilled_during_a_split_can_lead() {
    let (stays, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    script.kill(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    written(&mut script, stays, 3);
    // The split is in the history of two members when one of them is left to backfill the third.
    script.keep_from_state(0, 60 * SECOND);
    script.split();
    let has_split = |world: &World, at: usize| world.members[at].store.durable.of(PG).pg_num == Some(2);
    script.run_while("not split", |world| !has_split(world, 0) || !has_split(world, 1));
    script.kill(0);
    script.restart(2);
    let is_elector = |world: &World| world.cluster.record.last_active_members.contains(&atoll_types::OsdId(3));
    script.run_while("not an elector", |world| !is_elector(world));
    assert_eq!(script.members[2].store.visible.of(SPLIT_PG).head.sequence, 0, "it lacks the new PG");
    // The one that has the new PG is lost before it hears that the PG is active.
    script.kill(1);
    script.restart(0);
    script.run_while("the member does not lead", |world| world.state_of(2) != Some(PgState::Active));
    written(&mut script, stays, 4);
    script.restart(1);
    holds(&mut script, goes, 2);
    script.finish();
}

#[test]
fn a_read_that_a_split_overtakes_is_done_in_the_new_pg() {
    let (_, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, goes, 1);
    // The store takes its time, and looks at the object once more before it answers.
    script.store_pause = 100 * MS;
    let read = script.start(1, read_block(goes, 0));
    script.run_while("nothing is read", |world| !world.is_reading());
    script.look_again(goes, 0);
    script.store_pause = 0;
    script.split();
    script.run_while("not split", |world| world.members[0].store.visible.of(PG).pg_num != Some(2));
    assert!(script.is_reading(), "the split overtakes the read");
    script.run_while("not answered", |world| world.answer_of(read).is_none());
    assert_eq!(data_of(script.answer_of(read)), Some(&block(1)[..]), "it is found where it is now");
    script.finish();
}

#[test]
fn a_copy_read_that_a_split_overtakes_repairs_nothing() {
    let (_, goes) = one_of_each_half();
    let mut script = with_leases(Options::scripted(3).on_real_stores());
    written(&mut script, goes, 1);
    script.members[0].store.bad.insert((atoll_sim::object_name(goes), 0));
    // The members answer late.
    for other in [1, 2] {
        script.cut_one_way(0, other, 200 * MS);
    }
    let read = script.start(1, read_block(goes, 0));
    script.run_while("no copy is read", |world| world.statistics.copy_reads == 0);
    script.split();
    script.run_while("not split", |world| world.members[0].store.visible.of(PG).pg_num != Some(2));
    assert_eq!(script.answer_of(read), None, "the split overtakes the read");
    script.run_while("not answered", |world| world.answer_of(read).is_none());
    assert_eq!(data_of(script.answer_of(read)), Some(&block(1)[..]), "it is found where it is now");
    let world = script.finish();
    let old = &world.members[0].store.visible.of(PG).objects;
    assert!(!old.contains_key(&atoll_sim::object_name(goes)), "nothing of it is in the old PG");
}

#[test]
fn a_list_that_a_split_overtakes_begins_again() {
    let (stays, goes) = one_of_each_half();
    let mut script = three_osds();
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    script.store_pause = 100 * MS;
    let request =
        ReadRequest::ObjectList { prefix: "object".into(), after: None, counts_blocks: false, pg_num: Some(1) };
    let list = script.start(1, Kind::Read(atoll_sim::name(PG_META_OBJECT), request));
    script.run_while("nothing is read", |world| !world.is_reading());
    script.store_pause = 0;
    script.split();
    script.run_while("not split", |world| world.members[0].store.visible.of(PG).pg_num != Some(2));
    assert!(script.is_reading(), "the split overtakes the list");
    script.run_while("not answered", |world| world.answer_of(list).is_none());
    let refused = Answer::Found(Err(Refusal::ConditionFailed { index: 0 }), Bytes::new());
    assert_eq!(script.answer_of(list), Some(&refused), "it may lack objects of the new PG");
    script.finish();
}
