//! The command that measures a store alone.

use std::path::PathBuf;
use std::time::Duration;

use atoll_bench::{Ratios, RunFigures, StoreBench, StoreBenchReport, StoreFigures, Workload, WorkloadReport};
use atoll_terminal::print_line;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;

use crate::commands::output::{print_json, print_table, progress_bar};

pub const HELP: &str = "\
Examples:
  atoll bench store --device /mnt/nvme/bench.store --fio
  atoll bench store --device /dev/nvme0n1 --wipe --size 64G --working-set 32G --fio --json
  atoll bench store --device ./bench.store --wipe --workloads 4k-randwrite-qd32,4k-randread-qd32 --rounds 1
  atoll bench store --device ./bench.store --wipe --size 32G --working-set 24G --workloads 4k-randwrite-qd32

A workload is SIZE-PATTERN-qdDEPTH; patterns are randwrite, randread, write and read. The device is
written once as a whole before. fio works on DEVICE.fio beside a file, which is removed at the end, or on
the range behind the store's on a block device.";

#[derive(Args)]
pub struct StoreBenchArguments {
    /// A file, which is made, or a block device
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Size of the store; of a block device only the beginning is used
    #[arg(long, value_parser = parse_size_bytes, default_value = "8G")]
    pub size: u64,
    /// Bytes of 4 MiB objects that are written before and that operations go to
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "4G")]
    pub working_set: u64,
    /// Overwrite the content of the file or block device
    #[arg(long)]
    pub wipe: bool,
    /// How long to measure each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub runtime: u64,
    /// How often to run each workload; the figures are medians
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Workloads to run
    #[arg(
        long,
        value_name = "WORKLOAD,...",
        value_delimiter = ',',
        default_value = "4k-randwrite-qd1,4k-randwrite-qd32,4k-randwrite-qd128,4k-randread-qd1,4k-randread-qd32,\
                         4m-write-qd16,4m-read-qd16"
    )]
    pub workloads: Vec<Workload>,
    /// Run fio on the same device, alternating with the store
    #[arg(long)]
    pub fio: bool,
    /// Memory for the store's metadata, and as much for small writes in the log [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub memory: Option<u64>,
    /// Encrypt the device at rest (LUKS2, with a key that is thrown away)
    #[arg(long)]
    pub luks: bool,
    /// Put the log on this file or block device instead
    #[arg(long, value_name = "PATH")]
    pub log_device: Option<PathBuf>,
    /// Size of the log
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "256M")]
    pub log_size: u64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Runs `atoll bench store`.
pub fn run(arguments: StoreBenchArguments) -> anyhow::Result<()> {
    let bench = StoreBench {
        device: arguments.device,
        size_bytes: arguments.size,
        working_set_bytes: arguments.working_set,
        wipe: arguments.wipe,
        duration: Duration::from_secs(arguments.runtime),
        rounds: arguments.rounds,
        workloads: arguments.workloads,
        with_fio: arguments.fio,
        memory_bytes: arguments.memory,
        with_luks: arguments.luks,
        log_device: arguments.log_device,
        log_bytes: arguments.log_size,
    };
    let rounds = bench.rounds;
    let prepared = bench.prepare(&progress_bar("prefilling"))?;
    let report = prepared.run(&progress_bar("measuring"))?;
    if arguments.json {
        return print_json(&report);
    }
    print_report(&report, rounds);
    Ok(())
}

fn print_report(report: &StoreBenchReport, rounds: u32) {
    let (store, set) = (format_size(report.size_bytes), format_size(report.working_set_bytes));
    print_line!("store of {store} in {}, working set {set}, medians of {rounds} rounds", report.device);
    for workload in &report.workloads {
        print_workload(workload);
    }
    print_line!("\n{}", report.protections);
    let fio = report.fio_version.as_ref().map_or(String::new(), |version| format!(", {version}"));
    print_line!("Linux {}, {}{fio}", report.kernel, report.cpu);
}

fn print_workload(report: &WorkloadReport) {
    print_line!("\n{}", report.workload);
    let mut rows = vec![row("store", &report.store.figures)];
    if let (Some(fio), Some(ratios)) = (&report.fio, &report.ratios) {
        rows.extend([row("fio", fio), ratio_row(ratios)]);
    }
    print_table(&["", "op/s", "MB/s", "mean us", "p50", "p99", "p99.9", "CPU us/op"], &rows);
    print_store_figures(&report.store.store);
}

fn row(side: &str, figures: &RunFigures) -> Vec<String> {
    let latency = &figures.latency_us;
    vec![
        format!("  {side}"),
        format!("{:.0}", figures.iops),
        format!("{:.1}", figures.mb_per_s),
        format!("{:.0}", latency.mean),
        latency.p50.to_string(),
        latency.p99.to_string(),
        latency.p999.map_or("-".into(), |p999| p999.to_string()),
        format!("{:.1}", figures.cpu_us_per_op),
    ]
}

fn ratio_row(ratios: &Ratios) -> Vec<String> {
    let figures = [
        Some(ratios.iops),
        Some(ratios.iops),
        Some(ratios.latency_mean),
        Some(ratios.latency_p50),
        Some(ratios.latency_p99),
        ratios.latency_p999,
        Some(ratios.cpu),
    ];
    let cells = figures.iter().map(|ratio| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
    std::iter::once("  store / fio".to_owned()).chain(cells).collect()
}

fn print_store_figures(figures: &StoreFigures) {
    let latency = |us: Option<u64>| us.map_or("-".to_owned(), |us| format!("{us} us"));
    if let (Some(durable), Some(later)) = (figures.durable_bytes_per_byte, figures.later_bytes_per_byte) {
        print_line!(
            "  {} checkpoints, {:.0}% of the operations beside one, log full {:.0}% of the time; p99.9 {} beside \
             checkpoints, {} between",
            figures.checkpoints,
            figures.beside_checkpoints_percent,
            figures.log_full_percent,
            latency(figures.p999_beside_checkpoints_us),
            latency(figures.p999_between_checkpoints_us)
        );
        print_line!(
            "  {:.2} bytes to the device per byte written: {durable:.2} durable, {later:.2} in checkpoints",
            durable + later
        );
    }
    print_line!(
        "  resident memory {}, at most {}; metadata pages {}; waited for {:.0} times per 100 operations",
        format_size(figures.resident_bytes),
        format_size(figures.resident_bytes_max),
        format_size(figures.metadata_bytes),
        figures.loading_percent,
    );
}
