//! The command that measures a store alone.

use std::time::Duration;

use atoll_base::size::format_size;
use atoll_bench::{Ratios, RunFigures, StoreBench, StoreBenchReport, StoreFigures, WorkloadReport};

use super::image::progress_bar;
use super::{print_json, print_table};
use crate::cli::StoreBenchArguments;

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
    let prepared = bench.prepare(&progress_bar("filling"))?;
    let report = prepared.run(&progress_bar("measuring"))?;
    if arguments.json {
        return print_json(&report);
    }
    print_report(&report, rounds);
    Ok(())
}

fn print_report(report: &StoreBenchReport, rounds: u32) {
    let (store, set) = (format_size(report.size_bytes), format_size(report.working_set_bytes));
    println!("store of {store} in {}, working set {set}, medians of {rounds} rounds", report.device);
    for workload in &report.workloads {
        print_workload(workload);
    }
    println!("\n{}", report.protections);
    let fio = report.fio_version.as_ref().map_or(String::new(), |version| format!(", {version}"));
    println!("Linux {}, {}{fio}", report.kernel, report.cpu);
}

fn print_workload(report: &WorkloadReport) {
    println!("\n{}", report.workload);
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
        latency.p999.to_string(),
        format!("{:.1}", figures.cpu_us_per_op),
    ]
}

fn ratio_row(ratios: &Ratios) -> Vec<String> {
    let figures = [
        ratios.iops,
        ratios.iops,
        ratios.latency_mean,
        ratios.latency_p50,
        ratios.latency_p99,
        ratios.latency_p999,
        ratios.cpu,
    ];
    let cells = figures.iter().map(|ratio| format!("{ratio:.2}"));
    std::iter::once("  store / fio".to_owned()).chain(cells).collect()
}

fn print_store_figures(figures: &StoreFigures) {
    let latency = |us: Option<u64>| us.map_or("-".to_owned(), |us| format!("{us} us"));
    if let (Some(durable), Some(later)) = (figures.durable_bytes_per_byte, figures.later_bytes_per_byte) {
        println!(
            "  {} checkpoints, {:.0}% of the operations beside one, log full {:.0}% of the time; p99.9 {} beside \
             checkpoints, {} between",
            figures.checkpoints,
            figures.beside_checkpoints_percent,
            figures.log_full_percent,
            latency(figures.p999_beside_checkpoints_us),
            latency(figures.p999_between_checkpoints_us)
        );
        println!(
            "  {:.2} bytes to the device per byte written: {durable:.2} durable, {later:.2} in checkpoints",
            durable + later
        );
    }
    println!(
        "  resident memory {}, at most {}; metadata pages {}; waited for {:.0} times per 100 operations",
        format_size(figures.resident_bytes),
        format_size(figures.resident_bytes_max),
        format_size(figures.metadata_bytes),
        figures.loading_percent,
    );
}
