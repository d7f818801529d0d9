//! How fast the cipher is. Not a test: run it with
//! `cargo test --release -p atoll-luks2 --test luks2 throughput -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use atoll_luks2::{SECTOR_BYTES, VolumeCipher, VolumeKey};

#[test]
#[ignore = "it measures, and takes a few seconds"]
fn throughput() {
    let key = VolumeKey::from_bytes(std::array::from_fn(|i| i as u8)).unwrap();
    for bytes in [SECTOR_BYTES, 64 << 10, 1 << 20, 4 << 20] {
        let mut cipher = VolumeCipher::new(&key, 0);
        let (source, mut destination) = (vec![0x5a; bytes], vec![0; bytes]);
        report("encrypt_into", bytes, || cipher.encrypt_into(0, black_box(&source), &mut destination));
        report("encrypt", bytes, || cipher.encrypt(0, black_box(&mut destination)));
        report("decrypt", bytes, || cipher.decrypt(0, black_box(&mut destination)));
    }
}

/// Measures the best of ten runs: the speed on a core without other load.
fn report(name: &str, bytes: usize, mut operation: impl FnMut()) {
    let rounds = (256 << 20) / bytes;
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        (0..rounds).for_each(|_| operation());
        best = best.min(start.elapsed());
    }
    let sectors = (rounds * bytes / SECTOR_BYTES) as f64;
    let (nanos, gigabytes) = (best.as_nanos() as f64, (rounds * bytes) as f64 / 1e9);
    println!(
        "{name:13} {:5} KiB a call: {:5.2} GB/s, {:6.3} us per 4 KiB sector",
        bytes >> 10,
        gigabytes / best.as_secs_f64(),
        nanos / sectors / 1000.0
    );
}
