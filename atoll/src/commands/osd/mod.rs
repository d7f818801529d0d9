//! OSDs: looking at them, making, moving, removing and running them.

mod create;
mod members;
mod run;

use clap::Subcommand;

use self::create::OsdCreateArguments;
pub use self::create::{UnlockArguments, unlock_with};
use self::members::{OsdAddArguments, OsdLocationArguments, OsdReweightArguments, OsdRmArguments, OsdsArguments};
use self::run::OsdRunArguments;
use super::arguments::OutputArguments;

#[derive(Subcommand)]
pub enum OsdCommand {
    /// List OSDs with their state, space and PGs
    Ls(OutputArguments),
    /// Show zones, racks, hosts and OSDs
    Tree(OutputArguments),
    /// Format a file or block device as an OSD of this data directory
    Create(OsdCreateArguments),
    /// Set the location, class and weight of an OSD of this data directory, or add one from elsewhere to the cluster
    Add(OsdAddArguments),
    /// Mark OSDs out: their data moves to others
    #[command(after_help = "Example:\n  atoll osd out 3\n\n'atoll osd ls' counts the PGs left on it.")]
    Out(OsdsArguments),
    /// Mark OSDs in again
    #[command(after_help = "Example:\n  atoll osd in 3")]
    In(OsdsArguments),
    /// Change the weight of an OSD: its share of the data
    Reweight(OsdReweightArguments),
    /// Set the location of OSDs
    SetLocation(OsdLocationArguments),
    /// Remove an OSD from the cluster
    Rm(OsdRmArguments),
    /// Run an OSD (started by 'atoll up')
    Run(OsdRunArguments),
}

/// Runs a command about OSDs.
pub fn run(command: OsdCommand) -> anyhow::Result<()> {
    match command {
        OsdCommand::Ls(output) => members::list(&output),
        OsdCommand::Tree(output) => members::tree(&output),
        OsdCommand::Create(arguments) => create::create(&arguments),
        OsdCommand::Add(arguments) => members::add(&arguments),
        OsdCommand::Out(arguments) => members::set_out(&arguments, true),
        OsdCommand::In(arguments) => members::set_out(&arguments, false),
        OsdCommand::Reweight(arguments) => members::reweight(&arguments),
        OsdCommand::SetLocation(arguments) => members::set_location(&arguments),
        OsdCommand::Rm(arguments) => members::remove(&arguments),
        OsdCommand::Run(arguments) => run::run(&arguments),
    }
}
