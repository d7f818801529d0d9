//! The description of a cluster, and of its clients' work.

use std::fmt;

use atoll_types::size::parse_size_bytes;
use serde::{Deserialize, Deserializer, Serialize};

use super::{ModelError, parse_toml};

const HOSTS_MAX: u32 = 100_000;
const SHARDS_MAX: u32 = 64;
const WORKLOADS_MAX: usize = 1_000;

/// A cluster of equal hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDescription {
    /// Name in reports.
    pub name: String,
    /// Hosts with OSDs.
    pub hosts: u32,
    /// Cores of each.
    pub cores_per_host: f64,
    /// How fast a core is, as a multiple of one of the machine that the calibration is from.
    #[serde(default = "one")]
    pub core_speed: f64,
    /// Bandwidth of each host's network in each direction.
    pub nic_gbit_per_s: f64,
    /// From host to host and back, without load.
    pub round_trip_us: f64,
    /// Drives of each host.
    pub drives: Drives,
    /// Gateways on hosts of their own. Without it they are on the hosts with OSDs.
    pub gateways: Option<Gateways>,
    /// How data is kept, if a workload does not say otherwise.
    pub redundancy: Redundancy,
    /// Protections beyond those that the calibration was measured with, by its names for them.
    #[serde(default)]
    pub protections: Vec<String>,
    /// Workloads to predict.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
}

/// Equal drives, as a test of one drive alone measures them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drives {
    /// Drives in each host.
    pub per_host: u32,
    /// OSDs on each drive.
    #[serde(default = "one_osd")]
    pub osds_per_drive: u32,
    /// Linear reads.
    pub read_mb_per_s: f64,
    /// Linear writes.
    pub write_mb_per_s: f64,
    /// Random reads of 4 KiB, many at once.
    pub read_iops: f64,
    /// Random writes of 4 KiB, many at once.
    pub write_iops: f64,
    /// Writes of 4 KiB one after the other, each durable before the next.
    pub synced_writes_per_s: f64,
    /// One read of 4 KiB.
    pub read_latency_us: f64,
}

/// Hosts that have gateways only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateways {
    /// How many there are.
    pub hosts: u32,
    /// Cores of each.
    pub cores_per_host: f64,
    /// Bandwidth of each host's network in each direction.
    pub nic_gbit_per_s: f64,
}

/// Work of clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The kind of request.
    pub operation: Operation,
    /// Bytes of each.
    #[serde(rename = "size", deserialize_with = "size")]
    pub size_bytes: u64,
    /// Requests in flight at once; without it there are as many as it takes.
    pub concurrency: Option<u32>,
    /// In place of the cluster's.
    pub hosts: Option<u32>,
    /// In place of the cluster's.
    pub redundancy: Option<Redundancy>,
    /// In place of the cluster's.
    pub protections: Option<Vec<String>>,
    /// Rate measured on such a cluster, in operations a second.
    pub measured_per_s: Option<f64>,
    /// The same, in GiB a second.
    pub measured_gib_per_s: Option<f64>,
}

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Random writes to an image.
    Randwrite,
    /// Random reads of an image.
    Randread,
    /// Writes to an image in order.
    Write,
    /// Reads of an image in order.
    Read,
    /// Uploads of S3 objects.
    Put,
    /// Downloads of S3 objects.
    Get,
}

impl Operation {
    /// Returns true for operations that change data.
    pub fn is_write(self) -> bool {
        matches!(self, Operation::Randwrite | Operation::Write | Operation::Put)
    }

    /// Returns true for operations of gateways.
    pub fn is_object(self) -> bool {
        matches!(self, Operation::Put | Operation::Get)
    }

    /// Returns true if both operations cost the same at equal sizes.
    pub fn costs_as(self, other: Operation) -> bool {
        (self.is_write(), self.is_object()) == (other.is_write(), other.is_object())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Operation::Randwrite => "randwrite",
            Operation::Randread => "randread",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Put => "put",
            Operation::Get => "get",
        })
    }
}

