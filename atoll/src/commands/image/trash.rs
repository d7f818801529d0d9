//! The trash.

use atoll_terminal::print_line;
use atoll_types::records::RemovedImageRecord;
use atoll_types::size::format_size;
use clap::Subcommand;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::durations::parse_seconds;
use super::super::output::{ago, print_json, print_table, progress_bar, until};
use super::{ImageAccess, TIMEOUT_MS, print_image};

#[derive(Subcommand)]
pub enum TrashCommand {
    /// Put an image into the trash, with its snapshots: it cannot be used, and is removed when its time is over
    #[command(after_help = "Examples:\n  atoll image trash mv disk1\n  atoll image trash mv disk1 --keep 30d")]
    Mv {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// How long it can be brought back: 90s, 45m, 12h or 7d
        #[arg(long, default_value = "7d", value_parser = parse_duration_ms)]
        keep: u64,
    },
    /// List removed images whose data is still there
    Ls(OutputArguments),
    /// Bring an image back
    Restore {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name or id, as in 'atoll image trash ls'
        image: String,
        /// Another name for it
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove an image in the trash now, with its snapshots, for good
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// Its name or id, as in 'atoll image trash ls'
        image: String,
    },
}

fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a duration: use 90s, 45m, 12h or 7d");
    parse_seconds(text).and_then(|seconds| seconds.checked_mul(1_000)).ok_or_else(wrong)
}

/// Runs a command about the trash.
pub fn run(command: TrashCommand) -> anyhow::Result<()> {
    match command {
        TrashCommand::Mv { output, name, keep } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let removed = access.block_on_tokio(access.admin.trash(&name, keep))?;
            if output.json {
                return print_json(&json!(Removed::from(&removed)));
            }
            print_line!(
                "put image '{name}' into the trash; 'atoll image trash restore {name}' brings it back {}",
                until(removed.purge_unix_ms)
            );
            Ok(())
        }
        TrashCommand::Ls(output) => list(&output),
        TrashCommand::Restore { output, image, name } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let restored = access.block_on_tokio(access.admin.restore(&image, name.as_deref()))?;
            print_image(&output, &(&restored).into(), "brought back")
        }
        TrashCommand::Rm { output, image } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let removed = access.block_on_tokio(access.admin.find_removed(&image))?;
            access.admin_call(|admin, client| async move {
                let progress = progress_bar("removing");
                admin.purge(&client, &removed.image.id, &progress).await
            })?;
            if output.json {
                return print_json(&json!({ "removed": [image] }));
            }
            print_line!("removed image '{image}'");
            Ok(())
        }
    }
}

/// Public part of a removed image, without its wrapped key.
#[derive(serde::Serialize)]
struct Removed {
    id: String,
    name: String,
    size_bytes: u64,
    snapshots: usize,
    removed_unix_ms: u64,
    purge_unix_ms: u64,
    is_purging: bool,
}

impl From<&RemovedImageRecord> for Removed {
    fn from(removed: &RemovedImageRecord) -> Self {
        Removed {
            id: removed.image.id.clone(),
            name: removed.image.name.clone(),
            size_bytes: removed.image.size_bytes,
            snapshots: removed.image.snapshots().len(),
            removed_unix_ms: removed.removed_unix_ms,
            purge_unix_ms: removed.purge_unix_ms,
            is_purging: removed.is_purging,
        }
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let removed = access.block_on_tokio(access.admin.removed())?;
    let removed: Vec<Removed> = removed.iter().map(Removed::from).collect();
    if output.json {
        return print_json(&json!(removed));
    }
    let row = |image: &Removed| {
        let state = if image.is_purging { "being removed".into() } else { until(image.purge_unix_ms) };
        let removed = format!("{} ago", ago(image.removed_unix_ms));
        let (size, snapshots) = (format_size(image.size_bytes), image.snapshots.to_string());
        vec![image.name.clone(), image.id.clone(), size, snapshots, removed, state]
    };
    print_table(
        &["NAME", "ID", "SIZE", "SNAPSHOTS", "REMOVED", "KEPT"],
        &removed.iter().map(row).collect::<Vec<_>>(),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration_ms("90s"), Ok(90_000));
        assert_eq!(parse_duration_ms("7d"), Ok(7 * 86_400_000));
        for wrong in ["", "7", "d", "-1d", "1w", "1.5h", "99999999999999999999d"] {
            assert!(parse_duration_ms(wrong).is_err(), "{wrong}");
        }
    }
}
