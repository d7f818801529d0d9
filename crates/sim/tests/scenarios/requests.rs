//! Requests of clients: retries, refusals, writes in flight.

use atoll_pg::{PgState, Reached};
use atoll_sim::{Answer, PG, Script, clone_of, create, read_block, remove, write_block, write_key_if};
use atoll_types::Refusal;
use atoll_types::limits::PG_IN_FLIGHT_MAX;
use atoll_types::operation::PG_META_OBJECT;

use crate::{MS, SECOND, holds, three_osds, written};

#[test]
fn a_lost_answer_and_a_retry_are_one_write() {
    let mut script = three_osds();
    let first = script.start(0, write_block(0, 0, 1));
    script.run_while("not durable everywhere", |world| (0..3).any(|at| !world.was_durable(first, at)));
    assert_eq!(script.answer_of(first), None, "the answer is still to come");
    // The answer is lost with the connection, and another client writes before the retry arrives.
    let second = script.start(1, write_block(0, 0, 2));
    script.run_while("the other write is not ordered", |world| !world.shows(second, world.primary()));
    script.break_client(0);
    script.run_while("the retry is not answered", |world| world.answer_of(first).is_none());
    assert!(script.clients.ops[first].attempt > 0, "it was sent again");
    assert_eq!(script.answer_of(first), Some(&Answer::Written(Ok(()))));
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn a_retry_is_recognised_by_the_next_primary() {
    let mut script = three_osds();
    let first = script.start(0, write_block(0, 0, 1));
    script.run_while("not durable everywhere", |world| (0..3).any(|at| !world.was_durable(first, at)));
    assert_eq!(script.answer_of(first), None, "the answer is still to come");
    script.kill(0);
    script.run_while("the retry is not answered", |world| world.answer_of(first).is_none());
    assert_ne!(script.primary(), 0, "another one leads");
    assert!(script.clients.ops[first].attempt > 0, "it was sent again");
    let head = script.members[1].store.visible.of(PG).head;
    assert_eq!(head.sequence, 1, "it was done once");
    holds(&mut script, 0, 1);
    script.finish();
}

#[test]
fn a_primary_dies_between_prepare_and_commit() {
    for prepared_at in [1, 2] {
        let mut script = three_osds();
        written(&mut script, 0, 1);
        // One member prepares it, the other does not hear of it.
        let other = 3 - prepared_at;
        script.cut_one_way(0, other, 10 * SECOND);
        let op = script.start(0, write_block(0, 0, 2));
        script.run_while("not prepared", |world| !world.was_durable(op, prepared_at));
        script.kill(0);
        assert_eq!(script.answer_of(op), None);
        assert!(!script.shows(op, other), "the other member lacks it");
        script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
        assert_ne!(script.primary(), 0);
        for at in [1, 2] {
            assert!(script.shows(op, at), "what one member prepared is rolled forward on osd {at}");
        }
        script.run_while("the retry is not answered", |world| world.answer_of(op).is_none());
        holds(&mut script, 0, 2);
        script.finish();
    }
}

#[test]
fn a_corrupt_prepare_is_not_a_missing_one() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_while("not durable everywhere", |world| (0..3).any(|at| !world.was_durable(op, at)));
    // The OSD that will lead cannot read what it prepared.
    let name =
        script.members[1].store.visible.of(PG).log.back().map(|entry| entry.object.clone()).expect("just written");
    script.members[1].store.bad.insert((name, 0));
    script.kill(0);
    script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
    assert_eq!(script.primary(), 1, "the one with the damage leads");
    assert!(script.shows(op, 1) && script.shows(op, 2), "the write counts as prepared");
    holds(&mut script, 0, 2);
    assert!(script.statistics.copy_reads > 0, "it came from the other copy");
    assert!(script.members[1].store.bad.is_empty(), "and the damage is repaired");
    script.finish();
}

#[test]
fn a_clone_is_not_refused_before_its_source_is_gone_for_good() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // The removal shows at the primary, and may still be rolled back.
    script.members[2].last_commit = u64::MAX / 2;
    let removal = script.start(0, remove(0));
    script.run_while("not ordered", |world| !world.shows(removal, 0));
    let clone = script.start(1, clone_of(1, 0));
    script.run_for(100 * MS);
    assert_eq!((script.answer_of(removal), script.answer_of(clone)), (None, None));
    script.kill(2);
    script.members[2].last_commit = 0;
    script.restart(2);
    script.run_while("not refused", |world| world.answer_of(clone).is_none());
    assert!(matches!(script.answer_of(clone), Some(Answer::Written(Err(Refusal::Invalid { .. })))));
    assert_eq!(script.answer_of(removal), Some(&Answer::Written(Ok(()))));
    script.finish();
}

