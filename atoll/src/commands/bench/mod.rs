//! Commands that measure.

mod block;
mod client;
mod disk;
mod measurement;
mod object;
mod osds;
mod recovery;
mod store;

use atoll_bench::EXIT_WITH_PARENT;
use clap::Subcommand;

use self::block::BlockBenchArguments;
use self::disk::DiskBenchArguments;
use self::object::ObjectBenchArguments;
use self::osds::OsdsBenchArguments;
use self::recovery::RecoveryBenchArguments;
use self::store::StoreBenchArguments;
use super::laboratory::{self, LaboratoryArguments};

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Measure block I/O on an image, an NBD export, or a file or device
    #[command(after_help = block::HELP)]
    Block(BlockBenchArguments),
    /// Measure object requests on an S3 endpoint
    #[command(after_help = object::HELP)]
    Object(ObjectBenchArguments),
    /// Run a matrix of loads on differently configured clusters, and write its report
    #[command(disable_help_flag = true)]
    Run(LaboratoryArguments),
    /// Check for CPU regressions against a recorded budget
    #[command(disable_help_flag = true)]
    Guard(LaboratoryArguments),
    /// One client of another 'atoll bench', which sends its work
    #[command(hide = true)]
    Client,
    /// Measure the object store alone on a file or block device, next to fio
    #[command(after_help = store::HELP)]
    Store(StoreBenchArguments),
    /// Measure each OSD by itself to find slow ones
    #[command(after_help = osds::HELP)]
    Osds(OsdsBenchArguments),
    /// Measure client latency and recovery speed while an OSD's data moves to others and back
    #[command(after_help = recovery::HELP)]
    Recovery(RecoveryBenchArguments),
    /// Predict the rates of a described cluster and its bottleneck; runs nothing
    #[command(disable_help_flag = true)]
    Model(LaboratoryArguments),
    /// Measure a drive alone with the eight tests that operators run before deployment
    #[command(after_help = disk::HELP)]
    Disk(DiskBenchArguments),
    /// Write the report of a matrix's record: a page with plots, and Markdown
    #[command(disable_help_flag = true)]
    Report(LaboratoryArguments),
    /// Compare two records
    #[command(disable_help_flag = true)]
    Compare(LaboratoryArguments),
}

/// Runs a bench command.
pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    if std::env::var_os(EXIT_WITH_PARENT).is_some() {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    match command {
        BenchCommand::Block(arguments) => block::run(&arguments),
        BenchCommand::Object(arguments) => object::run(arguments),
        BenchCommand::Run(arguments) => laboratory::run("run", &arguments),
        BenchCommand::Guard(arguments) => laboratory::run("guard", &arguments),
        BenchCommand::Client => client::run(),
        BenchCommand::Store(arguments) => store::run(arguments),
        BenchCommand::Osds(arguments) => osds::run(&arguments),
        BenchCommand::Recovery(arguments) => recovery::run(&arguments),
        BenchCommand::Model(arguments) => laboratory::run("model", &arguments),
        BenchCommand::Disk(arguments) => disk::run(arguments),
        BenchCommand::Report(arguments) => laboratory::run("report", &arguments),
        BenchCommand::Compare(arguments) => laboratory::run("compare", &arguments),
    }
}
