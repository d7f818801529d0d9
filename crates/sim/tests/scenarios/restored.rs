//! Cluster state that is put back from an older snapshot, while all OSDs are stopped.

use atoll_pg::PgState;
use atoll_sim::{Options, PG, SPLIT_PG, Script, block, data_of, half_of, read_block};
use atoll_types::Version;
use atoll_types::pg_copies::Incompleteness;

use crate::{SECOND, holds, with_leases, written};

fn is_whole(script: &mut Script) {
    script.run_while("not whole", |world| {
        !world.cluster.is_clean() || world.state_of(world.primary()) != Some(PgState::Active)
    });
}

/// All OSDs stop, cluster state is put back, and these OSDs start again.
fn restore(script: &mut Script, snapshot: atoll_sim::Snapshot, starting: &[usize]) {
    (0..script.members.len()).for_each(|at| script.kill(at));
    script.restore_state(snapshot);
    starting.iter().for_each(|at| script.restart(*at));
}

/// A PG with other members than a snapshot of cluster state knows. Their copies have been deleted.
fn moved(options: Options) -> (Script, atoll_sim::Snapshot) {
    let mut script = with_leases(options);
    written(&mut script, 0, 1);
    let snapshot = script.snapshot_of_state();
    script.plan(&[3, 4, 5]);
    script.run_while("copies are not deleted", |world| {
        (0..3).any(|at| world.members[at].store.durable.of(PG).head != Version::default())
    });
    written(&mut script, 0, 2);
    (script, snapshot)
}

#[test]
fn a_copy_that_was_deleted_is_not_taken_for_an_empty_pg() {
    for options in [Options::scripted(6), Options::scripted_coded(6, 2, 1)] {
        let is_coded = options.shape.is_some();
        let (mut script, snapshot) = moved(options);
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4, 5]);
        let read = script.start(1, read_block(0, 0));
        script.run_for(30 * SECOND);
        assert_eq!(script.answer_of(read), None, "nobody serves");
        for at in 0..3 {
            let told = script.copy_told(PG, at).expect("it has a part in the PG");
            assert_eq!(told.incomplete, Some(Incompleteness::Deleted), "copy of {at}");
        }
        // The copies that count are there, and an operator says so.
        script.accept(PG, if is_coded { &[3, 5] } else { &[4] });
        script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
        assert_eq!(data_of(script.answer_of(read)), Some(&block(2)[..]));
        is_whole(&mut script);
        written(&mut script, 1, 3);
        holds(&mut script, 0, 2);
        script.finish();
    }
}

#[test]
fn members_that_a_snapshot_knows_continue_with_later_writes() {
    for options in [Options::scripted(5), Options::scripted_coded(5, 2, 2)] {
        let is_coded = options.shape.is_some();
        let mut script = with_leases(options);
        written(&mut script, 0, 1);
        let snapshot = script.snapshot_of_state();
        script.plan(if is_coded { &[0, 1, 4, 3] } else { &[0, 3, 4] });
        is_whole(&mut script);
        written(&mut script, 0, 2);
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4]);
        is_whole(&mut script);
        holds(&mut script, 0, 2);
        script.finish();
    }
}

/// An object that stays in the PG when that splits, and one that goes to the new PG.
fn one_of_each_half() -> (u64, u64) {
    let of = |pg| (0..3).find(|object| half_of(*object) == pg).expect("names are spread");
    (of(PG), of(SPLIT_PG))
}

/// A PG that has been split since a snapshot of cluster state, and whose new PG has these members since.
fn split_since(options: Options, members: &[usize]) -> (Script, atoll_sim::Snapshot) {
    let (stays, goes) = one_of_each_half();
    let mut script = with_leases(options);
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    let snapshot = script.snapshot_of_state();
    script.split();
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    is_whole(&mut script);
    let before = script.cluster.target.clone();
    let target: Vec<_> = members.iter().map(|at| atoll_types::OsdId(*at as u32 + 1)).collect();
    script.cluster.of_mut(SPLIT_PG).expect("it was split off").target = target.clone();
    script.plan(&before.iter().map(|osd| osd.0 as usize - 1).collect::<Vec<_>>());
    let gone: Vec<usize> =
        before.iter().filter(|osd| !target.contains(osd)).map(|osd| osd.0 as usize - 1).collect();
    script.run_while("copies are not deleted", |world| {
        gone.iter().any(|at| world.members[*at].store.durable.of(SPLIT_PG).head != Version::default())
    });
    is_whole(&mut script);
    written(&mut script, stays, 3);
    written(&mut script, goes, 4);
    // The pool of the snapshot has the former number of PGs.
    script.policy.pg_num = script.policy.pg_num_first;
    (script, snapshot)
}

#[test]
fn a_split_that_a_snapshot_does_not_know_is_found_in_the_copies() {
    for options in [Options::scripted(3), Options::scripted_coded(3, 2, 1)] {
        let (stays, goes) = one_of_each_half();
        let (mut script, snapshot) = split_since(options, &[0, 1, 2]);
        restore(&mut script, snapshot, &[0, 1, 2]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        // The coordinator does so when it sees the PG's record.
        script.policy.pg_num = 2 * script.policy.pg_num_first;
        is_whole(&mut script);
        holds(&mut script, stays, 3);
        holds(&mut script, goes, 4);
        written(&mut script, goes, 5);
        script.finish();
    }
}

#[test]
fn a_new_pg_that_has_moved_since_a_snapshot_continues_from_the_member_that_has_it() {
    for primary in [0, 1] {
        let (stays, goes) = one_of_each_half();
        let (mut script, snapshot) = split_since(Options::scripted(5), &[0, 3, 4]);
        script.plan(&if primary == 0 { [0, 1, 2] } else { [1, 0, 2] });
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        script.policy.pg_num = 2 * script.policy.pg_num_first;
        is_whole(&mut script);
        holds(&mut script, stays, 3);
        holds(&mut script, goes, 4);
        script.finish();
    }
}
