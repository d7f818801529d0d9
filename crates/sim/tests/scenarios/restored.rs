//! Cluster state that is put back from an older snapshot, while all OSDs are stopped.

use atoll_pg::PgState;
use atoll_sim::{Options, PG, SPLIT_PG, Script, block, data_of, half_of, read_block};
use atoll_types::pg_copies::Incompleteness;
use atoll_types::{Epoch, PgId, Version};

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

/// A PG with other members than a snapshot of cluster state knows. Their copies have been deleted. Perhaps the snapshot
/// is from before the PG was active for the first time.
fn moved(options: Options, was_active: bool) -> (Script, atoll_sim::Snapshot) {
    let mut script = with_leases(options);
    written(&mut script, 0, 1);
    let now = script.cluster.record.clone();
    if !was_active {
        let record = &mut script.cluster.record;
        (record.activated_epoch, record.last_active_members) = (Epoch(0), Vec::new());
        record.last_active_shards = Vec::new();
    }
    let snapshot = script.snapshot_of_state();
    script.cluster.record = now;
    script.plan(&[3, 4, 5]);
    script.run_while("copies are not deleted", |world| {
        (0..3).any(|at| world.members[at].store.durable.of(PG).head != Version::default())
    });
    written(&mut script, 0, 2);
    (script, snapshot)
}

