//! Erasure-coded PGs with members that are full. In every run it is asserted that no write of a client takes
//! space of an OSD that the primary knew to be full.

#![allow(clippy::unwrap_used)] // a test through and through

use atoll_buffers::BLOCK_BYTES;
use atoll_sim::{
    Answer, Kind, Options, Script, block, clone_of, data_of, read_block, remove, simulate_full, write_block,
    write_blocks,
};
use atoll_types::{Mutation, ObjectName, OsdId, Refusal, WriteRequest};

const SECOND: u64 = 1_000_000;

/// An active PG of two data shards and one parity shard; OSD n holds shard n, and OSD 0 is the primary.
fn two_and_one() -> Script {
    let mut script = Script::new(Options::scripted_coded(3, 2, 1));
    script.run_for(SECOND);
    script
}

fn answer(script: &mut Script, write: Kind) -> Result<(), Refusal> {
    let op = script.start(0, write);
    answer_of(script, op)
}

fn answer_of(script: &mut Script, op: usize) -> Result<(), Refusal> {
    script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    let Some(Answer::Written(result)) = script.answer_of(op) else { panic!("it is a write") };
    result.clone()
}

fn holds(script: &mut Script, object: u64, at: u64, value: u64) {
    let op = script.start(1, read_block(object, at));
    script.run_while("a read is not answered", |world| world.answer_of(op).is_none());
    assert_eq!(data_of(script.answer_of(op)), Some(&block(value)[..]), "block {at} of object {object}");
}

fn becomes_full(script: &mut Script, at: usize) {
    script.set_full(at, true);
    // All hear of it.
    script.run_for(SECOND);
}

fn no_space(at: usize) -> Result<(), Refusal> {
    Err(Refusal::NoSpace { osd: OsdId(at as u32 + 1) })
}

fn zero(object: u64, first: u64, count: u64) -> Kind {
    let (offset, length) = (first * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64);
    let object = ObjectName::new(&format!("object{object}")).unwrap();
    let mutations = vec![Mutation::Zero { offset, length }];
    Kind::Write(WriteRequest {
        object,
        conditions: vec![],
        mutations,
        payload: Default::default(),
        payload_sealed: false,
    })
}

/// Blocks 0 and 3 of object 0 are written, 1 and 2 are holes: block 1 is in shard 1, block 2 in shard 0.
fn with_holes() -> Script {
    let mut script = two_and_one();
    assert_eq!(answer(&mut script, write_block(0, 0, 10)), Ok(()));
    assert_eq!(answer(&mut script, write_block(0, 3, 13)), Ok(()));
    script
}

#[test]
fn small_overwrites_go_on_while_a_member_is_full() {
    for at in 0..3 {
        let mut script = with_holes();
        becomes_full(&mut script, at);
        assert_eq!(answer(&mut script, write_block(0, 0, 20)), Ok(()), "{at} is full");
        assert_eq!(answer(&mut script, write_block(0, 3, 23)), Ok(()), "{at} is full");
        assert!(script.overwrites_in_place > 0);
        holds(&mut script, 0, 0, 20);
        holds(&mut script, 0, 3, 23);
        script.finish();
    }
}

#[test]
fn writes_into_holes_are_refused_by_the_member_that_is_full() {
    for at in 0..3 {
        let mut script = with_holes();
        becomes_full(&mut script, at);
        // Parity has its blocks, so only the data shard needs one.
        let expected = |shard: usize| if shard == at { no_space(at) } else { Ok(()) };
        assert_eq!(answer(&mut script, write_block(0, 1, 21)), expected(1), "{at} is full");
        assert_eq!(answer(&mut script, write_block(0, 2, 22)), expected(0), "{at} is full");
        // Beyond the end, and in an object that is not there, all need some.
        assert_eq!(answer(&mut script, write_block(0, 4, 24)), no_space(at));
        assert_eq!(answer(&mut script, write_block(1, 0, 30)), no_space(at));
        script.set_full(at, false);
        script.run_for(SECOND);
        assert_eq!(answer(&mut script, write_block(0, 1, 31)), Ok(()));
        script.finish();
    }
}

#[test]
fn what_a_clone_shares_is_not_overwritten_while_a_member_is_full() {
    for at in 0..3 {
        let mut script = with_holes();
        assert_eq!(answer(&mut script, clone_of(1, 0)), Ok(()));
        becomes_full(&mut script, at);
        let expected = if at == 1 { Ok(()) } else { no_space(at) };
        assert_eq!(answer(&mut script, write_block(0, 0, 20)), expected, "{at} is full");
        assert_eq!(answer(&mut script, clone_of(2, 0)), no_space(at));
        assert_eq!(answer(&mut script, remove(1)), Ok(()), "deletes go on");
        assert_eq!(answer(&mut script, write_block(0, 0, 21)), Ok(()), "nothing shares it any more");
        script.finish();
    }
}

#[test]
fn trims_go_on_and_overwrites_beside_them_wait_for_their_pre_images() {
    for at in 0..3 {
        let mut script = two_and_one();
        // Blocks that differ: parity of equal ones is zeros, which have no place.
        assert_eq!(answer(&mut script, write_blocks(0, 40, 10)), Ok(()));
        assert_eq!(answer(&mut script, write_block(0, 38, 11)), Ok(()));
        becomes_full(&mut script, at);
        // More than a log entry holds: every shard clones the object, which shares all its blocks.
        let trim = script.start(0, zero(0, 0, 38));
        let beside = script.start(1, write_block(0, 39, 29));
        assert_eq!(answer_of(&mut script, trim), Ok(()), "{at} is full");
        assert_eq!(answer_of(&mut script, beside), Ok(()), "{at} is full");
        holds(&mut script, 0, 39, 29);
        // A small one.
        assert_eq!(answer(&mut script, zero(0, 39, 1)), Ok(()), "{at} is full");
        script.finish();
    }
}

/// `ATOLL_SIM_RUNS` sets the number of seeds, `ATOLL_SIM_SEED` the first one.
#[test]
fn no_client_takes_space_of_full_members() {
    let setting = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = setting("ATOLL_SIM_SEED", 1);
    let (mut in_place, mut refused) = (0, 0);
    for seed in first..first + setting("ATOLL_SIM_RUNS", 150) {
        let (overwrites, refusals) = simulate_full(seed);
        (in_place, refused) = (in_place + overwrites, refused + refusals);
    }
    println!("{in_place} parts of writes were taken in place, {refused} writes refused");
    assert!(in_place > 0 && refused > 0);
}
