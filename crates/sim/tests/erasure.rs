//! Scenarios of erasure-coded PGs. Every scenario asserts that its situation really occurred; at
//! the end the answers that clients saw are checked against one history. OSD n holds shard n at
//! first; `ATOLL_SIM_TRACE` prints what happens.

#![allow(clippy::unwrap_used)] // a test through and through

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{PgState, is_hidden};
use atoll_sim::{
    Answer, Kind, Options, PG, Pgs, SPLIT_PG, Script, World, block, data_of, half_of, read_block, remove,
    write_block,
};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Epoch, ObjectName, OsdId};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// An active PG of two data and two parity shards, which serves with as few shards as possible.
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
fn write_blocks(script: &mut Script, blocks: u64) {
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

/// Kills an OSD and puts an older copy of its device back.
fn put_back(script: &mut Script, at: usize, older: &Pgs) {
    script.kill(at);
    let store = &mut script.members[at].store;
    (store.durable, store.visible) = (older.clone(), older.clone());
}

/// The device of an OSD as it is now.
fn device(script: &Script, at: usize) -> Pgs {
    script.members[at].store.durable.clone()
}

#[test]
fn a_device_that_forgets_its_newest_write_undoes_nothing() {
    for forgetful in 0..3 {
        let mut script = Script::new(Options::scripted_coded(3, 2, 1));
        script.run_for(SECOND);
        write_blocks(&mut script, 2);
        let before = device(&script, forgetful);
        written(&mut script, 0, 0, 2);
        (0..3).for_each(|at| script.kill(at));
        put_back(&mut script, forgetful, &before);
        (0..3).for_each(|at| script.restart(at));
        holds(&mut script, 0, 0, 2);
        holds(&mut script, 0, 1, 11);
        is_whole(&mut script);
        script.finish();
    }
}

#[test]
fn a_member_that_comes_back_without_its_newest_write_is_backfilled() {
    let mut script = Script::new(Options::scripted_coded(3, 2, 1));
    script.run_for(SECOND);
    write_blocks(&mut script, 2);
    let before = device(&script, 2);
    written(&mut script, 0, 0, 2);
    put_back(&mut script, 2, &before);
    script.run_for(SECOND);
    script.restart(2);
    is_whole(&mut script);
    holds(&mut script, 0, 0, 2);
    script.finish();
}

#[test]
fn an_older_copy_of_a_device_loses_nothing() {
    for forgetful in 0..3 {
        // More is written than the log holds, and less.
        for writes in [5, 80] {
            let options = Options { ring_entries: 64, ..Options::scripted_coded(3, 2, 1) };
            let mut script = Script::new(options);
            script.run_for(SECOND);
            write_blocks(&mut script, 2);
            let before = device(&script, forgetful);
            for value in 0..writes {
                written(&mut script, value % 3, 0, 100 + value);
            }
            (0..3).for_each(|at| script.kill(at));
            put_back(&mut script, forgetful, &before);
            (0..3).for_each(|at| script.restart(at));
            is_whole(&mut script);
            (writes - 3..writes).for_each(|value| holds(&mut script, value % 3, 0, 100 + value));
            script.finish();
        }
    }
}

#[test]
fn more_forgetful_devices_than_parity_undo_nothing_that_is_known_to_be_committed() {
    let mut script = Script::new(Options::scripted_coded(3, 2, 1));
    script.run_for(SECOND);
    write_blocks(&mut script, 2);
    let before = [device(&script, 1), device(&script, 2)];
    written(&mut script, 0, 0, 2);
    written(&mut script, 0, 1, 3);
    (0..3).for_each(|at| script.kill(at));
    put_back(&mut script, 1, &before[0]);
    put_back(&mut script, 2, &before[1]);
    (0..3).for_each(|at| script.restart(at));
    // One shard is left of the newest writes. The PG waits, rather than to show what was before them.
    let read = script.start(1, read_block(0, 0));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None);
    assert_eq!(script.members[0].store.visible.of(PG).head.sequence, 4, "nothing is rolled back");
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

#[test]
fn a_damaged_shard_is_rebuilt_when_it_is_read() {
    for (holder, at) in [(0, 0), (1, 1)] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 2);
        script.members[holder].store.bad.insert((object(0), 0));
        script.damaged.insert(object(0));
        holds(&mut script, 0, at, 10 + at);
        script.run_while("not repaired", |world| !world.members[holder].store.bad.is_empty());
        assert!(script.statistics.copy_reads > 0);
        script.finish();
    }
}

