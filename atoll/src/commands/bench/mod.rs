//! Commands that measure.

mod block;
mod client;
mod disk;
mod measurement;
mod object;
mod osds;
mod recovery;
mod store;

use std::path::PathBuf;

use anyhow::Context;
use atoll_lab::EXIT_WITH_PARENT;
use atoll_lab::commands::compare::{self, CompareArguments};
use atoll_lab::commands::guard::{self, GuardArguments};
use atoll_lab::commands::model::{self, ModelArguments};
use atoll_lab::commands::report::{self, ReportArguments};
use atoll_lab::commands::run::{self, RunBenchArguments};
use clap::Subcommand;

use self::block::BlockBenchArguments;
use self::disk::DiskBenchArguments;
use self::object::ObjectBenchArguments;
use self::osds::OsdsBenchArguments;
use self::recovery::RecoveryBenchArguments;
use self::store::StoreBenchArguments;

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Measure block I/O on an image, an NBD export, or a file or device
    #[command(after_help = block::HELP)]
    Block(BlockBenchArguments),
    /// Measure object requests on an S3 endpoint
    #[command(after_help = object::HELP)]
    Object(ObjectBenchArguments),
    /// Run a matrix of loads on differently configured clusters, and write its report
    #[command(after_help = run::HELP)]
    Run(RunBenchArguments),
    /// Check for CPU regressions against a recorded budget
    #[command(after_help = guard::HELP)]
    Guard(GuardArguments),
    /// One client of another 'atoll bench', which tells it what to do
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
    /// Predict what a described cluster can do, and what limits it; runs nothing
    #[command(after_help = model::HELP)]
    Model(ModelArguments),
    /// Measure a drive alone with the eight tests that operators run before deployment
    #[command(after_help = disk::HELP)]
    Disk(DiskBenchArguments),
    /// Write the report of a matrix's record: a page with plots, and Markdown
    #[command(after_help = report::HELP)]
    Report(ReportArguments),
    /// Compare two records
    #[command(after_help = compare::HELP)]
    Compare(CompareArguments),
}

/// Runs a bench command.
pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    if std::env::var_os(EXIT_WITH_PARENT).is_some() {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    }
    match command {
        BenchCommand::Block(arguments) => block::run(&arguments),
        BenchCommand::Object(arguments) => object::run(arguments),
        BenchCommand::Run(arguments) => run::run(arguments, own_program()?),
        BenchCommand::Guard(arguments) => guard::run(&arguments, own_program()?),
        BenchCommand::Client => client::run(),
        BenchCommand::Store(arguments) => store::run(arguments),
        BenchCommand::Osds(arguments) => osds::run(&arguments),
        BenchCommand::Recovery(arguments) => recovery::run(&arguments),
        BenchCommand::Model(arguments) => model::run(&arguments),
        BenchCommand::Disk(arguments) => disk::run(arguments),
        BenchCommand::Report(arguments) => report::run(&arguments),
        BenchCommand::Compare(arguments) => compare::run(&arguments),
    }
}

/// This program's own file, which matrices start clusters with.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file")
}
