//! Metrics of any process, under the names that all of Prometheus' clients use.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};

/// Reads `/proc/self` when it is asked.
#[derive(Debug)]
pub(crate) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        if let Some(stat) = Stat::read() {
            let cpu = ConstCounter::new(stat.cpu_seconds);
            one(&mut encoder, "process_cpu_seconds", "Processor time, of user and system", &cpu)?;
            let memory = ConstGauge::new(stat.resident_bytes);
            one(&mut encoder, "process_resident_memory_bytes", "Memory in use", &memory)?;
            one(&mut encoder, "process_threads", "Threads", &ConstGauge::new(stat.threads))?;
            if let Some(started) = stat.started_seconds {
                let started = ConstGauge::new(started);
                one(&mut encoder, "process_start_time_seconds", "When it was started, Unix time", &started)?;
            }
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            one(
                &mut encoder,
                "process_open_fds",
                "Open files and sockets",
                &ConstGauge::new(files.count() as i64),
            )?;
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            one(
                &mut encoder,
                "process_max_fds",
                "Files and sockets that may be open",
                &ConstGauge::new(limit as i64),
            )?;
        }
        Ok(())
    }
}

fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &dyn EncodeMetric,
) -> std::fmt::Result {
    metric.encode(encoder.encode_descriptor(name, &format!("{help}."), None, metric.metric_type())?)
}

/// Fields of `/proc/self/stat`: proc_pid_stat(5).
struct Stat {
    cpu_seconds: f64,
    threads: i64,
    resident_bytes: i64,
    started_seconds: Option<f64>,
}

impl Stat {
    fn read() -> Option<Stat> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The program's name is in parentheses and may have spaces; the third field follows it.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        let since_boot_seconds = field(22)? as f64 / ticks_per_second;
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks_per_second,
            threads: field(20)? as i64,
            resident_bytes: (field(24)? as usize * rustix::param::page_size()) as i64,
            started_seconds: boot_seconds().map(|boot| boot + since_boot_seconds),
        })
    }
}

/// When the machine was started, Unix time.
fn boot_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}
