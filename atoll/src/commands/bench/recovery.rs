//! The command that measures the cost of moving an OSD's data.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use atoll_admin::pools::POOL_IMAGES;
use atoll_admin::{images, osds};
use atoll_bench::{
    BenchError, ClientLoad, RecoveryBench, RecoveryCluster, RecoveryPhase, RecoveryReport, RecoveryStep,
    RecoveryView, run_recovery, servers,
};
use atoll_cluster::ClusterClient;
use atoll_coordinator::{View, statuses};
use atoll_image::{AttachedImage, Bridge};
use atoll_terminal::print_line;
use atoll_types::OsdId;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;

use super::measurement::protections;
use crate::commands::arguments::{OutputArguments, parse_osd_id};
use crate::commands::image::{ImageAccess, sealing_text};
use crate::commands::output::{print_json, print_table, progress_bar};

pub const HELP: &str = "\
Examples:
  atoll bench recovery --osd 3                                   clients write as fast as they can at depth 8
  atoll bench recovery --osd 3 --rate 2000 --reads 70 --json     2000 operations a second, 70% of them reads
  atoll bench recovery --osd 3 --idle                            no clients: the speed of recovery alone

An image is written, clients are measured for some seconds, the OSD is marked out until all of its data is
elsewhere and in until it is back, and clients are measured again. No copy is given up before the one in
its place is whole, and the OSD serves meanwhile: no data is less safe than before. It needs
one OSD (or host, or rack: the failure domain) more than there are copies. If the command is cut
short the OSD may stay out; 'atoll osd in N' marks it in.

While clients are active each OSD reads no more than its recovery rate for backfill: 'atoll osd run
--recovery-rate', or ATOLL_OSD_RECOVERY_RATE in the environment of 'atoll up'.";

#[derive(Args)]
pub struct RecoveryBenchArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The OSD whose data moves
    #[arg(long, value_name = "OSD", value_parser = parse_osd_id)]
    pub osd: OsdId,
    /// An image whose data is destroyed [default: one is made, and removed at the end]
    #[arg(long)]
    pub image: Option<String>,
    /// Bytes of the image that are written before and that clients use
    #[arg(long, value_parser = parse_size_bytes, default_value = "10G")]
    pub size: u64,
    /// No clients
    #[arg(long, conflicts_with_all = ["qd", "rate", "reads", "bs"])]
    pub idle: bool,
    /// Clients' operations in flight at once
    #[arg(long, default_value_t = 8)]
    pub qd: u32,
    /// Clients' operations begun per second [default: as many as the depth allows]
    #[arg(long, value_name = "OPERATIONS", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Reads among 100 operations; the others are writes
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    pub reads: u32,
    /// Bytes per operation
    #[arg(long, value_parser = parse_size_bytes, default_value = "4k")]
    pub bs: u64,
    /// How long to measure before and after
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
}

const TIMEOUT_MS: u64 = 60_000;

const OWN_IMAGE: &str = "atoll-bench-recovery";

/// Runs `atoll bench recovery`.
pub fn run(arguments: &RecoveryBenchArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let state = access.block_on_tokio(access.open.connect())?;
    let view = access.block_on_tokio(View::read(&state))?;
    osds::check_drain(&view, arguments.osd, if arguments.image.is_none() { arguments.size } else { 0 })?;
    let load = ClientLoad {
        block_bytes: arguments.bs,
        depth: arguments.qd,
        rate_per_second: arguments.rate,
        read_percent: arguments.reads,
    };
    let (pool, sealing) = match &arguments.image {
        Some(name) => {
            let (record, _) = access.block_on_tokio(access.admin.get(name))?;
            (view.map.pools.get(&record.pool), sealing_text(record.key.is_sealed()))
        }
        None => (view.map.pools.values().find(|pool| pool.name == POOL_IMAGES), sealing_text(true)),
    };
    let pool = pool.context("the image's pool is gone")?.id;
    let bench = RecoveryBench {
        size_bytes: arguments.size,
        load: (!arguments.idle).then_some(load),
        duration: Duration::from_secs(arguments.seconds),
        servers: servers(&access.open.directory)?,
        protections: access.block_on_tokio(protections(&access.open, &state, pool, sealing))?,
    };
    if arguments.image.is_none() {
        let keys = access.open.keys()?;
        access.block_on_tokio(images::create(&state, keys, OWN_IMAGE, arguments.size, POOL_IMAGES, true))?;
    }
    let name = arguments.image.as_deref().unwrap_or(OWN_IMAGE);
    let cluster = Cluster { state, bridge: access.bridge.clone(), osd: arguments.osd };
    let report = measure(&access, name, &cluster, &bench);
    if arguments.image.is_none() {
        let removed = access.admin_call(|admin, client| async move {
            let progress = progress_bar("removing");
            admin.remove(&client, OWN_IMAGE, &progress).await
        });
        if let (Err(error), Ok(_)) = (removed, &report) {
            bail!("cannot remove the image '{OWN_IMAGE}', which was made for this: {error}");
        }
    }
    let report = report?;
    if arguments.output.json {
        return print_json(&report);
    }
    print_report(&report, arguments.osd);
    Ok(())
}

