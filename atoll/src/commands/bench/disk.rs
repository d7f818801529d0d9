//! The command that measures a drive alone.

use std::path::PathBuf;
use std::time::Duration;

use atoll_bench::{DiskBench, DiskBenchReport, DiskTestReport};
use atoll_terminal::print_line;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;

use crate::commands::output::{print_json, print_table, progress_bar};

pub const HELP: &str = "\
Examples:
  atoll bench disk --device /mnt/nvme/bench.disk                 a file that is made, filled and removed
  atoll bench disk --device /dev/nvme0n1 --wipe --size 64G --seconds 60
  atoll bench disk --device ./bench.disk --size 1G --seconds 3 --json | jq '.tests[] | {test, iops, class}'

Linear reads and writes (4 MiB, depth 32), parallel ones (4 KiB at random, depth 128), single reads (4 KiB at
random, depth 1), and single writes that are durable (as a log writes them, by O_DSYNC and by fsync, and at
random). fio does it: apt install fio. Run it on drives that nothing else uses, on a range larger than
their caches.";

#[derive(Args)]
pub struct DiskBenchArguments {
    /// A file, which is made, or a block device
    #[arg(long, value_name = "PATH")]
    pub device: PathBuf,
    /// Overwrite the content of the file or block device
    #[arg(long)]
    pub wipe: bool,
    /// How many bytes to write and use, from the beginning
    #[arg(long, value_parser = parse_size_bytes, default_value = "4G")]
    pub size: u64,
    /// How long each of the eight tests takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Runs `atoll bench disk`.
pub fn run(arguments: DiskBenchArguments) -> anyhow::Result<()> {
    let bench = DiskBench {
        device: arguments.device,
        size_bytes: arguments.size,
        wipe: arguments.wipe,
        duration: Duration::from_secs(arguments.seconds),
    };
    let report = bench.run(&progress_bar("prefilling"), &progress_bar("measuring"))?;
    if arguments.json {
        return print_json(&report);
    }
    print_report(&report);
    Ok(())
}

fn print_report(report: &DiskBenchReport) {
    let size = format_size(report.size_bytes);
    print_line!("{}, {size} of it filled, {} s each\n", report.device, report.seconds);
    let rows: Vec<Vec<String>> = report.tests.iter().map(row).collect();
    print_table(&["test", "workload", "sync", "op/s", "MB/s", "mean us", "p99 us"], &rows);
    print_line!();
    for test in &report.tests {
        print_line!("{:<19}{}", test.test, test.meaning);
    }
    print_line!("\n{}", report.durability);
    print_line!("Linux {}, {}, {}", report.kernel, report.cpu, report.fio_version);
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
