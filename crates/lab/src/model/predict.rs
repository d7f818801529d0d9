//! The prediction: resources divided by the needs of one operation.

use serde::Serialize;

use super::ModelError;
use super::calibration::{Calibration, Cost, Request};
use super::cluster::{ClusterDescription, Drives, Workload};
use super::demand::Path;

const US_PER_SECOND: f64 = 1e6;
const BYTES_PER_GBIT: f64 = 1e9 / 8.0;
const GIB: f64 = (1_u64 << 30) as f64;

/// Predicted performance of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// The cluster's name.
    pub cluster: String,
    /// The calibration's name.
    pub calibration: String,
    /// The machine that the calibration is from.
    pub calibration_machine: String,
    /// Day of the calibration.
    pub calibration_date: Option<String>,
    /// One per workload.
    pub predictions: Vec<Prediction>,
}

/// Predicted performance under one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The kind of request.
    pub operation: String,
    /// Bytes of each.
    pub size_bytes: u64,
    /// Hosts with OSDs.
    pub hosts: u32,
    /// How data is kept.
    pub redundancy: String,
    /// Requests in flight, if there is a limit.
    pub concurrency: Option<u32>,
    /// Upper bound of operations a second.
    pub operations_per_s: f64,
    /// The same, in GiB a second.
    pub gib_per_s: f64,
    /// Operations a second to expect, least and most: the shares of predictions that were measured with this bottleneck.
    pub expected_per_s: Option<(f64, f64)>,
    /// Resource that limits the rate.
    pub bottleneck: String,
    /// Resource that would limit it next.
    pub next: Option<String>,
    /// How much more the next one allows, as a factor.
    pub next_allows: Option<f64>,
    /// Lower bound of the latency of a request, in microseconds.
    pub latency_floor_us: f64,
    /// Needs of an operation, the bottleneck first.
    pub resources: Vec<Resource>,
    /// Rate measured on such a cluster, in operations a second.
    pub measured_per_s: Option<f64>,
    /// That, divided by the prediction.
    pub measured_share: Option<f64>,
    /// Uncertainties of the figures.
    pub notes: Vec<String>,
    /// Which measurements the costs are from.
    pub sources: Vec<String>,
}

/// Something that operations use up.
#[derive(Clone, Debug, Serialize)]
pub struct Resource {
    /// Name of the resource.
    pub name: &'static str,
    /// The unit of the two figures below.
    pub unit: &'static str,
    /// Amount that one operation needs.
    pub per_operation: f64,
    /// Amount that all hosts have each second.
    pub available_per_s: f64,
    /// How many operations a second that is enough for.
    pub operations_per_s: f64,
}

impl Resource {
    fn new(name: &'static str, unit: &'static str, per_operation: f64, available_per_s: f64) -> Self {
        Resource { name, unit, per_operation, available_per_s, operations_per_s: available_per_s / per_operation }
    }
}

/// Predicts all workloads of a cluster.
pub fn forecast(cluster: &ClusterDescription, calibration: &Calibration) -> Result<Forecast, ModelError> {
    let predictions = cluster.workloads.iter().map(|workload| predict(cluster, workload, calibration));
    Ok(Forecast {
        cluster: cluster.name.clone(),
        calibration: calibration.name.clone(),
        calibration_machine: calibration.machine.clone(),
        calibration_date: calibration.date.clone(),
        predictions: predictions.collect::<Result<_, _>>()?,
    })
}

fn predict(
    cluster: &ClusterDescription,
    workload: &Workload,
    calibration: &Calibration,
) -> Result<Prediction, ModelError> {
    let hosts = workload.hosts.unwrap_or(cluster.hosts);
    let redundancy = workload.redundancy.unwrap_or(cluster.redundancy);
    let cost = calibration.cost(&Request {
        operation: workload.operation,
        size_bytes: workload.size_bytes,
        redundancy,
        hosts,
        has_gateway_hosts: cluster.gateways.is_some(),
        protections: workload.protections.as_ref().unwrap_or(&cluster.protections),
    })?;
    if cluster.gateways.is_some() && workload.operation.is_object() && !cost.knows_gateways {
        return Err(ModelError::Invalid(format!(
            "the calibration '{}' does not say which part of the CPU time is the gateways'; describe the cluster without [gateways]",
            calibration.name
        )));
    }
    let latency_floor_us = latency_floor_us(cluster, workload, calibration, &cost);
    let mut resources = resources(cluster, hosts, calibration, &cost);
    if let Some(concurrency) = workload.concurrency {
        let available = f64::from(concurrency) * US_PER_SECOND;
        resources.push(Resource::new("clients' requests in flight", "us", latency_floor_us, available));
    }
    resources.sort_by(|a, b| a.operations_per_s.total_cmp(&b.operations_per_s));
    let operations_per_s = resources[0].operations_per_s;
    let measured_gib = workload.measured_gib_per_s.map(|gib| gib * GIB / workload.size_bytes as f64);
    let measured_per_s = workload.measured_per_s.or(measured_gib);
    Ok(Prediction {
        operation: workload.operation.to_string(),
        size_bytes: workload.size_bytes,
        hosts,
        redundancy: redundancy.to_string(),
        concurrency: workload.concurrency,
        operations_per_s,
        gib_per_s: operations_per_s * workload.size_bytes as f64 / GIB,
        expected_per_s: calibration
            .reached(resources[0].name)
            .map(|(least, most)| (operations_per_s * least, operations_per_s * most)),
        bottleneck: resources[0].name.to_owned(),
        next: resources.get(1).map(|resource| resource.name.to_owned()),
        next_allows: resources.get(1).map(|resource| resource.operations_per_s / operations_per_s),
        latency_floor_us,
        resources,
        measured_per_s,
        measured_share: measured_per_s.map(|measured| measured / operations_per_s),
        notes: cost.notes,
        sources: cost.sources,
    })
}

