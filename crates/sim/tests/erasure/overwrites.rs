//! Small overwrites, and shards that are damaged.

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::PgState;
use atoll_sim::{PG, write_block};

use crate::{MS, SECOND, holds, object, serves_without, two_and_two, write_blocks, written};

#[test]
fn a_damaged_shard_is_rebuilt_when_it_is_read() {
    for (holder, at) in [(0, 0), (1, 1)] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 2);
        script.members[holder].store.bad.insert((object(0), 0));
        script.damaged.insert(object(0));
        holds(&mut script, 0, at, 10 + at);
        script.run_while("not repaired", |world| !world.members[holder].store.bad.is_empty());
        assert!(script.statistics.copy_reads > 0);
        script.finish();
    }
}

#[test]
fn members_read_what_small_overwrites_replace() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    // The primary has one data shard and asks for the block of the other. Nobody asks for parity.
    for (at, asks, by_members) in [(0, 0, 2), (1, 1, 3)] {
        let before = script.statistics.clone();
        written(&mut script, 0, at, 20 + at);
        assert_eq!(script.statistics.copy_reads - before.copy_reads, asks);
        assert_eq!(script.statistics.overwrites - before.overwrites, by_members);
    }
    serves_without(&mut script, &[0, 1]);
    (0..2).for_each(|at| holds(&mut script, 0, at, 20 + at));
    script.finish();
}

#[test]
fn what_comes_behind_an_overwrite_keeps_its_place() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    // The second is whole and could be submitted while parity is still being read for the first.
    let ops =
        [write_block(0, 0, 20), write_block(1, 0, 30), write_block(0, 1, 21)].map(|write| script.start(0, write));
    for op in ops {
        script.run_while("a write is not answered", |world| world.answer_of(op).is_none());
    }
    assert_eq!(script.statistics.refused, 0);
    [(0, 0, 20), (0, 1, 21), (1, 0, 30)]
        .into_iter()
        .for_each(|(number, at, value)| holds(&mut script, number, at, value));
    script.finish();
}

#[test]
fn a_parity_block_that_cannot_be_read_for_an_overwrite_is_computed() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let epoch = script.cluster.record.epoch;
    script.members[2].store.bad.insert((object(0), 0));
    script.damaged.insert(object(0));
    written(&mut script, 0, 0, 20);
    assert!(script.cluster.record.epoch > epoch && script.statistics.unreadable_overwrites == 1);
    script.run_while("not repaired", |world| !world.members[2].store.bad.is_empty());
    serves_without(&mut script, &[0, 1]);
    (0..2).for_each(|at| holds(&mut script, 0, at, [20, 11][at as usize]));
    script.finish();
}

#[test]
fn shards_of_another_length_give_no_data_and_are_repaired() {
    for change in [BLOCK_BYTES as i64, -(BLOCK_BYTES as i64)] {
        let mut script = two_and_two(4);
        write_blocks(&mut script, 2);
        script.damaged.insert(object(0));
        let store = &mut script.members[1].store;
        for pgs in [&mut store.visible, &mut store.durable] {
            let shard = pgs.of_mut(PG).objects.get_mut(&object(0)).unwrap();
            shard.size = shard.size.checked_add_signed(change).unwrap();
        }
        let wrong = script.members[1].store.visible.of(PG).objects[&object(0)].size;
        holds(&mut script, 0, 1, 11);
        script.run_while("not repaired", |world| {
            world.members[1].store.visible.of(PG).objects.get(&object(0)).is_none_or(|shard| shard.size == wrong)
        });
        script.run_for(100 * MS);
        script.finish();
    }
}

#[test]
fn a_repair_that_the_store_refuses_costs_no_shard() {
    let mut script = two_and_two(4);
    write_blocks(&mut script, 2);
    let epoch = script.cluster.record.epoch;
    script.members[0].store.bad.insert((object(0), 0));
    script.damaged.insert(object(0));
    script.members[0].refuses_until = u64::MAX;
    holds(&mut script, 0, 0, 10);
    script.run_while("no repair is refused", |world| world.statistics.refused == 0);
    script.run_for(5 * SECOND);
    assert_eq!(
        (script.cluster.record.epoch, script.state_of(0)),
        (epoch, Some(PgState::Active)),
        "it still serves"
    );
    script.members[0].refuses_until = 0;
    holds(&mut script, 0, 0, 10);
    script.run_while("not repaired", |world| !world.members[0].store.bad.is_empty());
    script.finish();
}
