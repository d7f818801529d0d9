//! The well-known failures of storage systems, a scenario each. Every scenario asserts that its situation really
//! occurred; at the end the answers that clients saw are checked against one history. `ATOLL_SIM_TRACE` prints all
//! events.

mod accepted;
mod backfills;
mod catching_up;
mod members;
mod refusals;
mod repairs;
mod requests;
mod restored;
mod retries;
mod splits;

use atoll_sim::{Answer, Options, Script, block, data_of, read_block, write_block};

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
