//! The metrics of this process: counters, gauges and histograms under the names that docs/reference/metrics.md
//! lists, as OpenMetrics or Prometheus text. It also keeps the slowest of its operations, and those that are to be
//! exported as traces.
//!
//! A crate that measures something keeps its metrics in one struct, made once for the process, and registers them
//! here. This crate knows the registry and the process that it is in. It knows neither the measured values nor
//! sockets: callers bring its text to the network.

mod bounded;
pub mod current_span;
mod latency;
mod process;
pub mod slow;
pub mod tls;
pub mod traces;

use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

pub use bounded::{Bounded, NAMES_MAX};
pub use latency::Latency;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

/// Names and values of labels.
pub type Labels<const N: usize> = [(&'static str, String); N];

/// Metrics of one name that differ in their labels. Looking one up takes a lock: code that counts often keeps its
/// own.
pub type Family<const N: usize, M> = prometheus_client::metrics::family::Family<Labels<N>, M>;

/// A format in which metrics are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// OpenMetrics 1.0, <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
    OpenMetrics,
    /// Prometheus' own, 0.0.4.
    Prometheus,
}

impl TextFormat {
    /// The one that a client prefers, by its `Accept` header.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => TextFormat::OpenMetrics,
            _ => TextFormat::Prometheus,
        }
    }

    /// For the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Refresh = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct OfProcess {
    registry: Registry,
    /// Functions that bring gauges up to date before they are read.
    refreshes: Vec<Refresh>,
}

static OF_PROCESS: LazyLock<Mutex<OfProcess>> = LazyLock::new(Mutex::default);

fn of_process() -> MutexGuard<'static, OfProcess> {
    // What is registered stays whole whatever has panicked elsewhere.
    OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a metric known under a name, without the `_total` of a counter, and returns it. `help` has no full stop.
/// Each name is registered once for a process.
pub fn register<M: Metric + Clone>(name: &str, help: &str, metric: M) -> M {
    of_process().registry.register(name, help, metric.clone());
    metric
}

/// Calls this before each time that metrics are read. It must not register any.
pub fn refresh_with(refresh: impl Fn() + Send + Sync + 'static) {
    of_process().refreshes.push(Box::new(refresh));
}

/// Registers the metrics of any process: its name, version, processor time, memory and descriptors.
pub fn register_process(name: &str, version: &str) {
    let info: Family<2, Gauge> =
        register("atoll_build_info", "The program of this process; always 1", Family::default());
    info.get_or_create(&[("process", name.to_owned()), ("version", version.to_owned())]).set(1);
    of_process().registry.register_collector(Box::new(process::ProcessCollector));
}

/// All metrics of this process.
pub fn encode(format: TextFormat) -> Result<String, fmt::Error> {
    let of_process = of_process();
    of_process.refreshes.iter().for_each(|refresh| refresh());
    let mut text = String::new();
    match format {
        TextFormat::OpenMetrics => prometheus_client::encoding::text::encode(&mut text, &of_process.registry)?,
        TextFormat::Prometheus => {
            prometheus_client::encoding::prometheus_text::encode(&mut text, &of_process.registry)?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_metrics_are_exported_in_both_formats() {
        register_process("osd.7", "0.1.0");
        let operations: Family<1, Counter> = register("atoll_test_operations", "Operations", Family::default());
        operations.get_or_create(&[("pool", "a \"b\"".to_owned())]).inc_by(3);
        let depth = register("atoll_test_depth", "Requests that wait", Gauge::<i64>::default());
        let refreshed = depth.clone();
        refresh_with(move || {
            refreshed.set(5);
        });

        let text = encode(TextFormat::OpenMetrics).unwrap();
        assert!(text.contains(r#"atoll_test_operations_total{pool="a \"b\""} 3"#), "{text}");
        assert!(text.contains("atoll_test_depth 5\n"), "{text}");
        assert!(text.contains(r#"atoll_build_info{process="osd.7",version="0.1.0"} 1"#), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_open_fds "] {
            assert!(text.contains(name), "{name} in {text}");
        }

        let text = encode(TextFormat::Prometheus).unwrap();
        assert!(text.contains("# TYPE atoll_test_operations_total counter\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn clients_choose_the_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(TextFormat::accepted(Some(prometheus)), TextFormat::OpenMetrics);
        assert_eq!(TextFormat::accepted(Some("*/*")), TextFormat::Prometheus);
        assert_eq!(TextFormat::accepted(None), TextFormat::Prometheus);
    }
}
