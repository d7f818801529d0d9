//! The result of one run: of one client, and of all of them together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CpuByRole, Latency, LatencyHistogram, MachineWork, Noise, p999, round, round_finely};
use crate::error::BenchError;

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Operations done in it.
    pub operations: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// Median latency of operations that ended in it, in microseconds; of several clients, the
    /// highest median.
    pub p50_us: u64,
    /// The same of the 99th percentile.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
}

/// Operations of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KindCounts {
    /// Operations that ended in the interval.
    pub operations: u64,
    /// Their latencies, and those of operations that were due in the interval and ended later.
    #[serde(with = "histogram_as_text")]
    pub latencies: LatencyHistogram,
}

impl KindCounts {
    /// Counts an operation that ended in the interval.
    pub fn done(&mut self, latency: Duration) {
        self.operations += 1;
        self.latencies.record(latency);
    }
}

/// Counts of one client. Clients in processes of their own hand this to the first as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientMeasurement {
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Bytes moved.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The first error, if there was one.
    pub first_error: Option<String>,
    /// Operations whose data was compared with the written data.
    pub verified: u64,
    /// CPU time of the load generator, in microseconds.
    pub client_cpu_us: u64,
    /// Blocks that it reads or overwrites; 0 if they are objects.
    pub working_set_bytes: u64,
    /// Operations by kind, such as `read`.
    pub by_kind: BTreeMap<String, KindCounts>,
    /// Operations that were due in the interval and did not end in it.
    pub unfinished: u64,
    /// Times that those among them waited that never ended: lower bounds of their latencies.
    #[serde(with = "histogram_as_text")]
    pub censored: LatencyHistogram,
    /// Second by second; the last may not be a whole one.
    pub series: Vec<Second>,
}

/// The operations of one kind in a run that mixes several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindMeasurement {
    /// Operations done.
    pub operations: u64,
    /// Their latency.
    pub latency_us: Latency,
}

/// Setting of a run, for its result.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Such as `randwrite` or `put`.
    pub operation: String,
    /// Bytes per operation; the mean if they differ.
    pub size_bytes: u64,
    /// Operations in flight at once, of each client.
    pub depth: u32,
    /// Operations begun per second by all clients, if there was a rate.
    pub rate_per_second: Option<f64>,
    /// Data that is read or overwritten, such as `8 GiB` ([`super::WorkingSet`]).
    pub working_set: String,
    /// Durability and protections that were on.
    pub protections: String,
}

/// The result of one run; printed as one JSON object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Kind of operations, such as `randwrite`.
    pub operation: String,
    /// Bytes per operation; the mean if they differ.
    pub size_bytes: u64,
    /// Operations in flight at once, of each client.
    pub depth: u32,
    /// Clients, each in a process of its own.
    #[serde(default = "one")]
    pub clients: u32,
    /// Operations begun per second by all clients, whether or not earlier ones had ended (open
    /// loop): latency counts from when an operation was due. Without it each of `depth` begins
    /// its next operation when its last has ended (closed loop).
    #[serde(default)]
    pub rate_per_second: Option<f64>,
    /// Data that is read or overwritten, such as `8 GiB` or `64 objects (hot)`: caches may hold a hot set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub working_set: String,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Operations that ended in the interval.
    pub operations: u64,
    /// Operations that were due in the interval and did not end in it. Latencies count them: those that did not end
    /// within a minute after it, or did not begin, with the time that they waited.
    #[serde(default)]
    pub unfinished: u64,
    /// More than 1 % of the operations that the rate asked for did not end in the interval.
    #[serde(default)]
    pub is_rate_missed: bool,
    /// Operations that failed.
    pub errors: u64,
    /// The first error, if there was one.
    pub first_error: Option<String>,
    /// Operations whose data was compared with the written data, if requested.
    #[serde(default)]
    pub verified: u64,
    /// Operations a second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) a second.
    pub mb_per_s: f64,
    /// Latency of the operations that were done.
    pub latency_us: Latency,
    /// By kind of operation, if there was more than one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_kind: BTreeMap<String, KindMeasurement>,
    /// CPU time of all server processes per operation.
    pub cpu_us_per_op: f64,
    /// The same for each role, such as `osd`.
    #[serde(default)]
    pub cpu_us_per_op_by_role: BTreeMap<String, f64>,
    /// CPU time of the whole machine per operation, its kernel's threads and all other processes included, if it was
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_cpu_us_per_op: Option<f64>,
    /// CPU time of the servers per operation from the end of the interval until they were idle, if that was waited for:
    /// work that the operations left behind, such as checkpoints and the removal of replaced data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later_cpu_us_per_op: Option<f64>,
    /// CPU time of the load generator per operation; for block runs on an image it holds the
    /// client's part of the work, sealing included.
    pub client_cpu_us_per_op: f64,
    /// All latencies, as [`LatencyHistogram::to_text`] writes them.
    #[serde(default)]
    pub histogram: String,
    /// Second by second.
    #[serde(default)]
    pub series: Vec<Second>,
    /// Durability and protections that were on.
    pub protections: String,
    /// Load of other processes, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
}

