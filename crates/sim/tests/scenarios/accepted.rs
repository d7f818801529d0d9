//! A PG whose copies are all incomplete, and an operator who chooses the copies from which it resumes.

use atoll_pg::PgState;
use atoll_sim::{Options, PG, Pgs, Script, World, block, data_of, read_block, write_block};
use atoll_types::pg_copies::Incompleteness;
use atoll_types::{ObjectName, OsdId, Version};

use crate::{SECOND, holds, three_osds, with_leases, written};

/// The device of an OSD as it is now.
fn device(script: &Script, at: usize) -> Pgs {
    script.members[at].store.durable.clone()
}

/// Puts an older copy of the device of an OSD back, whose process is gone.
fn put_back(script: &mut Script, at: usize, older: &Pgs) {
    let store = &mut script.members[at].store;
    (store.durable, store.visible) = (older.clone(), older.clone());
    script.mark(at, Incompleteness::OldDevice);
}

/// A PG on three OSDs, which have each got an older copy of their device back. A write was after that.
fn all_put_back(options: Options, losing: &[usize]) -> Script {
    let mut script = with_leases(options);
    written(&mut script, 0, 1);
    // By then all know that it is committed, which is in the log with the next one.
    written(&mut script, 1, 2);
    let older: Vec<Pgs> = (0..3).map(|at| device(&script, at)).collect();
    written(&mut script, 0, 9);
    (0..3).for_each(|at| script.kill(at));
    losing.iter().for_each(|at| put_back(&mut script, *at, &older[*at]));
    script
}

fn stands_still(script: &mut Script) -> usize {
    let read = script.start(1, read_block(0, 0));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None, "nobody serves");
    assert!((0..3).all(|at| script.state_of(at) != Some(PgState::Active)));
    read
}

fn is_whole(script: &mut Script) {
    script.run_while("not whole", |world| {
        !world.cluster.is_clean() || world.state_of(world.primary()) != Some(PgState::Active)
    });
}

fn incomplete(script: &World, at: usize) -> Option<Incompleteness> {
    script.copy_told(PG, at).and_then(|copy| copy.incomplete)
}

/// All copies but the PG's own objects are the same.
fn are_the_same(script: &Script) {
    let objects = |at: usize| {
        let all = script.members[at].store.durable.of(PG).objects.clone();
        all.into_iter().filter(|(name, _)| !name.as_str().starts_with('@')).collect::<Vec<_>>()
    };
    for at in [1, 2] {
        let what = |at: usize| {
            let versions = objects(at).into_iter().map(|(name, object)| (name, object.version, object.size));
            versions.collect::<Vec<_>>()
        };
        assert_eq!(what(0), what(at), "objects of 0 and {at}");
        assert!(objects(0) == objects(at), "data of 0 and {at}");
    }
}

fn answered_with(script: &mut Script, read: usize, value: u64) {
    script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
    assert_eq!(data_of(script.answer_of(read)), Some(&block(value)[..]));
}

#[test]
fn an_accepted_copy_serves_what_it_has() {
    for options in [Options::scripted(3), Options::scripted_coded(3, 2, 1)] {
        for accepted in [&[0, 1, 2][..], &[2, 1], &[1, 0]] {
            let is_coded = options.shape.is_some();
            let accepted = if is_coded { accepted } else { &accepted[..1] };
            let mut script = all_put_back(options.clone(), &[0, 1, 2]);
            (0..3).for_each(|at| script.restart(at));
            let read = stands_still(&mut script);
            assert!((0..3).all(|at| incomplete(&script, at) == Some(Incompleteness::OldDevice)));
            let told = script.copy_told(PG, script.primary()).unwrap();
            assert!(!told.waits_for.is_empty(), "the primary says what it waits for");
            script.accept(PG, accepted);
            answered_with(&mut script, read, 1);
            is_whole(&mut script);
            assert_eq!(script.cluster.record.accepted, None, "the decision is done");
            holds(&mut script, 1, 2);
            written(&mut script, 2, 5);
            (0..3).for_each(|at| script.kill(at));
            (0..3).for_each(|at| script.restart(at));
            is_whole(&mut script);
            [(0, 1), (1, 2), (2, 5)].iter().for_each(|(object, value)| holds(&mut script, *object, *value));
            if !is_coded {
                are_the_same(&script);
            }
        }
    }
}

