//! A fixed piece of work of three kinds, by the CPU time of the thread that does it: how fast this machine is now.
//! No part of it is Atoll's code, which may become faster.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::report::{Spread, geometric_mean};

/// Size of each of two buffers: together larger than the caches of processors of 2026, up to 260 MiB.
const BUFFER_BYTES: usize = 256 << 20;
const COPY_BYTES: usize = 4 << 20;
const BLOCK_BYTES: usize = 4 << 10;
const MAP_ENTRIES: u64 = 1 << 16;
const LOOK_UPS: u64 = 32;
/// Units in one sample: some ten milliseconds each.
const COPIES: usize = 16;
const COMPUTE_UNITS: u64 = 1000;
const ROUND_TRIPS: u64 = 1000;
/// Number of samples whose median counts.
const SAMPLES: usize = 5;
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(10);
/// An odd number near 2^64 divided by the golden ratio: its multiples are spread over all 64 bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// A figure for each kind of work: CPU time of one unit in microseconds, or the ratio of two such.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByKind {
    /// 4 MiB copied between buffers larger than caches: memory.
    pub copy: f64,
    /// SHA-256 of 4 KiB and look-ups in an ordered map: the processor and its caches.
    pub compute: f64,
    /// 4 KiB there and back over a loopback TCP connection: system calls.
    pub system_calls: f64,
}

impl ByKind {
    /// The median of several readings, of each kind by itself.
    pub fn median(readings: &[ByKind]) -> Option<Self> {
        let median = |of: fn(&ByKind) -> f64| Some(Spread::of(readings.iter().map(of))?.median);
        Some(ByKind {
            copy: median(|one| one.copy)?,
            compute: median(|one| one.compute)?,
            system_calls: median(|one| one.system_calls)?,
        })
    }

    /// Each kind.
    pub fn kinds(&self) -> [f64; 3] {
        [self.copy, self.compute, self.system_calls]
    }

    /// The middle of readings whose kinds are ratios.
    pub(super) fn geometric_mean(&self) -> Option<f64> {
        geometric_mean(&self.kinds())
    }
}

/// Buffers of the fixed work, which are made once.
pub struct Yardstick {
    source: Vec<u8>,
    target: Vec<u8>,
    /// Where in them the next copy is: they are walked through round and round.
    position: usize,
    map: BTreeMap<u64, u64>,
    near: TcpStream,
    far: TcpStream,
}

impl Yardstick {
    /// Makes it.
    pub fn new() -> Result<Self, LabError> {
        let (near, far) = connection()?;
        let key = |number: u64| number.wrapping_mul(SPREAD);
        Ok(Yardstick {
            source: vec![3; BUFFER_BYTES],
            target: vec![5; BUFFER_BYTES],
            position: 0,
            map: (0..MAP_ENTRIES).map(|number| (key(number), number)).collect(),
            near,
            far,
        })
    }

    /// Measures: it takes some tenths of a second.
    pub fn read(&mut self) -> Result<ByKind, LabError> {
        let mut readings = Vec::new();
        for sample in 0..SAMPLES {
            let copy = timed(COPIES as u64, || self.copy());
            let compute = timed(COMPUTE_UNITS, || self.compute(sample as u64));
            let mut outcome = Ok(());
            let system_calls = timed(ROUND_TRIPS, || outcome = self.round_trips());
            outcome?;
            readings.push(ByKind { copy, compute, system_calls });
        }
        let median = ByKind::median(&readings).filter(|one| one.kinds().iter().all(|us| *us > 0.0));
        median.ok_or_else(|| LabError::Invalid("the clock of this thread's CPU time stands still".into()))
    }

    fn copy(&mut self) {
        for _ in 0..COPIES {
            let range = self.position..self.position + COPY_BYTES;
            self.target[range.clone()].copy_from_slice(black_box(&self.source[range]));
            self.position = (self.position + COPY_BYTES) % BUFFER_BYTES;
        }
        black_box(&mut self.target);
    }

    fn compute(&self, sample: u64) {
        let mut block = [7_u8; BLOCK_BYTES];
        let mut found = sample;
        for _ in 0..COMPUTE_UNITS {
            let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &block);
            block[..digest.as_ref().len()].copy_from_slice(digest.as_ref());
            for _ in 0..LOOK_UPS {
                // Where the next look-up goes depends on what this one has found.
                let key = found.wrapping_mul(SPREAD);
                let next = self.map.range(key..).next().map_or(0, |(_, number)| *number);
                found = next.wrapping_add(key >> 32) ^ u64::from(block[0]);
            }
        }
        black_box(found);
    }

    fn round_trips(&mut self) -> Result<(), LabError> {
        let mut block = [9_u8; BLOCK_BYTES];
        for _ in 0..ROUND_TRIPS {
            self.near.write_all(&block)?;
            self.far.read_exact(&mut block)?;
            self.far.write_all(&block)?;
            self.near.read_exact(&mut block)?;
        }
        Ok(())
    }
}

/// Both ends of a connection over loopback.
fn connection() -> Result<(TcpStream, TcpStream), LabError> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, from) = listener.accept()?;
    if from != near.local_addr()? {
        return Err(LabError::Invalid(format!("someone else ({from}) connected to the yardstick; try again")));
    }
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(ROUND_TRIP_TIMEOUT))?;
        end.set_write_timeout(Some(ROUND_TRIP_TIMEOUT))?;
    }
    Ok((near, far))
}

/// Returns the CPU time that this thread used for each of `units` units.
fn timed(units: u64, work: impl FnOnce()) -> f64 {
    let now_us = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let before_us = now_us();
    work();
    (now_us() - before_us) / units as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Less than a tenth or more than a hundred times of a usual machine's time would be another piece of work,
    /// such as one that the compiler has optimised away.
    #[test]
    fn each_kind_of_work_takes_the_time_that_it_must() {
        let reading = Yardstick::new().unwrap().read().unwrap();
        assert!((20.0..100_000.0).contains(&reading.copy), "{reading:?}");
        assert!((1.0..10_000.0).contains(&reading.compute), "{reading:?}");
        assert!((0.5..5_000.0).contains(&reading.system_calls), "{reading:?}");
    }

    #[test]
    fn waiting_is_not_work() {
        let us = timed(1, || std::thread::sleep(Duration::from_millis(100)));
        assert!(us < 50_000.0, "{us}");
    }

    #[test]
    fn the_median_is_of_each_kind_by_itself() {
        let reading = |copy, compute, system_calls| ByKind { copy, compute, system_calls };
        let readings = [reading(1.0, 9.0, 5.0), reading(2.0, 8.0, 7.0), reading(3.0, 7.0, 6.0)];
        assert_eq!(ByKind::median(&readings), Some(reading(2.0, 8.0, 6.0)));
        assert_eq!(ByKind::median(&[]), None);
    }
}