#[test]
fn a_write_that_needs_another_object_is_never_there_without_it() {
    for cut_off in [1, 2] {
        let mut script = three_osds();
        script.cut_one_way(0, cut_off, 10 * SECOND);
        let data = script.start(0, write_block(0, 0, 1));
        script.run_while("not ordered", |world| !world.shows(data, 0));
        let entry = script.start(1, write_key_if(0, 1, "entry"));
        script.run_while("not ordered", |world| !world.shows(entry, 0));
        assert_eq!(script.answer_of(data), None, "it is ordered while the other write is in flight");
        script.kill(0);
        script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
        for at in [1, 2] {
            assert!(script.shows(data, at) || !script.shows(entry, at), "osd {at} has the one without the other");
        }
        script.run_while("not answered", |world| {
            world.answer_of(data).is_none() || world.answer_of(entry).is_none()
        });
        assert_eq!(script.answer_of(data), Some(&Answer::Written(Ok(()))));
        holds(&mut script, 0, 1);
        script.finish();
    }
}

#[test]
fn a_write_is_not_refused_for_an_object_before_that_is_gone_for_good() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // The removal shows at the primary, and may still be rolled back.
    script.members[2].last_commit = u64::MAX / 2;
    let removal = script.start(0, remove(0));
    script.run_while("not ordered", |world| !world.shows(removal, 0));
    let write = script.start(1, write_key_if(0, 1, "entry"));
    script.run_for(100 * MS);
    assert_eq!((script.answer_of(removal), script.answer_of(write)), (None, None));
    script.kill(2);
    script.members[2].last_commit = 0;
    script.restart(2);
    script.run_while("not refused", |world| world.answer_of(write).is_none());
    let refused = Answer::Written(Err(Refusal::ConditionFailed { index: 0 }));
    assert_eq!(script.answer_of(write), Some(&refused));
    script.finish();
}

#[test]
fn a_divergent_tail_is_rolled_back() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // Cut off, the primary orders a write that no other member gets.
    script.cut_off(0, 8 * SECOND);
    script.keep_from_state(0, 10 * SECOND);
    let op = script.start(0, write_block(1, 0, 2));
    script.run_while("not prepared", |world| !world.was_durable(op, 0));
    script.kill(0);
    script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
    assert!(!script.shows(op, 1) && !script.shows(op, 2), "no other member has it");
    // The client retries, and the retry is ordered after another write.
    let other = script.start(1, write_block(2, 0, 3));
    script.run_while("not answered", |world| world.answer_of(other).is_none() || world.answer_of(op).is_none());
    let entry_of = |script: &Script, at: usize| {
        let log = &script.members[at].store.visible.of(PG).log;
        log.iter().find(|entry| entry.request == Some(script.id_of(op))).map(|entry| entry.version)
    };
    let (old, new) = (entry_of(&script, 0), entry_of(&script, 1));
    assert!(old.is_some() && new.is_some() && old != new, "the histories part: {old:?} and {new:?}");
    let world = script.finish();
    assert!(world.statistics.rollbacks > 0, "the tail was cut off");
}

#[test]
fn a_refused_write_does_not_share_its_place() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.members[0].refuses_until = script.now + 30 * MS;
    let refused = script.start(0, write_block(0, 0, 2));
    script.run_while("not refused", |world| world.statistics.refused == 0);
    assert!(!script.shows(refused, 0), "the primary's store did not take it");
    script.members[0].refuses_until = 0;
    let next = script.start(1, write_block(1, 0, 3));
    let are_open = |world: &atoll_sim::World| [refused, next].iter().any(|op| world.answer_of(*op).is_none());
    script.run_while("not answered", are_open);
    holds(&mut script, 0, 2);
    holds(&mut script, 1, 3);
    script.finish();
}

#[test]
fn requests_wait_for_two_seconds_while_a_pg_cannot_serve() {
    let mut script = three_osds();
    script.kill(1);
    script.kill(2);
    script.run_while("still active", |world| world.state_of(0) == Some(PgState::Active));
    let inactive_at = script.now;
    let op = script.start(0, write_block(0, 0, 1));
    let id = script.id_of(op);
    script.run_while("not there", |world| !world.members[0].owed_writes.contains(&id));
    script.run_while("not refused", |world| world.members[0].owed_writes.contains(&id));
    let waited = script.now - inactive_at;
    assert!((1_900 * MS..2_300 * MS).contains(&waited), "refused after {} ms", waited / MS);
    script.finish();
}

#[test]
fn a_lower_min_size_lets_too_few_copies_serve() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.kill(1);
    script.kill(2);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_while("it does not wait", |world| world.state_of(0) != Some(PgState::Recovering));
    assert_eq!(script.answer_of(op), None, "min_size is two");
    script.policy.min_size = 1;
    script.plan(&[0, 1, 2]);
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    script.finish();
}