#[test]
fn a_good_copy_that_comes_back_later_becomes_what_was_accepted() {
    for options in [Options::scripted(3), Options::scripted_coded(3, 2, 1)] {
        let is_coded = options.shape.is_some();
        let mut script = all_put_back(options, &[0, 1]);
        // The good device seems lost for good.
        script.restart(0);
        script.restart(1);
        let read = stands_still(&mut script);
        script.accept(PG, if is_coded { &[0, 1] } else { &[1] });
        if is_coded {
            // Three shards have to be there.
            script.run_for(SECOND);
        } else {
            answered_with(&mut script, read, 1);
            written(&mut script, 1, 7);
        }
        script.restart(2);
        is_whole(&mut script);
        answered_with(&mut script, read, 1);
        holds(&mut script, 0, 1);
        holds(&mut script, 1, if is_coded { 2 } else { 7 });
        if !is_coded {
            are_the_same(&script);
        }
    }
}

/// A copy that was not accepted, of an OSD that ran all the time, is overwritten with the accepted one. Its
/// process' knowledge of its own history proves nothing about the new one: a write that only this copy has a part
/// of is no committed one.
#[test]
fn what_was_committed_before_a_decision_does_not_count_after_it() {
    for options in [Options::scripted(3), Options { min_size: 2, ..Options::scripted_coded(3, 2, 1) }] {
        let is_coded = options.shape.is_some();
        let mut script = with_leases(options);
        written(&mut script, 0, 1);
        written(&mut script, 1, 2);
        let older: Vec<Pgs> = (0..2).map(|at| device(&script, at)).collect();
        (9..14).for_each(|value| _ = written(&mut script, 0, value));
        script.cut_off(2, 20 * SECOND);
        (0..2).for_each(|at| script.kill(at));
        (0..2).for_each(|at| put_back(&mut script, at, &older[at]));
        (0..2).for_each(|at| script.restart(at));
        script.run_for(5 * SECOND);
        script.accept(PG, if is_coded { &[0, 1] } else { &[0] });
        is_whole(&mut script);
        holds(&mut script, 0, 1);
        // A write that the primary and this copy have.
        assert_eq!(script.primary(), 0);
        script.members[1].last_commit = u64::MAX / 2;
        let op = script.start(0, write_block(0, 0, 20));
        script.run_while("not prepared", |world| !world.was_durable(op, 2));
        (0..2).for_each(|at| script.kill(at));
        script.members[1].last_commit = 0;
        script.restart(1);
        script.run_while("the write is not answered", |world| {
            assert!(!world.members[1].store.is_incomplete(PG), "it has all that was acknowledged");
            world.answer_of(op).is_none()
        });
        script.restart(0);
        is_whole(&mut script);
        holds(&mut script, 0, 20);
    }
}

#[test]
fn marks_that_are_wrong_lose_nothing() {
    for options in [Options::scripted(3), Options::scripted_coded(3, 2, 1)] {
        for why in [Incompleteness::OldDevice, Incompleteness::LacksCommitted] {
            let mut script = all_put_back(options.clone(), &[]);
            (0..3).for_each(|at| script.mark(at, why));
            (0..3).for_each(|at| script.restart(at));
            let read = stands_still(&mut script);
            assert!((0..3).all(|at| incomplete(&script, at) == Some(why)));
            script.accept(PG, if options.shape.is_some() { &[0, 2] } else { &[2] });
            answered_with(&mut script, read, 9);
            written(&mut script, 1, 3);
            script.finish();
        }
    }
}

/// A copy whose backfill has not ended: its history says more than its objects.
#[test]
fn the_history_of_a_torn_copy_begins_anew() {
    let mut script = all_put_back(Options::scripted(3), &[]);
    let lost = ObjectName::new("object1").unwrap();
    let store = &mut script.members[1].store;
    for pgs in [&mut store.durable, &mut store.visible] {
        pgs.of_mut(PG).objects.remove(&lost).unwrap();
    }
    script.mark(1, Incompleteness::Torn);
    script.restart(1);
    let read = stands_still(&mut script);
    let head = script.copy_told(PG, 1).unwrap().head;
    script.accept(PG, &[1]);
    // The others have the object, and a history in which it was written. They are not asked.
    script.restart(0);
    script.restart(2);
    is_whole(&mut script);
    answered_with(&mut script, read, 9);
    are_the_same(&script);
    assert!((0..3).all(|at| !script.members[at].store.durable.of(PG).objects.contains_key(&lost)));
    let told = script.copy_told(PG, 1).unwrap();
    assert!(told.head > head && told.incomplete.is_none());
    written(&mut script, 1, 4);
    script.kill(1);
    holds(&mut script, 1, 4);
}

