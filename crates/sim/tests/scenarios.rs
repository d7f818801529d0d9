//! The well-known failures of storage systems, a scenario each. Every scenario asserts that its
//! situation really occurred; at the end the answers that clients saw are checked against one
//! history.
//! `ATOLL_SIM_TRACE` prints what happens.

use atoll_pg::PgState;
use atoll_sim::{
    Answer, Options, PG, SPLIT_PG, Script, World, block, clone_of, create, data_of, half_of, read_block, remove,
    write_block, write_blocks,
};
use atoll_types::{Epoch, Refusal};

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

fn three_osds() -> Script {
    with_leases(Options::scripted(3))
}

/// An active PG whose primary reads under leases.
fn with_leases(options: Options) -> Script {
    let mut script = Script::new(options);
    script.run_for(SECOND);
    script
}

/// Writes and waits for the answer.
fn written(script: &mut Script, object: u64, value: u64) -> usize {
    let op = script.start(0, write_block(object, 0, value));
    script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    op
}

fn read(script: &mut Script, object: u64) -> usize {
    let op = script.start(1, read_block(object, 0));
    script.run_while("a read is not answered", |world| world.answer_of(op).is_none());
    op
}

fn holds(script: &mut Script, object: u64, value: u64) {
    let op = read(script, object);
    assert_eq!(data_of(script.answer_of(op)), Some(&block(value)[..]), "object {object} holds {value}");
}

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
fn a_pg_shrinks_to_one_and_its_members_swap() {
    let mut script = with_leases(Options { min_size: 1, ..Options::scripted(3) });
    written(&mut script, 0, 1);
    script.kill(1);
    script.kill(2);
    script.run_while("not alone", |world| world.cluster.record.last_active_members.len() > 1);
    written(&mut script, 0, 2);
    // Those that come back have less. Without the one that went on alone they must not serve.
    script.kill(0);
    script.restart(1);
    script.restart(2);
    let lost = script.start(1, read_block(0, 0));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(lost), None, "no member answers from old data");
    assert!((0..3).all(|at| script.state_of(at) != Some(PgState::Active)), "no member serves");
    script.restart(0);
    script.run_while("the read is not answered", |world| world.answer_of(lost).is_none());
    assert_eq!(data_of(script.answer_of(lost)), Some(&block(2)[..]));
    script.finish();
}