#[test]
fn a_primary_that_leads_again_unawares_disowns_its_writes_in_flight() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.keep_from_state(0, 50 * SECOND);
    script.cut_off(0, 5 * SECOND);
    let op = script.start(0, write_block(1, 0, 2));
    script.run_while("not prepared", |world| !world.was_durable(op, 0));
    // Its client is patient, so no other OSD hears of the write.
    script.clients.ops[op].attempt += 1;
    script.run_while("no member took over", |world| {
        world.state_of(world.primary()) != Some(PgState::Active) || world.primary() == 0
    });
    script.run_while("not backfilled", |world| world.cluster.record.members.len() < 3);
    assert!(script.statistics.rollbacks > 0, "what it had in flight was cut off");
    script.run_while("not given back", |world| world.primary() != 0);
    assert!(script.epoch_at(0) < script.epoch_at(1), "it has heard of nothing");
    script.run_until(script.members[0].state_blocked_until);
    script.run_while("not active", |world| world.state_of(0) != Some(PgState::Active));
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    holds(&mut script, 1, 2);
    script.finish();
}

#[test]
fn a_primary_that_leads_again_unawares_forgets_what_waited() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let epoch = script.cluster.record.epoch;
    script.keep_from_state(0, 50 * SECOND);
    script.cut_off(0, 5 * SECOND);
    script.run_while("no member took over", |world| {
        world.state_of(world.primary()) != Some(PgState::Active) || world.primary() == 0
    });
    let op = script.start(0, create(0));
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert!(matches!(script.answer_of(op), Some(Answer::Written(Err(Refusal::ConditionFailed { .. })))));
    let removal = script.start(1, remove(0));
    script.run_while("not removed", |world| world.answer_of(removal).is_none());
    script.run_while("not given back", |world| world.primary() != 0);
    assert!(script.epoch_at(0) < script.epoch_at(1), "it has heard of nothing");
    // A copy of the request was sent when it led before.
    script.run_until(script.members[0].state_blocked_until - 1);
    script.arrives_late(op, 0, epoch);
    script.miss_old_records(0);
    script.run_while("not active", |world| world.state_of(0) != Some(PgState::Active));
    script.run_for(SECOND);
    assert!(!script.shows(op, 0), "its client was told that it failed");
    script.finish();
}

#[test]
fn a_copy_of_a_refused_request_comes_when_its_osd_leads_again() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let epoch = script.cluster.record.epoch;
    script.plan(&[1, 0, 2]);
    script.run_while("it does not move", |world| world.state_of(1) != Some(PgState::Active));
    let op = script.start(0, create(0));
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert!(matches!(script.answer_of(op), Some(Answer::Written(Err(Refusal::ConditionFailed { .. })))));
    let removal = script.start(1, remove(0));
    script.run_while("not removed", |world| world.answer_of(removal).is_none());
    script.plan(&[0, 1, 2]);
    script.run_while("it does not move back", |world| world.state_of(0) != Some(PgState::Active));
    // An earlier copy of the request was on its way to the primary of that time.
    script.arrives_late(op, 0, epoch);
    script.run_for(SECOND);
    assert!(!script.shows(op, 0), "its client was told that it failed");
    script.finish();
}

#[test]
fn the_next_primary_hears_of_what_was_refused_under_the_one_before() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let epoch = script.cluster.record.epoch;
    script.run_past_tick(2);
    script.plan(&[1, 0, 2]);
    script.run_while("it does not move", |world| world.primary() == 0);
    // The primary has not heard of that and orders a write that one member refuses.
    let op = script.start(0, write_block(1, 0, 2));
    script.members[2].refuses_until = u64::MAX;
    script.arrives_late(op, 0, epoch);
    script.run_while("not refused", |world| world.statistics.refused == 0);
    script.members[2].refuses_until = 0;
    let refused_at = script.now;
    script.run_while("it does not lead", |world| world.state_of(1) != Some(PgState::Active));
    let next = script.start(1, write_block(0, 0, 3));
    script.run_while("not ordered", |world| !world.shows(next, 1));
    assert!(script.now < refused_at + 80 * MS, "the member has had no tick since it refused a write");
    script.run_while("not answered", |world| world.answer_of(next).is_none());
    script.finish();
}

fn names(reached: &[Reached]) -> Vec<&str> {
    reached.iter().map(|(name, _)| &name[..]).collect()
}