/// How data is kept: `3 copies`, or `4+2` for four data and two parity shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Redundancy {
    /// Whole copies.
    Copies(u32),
    /// Shards.
    Erasure {
        /// Data shards.
        data: u32,
        /// Parity shards.
        parity: u32,
    },
}

impl Redundancy {
    /// On how many hosts an object is.
    pub fn width(self) -> u32 {
        match self {
            Redundancy::Copies(copies) => copies,
            Redundancy::Erasure { data, parity } => data + parity,
        }
    }
}

impl TryFrom<String> for Redundancy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number =
            |part: &str| part.trim().parse::<u32>().ok().filter(|number| (1..=SHARDS_MAX).contains(number));
        let parsed = if let Some((data, parity)) = text.split_once('+') {
            number(data).zip(number(parity)).map(|(data, parity)| Redundancy::Erasure { data, parity })
        } else {
            text.strip_suffix("copies").and_then(number).map(Redundancy::Copies)
        };
        parsed.ok_or_else(|| format!("'{text}' is no redundancy: say '3 copies', or '4+2' for an erasure code"))
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Redundancy::Copies(copies) => write!(formatter, "{copies} copies"),
            Redundancy::Erasure { data, parity } => write!(formatter, "{data}+{parity}"),
        }
    }
}

impl ClusterDescription {
    /// Reads a description; `what` is the file's name, for errors.
    pub fn parse(what: &str, text: &str) -> Result<Self, ModelError> {
        let cluster: ClusterDescription = parse_toml(what, text)?;
        cluster.check().map_err(|reason| ModelError::Invalid(format!("{what}: {reason}")))?;
        Ok(cluster)
    }

    fn check(&self) -> Result<(), String> {
        let drives = &self.drives;
        let mut figures = vec![
            ("cores_per_host", self.cores_per_host),
            ("core_speed", self.core_speed),
            ("nic_gbit_per_s", self.nic_gbit_per_s),
            ("round_trip_us", self.round_trip_us),
            ("drives.per_host", f64::from(drives.per_host)),
            ("drives.osds_per_drive", f64::from(drives.osds_per_drive)),
            ("drives.read_mb_per_s", drives.read_mb_per_s),
            ("drives.write_mb_per_s", drives.write_mb_per_s),
            ("drives.read_iops", drives.read_iops),
            ("drives.write_iops", drives.write_iops),
            ("drives.synced_writes_per_s", drives.synced_writes_per_s),
            ("drives.read_latency_us", drives.read_latency_us),
        ];
        if let Some(gateways) = &self.gateways {
            figures.push(("gateways.hosts", f64::from(gateways.hosts)));
            figures.push(("gateways.cores_per_host", gateways.cores_per_host));
            figures.push(("gateways.nic_gbit_per_s", gateways.nic_gbit_per_s));
        }
        if let Some((name, value)) = figures.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            return Err(format!("{name} = {value}: it must be above 0"));
        }
        if self.workloads.is_empty() || self.workloads.len() > WORKLOADS_MAX {
            return Err(format!(
                "{} workloads: give from 1 to {WORKLOADS_MAX} [[workload]]",
                self.workloads.len()
            ));
        }
        self.workloads.iter().try_for_each(|workload| self.check_workload(workload))
    }

    fn check_workload(&self, workload: &Workload) -> Result<(), String> {
        let hosts = workload.hosts.unwrap_or(self.hosts);
        let redundancy = workload.redundancy.unwrap_or(self.redundancy);
        if hosts < redundancy.width() || hosts > HOSTS_MAX {
            let least = redundancy.width();
            return Err(format!(
                "{redundancy} on {hosts} hosts: there must be from {least} to {HOSTS_MAX}, one per copy or shard"
            ));
        }
        if workload.size_bytes == 0 || workload.concurrency == Some(0) {
            return Err(format!("a {} with size or concurrency 0", workload.operation));
        }
        let measured = workload.measured_per_s.or(workload.measured_gib_per_s);
        if measured.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
            return Err(format!("a {} with a measured rate of 0 a second", workload.operation));
        }
        Ok(())
    }
}

pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_size_bytes(&text).map_err(serde::de::Error::custom)
}

fn one() -> f64 {
    1.0
}

fn one_osd() -> u32 {
    1
}
