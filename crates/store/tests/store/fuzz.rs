//! Fuzzing in small: valid superblocks, log records and metadata pages of a real history, changed in
//! ways that decoders find hard. `ATOLL_FUZZ_RUNS` sets how many. `crates/store/fuzz` is the same
//! for cargo-fuzz.

use atoll_store::{Device, fuzz};

use crate::history::History;
use crate::random::{Random, setting};
use crate::workload::Profile;

/// Numbers at which lengths and counts go wrong.
const EDGES: [u32; 9] = [0, 1, 2, 0x7f, 0xff, 0xfff, 0x1000, 0xffff, u32::MAX];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    // Headers are where it matters most.
    let bound = if random.chance(60) { bytes.len().min(160) } else { bytes.len() } as u64;
    let position = random.below(bound) as usize;
    match random.below(6) {
        0 => bytes[position] ^= 1 << random.below(8),
        1 => bytes[position] = random.next() as u8,
        2 => bytes.truncate(position + 1),
        3 => {
            let edge = random.pick(&EDGES).to_le_bytes();
            let width = random.pick(&[1, 2, 4]);
            edge[..width].iter().zip(&mut bytes[position..]).for_each(|(new, old)| *old = *new);
        }
        4 => {
            let from = random.below(bytes.len() as u64) as usize;
            let length = random.below(32).min((bytes.len() - position.max(from)) as u64) as usize;
            bytes.copy_within(from..from + length, position);
        }
        _ => bytes[position] = bytes[position].wrapping_add(1),
    }
}

#[test]
fn damaged_bytes_never_make_a_decoder_panic() {
    let mut random = Random::new(setting("ATOLL_FUZZ_SEED", 1));
    let profile = Profile { wal_is_apart: false, prologue: 300, ..Profile::random(&mut random) };
    let mut history = History::new(profile, random.clone());
    history.prologue();
    let blocks = history.disk.blocks(Device::Data);
    let samples: Vec<_> =
        blocks.iter().map(|&block| fuzz::samples_of(&history.disk.block(Device::Data, block))).collect();
    if let Ok(directory) = std::env::var("ATOLL_FUZZ_CORPUS") {
        for (index, sample) in samples.iter().enumerate() {
            std::fs::write(format!("{directory}/{index}"), sample).unwrap();
        }
    }
    for _ in 0..setting("ATOLL_FUZZ_RUNS", 100_000) {
        let index = random.below(samples.len() as u64) as usize;
        // Half of the time one of the few that are first on the device: superblocks and records.
        let index = if random.chance(50) { index % 100.min(samples.len()) } else { index };
        let mut bytes = samples[index].clone();
        (0..1 + random.below(4)).for_each(|_| mutate(&mut bytes, &mut random));
        fuzz::decode(&bytes);
    }
}