#[test]
fn a_copy_that_was_deleted_is_not_taken_for_an_empty_pg() {
    let (copies, shards) = (Options::scripted(6), Options::scripted_coded(6, 2, 1));
    for (options, was_active) in [(&copies, true), (&copies, false), (&shards, true), (&shards, false)] {
        let is_coded = options.shape.is_some();
        let (mut script, snapshot) = moved(options.clone(), was_active);
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

/// An OSD that was down while the PG moved away runs again when cluster state is put back: it does not lead with its copy.
#[test]
fn a_copy_that_missed_later_configurations_is_not_taken_for_the_newest() {
    for (before, is_alone) in [([0, 1, 2], false), ([1, 0, 2], false), ([0, 1, 2], true)] {
        let mut script = with_leases(Options::scripted(6));
        script.plan(&before);
        is_whole(&mut script);
        written(&mut script, 0, 1);
        let snapshot = script.snapshot_of_state();
        script.kill(0);
        script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
        script.plan(&[3, 4, 5]);
        script.run_while("copies are not deleted", |world| {
            (1..3).any(|at| world.members[at].store.durable.of(PG).head != Version::default())
        });
        written(&mut script, 0, 2);
        if is_alone {
            // It promises an epoch before it hears of others.
            restore(&mut script, snapshot, &[0]);
            script.run_for(15 * SECOND);
            let promised = script.members[0].store.durable.of(PG).promised();
            assert_eq!(promised, script.cluster.record.epoch, "it has promised the raised epoch");
            script.kill(0);
            (0..6).for_each(|at| script.restart(at));
        } else {
            restore(&mut script, snapshot, &[0, 1, 2, 3, 4, 5]);
        }
        let read = script.start(1, read_block(0, 0));
        script.run_for(20 * SECOND);
        // What it has learned lasts.
        script.kill(0);
        script.restart(0);
        script.run_for(20 * SECOND);
        assert_eq!(script.answer_of(read), None, "nobody serves");
        let incomplete = |at| script.copy_told(PG, at).expect("it has a part in the PG").incomplete;
        assert_eq!(incomplete(0), Some(Incompleteness::Outdated));
        assert!((1..3).all(|at| incomplete(at) == Some(Incompleteness::Deleted)));
        script.accept(PG, &[4]);
        script.run_while("the read is not answered", |world| world.answer_of(read).is_none());
        assert_eq!(data_of(script.answer_of(read)), Some(&block(2)[..]));
        is_whole(&mut script);
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

/// The operator sets the pool's number of PGs again, and everything settles.
fn finish(mut script: Script) {
    script.policy.pg_num = 2 * script.policy.pg_num_first;
    script.finish();
}

/// A PG that has been split since a snapshot of cluster state, and whose new PG has these members since. The snapshot
/// wants the PG on `before`.
fn split_since(options: Options, before: &[usize], members: &[usize]) -> (Script, atoll_sim::Snapshot) {
    let (stays, goes) = one_of_each_half();
    let mut script = with_leases(options);
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    script.plan(before);
    is_whole(&mut script);
    let snapshot = script.snapshot_of_state();
    script.split();
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    is_whole(&mut script);
    let target: Vec<_> = members.iter().map(|at| atoll_types::OsdId(*at as u32 + 1)).collect();
    script.cluster.of_mut(SPLIT_PG).expect("it was split off").target = target;
    script.plan(before);
    let gone: Vec<usize> = before.iter().copied().filter(|at| !members.contains(at)).collect();
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
        let (mut script, snapshot) = split_since(options, &[0, 1, 2], &[0, 1, 2]);
        restore(&mut script, snapshot, &[0, 1, 2]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        is_whole(&mut script);
        holds(&mut script, stays, 3);
        holds(&mut script, goes, 4);
        written(&mut script, goes, 5);
        finish(script);
    }
}

#[test]
fn a_new_pg_that_has_moved_since_a_snapshot_continues_from_the_member_that_has_it() {
    for before in [[0, 1, 2], [1, 0, 2]] {
        let (stays, goes) = one_of_each_half();
        let (mut script, snapshot) = split_since(Options::scripted(5), &before, &[0, 3, 4]);
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        is_whole(&mut script);
        holds(&mut script, stays, 3);
        holds(&mut script, goes, 4);
        finish(script);
    }
}

/// No member of the older record has a copy of the new PG.
#[test]
fn a_new_pg_whose_copies_have_all_moved_since_a_snapshot_waits_for_an_operator() {
    for options in [Options::scripted(6), Options::scripted_coded(6, 2, 1)] {
        let is_coded = options.shape.is_some();
        let (stays, goes) = one_of_each_half();
        let (mut script, snapshot) = split_since(options, &[0, 1, 2], &[3, 4, 5]);
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4, 5]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        // The PG itself serves.
        holds(&mut script, stays, 3);
        written(&mut script, stays, 5);
        let waits = script.start(1, read_block(goes, 0));
        script.run_for(30 * SECOND);
        assert_eq!(script.answer_of(waits), None, "nobody serves the new PG");
        for at in 0..3 {
            let told = script.copy_told(SPLIT_PG, at).expect("it has a part in the PG");
            assert_eq!(told.incomplete, Some(Incompleteness::Deleted), "copy of {at}");
        }
        for at in 3..6 {
            let told = script.copy_told(SPLIT_PG, at).expect("it has a copy");
            assert!(told.incomplete.is_none() && !told.is_empty(), "the copy of {at} stays");
        }
        script.accept(SPLIT_PG, if is_coded { &[3, 5] } else { &[4] });
        script.run_while("the read is not answered", |world| world.answer_of(waits).is_none());
        assert_eq!(data_of(script.answer_of(waits)), Some(&block(4)[..]));
        is_whole(&mut script);
        written(&mut script, goes, 6);
        holds(&mut script, stays, 5);
        finish(script);
    }
}

/// A copy was backfilled beside the new PG, which has moved away since. Nothing on these OSDs has to do with the split but
/// their notes of it.
#[test]
fn a_split_is_remembered_by_copies_that_were_backfilled_beside_the_new_pg() {
    for options in [Options::scripted(6), Options::scripted(6).on_real_stores()] {
        let (stays, goes) = one_of_each_half();
        let mut script = with_leases(options);
        let (old, other) = ([0, 1, 2], [3, 4, 5]);
        written(&mut script, stays, 1);
        written(&mut script, goes, 2);
        let snapshot = script.snapshot_of_state();
        move_to(&mut script, PG, &other);
        script.split();
        script.run_while("not split", |world| world.cluster.split_off.is_none());
        is_whole(&mut script);
        move_to(&mut script, SPLIT_PG, &old);
        move_to(&mut script, PG, &old);
        move_to(&mut script, SPLIT_PG, &other);
        assert!((0..3).all(|at| script.members[at].store.durable.of(PG).pg_num.is_none()));
        written(&mut script, goes, 4);
        script.policy.pg_num = script.policy.pg_num_first;
        restore(&mut script, snapshot, &[0, 1, 2, 3, 4, 5]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        holds(&mut script, stays, 1);
        let waits = script.start(1, read_block(goes, 0));
        script.run_for(10 * SECOND);
        assert_eq!(script.answer_of(waits), None, "the new PG is not taken for an empty one");
        script.accept(SPLIT_PG, &[4]);
        script.run_while("the read is not answered", |world| world.answer_of(waits).is_none());
        assert_eq!(data_of(script.answer_of(waits)), Some(&block(4)[..]));
        finish(script);
    }
}

/// The same, of copies that an earlier build has backfilled: they have no note, and the new PG is still there.
#[test]
fn a_split_is_found_by_the_history_of_the_new_pg() {
    let (stays, goes) = one_of_each_half();
    let mut script = with_leases(Options::scripted(6));
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    let snapshot = script.snapshot_of_state();
    move_to(&mut script, PG, &[3, 4, 5]);
    script.split();
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    is_whole(&mut script);
    move_to(&mut script, SPLIT_PG, &[0, 1, 2]);
    move_to(&mut script, PG, &[0, 1, 2]);
    (0..6).for_each(|at| script.kill(at));
    for at in 0..3 {
        let store = &mut script.members[at].store;
        for pgs in [&mut store.durable, &mut store.visible] {
            let own = pgs.of_mut(PG).objects.get_mut(&atoll_sim::name("@pg")).expect("it has a copy");
            assert!(own.omap.remove(&b"pg_num"[..]).is_some(), "it has a note");
            assert!(pgs.of(PG).pg_num.is_none(), "its store does not know of the split");
        }
    }
    script.policy.pg_num = script.policy.pg_num_first;
    restore(&mut script, snapshot, &[0, 1, 2, 3, 4, 5]);
    script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
    holds(&mut script, stays, 1);
    holds(&mut script, goes, 2);
    finish(script);
}

/// A PG moves, and its copies elsewhere are deleted.
fn move_to(script: &mut Script, pg: PgId, to: &[usize]) {
    let target = to.iter().map(|at| atoll_types::OsdId(*at as u32 + 1)).collect();
    script.cluster.of_mut(pg).expect("it exists").target = target;
    let of_first: Vec<usize> = script.cluster.target.iter().map(|osd| osd.0 as usize - 1).collect();
    script.plan(&of_first);
    is_whole(script);
    let gone: Vec<usize> = (0..script.members.len()).filter(|at| !to.contains(at)).collect();
    script.run_while("copies are not deleted", |world| {
        gone.iter().any(|at| world.members[*at].store.durable.of(pg).head != Version::default())
    });
    is_whole(script);
}

/// A member of the older record lacks only the split, and has been backfilled with the new PG since: its store makes no
/// second one. All members are needed to serve.
#[test]
fn a_member_that_lacks_only_a_split_and_has_the_new_pg_is_backfilled() {
    let copies = Options { min_size: 3, ..Options::scripted(4) };
    let shards = Options::scripted_coded(4, 2, 1);
    for options in [copies.clone(), copies.on_real_stores(), shards.clone(), shards.on_real_stores()] {
        let (stays, goes) = one_of_each_half();
        let needed = options.min_size;
        let mut script = with_leases(options);
        written(&mut script, stays, 1);
        written(&mut script, goes, 2);
        let snapshot = script.snapshot_of_state();
        // It is away while the PG splits, and while that lacks a copy nothing is deleted.
        script.kill(2);
        script.policy.min_size = 2;
        script.plan(&[0, 1]);
        script.run_while("not without it", |world| world.cluster.record.last_active_members.len() > 2);
        script.split();
        script.run_while("not split", |world| world.cluster.split_off.is_none());
        let target = [0, 1, 2].map(|at| atoll_types::OsdId(at + 1)).to_vec();
        script.cluster.of_mut(SPLIT_PG).expect("it was split off").target = target;
        script.plan(&[0, 1]);
        script.restart(2);
        script.run_while("the new PG is not there", |world| {
            world.cluster.of(SPLIT_PG).is_some_and(|new| new.record.last_active_members.len() < 3)
        });
        let durable = script.members[2].store.durable.clone();
        assert!(durable.of(PG).pg_num.is_none() && durable.of(SPLIT_PG).head != Version::default());
        script.policy.min_size = needed;
        script.policy.pg_num = script.policy.pg_num_first;
        restore(&mut script, snapshot, &[0, 1, 2, 3]);
        script.run_while("the new PG is not known", |world| world.cluster.split_off.is_none());
        is_whole(&mut script);
        holds(&mut script, stays, 1);
        holds(&mut script, goes, 2);
        assert_eq!(script.copy_told(PG, 2).and_then(|copy| copy.incomplete), None, "it counts again");
        finish(script);
    }
}

/// No copy of the PG has the split, but one OSD has the new PG's history: its store makes no second one. All members are
/// needed to serve.
#[test]
fn a_member_that_has_the_new_pg_of_a_split_that_is_ordered_is_backfilled() {
    let (stays, goes) = one_of_each_half();
    let mut script = with_leases(Options { min_size: 3, ..Options::scripted(3) });
    written(&mut script, stays, 1);
    written(&mut script, goes, 2);
    script.run_for(SECOND);
    script.kill(2);
    let store = &mut script.members[2].store;
    for pgs in [&mut store.durable, &mut store.visible] {
        let mut new = pgs.of(PG).clone();
        new.pg_num = Some(2);
        new.objects.retain(|name, _| name.as_str().starts_with('@'));
        *pgs.of_mut(SPLIT_PG) = new;
    }
    script.restart(2);
    is_whole(&mut script);
    script.split();
    script.run_while("not split", |world| world.cluster.split_off.is_none());
    is_whole(&mut script);
    holds(&mut script, stays, 1);
    holds(&mut script, goes, 2);
    script.finish();
}
