//! CPU time of processes.

use std::collections::BTreeMap;

/// Kernel ticks per second in `/proc/<pid>/stat` (USER_HZ, the same on every Linux).
const TICKS_PER_SECOND: u64 = 100;

/// User and system time used so far by a set of processes.
#[derive(Clone, Debug, Default)]
pub struct ProcessTimes {
    by_process: BTreeMap<u32, u64>,
}

impl ProcessTimes {
    /// Reads the times of all threads of these processes (proc(5), `stat`).
    pub fn read(processes: &[u32]) -> Self {
        let times = processes.iter().filter_map(|&pid| Some((pid, cpu_us(pid)?)));
        ProcessTimes { by_process: times.collect() }
    }

    /// Time used since `earlier`, in microseconds. A process that was restarted in between counts
    /// from its restart.
    pub fn us_since(&self, earlier: &ProcessTimes) -> u64 {
        let used = self.by_process.iter().map(|(pid, now)| {
            let before = earlier.by_process.get(pid).copied().unwrap_or(0);
            now.saturating_sub(before)
        });
        used.sum()
    }
}

fn cpu_us(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process's name is in parentheses and may hold anything; the fields begin behind it.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks * 1_000_000 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_time_grows() {
        let pid = std::process::id();
        let before = ProcessTimes::read(&[pid]);
        let started = std::time::Instant::now();
        while started.elapsed().as_millis() < 60 {
            std::hint::spin_loop();
        }
        assert!(ProcessTimes::read(&[pid]).us_since(&before) >= 20_000);
    }
}
