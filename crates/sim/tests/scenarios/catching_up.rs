//! Members that catch up while their PG peers, and losses or stops meanwhile.

use atoll_pg::{PgState, STAGED_KEY};
use atoll_sim::{Options, PG, Script, World, remove, write_block};
use atoll_types::ObjectName;
use atoll_types::operation::PG_META_OBJECT;

use crate::{SECOND, holds, with_leases, written};

/// Processes die at this point and after each of these numbers of steps.
const STEPS: usize = 120;

/// An active PG of two copies, after the loss of the third.
pub(crate) fn two_copies() -> (Script, usize) {
    let mut script = with_leases(Options { min_size: 1, ..Options::scripted(3) });
    script.kill(2);
    script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
    (script, 1)
}

/// An active PG of three copies.
fn three_copies() -> (Script, usize) {
    (with_leases(Options { min_size: 1, ..Options::scripted(3) }), 2)
}

/// An active PG of two data shards and two of parity.
fn four_shards() -> (Script, usize) {
    (with_leases(Options { min_size: 2, ..Options::scripted_coded(4, 2, 2) }), 3)
}

/// An active PG of two data shards and one of parity.
fn three_shards() -> (Script, usize) {
    (with_leases(Options { min_size: 2, ..Options::scripted_coded(3, 2, 1) }), 2)
}

/// Returns true if objects are staged in a copy, durably, and all of them.
pub(crate) fn staged(world: &World, at: usize) -> (bool, bool) {
    let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
    let state = world.members[at].store.durable.of(PG);
    let is_there = state.omap_value(&own, STAGED_KEY).is_some();
    let log = state.log.iter();
    (is_there, is_there && log.filter(|entry| entry.object != own).count() > 3)
}

pub(crate) fn is_active(world: &World, at: usize) -> bool {
    world.state_of(at) == Some(PgState::Active)
}

/// A PG whose last member lacks writes that the others have, and all of whose members have just started.
fn started((mut script, last): (Script, usize)) -> (Script, usize) {
    (0..3).for_each(|object| _ = written(&mut script, object, 10 + object));
    script.members[last].last_commit = u64::MAX / 2;
    let ops = [write_block(0, 0, 20), write_block(1, 1, 21), write_block(5, 0, 25), remove(2)];
    let ops = ops.map(|write| script.start(0, write));
    script.run_while("not prepared", |world| ops.iter().any(|op| (0..last).any(|at| !world.was_durable(*op, at))));
    (0..=last).for_each(|at| script.kill(at));
    script.members[last].last_commit = 0;
    assert!(ops.iter().all(|op| !script.was_durable(*op, last) && script.answer_of(*op).is_none()));
    (0..=last).for_each(|at| script.restart(at));
    (script, last)
}

/// The same, while the last member gets its missing objects: it is staged.
fn catching_up(pg: (Script, usize)) -> (Script, usize) {
    let (mut script, last) = started(pg);
    let gets_objects = |world: &World| staged(world, last).0 || world.members[last].store.is_incomplete(PG);
    script.run_while("it does not catch up", |world| !gets_objects(world));
    (script, last)
}

/// Returns true if the PG became active before `count` steps were over.
fn steps(script: &mut Script, count: usize, last: usize) -> bool {
    for _ in 0..count {
        script.next_step();
        if (0..=last).any(|at| is_active(script, at)) {
            return true;
        }
    }
    false
}

/// Checks that earlier acknowledged writes are there, and the others serve.
fn serves_without_primary(script: &mut Script, lost: usize) {
    let serves = |world: &World, at: usize| world.members[at].is_up && is_active(world, at);
    script.run_while("not without the primary", |world| !(0..world.members.len()).any(|at| serves(world, at)));
    assert!(!script.members[lost].is_up);
    // The writes of before were never answered: clients try them again.
    script.run_while("a write is not answered", |world| world.clients.ops.iter().any(|op| op.answered.is_none()));
    holds(script, 0, 20);
    written(script, 1, 31);
    holds(script, 1, 31);
    holds(script, 5, 25);
}

#[test]
fn a_primary_that_is_lost_while_a_member_catches_up_takes_nothing_with_it() {
    for pg in [two_copies, three_shards] {
        let mut interrupted = 0;
        for count in 0..STEPS {
            let (mut script, last) = catching_up(pg());
            let primary = script.primary();
            assert_ne!(primary, last, "it has the oldest history");
            if steps(&mut script, count, last) {
                break;
            }
            interrupted += 1;
            script.kill(primary);
            serves_without_primary(&mut script, primary);
            script.run_for(SECOND);
            script.finish();
        }
        assert!((20..STEPS).contains(&interrupted), "{interrupted} steps were interrupted");
    }
}

#[test]
fn a_primary_that_is_lost_at_any_step_of_peering_takes_nothing_with_it() {
    for pg in [two_copies, three_copies, three_shards, four_shards] {
        let mut interrupted = 0;
        loop {
            let (mut script, last) = started(pg());
            if steps(&mut script, interrupted, last) {
                break;
            }
            interrupted += 1;
            let primary = script.primary();
            script.kill(primary);
            serves_without_primary(&mut script, primary);
            script.finish();
        }
        assert!(interrupted > 40, "{interrupted} steps were interrupted");
    }
}

#[test]
fn a_member_that_stops_while_staged_objects_move_finishes_its_copy() {
    for pg in [two_copies, three_shards] {
        let (mut before, mut after) = (0, 0);
        for count in 0..STEPS {
            let (mut script, last) = catching_up(pg());
            let primary = script.primary();
            if steps(&mut script, count, last) {
                break;
            }
            let (is_there, are_all) = staged(&script, last);
            before += usize::from(is_there && !are_all);
            after += usize::from(are_all);
            script.kill(primary);
            script.kill(last);
            script.restart(last);
            serves_without_primary(&mut script, primary);
            script.finish();
        }
        assert!(before > 5 && after > 2, "{before} times not all was there, and {after} times it moved");
    }
}

#[test]
fn a_copy_whose_staged_objects_cannot_move_does_not_serve() {
    let (mut script, last) = catching_up(two_copies());
    let primary = script.primary();
    script.run_while("not all are there", |world| !staged(world, last).1);
    script.kill(primary);
    script.kill(last);
    script.members[last].refuses_until = script.now + 8 * SECOND;
    script.restart(last);
    script.run_for(6 * SECOND);
    assert!(script.statistics.refused > 0 && !is_active(&script, last));
    serves_without_primary(&mut script, primary);
    script.finish();
}

#[test]
fn a_member_whose_staged_objects_never_move_is_left_out() {
    let (mut script, last) = catching_up(two_copies());
    script.run_while("not all are there", |world| !staged(world, last).1);
    script.kill(last);
    script.members[last].refuses_until = u64::MAX;
    script.restart(last);
    script.run_for(10 * SECOND);
    assert!(script.statistics.refused > 0);
    assert!(script.clients.ops.iter().all(|op| op.answered.is_some()), "the PG continues without it");
    written(&mut script, 3, 13);
    script.members[last].refuses_until = 0;
    script.finish();
}
