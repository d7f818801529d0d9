//! Commands that measure: what all of them share.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use atoll_base::PoolId;
use atoll_base::frames::FramesRecord;
use atoll_base::records::PoolRecord;
use atoll_base::size::format_size;
use atoll_bench::{EXIT_WITH_PARENT, Latency, Measurement, Plan, Processes};
use atoll_cluster::{ClusterClient, keys};
use atoll_supervisor::{DataDir, ProcessesFile};

use super::{OpenCluster, print_json};
use crate::cli::{BenchCommand, OutputArguments, PlanArguments};

pub(super) const TIMEOUT_MS: u64 = 60_000;

/// Runs a bench command.
pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    if std::env::var_os(EXIT_WITH_PARENT).is_some() {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    match command {
        BenchCommand::Block(arguments) => super::bench_block::run(&arguments),
        BenchCommand::Object(arguments) => super::bench_object::run(arguments),
        BenchCommand::Run(arguments) => super::bench_run::run(arguments),
        BenchCommand::Guard(arguments) => super::bench_guard::run(&arguments),
        BenchCommand::Client => super::bench_client::run(),
        BenchCommand::Store(arguments) => super::bench_store::run(arguments),
        BenchCommand::Osds(arguments) => super::bench_osds::run(&arguments),
        BenchCommand::Recovery(arguments) => super::bench_recovery::run(&arguments),
        BenchCommand::Model(arguments) => super::bench_model::run(&arguments),
        BenchCommand::Disk(arguments) => super::bench_disk::run(arguments),
        BenchCommand::Report(arguments) => super::bench_report::report(&arguments),
        BenchCommand::Compare(arguments) => super::bench_report::compare(&arguments),
    }
}

/// All server processes of the cluster on this machine, by role.
pub(super) fn servers(directory: &DataDir) -> anyhow::Result<Processes> {
    let file = ProcessesFile::running(directory);
    let file =
        file.ok_or_else(|| anyhow::anyhow!("the cluster in {} is not running", directory.root().display()))?;
    let mut servers = Processes::default();
    servers.add("supervisor", file.supervisor);
    for child in &file.children {
        if let Some(pid) = child.pid {
            // osd.0, osd.1, ... have one role.
            servers.add(child.name.split('.').next().unwrap_or(&child.name), pid);
        }
    }
    Ok(servers)
}

/// What protects the data of a pool.
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

/// One client's part of what was asked for.
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
    println!("{operation} {size} at depth {}{clients}", measured.depth);
    println!("  {:.0} op/s, {:.1} MB/s, {} errors", measured.iops, measured.mb_per_s, measured.errors);
    if let Some(error) = &measured.first_error {
        println!("  first error: {error}");
    }
    let from = if measured.rate_per_second.is_some() { " from when operations were due" } else { "" };
    println!(
        "  latency us{from}: mean {:.0}, p50 {}, p99 {}, p99.9 {}, max {}",
        latency.mean, latency.p50, latency.p99, latency.p999, latency.max
    );
    for (kind, one) in &measured.by_kind {
        let Latency { p50, p99, p999, .. } = one.latency_us;
        println!("    {kind}: {} operations, p50 {p50}, p99 {p99}, p99.9 {p999}", one.operations);
    }
    if measured.verified > 0 {
        println!("  {} operations read what had been written", measured.verified);
    }
    println!(
        "  CPU us/op: {:.1} servers, {:.1} load generator",
        measured.cpu_us_per_op, measured.client_cpu_us_per_op
    );
    println!("  {}", measured.protections);
    Ok(())
}