/// All that this operation needs. CPU time is always among it.
fn resources(cluster: &ClusterDescription, hosts: u32, calibration: &Calibration, cost: &Cost) -> Vec<Resource> {
    let (demand, drives) = (&cost.demand, &cluster.drives);
    let hosts = f64::from(hosts);
    let core_us = US_PER_SECOND * cluster.core_speed;
    let network = hosts * cluster.nic_gbit_per_s * BYTES_PER_GBIT;
    let drive_count = hosts * f64::from(drives.per_host);
    // Gateways without hosts of their own take from the same cores and networks.
    let (with_osds, apart) = if cluster.gateways.is_some() { (0.0, 1.0) } else { (1.0, 0.0) };
    let mut all = vec![
        Resource::new(
            "CPU of OSD hosts",
            "us",
            demand.osd_cpu_us + with_osds * demand.gateway_cpu_us,
            hosts * cluster.cores_per_host * core_us,
        ),
        Resource::new(
            "network in, OSD hosts",
            "bytes",
            demand.osd_in_bytes + with_osds * demand.gateway_in_bytes,
            network,
        ),
        Resource::new(
            "network out, OSD hosts",
            "bytes",
            demand.osd_out_bytes + with_osds * demand.gateway_out_bytes,
            network,
        ),
    ];
    if let Some(threads) = calibration.osd_threads {
        let osds = drive_count * f64::from(drives.osds_per_drive);
        all.push(Resource::new("threads of OSDs", "us", demand.osd_cpu_us, osds * f64::from(threads) * core_us));
    }
    if let Some(gateways) = &cluster.gateways {
        let (count, nic) = (f64::from(gateways.hosts), gateways.nic_gbit_per_s * BYTES_PER_GBIT);
        let cores_us = count * gateways.cores_per_host * core_us;
        all.push(Resource::new("CPU of gateways", "us", apart * demand.gateway_cpu_us, cores_us));
        all.push(Resource::new("network in, gateways", "bytes", demand.gateway_in_bytes, count * nic));
        all.push(Resource::new("network out, gateways", "bytes", demand.gateway_out_bytes, count * nic));
    }
    let of_drives = [
        ("drives, bytes read", "bytes", demand.drive_read_bytes, drives.read_mb_per_s * 1e6),
        ("drives, bytes written", "bytes", demand.drive_write_bytes, drives.write_mb_per_s * 1e6),
        ("drives, reads", "reads", demand.drive_reads, drives.read_iops),
        ("drives, writes", "writes", demand.drive_writes, drives.write_iops),
        ("drives, synced writes", "writes", demand.synced_writes, drives.synced_writes_per_s),
    ];
    all.extend(of_drives.map(|(name, unit, needed, rate)| Resource::new(name, unit, needed, drive_count * rate)));
    all.retain(|resource| resource.per_operation > 0.0);
    all
}

/// Returns the lower bound of the latency of a request: round trips and drive accesses one after the other, and
/// the longest of the transfers that may overlap.
fn latency_floor_us(
    cluster: &ClusterDescription,
    workload: &Workload,
    calibration: &Calibration,
    cost: &Cost,
) -> f64 {
    let Drives { read_mb_per_s, write_mb_per_s, synced_writes_per_s, read_latency_us, .. } = cluster.drives;
    let redundancy = workload.redundancy.unwrap_or(cluster.redundancy);
    let pieces = calibration.pieces(redundancy, workload.size_bytes);
    let path = Path::of(workload.operation, pieces);
    let waits_us = path.round_trips * cluster.round_trip_us
        + path.drive_reads * read_latency_us
        + path.synced_writes * US_PER_SECOND / synced_writes_per_s;
    // Of the OSDs that write at the same time, only the primary and one other are waited for.
    let osd_share = if workload.operation.is_write() { (2.0 / pieces.all).min(1.0) } else { 1.0 };
    let cpu_us = (cost.demand.gateway_cpu_us + cost.demand.osd_cpu_us * osd_share) / cluster.core_speed;
    let network_us = workload.size_bytes as f64 / (cluster.nic_gbit_per_s * BYTES_PER_GBIT) * US_PER_SECOND;
    let drive_mb_per_s = if workload.operation.is_write() { write_mb_per_s } else { read_mb_per_s };
    waits_us + cpu_us.max(network_us).max(pieces.bytes / drive_mb_per_s)
}