#[test]
fn a_torn_shard_is_not_accepted() {
    let mut script = all_put_back(Options::scripted_coded(3, 2, 1), &[0, 1, 2]);
    script.mark(1, Incompleteness::Torn);
    (0..3).for_each(|at| script.restart(at));
    let read = stands_still(&mut script);
    script.accept(PG, &[0, 1]);
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None, "one shard gives nothing");
    assert_eq!(incomplete(&script, 1), Some(Incompleteness::Torn));
    script.accept(PG, &[0, 2]);
    answered_with(&mut script, read, 1);
    is_whole(&mut script);
}

/// One of the remaining shards has a write that the other lacks, which was on its way when all stopped.
#[test]
fn accepted_shards_go_back_to_the_newest_write_that_enough_have() {
    let options = Options { min_size: 2, ..Options::scripted_coded(3, 2, 1) };
    let mut script = with_leases(options);
    written(&mut script, 0, 1);
    script.run_for(3 * SECOND);
    [1, 2].iter().for_each(|other| script.cut_one_way(0, *other, SECOND));
    let op = script.start(0, write_block(1, 0, 2));
    script.run_while("not prepared", |world| !world.was_durable(op, 0));
    assert!(!script.was_durable(op, 1), "only the primary has it");
    (0..3).for_each(|at| script.kill(at));
    (0..2).for_each(|at| script.mark(at, Incompleteness::OldDevice));
    (0..2).for_each(|at| script.restart(at));
    let read = stands_still(&mut script);
    let told = [0, 1].map(|at| script.copy_told(PG, at).expect("it runs"));
    assert!(told[0].head > told[1].head, "they are of different times");
    assert!(told[0].rolls_back_to <= told[1].head.sequence, "it says that it can go back");
    script.accept(PG, &[0, 1]);
    answered_with(&mut script, read, 1);
    written(&mut script, 2, 3);
    script.restart(2);
    script.finish();
}

#[test]
fn a_copy_that_is_another_than_was_decided_on_is_not_accepted() {
    let mut script = all_put_back(Options::scripted(3), &[0, 1, 2]);
    (0..3).for_each(|at| script.restart(at));
    let read = stands_still(&mut script);
    // The device is replaced between the look at it and the decision's arrival.
    script.kill(2);
    let told = device(&script, 2);
    script.restart(2);
    script.run_for(SECOND);
    script.accept(PG, &[2]);
    script.kill(2);
    script.wipe(2);
    script.restart(2);
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None, "an empty device is not what was accepted");
    assert_eq!(incomplete(&script, 2), Some(Incompleteness::LacksPromise));
    assert_ne!(told.of(PG).head, Version::default());
    script.accept(PG, &[0]);
    answered_with(&mut script, read, 1);
    is_whole(&mut script);
    are_the_same(&script);
}

/// An OSD that hears of the decision when the PG has resumed without it does not follow it.
#[test]
fn a_late_decision_changes_nothing() {
    let options = Options { min_size: 2, ..Options::scripted_coded(3, 2, 1) };
    let mut script = all_put_back(options, &[0, 1, 2]);
    (0..3).for_each(|at| script.restart(at));
    let read = stands_still(&mut script);
    script.accept(PG, &[0, 1, 2]);
    // It hears of nothing, not of a query either.
    script.kill(2);
    answered_with(&mut script, read, 1);
    written(&mut script, 0, 6);
    assert!(!script.cluster.record.members.contains(&OsdId(3)));
    script.restart(2);
    script.run_while("it has no copy", |world| world.copy_told(PG, 2).is_none());
    assert_eq!(incomplete(&script, 2), Some(Incompleteness::OldDevice), "it is backfilled before it counts");
    is_whole(&mut script);
    assert_eq!(incomplete(&script, 2), None);
    script.kill(0);
    holds(&mut script, 0, 6);
    holds(&mut script, 1, 2);
}

#[test]
fn a_pg_that_serves_forgets_that_it_was_decided_on() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // Nothing was wrong, and still nothing is lost: the copy had everything.
    script.accept(PG, &[1]);
    script.run_while("not decided", |world| world.cluster.record.accepted.is_some());
    written(&mut script, 1, 2);
    holds(&mut script, 0, 1);
    script.start(0, write_block(2, 0, 3));
    script.finish();
}
