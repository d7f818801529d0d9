//! Flags of the whole cluster.

use atoll_admin::settings;
use atoll_coordinator::health::flag_name;
use atoll_coordinator::unix_ms;
use atoll_terminal::print_line;
use atoll_types::records::{ClusterFlag, FlagsRecord};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::OutputArguments;
use super::open_cluster::connected;
use super::output::{ago, print_json};

#[derive(Subcommand)]
pub enum FlagCommand {
    /// List the flags that are set
    Ls(OutputArguments),
    /// Set flags
    #[command(after_help = "Example:\n  atoll flag set noout norebalance     before work on a host")]
    Set(FlagArguments),
    /// Unset flags
    #[command(after_help = "Example:\n  atoll flag unset noout norebalance")]
    Unset(FlagArguments),
}

#[derive(Args)]
pub struct FlagArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The flags
    #[arg(required = true, value_name = "FLAG")]
    pub flags: Vec<FlagArgument>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FlagArgument {
    /// Do not mark OSDs out that are down for long
    #[value(name = "noout")]
    Out,
    /// Do not backfill
    #[value(name = "nobackfill")]
    Backfill,
    /// Do not rebalance
    #[value(name = "norebalance")]
    Rebalance,
    /// No scheduled scrubs
    #[value(name = "noscrub")]
    Scrub,
    /// No scheduled deep scrubs
    #[value(name = "nodeepscrub")]
    DeepScrub,
}

impl From<FlagArgument> for ClusterFlag {
    fn from(argument: FlagArgument) -> Self {
        match argument {
            FlagArgument::Out => ClusterFlag::NoOut,
            FlagArgument::Backfill => ClusterFlag::NoBackfill,
            FlagArgument::Rebalance => ClusterFlag::NoRebalance,
            FlagArgument::Scrub => ClusterFlag::NoScrub,
            FlagArgument::DeepScrub => ClusterFlag::NoDeepScrub,
        }
    }
}

/// Runs a command about flags.
pub fn run(command: &FlagCommand) -> anyhow::Result<()> {
    match command {
        FlagCommand::Ls(output) => {
            print_flags(output, &connected(output, async |_, state| Ok(settings::flags(&state).await?))?)
        }
        FlagCommand::Set(arguments) => change(arguments, true),
        FlagCommand::Unset(arguments) => change(arguments, false),
    }
}

fn change(arguments: &FlagArguments, is_set: bool) -> anyhow::Result<()> {
    let flags: Vec<_> = arguments.flags.iter().map(|flag| (*flag).into()).collect();
    let record = connected(&arguments.output, async |_, state| {
        Ok(settings::set_flags(&state, &flags, is_set, unix_ms()).await?)
    })?;
    print_flags(&arguments.output, &record)
}

fn print_flags(output: &OutputArguments, record: &FlagsRecord) -> anyhow::Result<()> {
    if output.json {
        let flag = |(flag, since): (&_, &u64)| json!({ "flag": flag_name(*flag), "since_unix_ms": since });
        return print_json(&record.flags.iter().map(flag).collect::<Vec<_>>());
    }
    if record.flags.is_empty() {
        print_line!("no flags are set");
    }
    for (flag, since) in &record.flags {
        print_line!("{}  for {}", flag_name(*flag), ago(*since));
    }
    Ok(())
}
