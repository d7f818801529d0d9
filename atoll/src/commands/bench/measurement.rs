//! Common parts of commands that measure: protections, the plan of a run, and its figures.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use atoll_bench::{Latency, Measurement, Plan};
use atoll_cluster::{ClusterClient, keys};
use atoll_terminal::print_line;
use atoll_types::PoolId;
use atoll_types::frames::FramesRecord;
use atoll_types::records::PoolRecord;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;

use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::OpenCluster;
use crate::commands::output::print_json;

pub(super) const TIMEOUT_MS: u64 = 60_000;

/// How long, how fast, by how many.
#[derive(Args)]
pub struct PlanArguments {
    /// How long to measure
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// How long to run before measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub warm_up: f64,
    /// Operations begun per second by all clients together, whether or not earlier ones have ended: latency
    /// counts from when an operation was due [default: each operation begins when one before has ended]
    #[arg(long, value_name = "OPERATIONS")]
    pub rate: Option<f64>,
    /// End early when each client has transferred this many bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub bytes_max: Option<u64>,
    /// Include figures of each second and all latencies (HdrHistogram) in the JSON
    #[arg(long, requires = "json")]
    pub full: bool,
}

/// Returns the protection of a pool's data.
pub(super) async fn protections(
    open: &OpenCluster,
    state: &ClusterClient,
    pool: PoolId,
    sealed: &str,
) -> anyhow::Result<String> {
    let found = state.get::<PoolRecord>(&keys::pool(pool)).await?;
    let redundancy = found.with_context(|| format!("there is no pool {pool}"))?.0.redundancy;
    let frames = state.get::<FramesRecord>(keys::FRAMES).await?.map(|(record, _)| record).unwrap_or_default();
    let at_rest = if open.cluster.encrypt_at_rest { ", OSD devices LUKS2 volumes" } else { "" };
    Ok(format!(
        "{redundancy}, every ack durable (RWF_DSYNC) on all, CRC-32C per 4 KiB, frames {}, {sealed}{at_rest}",
        frames.modes
    ))
}

/// Returns one client's part of the whole plan.
pub(super) fn plan(arguments: &PlanArguments, depth: u32, clients: usize) -> anyhow::Result<Plan> {
    let duration = |what: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .with_context(|| format!("{what} {seconds} is not a number of seconds"))
    };
    Ok(Plan {
        depth,
        rate_per_second: arguments.rate.map(|rate| rate / clients as f64),
        warm_up: duration("--warm-up", arguments.warm_up)?,
        duration: duration("--seconds", arguments.seconds)?,
        bytes_max: arguments.bytes_max,
    })
}

/// The command of a client of this one.
pub(super) fn client_command() -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("cannot find this program's own file to start clients with")?;
    let mut command = Command::new(own);
    command.args(["bench", "client"]);
    Ok(command)
}

pub(super) fn print_measurement(
    output: &OutputArguments,
    plan: &PlanArguments,
    mut measured: Measurement,
) -> anyhow::Result<()> {
    if output.json {
        if !plan.full {
            measured.histogram.clear();
            measured.series.clear();
        }
        return print_json(&measured);
    }
    let latency = &measured.latency_us;
    let clients = if measured.clients == 1 { String::new() } else { format!(", {} clients", measured.clients) };
    let (operation, size) = (&measured.operation, format_size(measured.size_bytes));
    print_line!("{operation} {size} at depth {}{clients} on {}", measured.depth, measured.working_set);
    print_line!("  {:.0} op/s, {:.1} MB/s, {} errors", measured.iops, measured.mb_per_s, measured.errors);
    if let Some(error) = &measured.first_error {
        print_line!("  first error: {error}");
    }
    let from = if measured.rate_per_second.is_some() { " from when operations were due" } else { "" };
    print_line!(
        "  latency us{from}: mean {:.0}, p50 {}, p99 {}, p99.9 {}, max {}",
        latency.mean,
        latency.p50,
        latency.p99,
        tail(latency),
        latency.max
    );
    for (kind, one) in &measured.by_kind {
        let (Latency { p50, p99, .. }, p999) = (&one.latency_us, tail(&one.latency_us));
        print_line!("    {kind}: {} operations, p50 {p50}, p99 {p99}, p99.9 {p999}", one.operations);
    }
    print_line!(
        "  {} operations in {:.1} s, and {} that did not end by then (their latencies count)",
        measured.operations,
        measured.seconds,
        measured.unfinished
    );
    if let (true, Some(rate)) = (measured.is_rate_missed, measured.rate_per_second) {
        print_line!("  MISSED RATE: {:.1} of {rate:.1} operations a second ended in time", measured.iops);
    }
    if measured.verified > 0 {
        print_line!("  {} operations read the written data back correctly", measured.verified);
    }
    print_line!(
        "  CPU us/op: {:.1} servers, {:.1} load generator, {} the whole machine with its kernel's threads",
        measured.cpu_us_per_op,
        measured.client_cpu_us_per_op,
        measured.machine_cpu_us_per_op.map_or("-".into(), |us| format!("{us:.1}"))
    );
    print_line!("  {}", measured.protections);
    Ok(())
}

/// The 99.9th percentile, or a dash where there are too few operations for one.
fn tail(latency: &Latency) -> String {
    latency.p999.map_or("-".into(), |us| us.to_string())
}
