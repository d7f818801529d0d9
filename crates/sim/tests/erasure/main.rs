//! Scenarios of erasure-coded PGs. Every scenario asserts that its situation really occurred; at the end the
//! answers that clients saw are checked against one history. OSD n holds shard n at first; `ATOLL_SIM_TRACE`
//! prints all events.

#![allow(clippy::unwrap_used)] // a test through and through

mod forgetting;
mod members;
mod overwrites;
mod roll_backs;

use atoll_pg::PgState;
use atoll_sim::{Answer, Kind, Options, Script, World, block, data_of, read_block, write_block};
use atoll_types::ObjectName;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// An active PG of two data and two parity shards, which serves with as few shards as possible.
fn two_and_two(osds: usize) -> Script {
    let mut script = Script::new(Options { min_size: 2, ..Options::scripted_coded(osds, 2, 2) });
    script.run_for(SECOND);
    script
}

fn written(script: &mut Script, object: u64, at: u64, value: u64) -> usize {
    let op = script.start(0, write_block(object, at, value));
    script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(script.answer_of(op), Some(&Answer::Written(Ok(()))));
    op
}

/// Writes the first blocks of object 0: 10, 11, ...
fn write_blocks(script: &mut Script, blocks: u64) {
    for at in 0..blocks {
        written(script, 0, at, 10 + at);
    }
}

fn holds(script: &mut Script, object: u64, at: u64, value: u64) {
    let op = script.start(1, read_block(object, at));
    script.run_while("a read is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(data_of(script.answer_of(op)), Some(&block(value)[..]), "block {at} of object {object}");
}

fn serves_without(script: &mut Script, lost: &[usize]) {
    lost.iter().for_each(|at| script.kill(*at));
    let is_gone =
        |world: &World, at: &usize| world.cluster.record.members.iter().all(|member| member.0 as usize != *at + 1);
    script.run_while("not without them", |world| {
        let is_active = world.state_of(world.primary()) == Some(PgState::Active);
        !is_active || !lost.iter().all(|at| is_gone(world, at))
    });
}

fn is_whole(script: &mut Script) {
    script.run_while("not whole", |world| {
        !world.cluster.is_clean() || world.state_of(world.primary()) != Some(PgState::Active)
    });
}

/// Has some OSDs make a write durable while the devices of others do nothing.
fn prepared(script: &mut Script, write: Kind, by: &[usize], slow: &[usize]) -> usize {
    slow.iter().for_each(|at| script.members[*at].last_commit = u64::MAX / 2);
    let op = script.start(0, write);
    script.run_while("not prepared", |world| by.iter().any(|at| !world.was_durable(op, *at)));
    op
}

/// Processes that have not made a write durable die and start again.
fn crash(script: &mut Script, op: usize, osds: &[usize]) {
    for at in osds {
        assert!(!script.was_durable(op, *at), "osd {at} was slow");
        script.kill(*at);
        script.members[*at].last_commit = 0;
        script.restart(*at);
    }
    assert_eq!(script.answer_of(op), None);
}

fn object(number: u64) -> ObjectName {
    ObjectName::new(&format!("object{number}")).unwrap()
}
