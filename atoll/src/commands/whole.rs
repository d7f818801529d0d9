//! Flags and settings.

use atoll_base::coordination::SettingsRecord;
use atoll_base::records::FlagsRecord;
use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::admin::whole;
use atoll_coordinator::health::flag_name;
use atoll_coordinator::unix_ms;
use serde_json::json;

use super::health::ago;
use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{FlagArguments, FlagCommand, OutputArguments, SettingsCommand};

fn connected<T>(
    output: &OutputArguments,
    call: impl AsyncFnOnce(ClusterClient) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let open = OpenCluster::open(&output.data)?;
    tokio_runtime()?.block_on(async { call(open.connect().await?).await })
}

/// Runs a command about flags.
pub fn flag(command: &FlagCommand) -> anyhow::Result<()> {
    match command {
        FlagCommand::Ls(output) => {
            let record = connected(output, async |state| Ok(state.get::<FlagsRecord>(keys::FLAGS).await?))?;
            print_flags(output, &record.map(|(record, _)| record).unwrap_or_default())
        }
        FlagCommand::Set(arguments) => change(arguments, true),
        FlagCommand::Unset(arguments) => change(arguments, false),
    }
}

fn change(arguments: &FlagArguments, is_set: bool) -> anyhow::Result<()> {
    let flags: Vec<_> = arguments.flags.iter().map(|flag| (*flag).into()).collect();
    let record =
        connected(
            &arguments.output,
            async |state| Ok(whole::set_flags(&state, &flags, is_set, unix_ms()).await?),
        )?;
    print_flags(&arguments.output, &record)
}

fn print_flags(output: &OutputArguments, record: &FlagsRecord) -> anyhow::Result<()> {
    if output.json {
        let flag = |(flag, since): (&_, &u64)| json!({ "flag": flag_name(*flag), "since_unix_ms": since });
        return print_json(&record.flags.iter().map(flag).collect::<Vec<_>>());
    }
    if record.flags.is_empty() {
        println!("no flags are set");
    }
    for (flag, since) in &record.flags {
        println!("{}  for {}", flag_name(*flag), ago(*since));
    }
    Ok(())
}

/// Runs a command about settings.
pub fn settings(command: &SettingsCommand) -> anyhow::Result<()> {
    match command {
        SettingsCommand::Ls(output) => {
            let record = connected(output, async |state| Ok(state.get::<SettingsRecord>(keys::SETTINGS).await?))?;
            print_settings(output, &record.map(|(record, _)| record).unwrap_or_default())
        }
        SettingsCommand::Set { output, setting, value } => {
            let set = async |state| Ok(whole::set(&state, (*setting).into(), *value).await?);
            print_settings(output, &connected(output, set)?)
        }
    }
}

fn print_settings(output: &OutputArguments, settings: &SettingsRecord) -> anyhow::Result<()> {
    if output.json {
        return print_json(settings);
    }
    let rows = [
        ("osd_down_out_seconds", settings.osd_down_out_seconds, "an OSD down for so long is marked out; 0: never"),
        ("osds_in_percent_min", settings.osds_in_percent_min.into(), "no OSD is marked out if fewer would be in"),
        ("balance_seconds", settings.balance_seconds, "pause between two rounds of the balancer"),
        ("near_full_percent", settings.near_full_percent.into(), "an OSD with more in use is near full"),
    ];
    let row =
        |(name, value, meaning): &(&str, u64, &str)| vec![(*name).into(), value.to_string(), (*meaning).into()];
    print_table(&["SETTING", "VALUE", "MEANING"], &rows.iter().map(row).collect::<Vec<_>>());
    Ok(())
}
