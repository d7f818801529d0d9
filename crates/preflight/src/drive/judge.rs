//! The verdict on the measured rates of a drive.

use serde::Serialize;

use super::measure::Rates;
use super::settings::cache_off_command;
use super::write_cache::{Cache, Switch};
use crate::finding::{Finding, Verdict};

pub(super) const READ_CHECK: &str = "drive.reads";
pub(super) const WRITE_CHECK: &str = "drive.synced_writes";
pub(super) const SWITCH_CHECK: &str = "drive.write_cache_switched";

/// Synced writes each by each: by a flag of the write, and by a call after it.
#[derive(Clone, Copy)]
pub(super) struct SyncedRates<'a> {
    pub flag: &'a Rates,
    pub call: &'a Rates,
}

/// Class of a drive, by its rate of 4 KiB writes, one at a time and each durable. The bounds are measurements of
/// operators: 100-2,000 a second without capacitors, 10-60 thousand with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncedWriteClass {
    /// Fewer than 100 a second: spinning disks.
    Spinning,
    /// Up to 2,000: flash that must reach its cells, or a fast spinning disk behind a cache.
    WithoutCapacitors,
    /// Up to 10,000: between the two.
    Between,
    /// Up to 60,000: flash with capacitors.
    WithCapacitors,
    /// More than the field saw of flash.
    Faster,
}

impl SyncedWriteClass {
    /// The class of a rate.
    pub fn of(per_second: f64) -> Self {
        match per_second {
            rate if rate < 100.0 => SyncedWriteClass::Spinning,
            rate if rate <= 2_000.0 => SyncedWriteClass::WithoutCapacitors,
            rate if rate < 10_000.0 => SyncedWriteClass::Between,
            rate if rate <= 60_000.0 => SyncedWriteClass::WithCapacitors,
            _ => SyncedWriteClass::Faster,
        }
    }

    /// Returns its meaning for Atoll.
    pub fn meaning(self) -> &'static str {
        match self {
            SyncedWriteClass::Spinning => "a spinning disk's rate: fine for large objects, with the log on flash",
            SyncedWriteClass::WithoutCapacitors => {
                "the field's rate of drives without capacitors (100-2,000/s): each small write waits for the flash itself"
            }
            SyncedWriteClass::Between => {
                "between drives without capacitors (up to 2,000/s) and with them (from 10,000/s): a virtual disk, a RAID \
                 controller, or a fast drive without them"
            }
            SyncedWriteClass::WithCapacitors => "the field's rate of drives with capacitors (10,000-60,000/s)",
            SyncedWriteClass::Faster => {
                "faster than the field's drives with capacitors (10,000-60,000/s): persistent memory, or something that says \
                 'durable' before it is"
            }
        }
    }
}

/// A read that takes longer is not one of flash.
const FLASH_READ_US_MAX: f64 = 500.0;
/// How much faster the median is than the mean of a drive that does something else, too.
const BUSY_FACTOR: f64 = 2.0;
/// Smallest ratio that is worth a change.
const FACTOR_MIN: f64 = 1.5;

pub(super) fn judge_reads(subject: &str, rates: &Rates) -> Finding {
    let found = format!(
        "{:.0} random reads of 4 KiB a second, one at a time; median {:.0} us, p99 {:.0} us",
        rates.per_second, rates.p50_us, rates.p99_us
    );
    let finding = |verdict, meaning: &str| {
        Finding::new(READ_CHECK, verdict, found.clone(), meaning)
            .on(subject)
            .figure("reads_per_s", rates.per_second)
            .figure("p50_us", rates.p50_us)
            .figure("p99_us", rates.p99_us)
    };
    if rates.p50_us <= FLASH_READ_US_MAX {
        return finding(
            Verdict::Ok,
            "a flash drive's latency, which every read that no cache holds adds to the network's (flash that was never \
             written answers faster than it will)",
        );
    }
    finding(Verdict::Warning, "a spinning disk's latency, or a busy drive's: databases at depth 1 will feel it")
        .fix("keep such drives for large objects, in a pool and device class of their own; put OSDs of images on flash")
}

pub(super) fn judge_writes(subject: &str, rates: SyncedRates<'_>, is_virtual_machine: bool) -> Finding {
    let SyncedRates { flag, call } = rates;
    let found = format!(
        "{:.0} writes of 4 KiB a second, one at a time, each durable (RWF_DSYNC; median {:.0} us, p99 {:.0} us); {:.0} as \
         write and fsync",
        flag.per_second, flag.p50_us, flag.p99_us, call.per_second
    );
    let class = SyncedWriteClass::of(flag.per_second);
    let verdict = match class {
        SyncedWriteClass::Spinning | SyncedWriteClass::WithoutCapacitors => Verdict::Warning,
        SyncedWriteClass::Between | SyncedWriteClass::Faster => Verdict::Advice,
        SyncedWriteClass::WithCapacitors => Verdict::Ok,
    };
    let host = if is_virtual_machine {
        ". This is a virtual machine: how the host caches decides, so measure there, too"
    } else {
        ""
    };
    // Half of the writes are at least this fast.
    let busy = if 1e6 / flag.p50_us >= flag.per_second * BUSY_FACTOR {
        ". Most writes are much faster than the rate says: the drive stalls, or is busy with something else; measure again \
         when it is idle"
    } else {
        ""
    };
    let meaning = format!(
        "{}. Atoll's log does one such write for all operations that wait at that moment: at depth 1 nothing is faster than \
         this on any copy{host}{busy}",
        class.meaning()
    );
    let finding = Finding::new(WRITE_CHECK, verdict, found, meaning)
        .on(subject)
        .figure("writes_per_s", flag.per_second)
        .figure("p50_us", flag.p50_us)
        .figure("p99_us", flag.p99_us)
        .figure("fsync_writes_per_s", call.per_second);
    match class {
        SyncedWriteClass::WithCapacitors => finding,
        SyncedWriteClass::Faster => finding.fix(
            "make sure that the drive, the RAID controller's battery and the virtual disk's cache mode keep \
             acknowledged writes on a power failure",
        ),
        _ => finding.fix(
            "try it without the drive's volatile cache (--toggle-write-cache); otherwise put the log on a drive with \
             capacitors (atoll osd create --wal-device), or take such drives",
        ),
    }
}

