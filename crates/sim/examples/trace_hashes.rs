//! Prints the trace hash of each seed. Two builds that print the same behave the same in these worlds, which
//! separates a change of form from a change of behaviour: `trace_hashes FIRST COUNT`, replicated and
//! erasure-coded.

#![allow(clippy::unwrap_used)] // a test through and through

use std::panic::catch_unwind;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (first, count) = (arguments.next().unwrap_or(1), arguments.next().unwrap_or(200));
    for seed in first..first + count {
        for is_coded in [false, true] {
            let hash = catch_unwind(|| {
                atoll_sim::simulate(seed, atoll_sim::Setup { is_coded, ..Default::default() }).trace
            })
            .ok();
            println!(
                "{seed} {} {}",
                if is_coded { "ec" } else { "copies" },
                hash.map_or("failed".into(), |hash| format!("{hash:016x}"))
            );
        }
    }
}
