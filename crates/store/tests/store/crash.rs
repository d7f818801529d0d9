//! Cuts the power after every device write of long random histories, and compares the recovered state with a plain
//! model. `ATOLL_CRASH_POINTS` sets after how many writes, `ATOLL_CRASH_SEED` the first seed.

use std::sync::atomic::{AtomicU64, Ordering};

use atoll_store::{CheckOptions, Store, check};

use crate::history::{History, verify_recovered};
use crate::random::{Random, on_all_cores, setting};
use crate::verify::run;
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

/// Number of writes after which the metadata of the store in use is checked as a whole.
const STEPS_PER_EXAMINATION: u64 = 25;
/// Power cuts of one history; then another profile gets its turn.
const POINTS_PER_HISTORY: u64 = 150;

/// Checks that the state after a power cut, and after opening it, is without fault.
fn assert_fsck_clean(disk: &mut SimulatedDisk) {
    let options = CheckOptions { data: true };
    let report = check(disk, options, &mut |_, _, _| {}).expect("a store that opens can be checked");
    assert!(report.problem_count == 0, "{:?}", report.problems);
}

/// Writes on with the store that was recovered: it must not have forgotten which blocks are in use.
fn write_on(history: &mut History, mut store: Store, mut disk: SimulatedDisk) {
    let mut pgs = history.pgs.clone();
    for (pg, history) in pgs.iter_mut().enumerate() {
        history.recovered_at(store.head(crate::model::pg_id(pg)).sequence);
    }
    for _ in 0..30 {
        let pg = history.random.below(pgs.len() as u64) as usize;
        let (transaction, next) = history.profile.transaction(pg, pgs[pg].newest(), &mut history.random);
        crate::verify::look_and_submit(&mut store, &mut disk, &transaction);
        pgs[pg].submitted(next);
        if history.random.chance(30) {
            store.flush();
            run(&mut store, &mut disk);
        }
        while store.next_event().is_some() {}
    }
    store.close(&mut disk).expect("a store can be closed");
    let mut store = Store::open(&mut disk, history.next_incarnation()).expect("a closed store opens");
    pgs.iter_mut().for_each(|history| history.all_acknowledged());
    verify_recovered(&mut store, &mut disk, &pgs, 1).expect("nothing is damaged");
}

fn cut_power(history: &mut History) {
    let mut disk = history.disk_after_power_cut();
    if history.random.chance(10) {
        assert_fsck_clean(&mut disk);
    }
    let mut store = history.open_after_power_cut(&mut disk).expect("a store opens after any power cut");
    if history.random.chance(30) {
        store.set_memory_budget(64 << 10, 0);
    }
    // Large stores take their time to be read; each power cut does a part of it.
    let object_count = store.usage().object_count;
    let share = if history.random.chance(2) { 1 } else { 1 + object_count / 20 };
    verify_recovered(&mut store, &mut disk, &history.pgs, share).expect("nothing is damaged");
    if history.random.chance(20) {
        assert_fsck_clean(&mut disk);
    }
    if history.random.chance(10) {
        write_on(history, store, disk);
    } else if history.random.chance(3) {
        drop(store);
        history.go_on_with(disk);
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_half_there() {
    let wanted = setting("ATOLL_CRASH_POINTS", 1_500);
    let per_history = setting("ATOLL_CRASH_POINTS_PER_HISTORY", POINTS_PER_HISTORY);
    let points = AtomicU64::new(0);
    let started = std::time::Instant::now();
    on_all_cores(setting("ATOLL_CRASH_SEED", 1), |seed| {
        if points.load(Ordering::Relaxed) >= wanted {
            return false;
        }
        let mut random = Random::new(seed);
        let profile = Profile::random(&mut random);
        println!(
            "replay with: ATOLL_CRASH_SEED={seed} ATOLL_CRASH_POINTS=1 cargo test --release -p atoll-store --test store crash \
             # {profile:?}"
        );
        let mut history = History::new(profile, random);
        history.prologue();
        let mut left = per_history;
        while left > 0 {
            if history.step() {
                if left.is_multiple_of(STEPS_PER_EXAMINATION) {
                    let problems = history.store.examine(&mut history.disk);
                    assert!(problems.is_empty(), "{problems:?}");
                }
                cut_power(&mut history);
                left -= 1;
                points.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    });
    let points = points.into_inner();
    println!("{points} power cuts, one after each device write, in {:?}", started.elapsed());
}
