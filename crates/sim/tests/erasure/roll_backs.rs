//! Writes that not all members have: rolled back, or forward.

use atoll_pg::PgState;
use atoll_sim::{PG, remove, write_block};

use crate::{SECOND, crash, holds, object, prepared, two_and_two, write_blocks, written};

#[test]
fn a_write_that_a_shard_lacks_is_rolled_back() {
    for has_it in [1, 2] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 4);
        // Of three that are left, one has it: neither the old nor the new bytes are on two of the
        // shards that were touched.
        let slow = [3 - has_it, 3];
        let op = prepared(&mut script, write_block(0, 0, 2), &[has_it], &slow);
        script.kill(0);
        crash(&mut script, op, &slow);
        script.run_while("not rolled back", |world| world.shows(op, has_it));
        script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        assert!(script.statistics.rollbacks > 0);
        holds(&mut script, 0, 0, 2);
        (1..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
        script.finish();
    }
}

#[test]
fn a_roll_back_restores_the_pre_image() {
    // Removed, created again, cloned over: each has a pre-image until all members have it.
    let replacements = [remove(0), write_block(0, 3, 9)];
    for replacement in replacements {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 3);
        let op = prepared(&mut script, replacement, &[1], &[2, 3]);
        // The client does not ask again.
        script.clients.ops[op].attempt += 1;
        script.kill(0);
        crash(&mut script, op, &[2, 3]);
        script.run_while("not rolled back", |world| world.shows(op, 1));
        script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
        (0..3).for_each(|at| holds(&mut script, 0, at, 10 + at));
        let attempt = script.clients.ops[op].attempt;
        script.client_retries(op, attempt);
        script.finish();
    }
}

#[test]
fn a_member_that_cannot_roll_back_is_backfilled() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 4);
    let op = prepared(&mut script, write_block(0, 0, 2), &[1], &[2, 3]);
    let store = &mut script.members[1].store;
    for pgs in [&mut store.visible, &mut store.durable] {
        pgs.of_mut(PG).log.back_mut().unwrap().pre_image = None;
    }
    script.kill(0);
    crash(&mut script, op, &[2, 3]);
    script.run_while("its copy counts", |world| !world.members[1].store.is_incomplete(PG));
    script.run_while("not backfilled", |world| world.members[1].store.is_incomplete(PG));
    script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
    holds(&mut script, 0, 0, 2);
    (1..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

#[test]
fn a_roll_back_that_the_store_refuses_is_tried_again() {
    for refusing in [1, 2] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 3);
        // The roll back of the removal writes data, which the store refuses; that of the write
        // after it does not.
        let slow = [3 - refusing, 3];
        let op = prepared(&mut script, remove(0), &[refusing], &slow);
        let next = prepared(&mut script, write_block(1, 0, 2), &[refusing], &slow);
        [op, next].iter().for_each(|op| script.clients.ops[*op].attempt += 1);
        script.kill(0);
        script.members[refusing].refuses_until = u64::MAX;
        crash(&mut script, op, &slow);
        script.run_while("not refused", |world| world.statistics.refused == 0);
        script.run_for(5 * SECOND);
        assert!(
            script.shows(op, refusing) && !script.shows(next, refusing),
            "osd {refusing} has rolled back half of it"
        );
        script.members[refusing].refuses_until = 0;
        script.run_while("not rolled back", |world| world.shows(op, refusing));
        script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
        (0..3).for_each(|at| holds(&mut script, 0, at, 10 + at));
        // The removal gets another sequence than it had, so its pre-image clone has another name.
        for op in [next, op] {
            let attempt = script.clients.ops[op].attempt;
            script.client_retries(op, attempt);
            script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        }
        script.finish();
    }
}

