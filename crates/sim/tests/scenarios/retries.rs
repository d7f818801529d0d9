//! Retries that come late: after more writes than the log holds, and after OSDs have restarted.

use atoll_pg::PgState;
use atoll_sim::{Answer, Options, PG, Script, World, write_block};
use atoll_types::{Epoch, Refusal};

use crate::{SECOND, holds, with_leases, written};

/// Entries of the log.
const RING: usize = 8;

fn with_small_log() -> Script {
    with_leases(Options { ring_entries: RING, ..Options::scripted(3) })
}

/// Another client's writes, which make the log drop everything before. Returns the last value.
fn outrun_the_log(script: &mut Script) -> u64 {
    for value in 100..100 + 2 * RING as u64 {
        let op = script.start(1, write_block(0, 0, value));
        script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    }
    let log = &script.members[script.primary()].store.visible.of(PG).log;
    assert!(log.front().is_some_and(|entry| entry.version.sequence > RING as u64), "the log has lost them");
    99 + 2 * RING as u64
}

fn epoch(script: &Script) -> Epoch {
    script.cluster.record.epoch
}

fn is_served(world: &World) -> bool {
    world.state_of(world.primary()) == Some(PgState::Active)
}

/// All OSDs stop at once, and start again.
fn restart_all(script: &mut Script) {
    let before = epoch(script);
    for at in 0..3 {
        script.kill(at);
    }
    for at in 0..3 {
        script.restart(at);
    }
    script.run_while("nobody serves", |world| {
        world.cluster.record.epoch == before || !is_served(world) || !world.cluster.is_clean()
    });
}

/// A copy of a request arrives at the primary. Nothing is done, and the object keeps its content. Returns how it
/// is answered.
fn arrives_again(script: &mut Script, op: usize, held: u64) -> Result<(), Refusal> {
    let head = |script: &Script| script.members[script.primary()].store.visible.of(PG).head;
    let before = head(script);
    let copy = script.arrives_late(op, script.primary(), epoch(script));
    script.run_for(SECOND);
    assert_eq!(head(script), before, "it is not done again");
    holds(script, 0, held);
    script.answer_to_copy(copy).cloned().expect("it is answered")
}

#[test]
fn a_retry_that_comes_after_the_log_gets_its_answer() {
    let mut script = with_small_log();
    let op = written(&mut script, 0, 1);
    let newest = outrun_the_log(&mut script);
    script.kill(0);
    script.run_while("no member took over", |world| world.primary() == 0 || !is_served(world));
    assert_eq!(arrives_again(&mut script, op, newest), Ok(()));
    script.finish();
}

#[test]
fn a_retry_older_than_what_anybody_remembers_does_nothing() {
    let mut script = with_small_log();
    let op = written(&mut script, 0, 1);
    let newest = outrun_the_log(&mut script);
    restart_all(&mut script);
    assert_eq!(arrives_again(&mut script, op, newest), Err(Refusal::OutcomeUnknown));
    script.finish();
}

#[test]
fn a_retry_within_the_log_gets_its_answer_after_all_have_restarted() {
    let mut script = with_small_log();
    outrun_the_log(&mut script);
    let op = written(&mut script, 0, 1);
    written(&mut script, 0, 2);
    restart_all(&mut script);
    assert_eq!(arrives_again(&mut script, op, 2), Ok(()));
    script.finish();
}

#[test]
fn a_write_that_was_sent_once_is_done_whatever_is_remembered() {
    let mut script = with_small_log();
    outrun_the_log(&mut script);
    // What this client knows of the PG is older than the log.
    restart_all(&mut script);
    let op = script.start(1, write_block(0, 0, 3));
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    for at in 0..3 {
        script.members[at].pgs.get_mut(&PG).expect("it runs").limit_retry_memory(0);
    }
    let op = script.start(1, write_block(0, 0, 4));
    script.run_while("not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    assert_eq!(script.statistics.unknown_outcomes, 0);
    script.finish();
}
