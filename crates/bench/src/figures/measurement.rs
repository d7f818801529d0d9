//! The result of one run: of one client, and of all of them together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CpuByRole, Latency, LatencyHistogram, Noise, round, round_finely};
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

/// What one client has counted. Clients in processes of their own hand this to the first as JSON.
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
    /// Operations whose data was compared with what was written.
    pub verified: u64,
    /// CPU time of the load generator, in microseconds.
    pub client_cpu_us: u64,
    /// Latencies by kind of operation, such as `read`.
    #[serde(with = "by_kind_as_text")]
    pub by_kind: BTreeMap<String, LatencyHistogram>,
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

/// What a run was asked to do, for its result.
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
    /// Durability and protections that were on.
    pub protections: String,
}

/// The result of one run; printed as one JSON object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// What was done, such as `randwrite`.
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
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Operations done.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The first error, if there was one.
    pub first_error: Option<String>,
    /// Operations whose data was compared with what was written, if that was asked for.
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
    /// Who else was at work, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
}

fn one() -> u32 {
    1
}

impl ClientMeasurement {
    /// Latencies of all kinds.
    pub fn histogram(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::default();
        self.by_kind.values().for_each(|histogram| all.add(histogram));
        all
    }
}

impl Measurement {
    /// What all clients together have measured, with the servers' CPU time over the same interval.
    pub fn of_clients(setting: Setting, clients: &[ClientMeasurement], cpu: &CpuByRole) -> Self {
        let mut by_kind: BTreeMap<String, LatencyHistogram> = BTreeMap::new();
        let mut all = LatencyHistogram::default();
        for (kind, histogram) in clients.iter().flat_map(|client| &client.by_kind) {
            by_kind.entry(kind.clone()).or_default().add(histogram);
            all.add(histogram);
        }
        let operations = all.count();
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
            seconds: round_finely(clients.iter().map(|one| one.seconds).fold(0.0, f64::max)),
            operations,
            errors: clients.iter().map(|one| one.errors).sum(),
            first_error: clients.iter().find_map(|one| one.first_error.clone()),
            verified: clients.iter().map(|one| one.verified).sum(),
            iops: round(rate(|one| one.by_kind.values().map(LatencyHistogram::count).sum())),
            mb_per_s: round_finely(rate(|one| one.bytes) / 1e6),
            latency_us: all.latency(),
            by_kind: if by_kind.len() > 1 { kinds(&by_kind) } else { BTreeMap::new() },
            cpu_us_per_op: per_operation(cpu.total_us()),
            cpu_us_per_op_by_role: cpu
                .us_by_role()
                .map(|(role, us)| (role.to_owned(), per_operation(us)))
                .collect(),
            client_cpu_us_per_op: per_operation(clients.iter().map(|one| one.client_cpu_us).sum()),
            histogram: all.to_text(),
            series: join_series(clients),
            protections: setting.protections,
            noise: None,
        }
    }

    /// All latencies.
    pub fn latencies(&self) -> Result<LatencyHistogram, BenchError> {
        LatencyHistogram::from_text(&self.histogram)
    }
}

fn kinds(by_kind: &BTreeMap<String, LatencyHistogram>) -> BTreeMap<String, KindMeasurement> {
    let kind = |histogram: &LatencyHistogram| KindMeasurement {
        operations: histogram.count(),
        latency_us: histogram.latency(),
    };
    by_kind.iter().map(|(name, histogram)| (name.clone(), kind(histogram))).collect()
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

mod by_kind_as_text {
    use super::{BTreeMap, LatencyHistogram};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(
        by_kind: &BTreeMap<String, LatencyHistogram>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let texts: BTreeMap<&String, String> = by_kind.iter().map(|(kind, one)| (kind, one.to_text())).collect();
        texts.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, LatencyHistogram>, D::Error> {
        let texts = BTreeMap::<String, String>::deserialize(deserializer)?;
        let read = |(kind, text): (String, String)| {
            LatencyHistogram::from_text(&text).map(|one| (kind, one)).map_err(D::Error::custom)
        };
        texts.into_iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(kind: &str, latency_us: u64, operations: u64, seconds: f64) -> ClientMeasurement {
        let mut histogram = LatencyHistogram::default();
        histogram.record_us(latency_us, operations);
        ClientMeasurement {
            seconds,
            bytes: operations * 4096,
            by_kind: BTreeMap::from([(kind.to_owned(), histogram)]),
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
        assert_eq!(read.by_kind["put"].count(), 10);
        assert_eq!(read.series, one.series);
    }
}