fn measure(
    access: &ImageAccess,
    name: &str,
    cluster: &Cluster,
    bench: &RecoveryBench,
) -> anyhow::Result<RecoveryReport> {
    let bars = [progress_bar("prefilling"), progress_bar("moving away"), progress_bar("moving back")];
    let progress = |step: RecoveryStep, done: u64, all: u64| bars[step as usize](done, all);
    let run = async {
        let attached =
            AttachedImage::attach(&access.client, &access.bridge, &access.admin, name, "atoll bench recovery")
                .await?;
        let image = Rc::new(attached);
        let report = run_recovery(&access.runtime, Rc::clone(&image), cluster, bench, &progress).await;
        image.detach().await?;
        anyhow::Ok(report?)
    };
    access.runtime.block_on(run)?
}

/// Cluster state, from the thread that makes the load.
struct Cluster {
    state: ClusterClient,
    bridge: Bridge,
    osd: OsdId,
}

impl RecoveryCluster for Cluster {
    async fn set_out(&self, is_out: bool) -> Result<(), BenchError> {
        let (state, osd) = (self.state.clone(), self.osd);
        let changed = self.bridge.run(async move { osds::set_out(&state, osd, is_out).await }).await;
        changed.map(drop).map_err(|error| BenchError::Cluster(error.to_string()))
    }

    async fn look(&self) -> Result<RecoveryView, BenchError> {
        let state = self.state.clone();
        let view = self.bridge.run(async move { View::read(&state).await }).await;
        let view = view.map_err(|error| BenchError::Cluster(error.to_string()))?;
        let pgs = statuses(&view.map);
        let usage = || view.usage.values();
        Ok(RecoveryView {
            pgs: pgs.len() as u64,
            pgs_left: pgs.iter().filter(|pg| !pg.is_clean()).count() as u64,
            recovered_bytes: usage().map(|usage| usage.recovery_read_bytes).sum(),
            objects_on_osd: view.usage.get(&self.osd).map_or(0, |usage| usage.object_count),
            recovery_bytes_per_second: usage().map(|usage| usage.recovery_bytes_per_second).min().unwrap_or(0),
        })
    }
}

fn print_report(report: &RecoveryReport, osd: OsdId) {
    let size = format_size(report.size_bytes);
    match (report.block_bytes, report.depth) {
        (Some(block_bytes), Some(depth)) => print_line!(
            "{osd}'s data moves out and in; clients: {} operations on {size}, {}% reads, depth {depth}{}",
            format_size(block_bytes),
            report.read_percent.unwrap_or(0),
            report.rate_per_second.map_or(String::new(), |rate| format!(", {rate}/s")),
        ),
        _ => print_line!(
            "{osd}'s data moves out and in; no clients; an image of {size} beside the data of the \
            pool"
        ),
    }
    let rows: Vec<_> = report.phases.iter().map(row).collect();
    print_table(
        &[
            "",
            "seconds",
            "recovered",
            "MB/s",
            "CPU us/MiB",
            "op/s",
            "p50 us",
            "p99",
            "p99.9",
            "max",
            "p50 ratio",
            "p99 ratio",
            "errors",
        ],
        &rows,
    );
    if let Some(error) = report.phases.iter().find_map(|phase| phase.first_error.as_ref()) {
        print_line!("first error: {error}");
    }
    print_line!(
        "recovery rate while clients work: {} a second per OSD",
        format_size(report.recovery_bytes_per_second)
    );
    print_line!("{}", report.protections);
}

fn row(phase: &RecoveryPhase) -> Vec<String> {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let moved = phase.recovered_bytes > 0;
    let worked = phase.iops > 0.0;
    let latency = &phase.latency_us;
    let us = |value: u64| or_dash(worked.then(|| value.to_string()));
    let ratio = |value: Option<f64>| or_dash(value.filter(|_| worked).map(|ratio| format!("{ratio:.2}")));
    vec![
        phase.name.into(),
        format!("{:.1}", phase.seconds),
        or_dash(moved.then(|| format_size(phase.recovered_bytes))),
        or_dash(moved.then(|| format!("{:.0}", phase.recovered_mb_per_s))),
        or_dash(phase.recovery_cpu_us_per_mib.map(|us| format!("{us:.0}"))),
        or_dash(worked.then(|| format!("{:.0}", phase.iops))),
        us(latency.p50),
        us(latency.p99),
        or_dash(latency.p999.map(|p999| p999.to_string())),
        us(latency.max),
        ratio(phase.p50_ratio),
        ratio(phase.p99_ratio),
        phase.errors.to_string(),
    ]
}
