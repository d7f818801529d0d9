//! The command that measures a drive alone.

use std::time::Duration;

use atoll_base::size::format_size;
use atoll_bench::{DiskBench, DiskBenchReport, DiskTestReport};

use super::image::progress_bar;
use super::{print_json, print_table};
use crate::cli::DiskBenchArguments;

/// Runs `atoll bench disk`.
pub fn run(arguments: DiskBenchArguments) -> anyhow::Result<()> {
    let bench = DiskBench {
        device: arguments.device,
        size_bytes: arguments.size,
        wipe: arguments.wipe,
        duration: Duration::from_secs(arguments.seconds),
    };
    let report = bench.run(&progress_bar("filling"), &progress_bar("measuring"))?;
    if arguments.json {
        return print_json(&report);
    }
    print_report(&report);
    Ok(())
}

fn print_report(report: &DiskBenchReport) {
    let size = format_size(report.size_bytes);
    println!("{}, {size} of it filled, {} s each\n", report.device, report.seconds);
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    print_table(&["test", "workload", "sync", "op/s", "MB/s", "mean us", "p99 us"], &rows);
    println!();
    for test in &report.tests {
        println!("{:<19}{}", test.test, test.meaning);
    }
    println!("\n{}", report.durability);
    println!("Linux {}, {}, {}", report.kernel, report.cpu, report.fio_version);
}

fn row(test: &DiskTestReport) -> Vec<String> {
    vec![
        test.test.to_owned(),
        test.workload.clone(),
        test.sync.to_owned(),
        format!("{:.0}", test.iops),
        format!("{:.1}", test.mb_per_s),
        format!("{:.0}", test.mean_us),
        test.p99_us.map_or("-".to_owned(), |us| us.to_string()),
    ]
}
