//! CPU time of processes, by the role that they have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Kernel ticks per second in `/proc/<pid>/stat` (USER_HZ, the same on every Linux).
const TICKS_PER_SECOND: u64 = 100;

/// Process ids by role: `osd`, `gateway`, ...
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Processes(pub BTreeMap<String, Vec<u32>>);

impl Processes {
    /// One process more.
    pub fn add(&mut self, role: &str, process_id: u32) {
        self.0.entry(role.to_owned()).or_default().push(process_id);
    }
}

impl std::str::FromStr for Processes {
    type Err = String;

    /// Such as `osd=17,18,19;gateway=20`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut processes = Processes::default();
        for part in text.split(';') {
            let wrong = || {
                format!("'{part}' is not a role with its process ids; write for example 'osd=17,18,19;gateway=20'")
            };
            let (role, process_ids) =
                part.split_once('=').filter(|(role, _)| !role.is_empty()).ok_or_else(wrong)?;
            for process_id in process_ids.split(',') {
                processes.add(role, process_id.trim().parse().map_err(|_| wrong())?);
            }
        }
        Ok(processes)
    }
}

/// User and system time used so far by a set of processes, all of their threads included.
#[derive(Clone, Debug, Default)]
pub struct ProcessTimes {
    by_process: BTreeMap<u32, u64>,
}

/// CPU time of one interval in microseconds, by role.
#[derive(Clone, Debug, Default)]
pub struct CpuByRole(BTreeMap<String, u64>);

impl CpuByRole {
    /// Returns the time of one role, known in another way.
    pub(crate) fn of(role: &str, us: u64) -> Self {
        CpuByRole(BTreeMap::from([(role.to_owned(), us)]))
    }

    /// Returns the time of all roles.
    pub fn total_us(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the time of each role.
    pub fn us_by_role(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(role, &us)| (role.as_str(), us))
    }
}

impl ProcessTimes {
    /// Reads the times of all threads of these processes (proc(5), `stat`).
    pub fn read(processes: &Processes) -> Self {
        let times = processes.0.values().flatten().filter_map(|&pid| Some((pid, cpu_us(pid)?)));
        ProcessTimes { by_process: times.collect() }
    }

    /// Time used between `self` and `later`. A process that was restarted in between counts from
    /// its restart.
    pub fn until(&self, later: &ProcessTimes, processes: &Processes) -> CpuByRole {
        let used = |pid: &u32| {
            let after = later.by_process.get(pid).copied().unwrap_or(0);
            after.saturating_sub(self.by_process.get(pid).copied().unwrap_or(0))
        };
        let roles = processes.0.iter().map(|(role, pids)| (role.clone(), pids.iter().map(used).sum()));
        CpuByRole(roles.collect())
    }
}

/// User and system time of this process so far, in microseconds.
pub(crate) fn own_cpu_us() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// The sum of a field of `stat`, counted from behind the process's name, and of the next.
fn ticks(text: &str, first: usize) -> Option<u64> {
    // The name is in parentheses and may hold anything; the fields begin behind it.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(first)?.parse::<u64>().ok()? + fields.get(first + 1)?.parse::<u64>().ok()?)
}

fn cpu_us(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&text, 11)? * 1_000_000 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_their_processes_are_read() {
        let processes: Processes = "osd=17,18, 19;gateway=20".parse().unwrap();
        assert_eq!(processes.0["osd"], [17, 18, 19]);
        assert_eq!(processes.0["gateway"], [20]);
        for text in ["", "osd", "osd=", "=1", "osd=1;", "osd=x", "osd=-1"] {
            assert!(text.parse::<Processes>().is_err(), "{text}");
        }
    }

    #[test]
    fn own_time_grows_and_both_clocks_agree() {
        let mut processes = Processes::default();
        processes.add("osd", std::process::id());
        processes.add("gateway", u32::MAX);
        // Other threads of this process may work between a reading of one clock and of the other.
        let read = || (own_cpu_us(), ProcessTimes::read(&processes), own_cpu_us());
        let (not_before, before, own_before) = read();
        let started = std::time::Instant::now();
        while started.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        let (own_after, after, not_after) = read();
        let cpu = before.until(&after, &processes);
        let by_role: Vec<_> = cpu.us_by_role().collect();
        assert_eq!((by_role[0].0, by_role[0].1), ("gateway", 0), "a process that is not there used nothing");
        // Each of the two readings of `stat` may be off by a tick.
        let (least, most) = (own_after - own_before, not_after - not_before);
        assert!(cpu.total_us() + 20_000 >= least, "{} and {least}", cpu.total_us());
        assert!(cpu.total_us() <= most + 20_000, "{} and {most}", cpu.total_us());
    }
}
