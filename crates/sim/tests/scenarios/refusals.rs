//! Stores that refuse what others take, for good.

use atoll_sim::{Answer, Options, Script, write_block};
use atoll_types::Refusal;

use crate::{SECOND, holds, three_osds, with_leases, written};

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
