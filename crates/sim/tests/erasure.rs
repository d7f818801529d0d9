//! What is different when every member holds a shard: each scenario says that its situation really
//! occurred, and what clients saw is checked against one history at the end. OSD n holds shard n at
//! first; `ATOLL_SIM_TRACE` prints what happens.

#![allow(clippy::unwrap_used)] // a test through and through

use atoll_base::{BLOCK_BYTES, ObjectName};
use atoll_pg::PgState;
use atoll_sim::{Answer, Kind, Options, PG, Script, World, block, data_of, read_block, remove, write_block};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// An active group of two data and two parity shards, which serves with as few as it takes.
fn two_and_two(osds: usize) -> Script {
    let mut script = Script::new(Options { min_size: 2, ..Options::scripted_coded(osds, 2, 2) });
    script.run_for(SECOND);
    script
}

fn written(script: &mut Script, object: u64, at: u64, value: u64) -> usize {
    let op = script.start(0, write_block(object, at, value));
    script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    op
}

/// Writes the first blocks of object 0: 10, 11, ...
fn fill(script: &mut Script, blocks: u64) {
    for at in 0..blocks {
        written(script, 0, at, 10 + at);
    }
}

fn holds(script: &mut Script, object: u64, at: u64, value: u64) {
    let op = script.start(1, read_block(object, at));
    script.run_while("a read is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(data_of(script.answer_of(op)), Some(&block(value)[..]), "block {at} of object {object}");
}

fn serves_without(script: &mut Script, lost: &[usize]) {
    lost.iter().for_each(|at| script.kill(*at));
    let is_gone =
        |world: &World, at: &usize| world.cluster.record.members.iter().all(|member| member.0 as usize != *at + 1);
    script.run_while("not without them", |world| {
        let is_active = world.state_of(world.primary()) == Some(PgState::Active);
        !is_active || !lost.iter().all(|at| is_gone(world, at))
    });
}

fn is_whole(script: &mut Script) {
    script.run_while("not whole", |world| {
        !world.cluster.is_clean() || world.state_of(world.primary()) != Some(PgState::Active)
    });
}

/// Has some OSDs make a write durable while the devices of others do nothing.
fn prepared(script: &mut Script, write: Kind, by: &[usize], slow: &[usize]) -> usize {
    slow.iter().for_each(|at| script.members[*at].last_commit = u64::MAX / 2);
    let op = script.start(0, write);
    script.run_while("not prepared", |world| by.iter().any(|at| !world.was_durable(op, *at)));
    op
}

/// Processes that have not made a write durable die and start again.
fn crash(script: &mut Script, op: usize, osds: &[usize]) {
    for at in osds {
        assert!(!script.was_durable(op, *at), "osd {at} was slow");
        script.kill(*at);
        script.members[*at].last_commit = 0;
        script.restart(*at);
    }
    assert_eq!(script.answer_of(op), None);
}

fn object(number: u64) -> ObjectName {
    ObjectName::new(&format!("object{number}")).unwrap()
}

#[test]
fn a_write_that_a_shard_lacks_is_taken_back() {
    for has_it in [1, 2] {
        let mut script = two_and_two(4);
        fill(&mut script, 4);
        // Of three that are left, one has it: neither the old nor the new bytes are on two of the shards
        // that were touched.
        let slow = [3 - has_it, 3];
        let op = prepared(&mut script, write_block(0, 0, 2), &[has_it], &slow);
        script.kill(0);
        crash(&mut script, op, &slow);
        script.run_while("not taken back", |world| world.shows(op, has_it));
        script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        assert!(script.statistics.rollbacks > 0);
        holds(&mut script, 0, 0, 2);
        (1..4).for_each(|at| holds(&mut script, 0, at, 10 + at));
        script.finish();
    }
}

#[test]
fn what_is_taken_back_is_there_again() {
    // Removed, made anew, cloned over: what all of these replace is kept until all have them.
    let replacements = [remove(0), write_block(0, 3, 9)];
    for replacement in replacements {
        let mut script = two_and_two(4);
        fill(&mut script, 3);
        let op = prepared(&mut script, replacement, &[1, 2], &[3]);
        // The client does not ask again.
        script.clients.ops[op].attempt += 1;
        script.kill(0);
        crash(&mut script, op, &[3]);
        script.run_while("not taken back", |world| (1..3).any(|at| world.shows(op, at)));
        script.run_while("nobody serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
        (0..3).for_each(|at| holds(&mut script, 0, at, 10 + at));
        let attempt = script.clients.ops[op].attempt;
        script.client_retries(op, attempt);
        script.finish();
    }
}

#[test]
fn what_the_store_does_not_take_back_is_tried_again() {
    for refusing in [1, 2] {
        let mut script = two_and_two(4);
        fill(&mut script, 3);
        // A removal is taken back with data, which the store refuses; what came after it is not.
        let op = prepared(&mut script, remove(0), &[1, 2], &[3]);
        let next = prepared(&mut script, write_block(1, 0, 2), &[1, 2], &[3]);
        [op, next].iter().for_each(|op| script.clients.ops[*op].attempt += 1);
        script.kill(0);
        script.members[refusing].refuses_until = u64::MAX;
        crash(&mut script, op, &[3]);
        script.run_while("not refused", |world| world.statistics.refused == 0);
        script.run_for(5 * SECOND);
        assert!(script.shows(op, refusing) && !script.shows(next, refusing), "osd {refusing} is half way back");
        script.members[refusing].refuses_until = 0;
        script.run_while("not taken back", |world| (1..3).any(|at| world.shows(op, at)));
        script.run_while("nobody serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
        (0..3).for_each(|at| holds(&mut script, 0, at, 10 + at));
        // The removal gets another place than it had, so what was kept for it has another name.
        for op in [next, op] {
            let attempt = script.clients.ops[op].attempt;
            script.client_retries(op, attempt);
            script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        }
        script.finish();
    }
}

#[test]
fn what_was_to_be_taken_back_and_was_not_may_stay() {
    let mut script = two_and_two(4);
    fill(&mut script, 2);
    let op = prepared(&mut script, write_block(0, 0, 2), &[0, 1, 2], &[3]);
    script.kill(0);
    script.members[2].refuses_until = u64::MAX;
    crash(&mut script, op, &[3]);
    script.run_while("not refused", |world| world.statistics.refused == 0);
    // Those who lack it are gone, and the two that are left have it.
    [1, 3].into_iter().for_each(|at| script.kill(at));
    script.restart(0);
    script.run_while("nobody serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
    script.members[2].refuses_until = 0;
    assert!(script.shows(op, 2));
    let refused = script.statistics.refused;
    written(&mut script, 0, 1, 5);
    assert_eq!(script.statistics.refused, refused, "the write has the place behind those that stay");
    holds(&mut script, 0, 0, 2);
    script.finish();
}

#[test]
fn nobody_serves_before_what_it_took_back_is_gone() {
    let mut script = two_and_two(4);
    fill(&mut script, 2);
    let op = prepared(&mut script, write_block(0, 0, 2), &[1], &[2, 3]);
    script.kill(0);
    crash(&mut script, op, &[2, 3]);
    script.run_while("not taken back", |world| world.shows(op, 1));
    assert!(!script.members[1].store.pending.is_empty(), "that is not durable yet");
    // The simulator looks whether something is being taken back when a group becomes active.
    script.tick_pgs(1);
    script.run_while("nobody serves", |world| world.state_of(world.primary()) != Some(PgState::Active));
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

#[test]
fn any_m_shards_may_be_gone() {
    for lost in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
        let mut script = two_and_two(4);
        fill(&mut script, 6);
        written(&mut script, 0, 2, 7);
        serves_without(&mut script, &lost);
        holds(&mut script, 0, 0, 10);
        holds(&mut script, 0, 2, 7);
        holds(&mut script, 0, 5, 15);
        // A partial overwrite with so many missing.
        written(&mut script, 0, 0, 20);
        holds(&mut script, 0, 0, 20);
        holds(&mut script, 0, 1, 11);
        // They come back, are filled, and the others go.
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
    assert_eq!(script.answer_of(read), None, "nobody can answer");
    script.restart(2);
    script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
    assert_eq!(data_of(script.answer_of(read)), Some(&block(1)[..]));
    script.finish();
}

#[test]
fn a_stale_shard_that_returns_is_filled_before_it_counts() {
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
    fill(&mut script, 6);
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
    fill(&mut script, 6);
    // OSD 1 is away while its shard is rebuilt elsewhere, and comes back in the place of another.
    script.kill(1);
    script.plan(&[0, 4, 2, 3]);
    is_whole(&mut script);
    script.kill(3);
    script.restart(1);
    script.plan(&[0, 4, 2, 1]);
    is_whole(&mut script);
    let record = script.cluster.record.clone();
    assert_eq!(record.shard_of(atoll_base::OsdId(2)), Some(3), "it had shard 1");
    serves_without(&mut script, &[0, 2]);
    (0..6).for_each(|at| holds(&mut script, 0, at, 10 + at));
    script.finish();
}

#[test]
fn a_damaged_shard_is_rebuilt_when_it_is_read() {
    for (holder, at) in [(0, 0), (1, 1)] {
        let mut script = two_and_two(4);
        fill(&mut script, 2);
        script.members[holder].store.bad.insert((object(0), 0));
        script.damaged.insert(object(0));
        holds(&mut script, 0, at, 10 + at);
        script.run_while("not repaired", |world| !world.members[holder].store.bad.is_empty());
        assert!(script.statistics.copy_reads > 0);
        script.finish();
    }
}

#[test]
fn shards_of_another_length_give_no_data_and_are_repaired() {
    for change in [BLOCK_BYTES as i64, -(BLOCK_BYTES as i64)] {
        let mut script = two_and_two(4);
        fill(&mut script, 2);
        script.damaged.insert(object(0));
        let store = &mut script.members[1].store;
        for groups in [&mut store.visible, &mut store.durable] {
            let shard = groups.of_mut(PG).objects.get_mut(&object(0)).unwrap();
            shard.size = shard.size.checked_add_signed(change).unwrap();
        }
        let wrong = script.members[1].store.visible.of(PG).objects[&object(0)].size;
        holds(&mut script, 0, 1, 11);
        script.run_while("not repaired", |world| {
            world.members[1].store.visible.of(PG).objects.get(&object(0)).is_none_or(|shard| shard.size == wrong)
        });
        script.run_for(100 * MS);
        script.finish();
    }
}