#[test]
fn a_refused_write_leaves_no_pre_image_to_forget() {
    for refusing in [0, 1] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 3);
        // A removal keeps the object as a clone that is named after the removal's sequence.
        let op = script.start(0, remove(0));
        let others: Vec<usize> = (0..4).filter(|at| *at != refusing).collect();
        let refuse = [refusing, 2, 3];
        refuse.iter().for_each(|at| script.members[*at].refuses_until = u64::MAX);
        script.run_while("not refused", |world| world.statistics.refused < 3);
        refuse.iter().for_each(|at| script.members[*at].refuses_until = 0);
        script.run_while("not peering", |world| world.state_of(0) == Some(PgState::Active));
        script.run_while("not active", |world| world.state_of(0) != Some(PgState::Active));
        // The retry gets the same sequence, and so a clone of the same name.
        others.iter().for_each(|at| script.members[*at].last_commit = u64::MAX / 2);
        script.run_while("not prepared", |world| !world.shows(op, refusing));
        // Time enough to forget what is not needed any more.
        script.run_for(SECOND);
        for at in others {
            script.kill(at);
            script.members[at].last_commit = 0;
            script.restart(at);
        }
        assert_eq!(script.answer_of(op), None);
        script.run_while("not rolled back", |world| world.shows(op, refusing));
        let objects = &script.members[refusing].store.visible.of(PG).objects;
        assert!(objects.contains_key(&object(0)), "osd {refusing} has the object again");
        script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        script.finish();
    }
}

#[test]
fn a_write_whose_roll_back_was_refused_may_stay() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let op = prepared(&mut script, write_block(0, 0, 2), &[0, 2], &[1, 3]);
    script.kill(0);
    script.members[2].refuses_until = u64::MAX;
    crash(&mut script, op, &[1, 3]);
    script.run_while("not refused", |world| world.statistics.refused == 0);
    // The members that lack it are gone, and the two that are left have it.
    [1, 3].into_iter().for_each(|at| script.kill(at));
    script.restart(0);
    script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
    script.members[2].refuses_until = 0;
    assert!(script.shows(op, 2));
    let refused = script.statistics.refused;
    written(&mut script, 0, 1, 5);
    assert_eq!(script.statistics.refused, refused, "the write is ordered after those that stay");
    holds(&mut script, 0, 0, 2);
    script.finish();
}

#[test]
fn no_primary_serves_before_its_roll_back_is_durable() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let op = prepared(&mut script, write_block(0, 0, 2), &[1], &[2, 3]);
    script.kill(0);
    crash(&mut script, op, &[2, 3]);
    script.run_while("not rolled back", |world| world.shows(op, 1));
    assert!(!script.members[1].store.pending.is_empty(), "that is not durable yet");
    // The simulator checks that no roll back is pending when a PG becomes active.
    script.tick_pgs(1);
    script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
    script.finish();
}

#[test]
fn a_write_that_enough_shards_have_is_rolled_forward() {
    for lacking in [1, 2, 3] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 4);
        let others: Vec<usize> = (1..4).filter(|at| *at != lacking).collect();
        let op = prepared(&mut script, write_block(0, 0, 2), &others, &[lacking]);
        // The client does not ask again.
        script.clients.ops[op].attempt += 1;
        script.kill(0);
        crash(&mut script, op, &[lacking]);
        script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
        assert_eq!(script.statistics.rollbacks, 0);
        holds(&mut script, 0, 0, 2);
        (1..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
        let attempt = script.clients.ops[op].attempt;
        script.client_retries(op, attempt);
        script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        script.finish();
    }
}

#[test]
fn a_write_that_a_running_member_lacks_is_rolled_back() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 4);
    script.cut_one_way(0, 3, SECOND);
    let op = prepared(&mut script, write_block(0, 0, 2), &[0, 1, 2], &[]);
    // The client does not ask again.
    script.clients.ops[op].attempt += 1;
    script.kill(0);
    script.run_while("not rolled back", |world| [1, 2].iter().any(|at| world.shows(op, *at)));
    script.run_while("no member serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
    assert!(script.statistics.rollbacks > 0);
    (0..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
    let attempt = script.clients.ops[op].attempt;
    script.client_retries(op, attempt);
    script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
    script.finish();
}

#[test]
fn a_write_that_all_shards_left_have_stays() {
    let mut script = two_and_two(4);
    written(&mut script, 0, 0, 1);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_while("not durable everywhere", |world| (0..4).any(|at| !world.was_durable(op, at)));
    assert_eq!(script.answer_of(op), None, "the answer is still to come");
    script.kill(0);
    script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
    let head = script.members[1].store.visible.of(PG).head;
    assert_eq!(head.sequence, 2, "it was done once");
    holds(&mut script, 0, 0, 2);
    script.finish();
}
