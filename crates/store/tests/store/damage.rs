//! Rot, lost writes and misdirected writes, anywhere on the devices: the store refuses to open or names the
//! damaged blocks, or the damage hit unreferenced blocks. Never does it serve wrong bytes, forget acknowledged
//! writes, or panic. `ATOLL_DAMAGE_RUNS` sets the number of histories, `ATOLL_DAMAGE_SEED` the first seed.
//!
//! One thing cannot be noticed by one device alone: that its newest log record is gone. Every
//! record is therefore followed by another here, but in a test of its own.

use std::sync::atomic::{AtomicU64, Ordering};

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{Device, Disk, DiskOperation, Store};

use crate::history::{History, verify_recovered};
use crate::random::{Random, on_all_cores, setting};
use crate::workload::Profile;
use atoll_store::simulated_disk::SimulatedDisk;

const TRIALS_PER_HISTORY: usize = 40;

#[derive(Default)]
struct Counts {
    refused: AtomicU64,
    reported: AtomicU64,
    harmless: AtomicU64,
}

impl Counts {
    /// Opens the damaged store and looks at everything in it.
    fn judge(&self, history: &mut History, disk: &mut SimulatedDisk) {
        let counter = match Store::open(disk, history.next_incarnation()) {
            Err(_) => &self.refused,
            Ok(mut store) => match verify_recovered(&mut store, disk, &history.pgs, 1) {
                Err(damage) => {
                    assert!(!damage.0.is_empty());
                    &self.reported
                }
                Ok(_) => &self.harmless,
            },
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn print(self, what: &str) {
        let [refused, reported, harmless] =
            [self.refused, self.reported, self.harmless].map(|count| count.into_inner());
        println!("{what}: {refused} refused to open, {reported} reported by reads, {harmless} hit nothing live");
        assert!(refused > 0 && reported > 0, "the test must be able to hit what is live");
    }
}

fn for_each_history(work: impl Fn(u64, Random) + Sync) {
    let (first, runs) = (setting("ATOLL_DAMAGE_SEED", 1), setting("ATOLL_DAMAGE_RUNS", 8));
    on_all_cores(first, |seed| {
        if seed >= first + runs {
            return false;
        }
        println!(
            "replay with: ATOLL_DAMAGE_SEED={seed} ATOLL_DAMAGE_RUNS=1 cargo test -p atoll-store --test store damage"
        );
        work(seed, Random::new(seed));
        true
    });
}

fn history(mut random: Random) -> History {
    let profile = Profile { prologue: 50 + random.below(250), ..Profile::random(&mut random) };
    let mut history = History::new(profile, random);
    history.prologue();
    history
}

#[test]
fn rot_is_detected_and_never_served() {
    let counts = Counts::default();
    for_each_history(|_, random| {
        let mut history = history(random);
        history.settle_with_two_more_records();
        let newest = history.newest_record().expect("records were written");
        for _ in 0..TRIALS_PER_HISTORY {
            let devices = [Device::Data, if history.profile.wal_is_apart { Device::Log } else { Device::Data }];
            let device = history.random.pick(&devices);
            let mut disk = history.disk.clone();
            // Superblocks and the log's mark are few; they get their share.
            let blocks = if history.random.chance(15) { vec![0, 1] } else { disk.blocks(device) };
            let block = history.random.pick(&blocks);
            if newest.covers(device, block) {
                continue;
            }
            disk.rot(device, block, &mut history.random);
            counts.judge(&mut history, &mut disk);
        }
    });
    counts.print("rot");
}

#[test]
fn rot_of_the_newest_record_shows_the_state_before_it() {
    for_each_history(|_, random| {
        let mut history = history(random);
        history.settle_with_two_more_records();
        let newest = history.newest_record().expect("records were written");
        let mut disk = history.disk.clone();
        disk.rot(newest.device, newest.block, &mut history.random);
        let mut store = Store::open(&mut disk, history.next_incarnation()).expect("it looks like a torn end");
        // What is found is nevertheless a state that the PG had.
        history.pgs.iter_mut().for_each(|history| history.forget_newest_record());
        verify_recovered(&mut store, &mut disk, &history.pgs, 1).expect("nothing else is damaged");
    });
}

/// Where a write is done, if it is done at all.
fn misdirected(history: &mut History, device: Device, offset: u64, block_count: u64) -> Option<u64> {
    let size_bytes = history.disk.size_bytes(device)?;
    let blocks = history.disk.blocks(device);
    let near = |random: &mut Random| offset / BLOCK_BYTES as u64 + random.below(64);
    let target = match history.random.below(3) {
        0 => history.random.below(3),
        1 => near(&mut history.random),
        _ => history.random.pick(&blocks),
    };
    ((target + block_count) * BLOCK_BYTES as u64 <= size_bytes).then_some(target * BLOCK_BYTES as u64)
}

fn lose_or_misdirect_a_write(is_lost: bool, counts: &Counts) {
    for_each_history(|_, random| {
        let mut seeds = random;
        for _ in 0..TRIALS_PER_HISTORY / 4 {
            let mut history = history(Random::new(seeds.next()));
            history.only_writes = true;
            for _ in 0..history.random.below(100) {
                history.step();
            }
            let Some(mut request) = history.take_pending_write() else { continue };
            let device = request.device;
            let (offset, pieces) = request.operation.written().unwrap();
            let block_count = pieces.iter().map(|piece| (piece.len() / BLOCK_BYTES) as u64).sum();
            let target = misdirected(&mut history, device, offset, block_count).filter(|_| !is_lost);
            if let Some(target) = target {
                match &mut request.operation {
                    DiskOperation::Write { offset, .. } | DiskOperation::WriteBytes { offset, .. } => {
                        *offset = target
                    }
                    DiskOperation::Read { .. } | DiskOperation::Sync | DiskOperation::Discard { .. } => {
                        unreachable!()
                    }
                }
                history.disk.execute(device, request.operation).unwrap();
            }
            history.store.complete(request.id, Ok(None));
            // The store may notice at once, or go on for a while.
            let steps = history.random.below(300);
            let noticed = (0..steps).any(|_| {
                history.step();
                history.poisoned
            });
            if noticed || !history.try_to_settle_with_two_more_records() {
                counts.reported.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut disk = history.disk.clone();
            counts.judge(&mut history, &mut disk);
        }
    });
}

#[test]
fn lost_writes_are_detected() {
    let counts = Counts::default();
    lose_or_misdirect_a_write(true, &counts);
    counts.print("lost writes");
}

#[test]
fn misdirected_writes_are_detected() {
    let counts = Counts::default();
    lose_or_misdirect_a_write(false, &counts);
    counts.print("misdirected writes");
}
