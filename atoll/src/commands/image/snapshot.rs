//! Snapshots.

use atoll_terminal::print_line;
use atoll_types::size::format_size;
use clap::Subcommand;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::output::{ago, print_json, print_table, progress_bar};
use super::{ImageAccess, SnapshotName, TIMEOUT_MS};

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Take a snapshot: it has all acknowledged writes, and the image stays in use
    #[command(after_help = "\
Examples:
  atoll image snap create disk1@monday
  atoll image snap create data@monday log@monday        both at one instant: no write comes between them
  nbdinfo \"nbd+unix:///disk1@monday?socket=$PWD/atoll-data/nbd.sock\"     snapshots are served for reading

A snapshot has the state that a crash at that moment would leave: file systems and databases recover from it.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// IMAGE@SNAPSHOT; several are taken at one instant
        #[arg(required = true)]
        names: Vec<SnapshotName>,
    },
    /// List an image's snapshots
    Ls {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        image: String,
    },
    /// Remove snapshots
    #[command(after_help = "\
Examples:
  atoll image snap rm disk1@monday disk1@tuesday
  atoll image snap rm disk1 --all")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// IMAGE@SNAPSHOT, or with --all the image
        #[arg(required = true)]
        names: Vec<String>,
        /// All snapshots of the image
        #[arg(long)]
        all: bool,
    },
    /// Give a snapshot another name
    Rename {
        #[command(flatten)]
        output: OutputArguments,
        /// IMAGE@SNAPSHOT
        name: SnapshotName,
        /// Its new name, without the image's
        new_name: String,
    },
    /// Roll an image back to a snapshot; later writes are lost unless a later snapshot has them
    Rollback {
        #[command(flatten)]
        output: OutputArguments,
        /// IMAGE@SNAPSHOT
        name: SnapshotName,
    },
}

/// Runs a command about snapshots.
pub fn run(command: SnapshotCommand) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Create { output, names } => create(&output, &names),
        SnapshotCommand::Ls { output, image } => list(&output, &image),
        SnapshotCommand::Rm { output, names, all } => remove(&output, &names, all),
        SnapshotCommand::Rename { output, name, new_name } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            access.block_on_tokio(access.admin.rename_snapshot(&name.image, &name.snapshot, &new_name))?;
            done(&output, "renamed", &format!("{}@{new_name}", name.image))
        }
        SnapshotCommand::Rollback { output, name } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let wanted = name.clone();
            access.admin_call(|admin, client| async move {
                let progress = progress_bar("rolling back");
                admin.roll_back(&client, &wanted.image, &wanted.snapshot, &progress).await
            })?;
            done(&output, "rolled back to", &name.to_string())
        }
    }
}

fn done(output: &OutputArguments, what: &str, name: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&json!({ "snapshot": name }));
    }
    print_line!("{what} snapshot '{name}'");
    Ok(())
}

fn create(output: &OutputArguments, names: &[SnapshotName]) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let wanted: Vec<_> = names.iter().map(|name| (name.image.clone(), name.snapshot.clone())).collect();
    let mut images: Vec<&str> = names.iter().map(|name| &name.image[..]).collect();
    images.sort_unstable();
    anyhow::ensure!(images.windows(2).all(|pair| pair[0] != pair[1]), "an image has one snapshot at an instant");
    let taken = access.admin_call(|admin, client| async move {
        match &wanted[..] {
            [(image, snapshot)] => Ok(vec![admin.take_snapshot(&client, image, snapshot).await?]),
            several => admin.take_snapshots_together(&client, several).await,
        }
    })?;
    if output.json {
        return match &taken[..] {
            [one] => print_json(&json!(one)),
            several => print_json(&json!(several)),
        };
    }
    for (name, taken) in names.iter().zip(&taken) {
        print_line!("took snapshot '{name}', {}", format_size(taken.size_bytes));
    }
    Ok(())
}

fn list(output: &OutputArguments, image: &str) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let (record, _) = access.block_on_tokio(access.admin.get(image))?;
    if output.json {
        return print_json(&json!(record.snapshots()));
    }
    let rows: Vec<_> = record
        .snapshots()
        .iter()
        .map(|snapshot| {
            let state = if snapshot.is_pending { "being taken" } else { "" };
            vec![
                snapshot.name.clone(),
                format_size(snapshot.size_bytes),
                format!("{} ago", ago(snapshot.created_unix_ms)),
                snapshot.clones.len().to_string(),
                state.into(),
            ]
        })
        .collect();
    print_table(&["NAME", "SIZE", "TAKEN", "CLONES", "STATE"], &rows);
    Ok(())
}

fn remove(output: &OutputArguments, names: &[String], all: bool) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let mut by_image: std::collections::BTreeMap<String, Vec<String>> = std::collections::BTreeMap::new();
    for name in names {
        if all {
            anyhow::ensure!(!name.contains('@'), "'{name}' is a snapshot: --all takes the name of an image");
            let (record, _) = access.block_on_tokio(access.admin.get(name))?;
            let snapshots = record.snapshots().iter().map(|snapshot| snapshot.name.clone()).collect();
            by_image.insert(name.clone(), snapshots);
        } else {
            let name: SnapshotName = name.parse().map_err(anyhow::Error::msg)?;
            by_image.entry(name.image).or_default().push(name.snapshot);
        }
    }
    let mut removed = Vec::new();
    for (image, snapshots) in by_image {
        access.block_on_tokio(access.admin.remove_snapshots(&image, &snapshots))?;
        let name = image.clone();
        access.admin_call(|admin, client| async move {
            let progress = progress_bar("removing");
            admin.trim(&client, &name, &progress).await
        })?;
        removed.extend(snapshots.into_iter().map(|snapshot| format!("{image}@{snapshot}")));
    }
    if output.json {
        return print_json(&json!({ "removed": removed }));
    }
    removed.iter().for_each(|name| print_line!("removed snapshot '{name}'"));
    Ok(())
}
