//! Measured costs of operations, and their costs at other sizes.

use std::array;

use serde::Deserialize;

use super::cluster::{Operation, Redundancy, size};
use super::demand::{Demand, Path, Pieces, structure};
use super::{ModelError, parse_toml};

/// Measured costs of one system.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The system.
    pub name: String,
    /// Where it was measured.
    pub machine: String,
    /// Day of the measurements, as `2026-11-22`.
    pub date: Option<String>,
    /// Hosts of the cluster that it was measured on, each with a gateway.
    pub hosts: u32,
    /// Bytes of the chunks that an erasure code makes.
    #[serde(rename = "ec_chunk", deserialize_with = "size")]
    pub ec_chunk_bytes: u64,
    /// Threads that one OSD works with; without it there are as many as it likes.
    pub osd_threads: Option<u32>,
    /// Measured costs of operations.
    #[serde(rename = "operation")]
    operations: Vec<MeasuredOperation>,
    /// Additional costs of protections.
    #[serde(rename = "protection", default)]
    protections: Vec<MeasuredProtection>,
    /// How often operations write to the OSDs' logs.
    #[serde(rename = "log", default)]
    logs: Vec<MeasuredLog>,
    /// Shares of predictions that real clusters reached.
    #[serde(rename = "reached", default)]
    reached: Vec<Reached>,
}

/// Least and largest share of a prediction that was measured where one kind of resource was the bottleneck.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reached {
    /// Beginning of the resource's name, such as `CPU` or `network`.
    bottleneck: String,
    least: f64,
    most: f64,
    /// Runs that the shares are of.
    #[serde(rename = "source")]
    _source: String,
}

/// Measured resources of one operation on all hosts together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredOperation {
    operation: Operation,
    #[serde(rename = "size", deserialize_with = "size")]
    size_bytes: u64,
    redundancy: Redundancy,
    /// CPU time of OSDs and gateways.
    cpu_us: f64,
    /// The gateways' part of it, if it is known.
    gateway_cpu_us: Option<f64>,
    host_in_bytes: Option<f64>,
    host_out_bytes: Option<f64>,
    drive_write_bytes: Option<f64>,
    /// From which run it is.
    source: String,
}

/// Measured cost of a protection.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredProtection {
    name: String,
    operation: Operation,
    /// CPU time of all servers with it, divided by that without it.
    cpu_factor: f64,
    /// True if gateways do its work.
    #[serde(default)]
    in_gateways: bool,
    source: String,
}

/// How many synced writes an operation costs each OSD that takes part: less than 1 where several share one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredLog {
    operation: Operation,
    synced_writes: f64,
    source: String,
}

/// Resources of one operation, and the source of the figures.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub demand: Demand,
    /// True if the gateways' part of the CPU time is known.
    pub knows_gateways: bool,
    pub sources: Vec<String>,
    pub notes: Vec<String>,
}

/// An operation whose cost is to be computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub operation: Operation,
    pub size_bytes: u64,
    pub redundancy: Redundancy,
    pub hosts: u32,
    pub has_gateway_hosts: bool,
    pub protections: &'a [String],
}

/// CPU time, the gateways' part of it, and bytes in, out and to drives beyond the moved data.
type Figures = [f64; 5];

impl Calibration {
    /// Reads a calibration; `what` is the file's name, for errors.
    pub fn parse(what: &str, text: &str) -> Result<Self, ModelError> {
        let mut calibration: Calibration = parse_toml(what, text)?;
        calibration.operations.sort_by_key(|row| row.size_bytes);
        calibration.check().map_err(|reason| ModelError::Invalid(format!("{what}: {reason}")))?;
        Ok(calibration)
    }

    fn check(&self) -> Result<(), String> {
        if self.hosts == 0 || self.ec_chunk_bytes == 0 || self.osd_threads == Some(0) {
            return Err("hosts, ec_chunk and osd_threads must be above 0".into());
        }
        for row in &self.operations {
            let optional = [row.gateway_cpu_us, row.host_in_bytes, row.host_out_bytes, row.drive_write_bytes];
            let are_right = optional.into_iter().flatten().all(|value| value.is_finite() && value >= 0.0);
            if row.size_bytes == 0 || !(row.cpu_us.is_finite() && row.cpu_us > 0.0) || !are_right {
                return Err(format!(
                    "the figures of {} with {} bytes make no sense",
                    row.operation, row.size_bytes
                ));
            }
        }
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        if let Some(row) = self.protections.iter().find(|row| !is_positive(row.cpu_factor)) {
            return Err(format!("the factor of '{}' must be above 0", row.name));
        }
        let is_range = |row: &&Reached| is_positive(row.least) && row.least <= row.most && row.most.is_finite();
        if let Some(row) = self.reached.iter().find(|row| !is_range(row)) {
            return Err(format!("the shares of '{}' must be above 0, the least first", row.bottleneck));
        }
        match self.logs.iter().find(|row| !is_positive(row.synced_writes)) {
            Some(row) => Err(format!("the synced writes of a {} must be above 0", row.operation)),
            None => Ok(()),
        }
    }

