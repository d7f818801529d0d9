//! The machine of a run, and the load of other processes meanwhile.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// CPU features that sealing, checksums and coding make use of.
const FLAGS_OF_INTEREST: [&str; 12] = [
    "sse4_2",
    "aes",
    "pclmulqdq",
    "avx2",
    "vaes",
    "vpclmulqdq",
    "avx512f",
    "avx512vbmi",
    "gfni",
    "sha_ni",
    "neon",
    "hypervisor",
];

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Release of the kernel.
    pub kernel: String,
    /// The processors' model.
    pub cpu: String,
    /// Their number.
    pub cores: u32,
    /// Those of their features that matter here.
    pub cpu_flags: Vec<String>,
    /// The frequency governor, where one can be seen.
    pub governor: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Load average over the last minute.
    pub load_average: f64,
    /// Seconds since 1970 when this was looked at.
    pub unix_s: u64,
}

impl HostFacts {
    /// Looks at this machine.
    pub fn here() -> Self {
        let processors = read("/proc/cpuinfo");
        let field = |name: &str| {
            processors
                .lines()
                .find_map(|line| line.strip_prefix(name)?.split_once(':'))
                .map(|(_, text)| text.trim())
        };
        let flags: Vec<&str> = field("flags").or(field("Features")).unwrap_or_default().split(' ').collect();
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().to_owned();
        HostFacts {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field("model name").unwrap_or("unknown").to_owned(),
            cores: processors.lines().filter(|line| line.starts_with("processor")).count() as u32,
            cpu_flags: FLAGS_OF_INTEREST
                .iter()
                .filter(|flag| flags.contains(flag))
                .map(|&one| one.to_owned())
                .collect(),
            governor: Some(governor).filter(|text| !text.is_empty()),
            memory_bytes: memory_bytes(),
            load_average: first_number(&read("/proc/loadavg")),
            unix_s: unix_s(),
        }
    }
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn first_number(text: &str) -> f64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn memory_bytes() -> u64 {
    let text = read("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or_default();
    first_number(line) as u64 * 1024
}

/// A tick of `/proc/stat` (USER_HZ is 100 on every Linux).
const US_PER_TICK: f64 = 10_000.0;

/// Use of the processors by others during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Share of all processors' time that was used in all.
    pub busy_percent: f64,
    /// Share that the hypervisor gave to others although this machine had work.
    pub steal_percent: f64,
    /// Share that neither the servers nor the load generators used: other processes, and the
    /// kernel's own threads.
    pub others_percent: f64,
}

/// Looks at the machine's processors over an interval.
pub struct NoiseWatch(MachineTimes);

/// Work of the whole machine.
pub struct MachineWork {
    all: f64,
    busy: f64,
    steal: f64,
}

#[derive(Clone, Copy, Default)]
struct MachineTimes {
    all: u64,
    idle: u64,
    steal: u64,
}

impl MachineTimes {
    /// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq,
    /// steal, in ticks.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).map(|word| word.parse().unwrap_or(0)).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        MachineTimes { all: ticks.iter().sum(), idle: at(3) + at(4), steal: at(7) }
    }
}

impl NoiseWatch {
    /// Begins.
    pub fn begin() -> Self {
        NoiseWatch(MachineTimes::parse(&read("/proc/stat")))
    }

    /// Ends.
    pub fn end(&self) -> MachineWork {
        self.until(MachineTimes::parse(&read("/proc/stat")))
    }

    fn until(&self, now: MachineTimes) -> MachineWork {
        let since = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64;
        let all = since(now.all, self.0.all).max(1.0);
        let steal = since(now.steal, self.0.steal);
        MachineWork { all, busy: (all - since(now.idle, self.0.idle) - steal).max(0.0), steal }
    }
}

impl MachineWork {
    /// CPU time of all processes and of the kernel's threads, in microseconds.
    pub fn busy_us(&self) -> u64 {
        (self.busy * US_PER_TICK) as u64
    }

    /// Returns the rest of it when `ours_us` is the CPU time of all processes of the run.
    pub fn without(&self, ours_us: u64) -> Noise {
        let ours = ours_us as f64 / US_PER_TICK;
        let percent = |ticks: f64| super::round(ticks * 100.0 / self.all);
        Noise {
            busy_percent: percent(self.busy),
            steal_percent: percent(self.steal),
            others_percent: percent((self.busy - ours).max(0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let host = HostFacts::here();
        assert!(host.cores > 0 && host.memory_bytes > 0 && !host.kernel.is_empty(), "{host:?}");
    }

    #[test]
    fn work_of_others_is_separated_from_ours() {
        let before = NoiseWatch(MachineTimes::parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1"));
        let now = MachineTimes::parse("cpu  150 0 150 860 20 0 10 10 0 0");
        // 200 ticks, of which 80 idle and 10 stolen; 110 busy, 0.6 s of them ours.
        let noise = before.until(now).without(600_000);
        assert_eq!(noise, Noise { busy_percent: 55.0, steal_percent: 5.0, others_percent: 25.0 });
    }
}