#[test]
fn a_slow_read_tells_where_its_time_goes() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    holds(&mut script, 0, 1);
    assert!(script.slow_reads.is_empty(), "what takes less than a millisecond is not told");
    let at = script.primary();
    script.members[at].store.loaded.retain(|(_, object)| object.as_str() == PG_META_OBJECT);
    script.store_pause = 50 * MS;
    let op = script.start(1, read_block(0, 0));
    script.run_for(10 * MS);
    let progress = script.progress(op).expect("it is not answered");
    assert_eq!((names(&progress.reached), &progress.waits_for[..]), (vec!["metadata asked for"], "its metadata"));
    script.run_while("not loaded", |world| world.progress(op).is_some_and(|of| of.waits_for == "its metadata"));
    let progress = script.progress(op).expect("it is not answered");
    assert_eq!(names(&progress.reached), ["metadata asked for", "metadata loaded", "device asked"]);
    assert_eq!(progress.waits_for, "the device");
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.progress(op), None, "it is answered");

    let [reached] = &script.slow_reads[..] else { panic!("one read was slow: {:?}", script.slow_reads) };
    assert_eq!(names(reached), ["metadata asked for", "metadata loaded", "device asked", "device answered"]);
    let times: Vec<u64> = reached.iter().map(|(_, reached_us)| *reached_us).collect();
    assert!(times[3] - times[0] >= 20_000, "what takes less is not told: {times:?}");
    script.store_pause = 0;
    script.finish();
}

#[test]
fn requests_in_flight_tell_what_they_wait_for() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.members[2].last_commit = u64::MAX / 2;
    let write = script.start(0, write_block(0, 0, 2));
    script.run_while("not ordered", |world| !world.shows(write, 0));
    let read = script.start(1, read_block(0, 0));
    script.run_for(100 * MS);
    let progress = script.progress(write).expect("it is not answered");
    assert_eq!((names(&progress.reached)[0], &progress.waits_for[..]), ("ordered", "osd.3 to have it durable"));
    let progress = script.progress(read).expect("it is not answered");
    assert_eq!(progress.waits_for, "an earlier write of its object, which osd.3 lack");
    // Two of three are away: the PG does not serve, and what waits says why.
    script.kill(1);
    script.kill(2);
    script.run_for(3 * SECOND);
    let later = script.start(1, read_block(1, 0));
    script.run_while("not there", |world| world.progress(later).is_none());
    let progress = script.progress(later).expect("it is not answered");
    assert!(progress.waits_for.starts_with("its PG to serve: "), "{}", progress.waits_for);
    script.members[2].last_commit = 0;
    script.restart(1);
    script.restart(2);
    script.run_while("not answered", |world| [write, read, later].iter().any(|op| world.answer_of(*op).is_none()));
    script.finish();
}

/// The store reads an object again whose blocks change meanwhile, and finds a write that is not committed.
#[test]
fn a_read_that_finds_a_later_write_waits_for_it() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.run_for(SECOND);
    script.store_pause = 500 * MS;
    let read = script.start(1, read_block(0, 0));
    script.run_while("no store reads", |world| !world.is_reading());
    script.members[2].last_commit = u64::MAX / 2;
    let write = script.start(0, write_block(0, 0, 2));
    script.run_while("not ordered", |world| !world.shows(write, 0));
    assert!(script.is_reading(), "the read is still under way");
    script.look_again(0, 0);
    script.store_pause = 0;
    script.run_for(2 * SECOND);
    assert_eq!(
        (script.answer_of(write), script.answer_of(read)),
        (None, None),
        "what is not committed is not shown"
    );
    script.kill(2);
    script.members[2].last_commit = 0;
    script.restart(2);
    script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
    script.finish();
}

#[test]
fn a_pg_takes_no_more_requests_than_it_may_have_and_forgets_none() {
    const WAITING_MAX: usize = 4_096;
    const MORE: usize = 64;
    let mut script = three_osds();
    // Nothing becomes durable on one member.
    script.members[2].last_commit = u64::MAX / 2;
    const OBJECTS: u64 = 2 * PG_IN_FLIGHT_MAX as u64;
    let all = 0..(PG_IN_FLIGHT_MAX + WAITING_MAX + MORE) as u64;
    let write = |number: u64| write_block(number % OBJECTS, number / OBJECTS, number);
    let ops: Vec<_> = all.map(|number| script.start(0, write(number))).collect();
    script.run_for(SECOND);
    assert_eq!(ops.iter().filter(|op| script.shows(**op, 0)).count(), PG_IN_FLIGHT_MAX, "what is in flight");
    let known = ops.iter().filter(|op| script.progress(**op).is_some()).count();
    assert_eq!(known, PG_IN_FLIGHT_MAX + WAITING_MAX, "the others are refused, and come again");
    script.kill(2);
    script.members[2].last_commit = 0;
    script.restart(2);
    script.run_while("one is not answered", |world| ops.iter().any(|op| world.answer_of(*op).is_none()));
    assert!(ops.iter().all(|op| script.answer_of(*op) == Some(&Answer::Written(Ok(())))));
    script.finish();
}