    /// Returns the cost of an operation: the data that it must move, and the measured rest at its size.
    pub(super) fn cost(&self, request: &Request) -> Result<Cost, ModelError> {
        let (rows, mut notes) = self.rows_for(request.operation, request.redundancy)?;
        let (figures, sources) = at_size(&rows, request.size_bytes, |row| self.figures(row));
        let [cpu_us, gateway_cpu_us, in_bytes, out_bytes, write_bytes] = figures;
        let pieces = self.pieces(request.redundancy, request.size_bytes);
        let mut demand =
            structure(request.operation, request.size_bytes, pieces, request.hosts, request.has_gateway_hosts);
        demand.osd_cpu_us = cpu_us - gateway_cpu_us;
        demand.gateway_cpu_us = gateway_cpu_us;
        demand.osd_in_bytes += in_bytes;
        demand.osd_out_bytes += out_bytes;
        demand.drive_write_bytes += write_bytes;
        let mut sources: Vec<String> = sources.into_iter().map(str::to_owned).collect();
        let log = self.logs.iter().find(|row| row.operation.costs_as(request.operation));
        let synced_writes = log.map_or(Path::of(request.operation, pieces).synced_writes, |row| row.synced_writes);
        demand.synced_writes = pieces.all * synced_writes;
        sources.extend(log.map(|row| row.source.clone()));
        self.protect(request, cpu_us, &mut demand, &mut sources, &mut notes)?;
        Ok(Cost { demand, knows_gateways: rows.iter().all(|row| row.gateway_cpu_us.is_some()), sources, notes })
    }

    /// Least and largest share of a prediction that was measured with this bottleneck, if one was.
    pub(super) fn reached(&self, bottleneck: &str) -> Option<(f64, f64)> {
        let row = self.reached.iter().find(|row| bottleneck.starts_with(&row.bottleneck))?;
        Some((row.least, row.most))
    }

    pub(super) fn pieces(&self, redundancy: Redundancy, size_bytes: u64) -> Pieces {
        Pieces::of(redundancy, size_bytes, self.ec_chunk_bytes)
    }

    /// The rows of an operation: with this redundancy, or else with one of the same kind, or else with any.
    fn rows_for(
        &self,
        operation: Operation,
        redundancy: Redundancy,
    ) -> Result<(Vec<&MeasuredOperation>, Vec<String>), ModelError> {
        let all = || self.operations.iter().filter(|row| row.operation.costs_as(operation));
        let is_code = |redundancy| matches!(redundancy, Redundancy::Erasure { .. });
        let found = all().find(|row| row.redundancy == redundancy);
        let found = found.or_else(|| all().find(|row| is_code(row.redundancy) == is_code(redundancy)));
        let Some(found) = found.or_else(|| all().next()).map(|row| row.redundancy) else {
            return Err(ModelError::Invalid(format!(
                "the calibration '{}' has no figures of a {operation}",
                self.name
            )));
        };
        let mut notes = Vec::new();
        if found != redundancy {
            notes
                .push(format!("there are no figures of {redundancy}: CPU time and overhead are those of {found}"));
        }
        Ok((all().filter(|row| row.redundancy == found).collect(), notes))
    }

    /// Returns the measured figures of a row, without the part that follows from its structure.
    fn figures(&self, row: &MeasuredOperation) -> Figures {
        let pieces = self.pieces(row.redundancy, row.size_bytes);
        let moved = structure(row.operation, row.size_bytes, pieces, self.hosts, false);
        let beyond =
            |measured: Option<f64>, explained: f64| measured.map_or(0.0, |bytes| (bytes - explained).max(0.0));
        [
            row.cpu_us,
            row.gateway_cpu_us.unwrap_or(0.0).min(row.cpu_us),
            beyond(row.host_in_bytes, moved.osd_in_bytes + moved.gateway_in_bytes),
            beyond(row.host_out_bytes, moved.osd_out_bytes + moved.gateway_out_bytes),
            beyond(row.drive_write_bytes, moved.drive_write_bytes),
        ]
    }

    fn protect(
        &self,
        request: &Request,
        cpu_us: f64,
        demand: &mut Demand,
        sources: &mut Vec<String>,
        notes: &mut Vec<String>,
    ) -> Result<(), ModelError> {
        for name in request.protections {
            let rows: Vec<_> = self.protections.iter().filter(|row| row.name == *name).collect();
            if rows.is_empty() {
                let mut known: Vec<_> = self.protections.iter().map(|row| row.name.as_str()).collect();
                known.dedup();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(ModelError::Invalid(format!(
                    "the calibration '{}' knows no protection '{name}'; it knows {known}",
                    self.name
                )));
            }
            let Some(row) = rows.iter().find(|row| row.operation.costs_as(request.operation)) else {
                notes.push(format!("there is no figure of '{name}' with a {}: it is left out", request.operation));
                continue;
            };
            let more_us = cpu_us * (row.cpu_factor - 1.0);
            let into = if row.in_gateways { &mut demand.gateway_cpu_us } else { &mut demand.osd_cpu_us };
            *into = (*into + more_us).max(0.0);
            sources.push(row.source.clone());
        }
        Ok(())
    }
}

/// The figures at a size between two rows lie on the line between theirs; above the largest row they grow
/// with the size, and below the smallest they are its own.
fn at_size<'a>(
    rows: &[&'a MeasuredOperation],
    size_bytes: u64,
    figures: impl Fn(&MeasuredOperation) -> Figures,
) -> (Figures, Vec<&'a str>) {
    let (smaller, larger) = (
        rows.iter().rev().find(|row| row.size_bytes <= size_bytes),
        rows.iter().find(|row| row.size_bytes >= size_bytes),
    );
    match (smaller, larger) {
        (Some(low), Some(high)) if low.size_bytes < high.size_bytes => {
            let share = (size_bytes - low.size_bytes) as f64 / (high.size_bytes - low.size_bytes) as f64;
            let (low_figures, high_figures) = (figures(low), figures(high));
            let between = array::from_fn(|n| low_figures[n] + share * (high_figures[n] - low_figures[n]));
            (between, vec![&low.source, &high.source])
        }
        (Some(row), None) => {
            let ratio = size_bytes as f64 / row.size_bytes as f64;
            (figures(row).map(|figure| figure * ratio), vec![&row.source])
        }
        (_, Some(row)) => (figures(row), vec![&row.source]),
        (None, None) => ([0.0; 5], Vec::new()),
    }
}
