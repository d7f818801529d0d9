//! How fast this processor codes: `cargo run --release -p atoll-ec --example speed`.
//!
//! Gigabytes of data shards per second for encode and reconstruct (of as many lost data shards as
//! the code allows), and of the delta for the update of one parity shard.

use std::hint::black_box;
use std::time::{Duration, Instant};

use atoll_ec::Code;

fn main() {
    println!("kernel: {}", atoll_ec::backend());
    println!("{:>8} {:>8} {:>10} {:>10} {:>12}  GB/s", "code", "shard", "encode", "update", "reconstruct");
    for (data_shards, parity_shards) in [(2, 1), (2, 2), (4, 2), (8, 3)] {
        for shard_kib in [4, 64, 512] {
            measure(data_shards, parity_shards, shard_kib);
        }
    }
}

fn measure(data_shards: usize, parity_shards: usize, shard_kib: usize) {
    let code = Code::new(data_shards, parity_shards).expect("a code that exists");
    let length = shard_kib << 10;
    let data: Vec<Vec<u8>> =
        (0..data_shards).map(|shard| (0..length).map(|at| (at * 31 + at / 251 + shard) as u8).collect()).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; length]; parity_shards];
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let encode = gigabytes_per_second(data_shards * length, || code.encode(black_box(&data), &mut outputs));

    let mut target = vec![0; length];
    let last = parity_shards - 1;
    let update = gigabytes_per_second(length, || code.update(1, black_box(data[0]), last, &mut target));

    let shards = data.iter().copied().chain(parity.iter().map(Vec::as_slice)).enumerate();
    let available: Vec<(usize, &[u8])> = shards.skip(parity_shards).collect();
    let wanted: Vec<usize> = (0..parity_shards).collect();
    let mut lost = vec![vec![0; length]; parity_shards];
    let mut outputs: Vec<&mut [u8]> = lost.iter_mut().map(Vec::as_mut_slice).collect();
    let reconstruct = gigabytes_per_second(data_shards * length, || {
        code.reconstruct(black_box(&available), &wanted, &mut outputs).expect("enough is left");
    });

    let name = format!("{data_shards}+{parity_shards}");
    println!("{name:>8} {shard_kib:>4} KiB {encode:>10.1} {update:>10.1} {reconstruct:>12.1}");
}

fn gigabytes_per_second(bytes: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut rounds = 0_u32;
    while start.elapsed() < Duration::from_millis(200) {
        for _ in 0..8 {
            work();
        }
        rounds += 8;
    }
    bytes as f64 * f64::from(rounds) / start.elapsed().as_secs_f64() / 1e9
}