/// Compares the drive with its cache as it was and switched.
pub(super) fn judge_switched(disk: &str, was: Cache, before: &Rates, after: &Rates, switch: &Switch) -> Finding {
    let (on, off) = match was {
        Cache::On => (before.per_second, after.per_second),
        Cache::Off => (after.per_second, before.per_second),
    };
    let found = format!("{on:.0} durable writes a second with the volatile write cache, {off:.0} without it");
    let finding = |verdict, meaning: &str| {
        Finding::new(SWITCH_CHECK, verdict, found.clone(), meaning)
            .figure("with_cache_per_s", on)
            .figure("without_cache_per_s", off)
    };
    let better = match (on, off) {
        (on, off) if off >= on * FACTOR_MIN => Cache::Off,
        (on, off) if on >= off * FACTOR_MIN => Cache::On,
        _ => {
            return finding(
                Verdict::Ok,
                "it makes no difference: the drive has capacitors, or it forces durable writes through its cache",
            );
        }
    };
    match (better, was) {
        (Cache::Off, Cache::On) => finding(
            Verdict::Warning,
            "the flush of the cache takes the time: the drive makes writes durable faster without it",
        )
        .fix(cache_off_command(disk)),
        (Cache::On, Cache::Off) => {
            finding(Verdict::Advice, "the cache helps, and durable writes stay durable: the kernel flushes it")
                .fix(switch.command(Cache::On))
        }
        _ => finding(Verdict::Ok, "the cache is as it should be for this drive"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(per_second: f64) -> Rates {
        Rates { per_second, p50_us: 1e6 / per_second, p99_us: 2e6 / per_second }
    }

    #[test]
    fn classes_are_the_fields() {
        use SyncedWriteClass::*;
        let rates = [60.0, 288.0, 2_000.0, 5_000.0, 10_000.0, 18_000.0, 60_000.0, 90_000.0];
        let classes = [
            Spinning,
            WithoutCapacitors,
            WithoutCapacitors,
            Between,
            WithCapacitors,
            WithCapacitors,
            WithCapacitors,
            Faster,
        ];
        assert_eq!(rates.map(SyncedWriteClass::of), classes);
    }

    #[test]
    fn synced_writes_are_judged_by_class() {
        let of = |per_second| {
            let rates = rates(per_second);
            judge_writes("/dev/sda", SyncedRates { flag: &rates, call: &rates }, false)
        };
        assert_eq!(of(60.0).verdict, Verdict::Warning);
        assert_eq!(of(300.0).verdict, Verdict::Warning);
        assert_eq!(of(5_000.0).verdict, Verdict::Advice);
        assert_eq!(of(20_000.0).verdict, Verdict::Ok);
        assert_eq!(of(90_000.0).verdict, Verdict::Advice);
        assert_eq!(of(300.0).figures["writes_per_s"], 300.0);
        assert!(of(300.0).fix.unwrap().contains("--wal-device"));
    }

    #[test]
    fn a_busy_drive_is_distinguished_from_a_slow_one() {
        let meaning = |p50_us| {
            let rates = Rates { p50_us, ..rates(2_000.0) };
            judge_writes("/dev/sda", SyncedRates { flag: &rates, call: &rates }, false).meaning
        };
        assert!(meaning(99.0).contains("measure again"));
        assert!(!meaning(450.0).contains("measure again"));
    }

    #[test]
    fn slow_reads_are_a_warning() {
        assert_eq!(judge_reads("/dev/sda", &rates(10_000.0)).verdict, Verdict::Ok);
        assert_eq!(judge_reads("/dev/sda", &rates(150.0)).verdict, Verdict::Warning);
    }

    #[test]
    fn the_better_state_of_the_cache_is_reported() {
        let switch = Switch::Nvme("/dev/nvme0".into());
        let of = |was, before, after| judge_switched("sda", was, &rates(before), &rates(after), &switch);
        let off_is_better = of(Cache::On, 288.0, 18_000.0);
        assert_eq!(off_is_better.verdict, Verdict::Warning);
        assert!(off_is_better.fix.unwrap().contains("hdparm -W 0 /dev/sda"));
        assert_eq!(off_is_better.figures["without_cache_per_s"], 18_000.0);
        assert_eq!(of(Cache::Off, 18_000.0, 288.0).verdict, Verdict::Ok);
        assert_eq!(of(Cache::Off, 300.0, 3_000.0).verdict, Verdict::Advice);
        assert_eq!(of(Cache::On, 3_000.0, 300.0).verdict, Verdict::Ok);
        assert_eq!(of(Cache::On, 20_000.0, 21_000.0).verdict, Verdict::Ok);
    }
}