#[test]
fn two_osds_out_of_reach_of_each_other_do_not_depose_each_other_for_ever() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let before = script.cluster.record.epoch;
    // The third reaches both, so either could lead with it.
    script.cut_one_way(0, 1, 20 * SECOND);
    script.cut_one_way(1, 0, 20 * SECOND);
    script.run_for(5 * SECOND);
    let op = script.start(1, write_block(0, 0, 2));
    script.run_for(SECOND);
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))), "one of them leads");
    assert_eq!(script.cluster.record.members.len(), 2, "the other is no member");
    script.run_for(10 * SECOND);
    let epochs = script.cluster.record.epoch.0 - before.0;
    assert!(epochs <= 2, "{epochs} changes for one failure");
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn a_stale_watch_keeps_an_old_primary_from_nothing_but_serving() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // The old primary hears of no change of cluster state, and its peers go on without it.
    script.keep_from_state(0, 20 * SECOND);
    script.cut_off(0, 6 * SECOND);
    script.run_while("no member took over", |world| world.primary() == 0);
    script.run_while("not active", |world| world.state_of(world.primary()) != Some(PgState::Active));
    script.break_client(0);
    written(&mut script, 0, 2);
    script.run_for(8 * SECOND);
    assert!(script.epoch_at(0) < script.epoch_at(1), "it still has the old record");
    assert_ne!(script.state_of(0), Some(PgState::Active), "and does not serve by it");
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn a_pause_longer_than_a_lease_serves_no_stale_read() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // The request waits in the old primary's socket until it wakes up.
    script.stand_still(0, 5 * SECOND);
    let early = script.start(1, read_block(0, 0));
    script.run_while("no member took over", |world| world.primary() == 0);
    assert!(script.members[0].paused_until > script.now, "the old primary still sleeps");
    script.run_while("not active", |world| world.state_of(world.primary()) != Some(PgState::Active));
    script.break_client(0);
    written(&mut script, 0, 2);
    assert_eq!(script.epoch_at(0).map(|epoch| epoch < script.cluster.record.epoch), Some(true));
    script.run_while("the read is not answered", |world| world.answer_of(early).is_none());
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn clocks_that_drift_to_the_limit_serve_no_stale_read() {
    // The old primary's clock is slow, the others' are fast: its leases last longest for it.
    for rates in [[955_000, 1_045_000, 1_045_000], [1_045_000, 955_000, 955_000]] {
        let mut script = with_leases(Options { clock_rates: rates.to_vec(), ..Options::scripted(3) });
        written(&mut script, 0, 1);
        // By then it holds leases.
        script.run_for(SECOND);
        // Its answers reach clients; only its peers are cut off.
        script.cut_off(0, 20 * SECOND);
        let cut_at = script.now;
        script.keep_from_state(0, 20 * SECOND);
        let mut reads = Vec::new();
        while script.primary() == 0 || script.state_of(script.primary()) != Some(PgState::Active) {
            // Stale answers would contradict the write below: the check at the end sees them.
            reads.push(script.start(1, read_block(0, 0)));
            script.run_for(20 * MS);
            assert!(reads.len() < 1_000, "no member took over");
        }
        assert!(script.now > cut_at + SECOND, "the take-over waited for the lease");
        let answered = reads.iter().filter(|op| script.answer_of(**op).is_some()).count();
        assert!(answered > 20, "the old primary went on reading under its lease");
        assert!(answered + 20 < reads.len(), "and stopped when it had run out");
        script.break_client(0);
        written(&mut script, 0, 2);
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
fn a_copy_that_does_not_fit_is_not_served() {
    for wrong in [1, 2] {
        let mut script = three_osds();
        written(&mut script, 0, 1);
        script.run_for(SECOND);
        let name = script.members[0].store.visible.of(PG).log.back().map(|entry| entry.object.clone()).unwrap();
        // One member returns other bytes than were written, and its own checksums do not tell.
        let set = |script: &mut Script, value| {
            let store = &mut script.members[wrong].store;
            for pgs in [&mut store.visible, &mut store.durable] {
                pgs.of_mut(PG).objects.get_mut(&name).unwrap().blocks.insert(0, block(value).into());
            }
        };
        set(&mut script, 9);
        script.members[0].store.bad.insert((name.clone(), 0));
        holds(&mut script, 0, 1);
        assert!(script.members[0].store.bad.is_empty(), "repaired from the other copy");
        set(&mut script, 1);
        script.finish();
    }
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
fn an_old_record_that_arrives_late_lowers_no_promise() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // It takes over and is cut off before it hears that it did; the others go on without it.
    script.kill(0);
    script.run_while("no member took over", |world| world.primary() == 0);
    let taker = script.primary();
    let epoch = script.cluster.record.epoch;
    assert!(script.epoch_at(taker) < Some(epoch), "the record is still on its way");
    script.keep_from_state(taker, 40 * SECOND);
    script.cut_off(taker, 6 * SECOND);
    script.restart(0);
    script.run_while("it was not replaced", |world| world.primary() == taker);
    script.run_while("it was not backfilled", |world| {
        let record = &world.cluster.record;
        record.members.len() < 3 || record.activated_epoch != record.epoch
    });
    assert!(script.epoch_at(taker) < Some(epoch), "it has heard of nothing");
    script.run_until(script.members[taker].state_blocked_until + SECOND);
    written(&mut script, 0, 2);
    holds(&mut script, 0, 2);
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
