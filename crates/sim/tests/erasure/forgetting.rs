//! Devices that forget durable data.

use atoll_sim::{Options, PG, Pgs, Script, read_block};

use crate::{SECOND, holds, is_whole, write_blocks, written};

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
fn a_write_before_a_quiet_time_is_known_to_be_committed() {
    let mut script = Script::new(Options::scripted_coded(3, 2, 1));
    script.run_for(SECOND);
    write_blocks(&mut script, 2);
    let before = [device(&script, 1), device(&script, 2)];
    written(&mut script, 0, 0, 2);
    script.run_for(5 * SECOND);
    (0..3).for_each(|at| script.kill(at));
    put_back(&mut script, 1, &before[0]);
    put_back(&mut script, 2, &before[1]);
    (0..3).for_each(|at| script.restart(at));
    // One shard is left of the newest write, after which there was none that could say that all had it.
    let read = script.start(1, read_block(0, 0));
    script.run_for(30 * SECOND);
    assert_eq!(script.answer_of(read), None, "the PG waits, rather than to show what was before");
    assert_eq!(script.members[0].store.visible.of(PG).head.sequence, 3, "nothing is rolled back");
}
