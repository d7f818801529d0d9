//! The program `atoll-lab`: the commands of the laboratory, for hosts that measure, make reports or simulate.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use atoll_lab::commands::compare::CompareArguments;
use atoll_lab::commands::guard::GuardArguments;
use atoll_lab::commands::model::ModelArguments;
use atoll_lab::commands::report::ReportArguments;
use atoll_lab::commands::run::RunBenchArguments;
use atoll_lab::commands::sim::SimArguments;
use atoll_lab::commands::{compare, guard, model, report, run, sim};
use atoll_terminal::print_note;
use clap::{Parser, Subcommand};

/// Matrices of measurements, the CPU regression guard, the capacity model, reports, and simulations.
#[derive(Parser)]
#[command(name = "atoll-lab", version, propagate_version = true)]
struct Arguments {
    /// The program 'atoll' that is measured [default: the one beside this program]
    #[arg(long, value_name = "PATH", global = true, env = "ATOLL_PROGRAM", hide_env_values = true)]
    atoll: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a matrix of loads on differently configured clusters, and write its report
    #[command(after_help = run::HELP)]
    Run(RunBenchArguments),
    /// Check for CPU regressions against a recorded budget
    #[command(after_help = guard::HELP)]
    Guard(GuardArguments),
    /// Predict the rates of a described cluster, and its bottleneck
    #[command(after_help = model::HELP)]
    Model(ModelArguments),
    /// Write the report of a matrix's record: a page with plots, and Markdown
    #[command(after_help = report::HELP)]
    Report(ReportArguments),
    /// Compare two records
    #[command(after_help = compare::HELP)]
    Compare(CompareArguments),
    /// Search for failures of the PG protocol in simulated clusters
    Sim(SimArguments),
}

fn main() -> ExitCode {
    let done = run(Arguments::parse());
    if let Err(error) = done.and_then(|()| atoll_terminal::finish().context("not all output could be written")) {
        print_note!("atoll-lab: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let atoll = arguments.atoll;
    match arguments.command {
        Command::Run(arguments) => run::run(arguments, program(atoll)?),
        Command::Guard(arguments) => guard::run(&arguments, program(atoll)?),
        Command::Model(arguments) => model::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
    }
}

/// The program to measure.
fn program(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path,
        None => std::env::current_exe().context("cannot find this program's own file")?.with_file_name("atoll"),
    };
    path.canonicalize().with_context(|| format!("there is no program {}; name it with --atoll", path.display()))
}