fn one() -> u32 {
    1
}

impl ClientMeasurement {
    /// Operations of all kinds that ended in the interval.
    pub fn operations(&self) -> u64 {
        self.by_kind.values().map(|kind| kind.operations).sum()
    }

    /// Latencies of all kinds, and lower bounds of those of operations that never ended.
    pub fn histogram(&self) -> LatencyHistogram {
        let mut all = self.censored.clone();
        self.by_kind.values().for_each(|kind| all.add(&kind.latencies));
        all
    }
}

impl Measurement {
    /// Returns the sum of all clients' measurements, with the servers' CPU time over the same interval.
    pub fn of_clients(setting: Setting, clients: &[ClientMeasurement], cpu: &CpuByRole) -> Self {
        let mut by_kind: BTreeMap<String, KindCounts> = BTreeMap::new();
        for (kind, counts) in clients.iter().flat_map(|client| &client.by_kind) {
            let sum = by_kind.entry(kind.clone()).or_default();
            sum.operations += counts.operations;
            sum.latencies.add(&counts.latencies);
        }
        let mut all = LatencyHistogram::default();
        clients.iter().for_each(|client| all.add(&client.histogram()));
        let operations: u64 = clients.iter().map(ClientMeasurement::operations).sum();
        let unfinished: u64 = clients.iter().map(|one| one.unfinished).sum();
        let per_operation = |us: u64| if operations == 0 { 0.0 } else { round(us as f64 / operations as f64) };
        // A client that had to end early counts with the rate that it had.
        let rate = |count: fn(&ClientMeasurement) -> u64| -> f64 {
            clients.iter().filter(|one| one.seconds > 0.0).map(|one| count(one) as f64 / one.seconds).sum()
        };
        Measurement {
            operation: setting.operation,
            size_bytes: setting.size_bytes,
            depth: setting.depth,
            clients: clients.len() as u32,
            rate_per_second: setting.rate_per_second,
            working_set: setting.working_set,
            seconds: round_finely(clients.iter().map(|one| one.seconds).fold(0.0, f64::max)),
            operations,
            unfinished,
            is_rate_missed: setting.rate_per_second.is_some() && is_rate_missed(operations, unfinished),
            errors: clients.iter().map(|one| one.errors).sum(),
            first_error: clients.iter().find_map(|one| one.first_error.clone()),
            verified: clients.iter().map(|one| one.verified).sum(),
            iops: round(rate(ClientMeasurement::operations)),
            mb_per_s: round_finely(rate(|one| one.bytes) / 1e6),
            latency_us: all.latency(),
            by_kind: if by_kind.len() > 1 { kinds(&by_kind) } else { BTreeMap::new() },
            cpu_us_per_op: per_operation(cpu.total_us()),
            cpu_us_per_op_by_role: cpu
                .us_by_role()
                .map(|(role, us)| (role.to_owned(), per_operation(us)))
                .collect(),
            machine_cpu_us_per_op: None,
            later_cpu_us_per_op: None,
            client_cpu_us_per_op: per_operation(clients.iter().map(|one| one.client_cpu_us).sum()),
            histogram: all.to_text(),
            series: join_series(clients),
            protections: setting.protections,
            noise: None,
        }
    }