#[test]
fn members_read_what_small_overwrites_replace() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    // The primary has one data shard and asks for the block of the other. Nobody asks for parity.
    for (at, asks, by_members) in [(0, 0, 2), (1, 1, 3)] {
        let before = script.statistics.clone();
        written(&mut script, 0, at, 20 + at);
        assert_eq!(script.statistics.copy_reads - before.copy_reads, asks);
        assert_eq!(script.statistics.overwrites - before.overwrites, by_members);
    }
    serves_without(&mut script, &[0, 1]);
    (0..2).for_each(|at| holds(&mut script, 0, at, 20 + at));
    script.finish();
}

#[test]
fn what_comes_behind_an_overwrite_keeps_its_place() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    // The second is whole and could be submitted while parity is still being read for the first.
    let ops =
        [write_block(0, 0, 20), write_block(1, 0, 30), write_block(0, 1, 21)].map(|write| script.start(0, write));
    for op in ops {
        script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    }
    assert_eq!(script.statistics.refused, 0);
    [(0, 0, 20), (0, 1, 21), (1, 0, 30)]
        .into_iter()
        .for_each(|(number, at, value)| holds(&mut script, number, at, value));
    script.finish();
}

#[test]
fn a_parity_block_that_cannot_be_read_for_an_overwrite_is_computed() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let epoch = script.cluster.record.epoch;
    script.members[2].store.bad.insert((object(0), 0));
    script.damaged.insert(object(0));
    written(&mut script, 0, 0, 20);
    assert!(script.cluster.record.epoch > epoch && script.statistics.unreadable_overwrites == 1);
    script.run_while("not repaired", |world| !world.members[2].store.bad.is_empty());
    serves_without(&mut script, &[0, 1]);
    (0..2).for_each(|at| holds(&mut script, 0, at, [20, 11][at as usize]));
    script.finish();
}

#[test]
fn shards_of_another_length_give_no_data_and_are_repaired() {
    for change in [BLOCK_BYTES as i64, -(BLOCK_BYTES as i64)] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 2);
        script.damaged.insert(object(0));
        let store = &mut script.members[1].store;
        for pgs in [&mut store.visible, &mut store.durable] {
            let shard = pgs.of_mut(PG).objects.get_mut(&object(0)).unwrap();
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

#[test]
fn an_elector_that_was_backfilled_with_another_shard_joins_with_that_one() {
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
    script.plan(&[0, 1, 4, 2]);
    script.run_while("the backfill of the spare has not begun", |world| {
        !world.members[0].pgs[&PG].learners().any(|learner| matches!(learner, (OsdId(5), Some(_))))
    });
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
    let mut script = Script::new(Options { min_size: 3, ..Options::scripted_coded(5, 2, 2) });
    script.run_for(SECOND);
    write_blocks(&mut script, 4);
    serves_without(&mut script, &[3]);
    script.kill(2);
    script.wipe(2);
    script.run_while("three members", |world| world.cluster.record.members.len() > 2);
    // A spare gets the shard of the OSD that lost its device, and that OSD shard 3.
    script.members[2].slow_until = u64::MAX;
    script.restart(2);
    script.run_while("the elector counts", |world| world.epoch_at(0) < Some(Epoch(6)));
    script.plan(&[0, 1, 4, 2]);
    script.run_while("the backfill of the spare has not begun", |world| {
        !world.members[0].pgs[&PG].learners().any(|learner| matches!(learner, (OsdId(5), Some(_))))
    });
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

#[test]
fn a_repair_that_the_store_refuses_costs_no_shard() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let epoch = script.cluster.record.epoch;
    script.members[0].store.bad.insert((object(0), 0));
    script.damaged.insert(object(0));
    script.members[0].refuses_until = u64::MAX;
    holds(&mut script, 0, 0, 10);
    script.run_while("no repair is refused", |world| world.statistics.refused == 0);
    script.run_for(5 * SECOND);
    assert_eq!(
        (script.cluster.record.epoch, script.state_of(0)),
        (epoch, Some(PgState::Active)),
        "it still serves"
    );
    script.members[0].refuses_until = 0;
    holds(&mut script, 0, 0, 10);
    script.run_while("not repaired", |world| !world.members[0].store.bad.is_empty());
    script.finish();
}
