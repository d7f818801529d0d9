//! Flags and settings.

use anyhow::Context;
use atoll_base::coordination::SettingsRecord;
use atoll_base::frames::{FrameMode, FramesRecord};
use atoll_base::records::FlagsRecord;
use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::admin::whole;
use atoll_coordinator::health::flag_name;
use atoll_coordinator::unix_ms;
use serde::Serialize;
use serde_json::json;

use super::health::ago;
use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{FlagArguments, FlagCommand, OutputArguments, SettingKind, SettingsCommand};

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
        SettingsCommand::Ls(output) => print_settings(output, &connected(output, read_settings)?),
        SettingsCommand::Set { output, setting, value } => {
            let settings = connected(output, async |state| {
                change_setting(&state, setting.kind(), value).await?;
                read_settings(state).await
            })?;
            if matches!(setting.kind(), SettingKind::FrameMode(_)) {
                eprintln!(
                    "new connections use it; those that are there keep their mode until they end ('atoll status' counts \
                     them, 'atoll settings set --help' says how to end them)"
                );
            }
            print_settings(output, &settings)
        }
    }
}

#[derive(Serialize)]
struct AllSettings {
    #[serde(flatten)]
    settings: SettingsRecord,
    frame_mode_cluster: FrameMode,
    frame_mode_client: FrameMode,
    frame_mode_gateway: FrameMode,
    frame_rekey_seconds: u64,
}

async fn read_settings(state: ClusterClient) -> anyhow::Result<AllSettings> {
    let settings =
        state.get::<SettingsRecord>(keys::SETTINGS).await?.map(|(record, _)| record).unwrap_or_default();
    let frames = state.get::<FramesRecord>(keys::FRAMES).await?.map(|(record, _)| record).unwrap_or_default();
    Ok(AllSettings {
        settings,
        frame_mode_cluster: frames.modes.cluster,
        frame_mode_client: frames.modes.client,
        frame_mode_gateway: frames.modes.gateway,
        frame_rekey_seconds: frames.rekey_seconds,
    })
}

async fn change_setting(state: &ClusterClient, kind: SettingKind, value: &str) -> anyhow::Result<()> {
    let number = || value.parse::<u64>().with_context(|| format!("'{value}' is not a number from 0 on"));
    match kind {
        SettingKind::Number(setting) => {
            whole::set(state, setting, number()?).await?;
        }
        SettingKind::RekeySeconds => {
            whole::set_rekey_seconds(state, number()?).await?;
        }
        SettingKind::FrameMode(role) => {
            whole::set_frame_mode(state, role, value.parse().map_err(anyhow::Error::msg)?).await?;
        }
    }
    Ok(())
}

fn print_settings(output: &OutputArguments, all: &AllSettings) -> anyhow::Result<()> {
    if output.json {
        return print_json(all);
    }
    let settings = &all.settings;
    let row = |name: &str, value: &dyn std::fmt::Display, meaning: &str| {
        vec![name.to_owned(), value.to_string(), meaning.to_owned()]
    };
    let rows = [
        row(
            "osd_down_out_seconds",
            &settings.osd_down_out_seconds,
            "an OSD down for so long is marked out; 0: never",
        ),
        row("osds_in_percent_min", &settings.osds_in_percent_min, "no OSD is marked out if fewer would be in"),
        row("balance_seconds", &settings.balance_seconds, "pause between two rounds of the balancer"),
        row("near_full_percent", &settings.near_full_percent, "an OSD with more in use is near full"),
        row("frame_mode_cluster", &all.frame_mode_cluster, "new connections among OSDs"),
        row("frame_mode_client", &all.frame_mode_client, "those of NBD servers, benches and the command line"),
        row("frame_mode_gateway", &all.frame_mode_gateway, "those of gateways"),
        row("frame_rekey_seconds", &all.frame_rekey_seconds, "a connection so old gets its next key"),
    ];
    print_table(&["SETTING", "VALUE", "MEANING"], &rows);
    Ok(())
}
