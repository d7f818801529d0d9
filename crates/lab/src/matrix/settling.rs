//! Work that a run leaves to its servers: it is finished, and charged to the run, before the next begins.

use std::time::{Duration, Instant};

use atoll_bench::{ProcessTimes, Processes};

/// Servers are looked at in steps of this length.
const STEP: Duration = Duration::from_millis(500);
/// Replaced objects are removed a few seconds later (`ATOLL_GARBAGE_GRACE_SECONDS` of the matrices is 4), so servers
/// that are idle at once may not stay so.
const WAIT_MIN: Duration = Duration::from_secs(5);
/// Longest wait for servers that never are idle.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Servers are idle when all of them together use less than this share of one processor for [`QUIET_STEPS`] steps.
const IDLE_SHARE_MAX: f64 = 0.05;
/// Steps in a row.
const QUIET_STEPS: u32 = 3;

/// Waits until the servers are idle. Returns the CPU time that they used until then, in microseconds; nothing if the
/// load has no servers.
pub(super) fn later_cpu_us(servers: &Processes, has_written: bool) -> Option<u64> {
    if servers.0.is_empty() {
        return None;
    }
    let wait_min = if has_written { WAIT_MIN } else { Duration::ZERO };
    let (begun, mut quiet_steps, mut used_us, mut last) = (Instant::now(), 0, 0, ProcessTimes::read(servers));
    while begun.elapsed() < WAIT_MAX && (begun.elapsed() < wait_min || quiet_steps < QUIET_STEPS) {
        std::thread::sleep(STEP);
        let now = ProcessTimes::read(servers);
        let step_us = last.until(&now, servers).total_us();
        let is_quiet = (step_us as f64) < STEP.as_micros() as f64 * IDLE_SHARE_MAX;
        quiet_steps = if is_quiet { quiet_steps + 1 } else { 0 };
        used_us += if is_quiet { 0 } else { step_us };
        last = now;
    }
    Some(used_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_waited_for_until_they_are_idle() {
        let mut busy =
            std::process::Command::new("timeout").args(["6", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
        // `timeout` has a child that does the work.
        let children =
            || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", busy.id())).unwrap_or_default();
        while children().trim().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut servers = Processes::default();
        servers.add("busy", children().trim().parse().unwrap());
        let begun = Instant::now();
        let used_us = later_cpu_us(&servers, true).unwrap();
        assert!(begun.elapsed() > Duration::from_secs(6), "{:?}", begun.elapsed());
        assert!(used_us > 1_000_000, "{used_us}");
        busy.wait().unwrap();
        assert_eq!(later_cpu_us(&Processes::default(), true), None);
    }
}
