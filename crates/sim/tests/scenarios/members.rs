//! Members that fail, pause, drift and come back.

use atoll_pg::PgState;
use atoll_sim::{Answer, Options, PG, Script, block, data_of, read_block, write_block};
use atoll_types::{Epoch, LogEntry, Mutation, Touched, Transaction, Version};
use atoll_wire::Message;

use crate::{MS, SECOND, holds, three_osds, with_leases, written};

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

/// The primary stands still, in one way or another, while another takes over and a write follows.
fn no_stale_read_after(stand_still: impl Fn(&mut Script)) {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // By then it holds leases.
    script.run_for(SECOND);
    // The request waits in the old primary's socket until it wakes up.
    stand_still(&mut script);
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
fn a_pause_longer_than_a_lease_serves_no_stale_read() {
    no_stale_read_after(|script| script.stand_still(0, 5 * SECOND));
}

#[test]
fn a_machine_that_was_paused_with_its_clock_serves_no_stale_read() {
    // By its clock its leases hold when it wakes up.
    no_stale_read_after(|script| script.stand_still_with_clock(0, 5 * SECOND));
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
fn a_primary_without_cluster_state_lets_another_lead() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    // It reaches the others, and they it; only it must propose, now that one of them is gone.
    script.keep_from_state(0, 50 * SECOND);
    script.kill(2);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_for(8 * SECOND);
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    assert_eq!(script.primary(), 1, "the one that reaches cluster state leads");
    assert_eq!(script.cluster.record.members.len(), 2, "the other is a member");
    holds(&mut script, 0, 2);
    // All are there again, and it should lead. It would not hear of that.
    script.restart(2);
    for value in 3..20 {
        script.run_for(SECOND);
        let op = script.start(0, write_block(0, 0, value));
        script.run_for(SECOND);
        assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))), "write {value}");
    }
    assert_eq!((script.primary(), script.cluster.record.members.len()), (1, 3), "nothing is given to it");
    script.finish();
}

#[test]
fn a_primary_that_has_not_heard_of_its_epoch_is_passed_over() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.keep_from_state(1, 50 * SECOND);
    script.plan(&[1, 0, 2]);
    script.run_while("it is not made primary", |world| world.primary() != 1);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_for(5 * SECOND);
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    let epoch = script.cluster.record.epoch;
    for value in 3..10 {
        written(&mut script, 0, value);
        script.run_for(SECOND);
    }
    assert_ne!(script.primary(), 1, "it is not given to it again");
    assert!(script.cluster.record.epoch.0 <= epoch.0 + 2, "nor in turn");
    script.run_for(90 * SECOND);
    assert_eq!(script.primary(), 1, "it leads when it can");
    script.finish();
}

#[test]
fn a_primary_without_cluster_state_is_passed_over_for_what_only_it_has() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.keep_from_state(0, 50 * SECOND);
    // The others do not get the write.
    script.cut_one_way(0, 1, 10 * MS);
    script.cut_one_way(0, 2, 10 * MS);
    let op = script.start(0, write_block(0, 0, 2));
    script.run_while("it has it", |world| !world.was_durable(op, 0));
    script.break_link(0, 1);
    script.kill(2);
    assert!(!script.shows(op, 1) && !script.was_durable(op, 2), "nobody else has it");
    // With two copies of three, one of which has to be backfilled, nothing is served for a while.
    script.run_for(20 * SECOND);
    assert_eq!((script.primary(), script.answer_of(op)), (1, Some(&Answer::Written(Ok(())))));
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn a_primary_that_serves_needs_no_cluster_state() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    let epoch = script.cluster.record.epoch;
    script.keep_from_state(0, 50 * SECOND);
    // Another one should lead, which it cannot propose, and it goes on.
    script.plan(&[1, 0, 2]);
    script.run_for(10 * SECOND);
    written(&mut script, 0, 2);
    assert_eq!((script.primary(), script.cluster.record.epoch), (0, epoch));
    holds(&mut script, 0, 2);
    script.finish();
}

#[test]
fn a_promise_of_an_epoch_that_nobody_proposed_stops_no_pg() {
    for ahead in [1, 5, 1 << 10, 1 << 61] {
        let mut script = three_osds();
        written(&mut script, 0, 1);
        let epoch = Epoch(script.cluster.record.epoch.0 + ahead);
        let (active_epoch, active_members, wants_log, shard) = (Epoch(0), Vec::new(), false, None);
        script.says(
            2,
            1,
            Message::PeerQuery {
                pg: PG,
                epoch,
                active_epoch,
                active_members,
                wants_log,
                shard,
                accepted_epoch: Epoch(0),
                accepted_head: Version::default(),
                elsewhere_epoch: Epoch(0),
            },
        );
        script.run_for(5 * SECOND);
        written(&mut script, 0, 2);
        script.kill(0);
        script.run_while("no member took over", |world| world.state_of(world.primary()) != Some(PgState::Active));
        holds(&mut script, 0, 2);
        let epochs = script.cluster.record.epoch.0;
        assert!(epochs < (1 << 12), "{epochs} epochs");
        script.finish();
    }
}

/// Under the epoch that a member has promised, it takes messages of the primary that asked for the promise, and of no other
/// OSD.
#[test]
fn a_member_heeds_only_the_primary_that_it_follows() {
    for options in [Options::scripted(4), Options::scripted_coded(4, 2, 1)] {
        let mut script = with_leases(options);
        written(&mut script, 0, 1);
        let epoch = script.cluster.record.epoch;
        let before = script.members[1].store.durable.of(PG).clone();
        let object = atoll_sim::object_name(0);
        let removal = |log| Transaction {
            pg: PG,
            object: object.clone(),
            mutations: vec![Mutation::Remove],
            payload: Default::default(),
            payload_sealed: false,
            log,
        };
        let entry = LogEntry {
            version: Version { epoch, sequence: before.head.sequence + 1 },
            request: None,
            object: object.clone(),
            touched: Touched { whole: true, ..Touched::default() },
            committed_sequence: before.head.sequence,
            pre_image: None,
        };
        for from in [2, 3] {
            let (pg, head) = (PG, Version::default());
            script.says(from, 1, Message::RollBack { pg, epoch, head });
            script.says(from, 1, Message::PeerPush { epoch, tag: 99, transaction: removal(Vec::new()) });
            let transaction = removal(vec![entry.clone()]).into();
            script.says(from, 1, Message::Replicate { epoch, transaction, committed: head, answered_below: 0 });
        }
        script.run_for(SECOND);
        let after = script.members[1].store.durable.of(PG);
        assert_eq!(after.head, before.head);
        assert!(after.objects == before.objects, "its objects are what they were");
        script.finish();
    }
}
