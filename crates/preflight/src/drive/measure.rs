//! One read or write of 4 KiB at a time, each waited for.

use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use rustix::io::{ReadWriteFlags, pwritev2};

use super::target::{WriteTarget, direct_options};
use crate::request::Stop;

/// More are not kept; at the fastest drives' rates this is some minutes.
const SAMPLES_MAX: usize = 20_000_000;

/// How often something was done, and how long it took.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// How a write becomes durable.
#[derive(Clone, Copy)]
pub(super) enum Durability {
    /// By `RWF_DSYNC`: it is when the write returns. This is how an OSD writes.
    Flag,
    /// By an fsync after it.
    Call,
}

/// Repeats until the time is over, and counts.
fn repeat(duration: Duration, stop: &Stop, mut once: impl FnMut(u64) -> io::Result<()>) -> io::Result<Rates> {
    let mut samples_ns: Vec<u32> = Vec::new();
    let started = Instant::now();
    let mut before = started;
    while before - started < duration && samples_ns.len() < SAMPLES_MAX && !stop.is_set() {
        once(samples_ns.len() as u64)?;
        let now = Instant::now();
        samples_ns.push(u32::try_from((now - before).as_nanos()).unwrap_or(u32::MAX));
        before = now;
    }
    let elapsed = before - started;
    rates(samples_ns, elapsed)
        .ok_or_else(|| io::Error::new(io::ErrorKind::Interrupted, "stopped before the first"))
}

fn rates(mut samples_ns: Vec<u32>, elapsed: Duration) -> Option<Rates> {
    if samples_ns.is_empty() {
        return None;
    }
    samples_ns.sort_unstable();
    let quantile_us = |share: f64| f64::from(samples_ns[(samples_ns.len() as f64 * share) as usize]) / 1e3;
    Some(Rates {
        per_second: samples_ns.len() as f64 / elapsed.as_secs_f64(),
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
    })
}

/// Reads blocks at random places. The device is opened for reading only.
pub(super) fn read_random(path: &Path, duration: Duration, stop: &Stop) -> io::Result<Rates> {
    let mut file = direct_options().read(true).open(path)?;
    let block_count = file.seek(SeekFrom::End(0))? / BLOCK_BYTES as u64;
    if block_count == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no disk behind it; its size is 0"));
    }
    let mut buffer = BlockBuffer::zeroed(1);
    // A multiplicative walk: the same places in each run, far apart.
    repeat(duration, stop, |count| {
        let block = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % block_count;
        file.read_exact_at(buffer.as_mut_slice(), block * BLOCK_BYTES as u64)
    })
}

/// Writes blocks one behind the other, as a log does.
pub(super) fn write_in_order(
    target: &WriteTarget,
    durability: Durability,
    duration: Duration,
    stop: &Stop,
) -> io::Result<Rates> {
    let mut buffer = BlockBuffer::filled(1, |_, block| block.fill(0x5a));
    let flags = match durability {
        Durability::Flag => ReadWriteFlags::DSYNC,
        Durability::Call => ReadWriteFlags::empty(),
    };
    repeat(duration, stop, |count| {
        // A drive that compares with what it holds must not find the same.
        buffer.as_mut_slice()[..8].copy_from_slice(&count.to_le_bytes());
        let offset = count * BLOCK_BYTES as u64 % target.size_bytes();
        let written = pwritev2(target.file(), &[IoSlice::new(buffer.as_slice())], offset, flags)?;
        if written != BLOCK_BYTES {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "a write was cut short; is the drive full?"));
        }
        match durability {
            Durability::Flag => Ok(()),
            Durability::Call => target.file().sync_all(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_over_time() {
        let samples_ns: Vec<u32> = (1..=100).map(|us| us * 1_000).collect();
        let rates = rates(samples_ns, Duration::from_secs(2)).unwrap();
        assert_eq!(rates.per_second, 50.0);
        assert_eq!((rates.p50_us, rates.p99_us), (51.0, 100.0));
        assert!(super::rates(Vec::new(), Duration::ZERO).is_none());
    }

    #[test]
    fn a_stop_ends_it() {
        let stop = Stop::default();
        stop.set();
        assert!(repeat(Duration::from_secs(60), &stop, |_| Ok(())).is_err());
    }
}