    /// Adds the CPU time of the whole machine in the same interval; the servers used `servers_us` of it.
    pub(crate) fn with_machine(self, machine: &MachineWork, servers_us: u64) -> Self {
        let clients_us = (self.client_cpu_us_per_op * self.operations as f64) as u64;
        Measurement {
            machine_cpu_us_per_op: (self.operations > 0)
                .then(|| round(machine.busy_us() as f64 / self.operations as f64)),
            noise: Some(machine.without(servers_us + clients_us)),
            ..self
        }
    }

    /// The 99.9th percentile in microseconds, if there are enough operations for one.
    pub fn p999_us(&self) -> Option<u64> {
        // Records of before this rule have one for every run.
        self.latency_us.p999.and_then(|us| p999(self.operations + self.unfinished, us))
    }

    /// All latencies.
    pub fn latencies(&self) -> Result<LatencyHistogram, BenchError> {
        LatencyHistogram::from_text(&self.histogram)
    }
}

/// Reports whether more than one operation in a hundred of those that were due did not end in the interval.
fn is_rate_missed(operations: u64, unfinished: u64) -> bool {
    unfinished * 100 > operations + unfinished
}

fn kinds(by_kind: &BTreeMap<String, KindCounts>) -> BTreeMap<String, KindMeasurement> {
    let kind = |counts: &KindCounts| KindMeasurement {
        operations: counts.operations,
        latency_us: counts.latencies.latency(),
    };
    by_kind.iter().map(|(name, counts)| (name.clone(), kind(counts))).collect()
}

fn join_series(clients: &[ClientMeasurement]) -> Vec<Second> {
    let mut joined = vec![Second::default(); clients.iter().map(|one| one.series.len()).max().unwrap_or(0)];
    for client in clients {
        for (all, one) in joined.iter_mut().zip(&client.series) {
            all.operations += one.operations;
            all.bytes += one.bytes;
            all.p50_us = all.p50_us.max(one.p50_us);
            all.p99_us = all.p99_us.max(one.p99_us);
            all.max_us = all.max_us.max(one.max_us);
        }
    }
    joined
}

mod histogram_as_text {
    use super::LatencyHistogram;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(histogram: &LatencyHistogram, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&histogram.to_text())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LatencyHistogram, D::Error> {
        LatencyHistogram::from_text(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(kind: &str, latency_us: u64, operations: u64, seconds: f64) -> ClientMeasurement {
        let mut latencies = LatencyHistogram::default();
        latencies.record_us(latency_us, operations);
        ClientMeasurement {
            seconds,
            bytes: operations * 4096,
            by_kind: BTreeMap::from([(kind.to_owned(), KindCounts { operations, latencies })]),
            client_cpu_us: operations,
            series: vec![Second { operations, bytes: operations * 4096, p50_us: latency_us, ..Second::default() }],
            ..ClientMeasurement::default()
        }
    }

    #[test]
    fn clients_add_up() {
        let clients = [client("read", 100, 1000, 1.0), client("write", 300, 500, 1.0)];
        let all = Measurement::of_clients(Setting::default(), &clients, &CpuByRole::default());
        assert_eq!((all.operations, all.iops, all.clients), (1500, 1500.0, 2));
        assert_eq!(all.mb_per_s, 6.144);
        assert_eq!(all.by_kind["write"].operations, 500);
        assert_eq!(all.client_cpu_us_per_op, 1.0);
        assert_eq!(all.series[0].operations, 1500);
        assert_eq!(all.latencies().unwrap().count(), 1500);
        let read: Measurement = serde_json::from_str(&serde_json::to_string(&all).unwrap()).unwrap();
        assert_eq!(read.latency_us, all.latency_us);
    }

    #[test]
    fn a_client_that_ended_early_counts_with_its_rate() {
        let clients = [client("read", 100, 1000, 1.0), client("read", 100, 500, 0.5)];
        let all = Measurement::of_clients(Setting::default(), &clients, &CpuByRole::default());
        assert_eq!(all.iops, 2000.0);
        assert!(all.by_kind.is_empty(), "one kind needs no table of its own");
    }

    #[test]
    fn a_client_hands_its_counts_on_as_text() {
        let one = client("put", 2_000, 10, 1.0);
        let read: ClientMeasurement = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
        assert_eq!(read.by_kind["put"].latencies.count(), 10);
        assert_eq!(read.series, one.series);
    }
}
