//! Stores that refuse writes that others take, for good.

use atoll_pg::is_hidden;
use atoll_sim::{Answer, Options, PG, Script, remove, write_block};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{ObjectName, Refusal};

use crate::{MS, SECOND, holds, three_osds, with_leases, written};

/// Changes of the configuration that one refusal for good may cost.
const EPOCHS_MAX: u64 = 20;

fn answered(script: &mut Script, op: usize) -> Answer {
    let before = script.cluster.record.epoch.0;
    script.run_while("the write is not answered", |world| world.answer_of(op).is_none());
    script.run_for(20 * SECOND);
    let epochs = script.cluster.record.epoch.0 - before;
    assert!(epochs <= EPOCHS_MAX, "{epochs} changes for one write");
    script.answer_of(op).cloned().expect("it was answered")
}

#[test]
fn a_member_whose_store_refuses_for_good_is_left_out() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.members[1].refuses_until = u64::MAX;
    let op = script.start(0, write_block(0, 0, 2));
    assert_eq!(answered(&mut script, op), Answer::Written(Ok(())), "the others take it");
    assert!(script.statistics.refused > 0);
    assert_eq!(script.cluster.record.members.len(), 2);
    holds(&mut script, 0, 2);
    script.members[1].refuses_until = 0;
    script.finish();
}

#[test]
fn a_write_that_a_shards_store_never_takes_is_refused() {
    let mut script = with_leases(Options::scripted_coded(3, 2, 1));
    written(&mut script, 0, 1);
    // Without it there are too few shards to serve.
    script.members[2].refuses_until = u64::MAX;
    let op = script.start(0, write_block(0, 0, 2));
    let answer = answered(&mut script, op);
    assert!(matches!(&answer, Answer::Written(Err(Refusal::Invalid { .. }))), "{answer:?}");
    holds(&mut script, 0, 1);
    script.members[2].refuses_until = 0;
    written(&mut script, 0, 3);
    holds(&mut script, 0, 3);
    script.finish();
}

#[test]
fn a_write_that_the_primarys_store_never_takes_is_refused() {
    let mut script = with_leases(Options::scripted_coded(3, 2, 1));
    written(&mut script, 0, 1);
    script.members[0].refuses_until = u64::MAX;
    let op = script.start(0, write_block(0, 0, 2));
    let answer = answered(&mut script, op);
    assert!(matches!(&answer, Answer::Written(Err(Refusal::Invalid { .. }))), "{answer:?}");
    holds(&mut script, 0, 1);
    script.members[0].refuses_until = 0;
    script.finish();
}

#[test]
fn a_member_that_has_lost_a_pre_image_is_backfilled() {
    let mut script = with_leases(Options { min_size: 2, ..Options::scripted_coded(4, 2, 2) });
    written(&mut script, 0, 1);
    // The second member alone has the removal, and keeps the object as it was.
    [2, 3].iter().for_each(|at: &usize| script.members[*at].last_commit = u64::MAX / 2);
    let op = script.start(0, remove(0));
    script.run_while("not prepared", |world| !world.was_durable(op, 1));
    script.kill(0);
    let is_kept = |object: &ObjectName| is_hidden(object) && object.as_str() != PG_META_OBJECT;
    let store = &mut script.members[1].store;
    let lost: Vec<_> = store.visible.of(PG).objects.keys().filter(|object| is_kept(object)).cloned().collect();
    assert_eq!(lost.len(), 1);
    for state in [&mut store.visible, &mut store.durable] {
        state.of_mut(PG).objects.remove(&lost[0]);
    }
    for at in [2, 3] {
        script.kill(at);
        script.members[at].last_commit = 0;
        script.restart(at);
    }
    script.run_while("it tries for ever", |world| !world.members[1].store.is_incomplete(PG));
    script.run_while("it is not backfilled", |world| world.members[1].store.is_incomplete(PG));
    script.run_while("the removal is not answered", |world| world.answer_of(op).is_none());
    script.finish();
}

/// The primary's store has refused a write often enough to refuse the request, and members have it: before they
/// have rolled it back, or it was rolled forward without this primary, the outcome is unknown.
#[test]
fn a_write_that_members_have_is_not_refused_for_good() {
    for options in [Options::scripted(3), Options::scripted_coded(3, 2, 1)] {
        let is_coded = options.shape.is_some();
        let mut script = with_leases(Options { min_size: 3, ..options });
        written(&mut script, 0, 1);
        script.members[0].refuses_until = u64::MAX;
        let op = script.start(0, write_block(0, 0, 2));
        let refusals = if is_coded { 5 } else { 1 };
        script.run_while("not refused", |world| world.statistics.refused < refusals);
        script.run_while("not prepared", |world| !(1..3).all(|at| world.shows(op, at)));
        let epoch = script.cluster.record.epoch;
        let conn = script.arrives_late(op, 0, epoch);
        script.run_for(MS);
        assert_eq!(script.answer_to_copy(conn), None, "it may be done yet");
        // Without the primary it is.
        script.kill(0);
        script.members[0].refuses_until = 0;
        script.run_for(5 * SECOND);
        script.restart(0);
        script.run_while("the write is not answered", |world| world.answer_of(op).is_none());
        script.finish();
    }
}

/// A member that never takes writes in the history of another makes way for an OSD that can be backfilled,
/// although there are too few to serve without it.
#[test]
fn a_spare_osd_takes_the_place_of_a_member_whose_store_refuses() {
    let mut script = three_osds();
    written(&mut script, 0, 1);
    script.kill(0);
    script.run_while("not two", |world| world.cluster.record.last_active_members.len() > 2);
    let refusing = script.primary();
    script.members[refusing].refuses_until = u64::MAX;
    let op = script.start(0, write_block(0, 0, 2));
    script.run_for(5 * SECOND);
    assert_eq!(script.answer_of(op), None, "nobody else is there");
    assert!(script.statistics.refused > 0 && script.primary() != refusing, "the other has it");
    script.restart(0);
    assert_eq!(answered(&mut script, op), Answer::Written(Ok(())));
    holds(&mut script, 0, 2);
    script.members[refusing].refuses_until = 0;
    script.finish();
}
