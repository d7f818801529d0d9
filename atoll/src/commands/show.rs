//! Commands that look at the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use atoll_base::OsdId;
use atoll_base::frames::FrameModes;
use atoll_base::records::OsdUsageRecord;
use atoll_base::size::format_size;
use atoll_coordinator::health::{Severity, evaluate};
use atoll_coordinator::{View, unix_ms};
use atoll_supervisor::authority_file;
use serde::Serialize;
use serde_json::json;

use super::health::status_name;
use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::OutputArguments;

struct Seen {
    open: OpenCluster,
    view: View,
}

fn look(output: &OutputArguments) -> anyhow::Result<Seen> {
    let open = OpenCluster::open(&output.data)?;
    let view = tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        anyhow::Ok(View::read(&state).await?)
    })?;
    Ok(Seen { open, view })
}

#[derive(Serialize)]
struct Status {
    cluster_id: String,
    health: &'static str,
    problems: Vec<String>,
    frame_modes: FrameModes,
    frame_rekey_seconds: u64,
    links_in_other_mode: u32,
    osds: usize,
    osds_up: usize,
    coordinator: Option<OsdId>,
    placement_groups: usize,
    placement_groups_by_state: BTreeMap<String, u32>,
    total_bytes: u64,
    used_bytes: u64,
    object_count: u64,
    corrupt_block_count: u64,
    s3_endpoint: String,
    s3_tls_endpoint: Option<String>,
    ca_file: Option<PathBuf>,
    nbd_listen: Vec<String>,
}

/// `atoll status`.
pub fn status(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let up = |id: &OsdId| seen.view.map.up.contains_key(id);
    let health = evaluate(&seen.view, unix_ms());
    let problems = health.problems.iter().filter(|problem| problem.severity > Severity::Note);
    let mut states: BTreeMap<String, u32> = BTreeMap::new();
    for (_, usage) in seen.view.usage.iter().filter(|(id, _)| up(id)) {
        for (state, count) in &usage.primary_pg_states {
            *states.entry(state.clone()).or_default() += count;
        }
    }
    let known: u32 = states.values().sum();
    if let Some(missing) = (seen.view.map.pgs.len() as u32).checked_sub(known).filter(|missing| *missing > 0) {
        states.insert("unknown".into(), missing);
    }
    let sum = |field: fn(&OsdUsageRecord) -> u64| seen.view.usage.values().map(field).sum();
    let status = Status {
        cluster_id: seen.open.cluster.cluster_id.clone(),
        health: status_name(health.status),
        problems: problems.map(|problem| format!("{}: {}", problem.code, problem.summary)).collect(),
        frame_modes: seen.view.map.frames.modes,
        frame_rekey_seconds: seen.view.map.frames.rekey_seconds,
        links_in_other_mode: seen.view.usage.values().map(|usage| usage.links_in_other_mode).sum(),
        osds: seen.view.map.osds.len(),
        osds_up: seen.view.map.osds.keys().filter(|id| up(id)).count(),
        coordinator: seen.view.coordinator.as_ref().map(|record| record.osd),
        placement_groups: seen.view.map.pgs.len(),
        placement_groups_by_state: states,
        total_bytes: sum(|usage| usage.total_bytes),
        used_bytes: sum(|usage| usage.used_bytes),
        object_count: sum(|usage| usage.object_count),
        corrupt_block_count: sum(|usage| usage.corrupt_block_count),
        s3_endpoint: seen.open.cluster.s3_endpoint(),
        s3_tls_endpoint: seen.open.cluster.s3_tls_endpoint(),
        ca_file: authority_file(&seen.open.directory),
        nbd_listen: seen.open.cluster.nbd_listen.clone(),
    };
    if output.json { print_json(&status) } else { print_status(&status) }
}

fn print_status(status: &Status) -> anyhow::Result<()> {
    println!("cluster  {}", status.cluster_id);
    println!("health   {}", status.health);
    for problem in &status.problems {
        println!("         {problem}");
    }
    if !status.problems.is_empty() {
        println!("         'atoll health' says what to do");
    }
    let coordinator = status.coordinator.map_or_else(|| "none".into(), |osd| osd.to_string());
    println!("osds     {} of {} up; the coordinator is {coordinator}", status.osds_up, status.osds);
    let states = status.placement_groups_by_state.iter().map(|(state, count)| format!("{count} {state}"));
    println!("pgs      {}: {}", status.placement_groups, states.collect::<Vec<_>>().join(", "));
    println!(
        "space    {} of {} used (all copies and shards)",
        format_size(status.used_bytes),
        format_size(status.total_bytes)
    );
    println!("objects  {} (all copies and shards)", status.object_count);
    println!("frames   {}; a new key every {} s", status.frame_modes, status.frame_rekey_seconds);
    if status.links_in_other_mode > 0 {
        println!(
            "         {} connections are older than the last change of this, and in another mode until they end",
            status.links_in_other_mode
        );
    }
    println!("S3       {}", status.s3_endpoint);
    if let Some(endpoint) = status.s3_tls_endpoint.as_ref().filter(|endpoint| **endpoint != status.s3_endpoint) {
        println!("S3, TLS  {endpoint}");
    }
    if let Some(file) = &status.ca_file {
        println!("CA       {}", file.display());
    }
    println!("NBD      {}", status.nbd_listen.join(", "));
    Ok(())
}

/// `atoll df`.
pub fn df(output: &OutputArguments) -> anyhow::Result<()> {
    let seen = look(output)?;
    let rows: Vec<(String, &OsdUsageRecord)> =
        seen.view.usage.iter().map(|(id, usage)| (id.to_string(), usage)).collect();
    if output.json {
        let row = |(name, usage): &(String, &OsdUsageRecord)| {
            json!({
                "name": name, "total_bytes": usage.total_bytes, "used_bytes": usage.used_bytes,
                "free_bytes": usage.total_bytes - usage.used_bytes, "is_full": usage.is_full,
            })
        };
        return print_json(&rows.iter().map(row).collect::<Vec<_>>());
    }
    let cells = |name: String, total: u64, used: u64| {
        let percent = if total == 0 { 0.0 } else { used as f64 * 100.0 / total as f64 };
        vec![name, format_size(total), format_size(used), format_size(total - used), format!("{percent:.1}%")]
    };
    let mut table: Vec<_> =
        rows.iter().map(|(name, usage)| cells(name.clone(), usage.total_bytes, usage.used_bytes)).collect();
    let sum = |field: fn(&OsdUsageRecord) -> u64| rows.iter().map(|(_, usage)| field(usage)).sum();
    table.push(cells("all".into(), sum(|usage| usage.total_bytes), sum(|usage| usage.used_bytes)));
    print_table(&["OSD", "TOTAL", "USED", "FREE", "USE"], &table);
    Ok(())
}

/// `atoll credentials`.
pub fn credentials(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let credentials = open.directory.credentials()?;
    if output.json {
        return print_json(&credentials);
    }
    println!("endpoint    {}", credentials.endpoint);
    if let Some(endpoint) = credentials.tls_endpoint.as_ref().filter(|tls| **tls != credentials.endpoint) {
        println!("with TLS    {endpoint}");
    }
    if let Some(file) = &credentials.ca_file {
        println!("trust it    export AWS_CA_BUNDLE={}", file.display());
    }
    println!("access key  {}", credentials.access_key);
    println!("secret key  {}", credentials.secret_key);
    Ok(())
}
