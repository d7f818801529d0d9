//! Clones: making them, and making them images of their own.

use atoll_admin::images::{self, ImageSummary};
use atoll_image::AttachedImage;
use atoll_terminal::print_line;
use atoll_types::size::parse_size_bytes;
use clap::Args;
use serde_json::json;

use super::super::arguments::{OutputArguments, SealingArgument};
use super::super::output::{print_json, progress_bar};
use super::{ImageAccess, SnapshotName, TIMEOUT_MS, print_image};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image snap create golden@v1
  atoll image clone golden@v1 vm1                  at once, whatever the size; it shares the snapshot's data
  atoll image clone golden@v1 vm2 --pool fast

A clone has a key of its own: what it writes is sealed under that. Its snapshot stays as long as it has clones.")]
pub struct CloneArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// IMAGE@SNAPSHOT
    pub snapshot: SnapshotName,
    /// The name of the clone
    pub name: String,
    /// The pool for what the clone writes [default: its parent's]
    #[arg(long)]
    pub pool: Option<String>,
    /// Whether the blocks that the clone writes are sealed
    #[arg(long, value_enum, default_value = "on")]
    pub sealing: SealingArgument,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image flatten vm1
  atoll image flatten vm1 --rate 50M               copy at most 50 MiB/s

Nobody may write to the image meanwhile. If it is interrupted, it goes on where it was when it is run again.
Snapshots that the clone has already go on to show the parent: its snapshot can be removed after them.")]
pub struct FlattenArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The clone
    pub name: String,
    /// Copy at most so much per second, such as 50M
    #[arg(long, value_parser = parse_size_bytes)]
    pub rate: Option<u64>,
}

/// `atoll image clone`.
pub fn clone(arguments: &CloneArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let pool = match &arguments.pool {
        Some(name) => Some(access.block_on_tokio(images::writable_pool(access.admin.state(), name))?),
        None => None,
    };
    let SnapshotName { image, snapshot } = &arguments.snapshot;
    let is_sealed = arguments.sealing.is_on();
    let made = access.admin.clone_snapshot((image, snapshot), &arguments.name, pool, is_sealed);
    let made = access.block_on_tokio(made)?;
    print_image(&arguments.output, &ImageSummary::from(&made), "cloned")
}

/// `atoll image flatten`.
pub fn flatten(arguments: &FlattenArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let name = &arguments.name[..];
    access.block_on_tokio(access.admin.check_flatten(name))?;
    let (client, bridge) = (access.client.clone(), access.bridge.clone());
    access.admin_call(|admin, _| async move {
        let image = AttachedImage::attach(&client, &bridge, &admin, name, "flattening").await?;
        let progress = progress_bar("flattening");
        let copied = image.copy_from_parent(arguments.rate, &progress).await;
        image.detach().await?;
        copied
    })?;
    let flattened = access.block_on_tokio(access.admin.end_flatten(name))?;
    let has_parent = flattened.parent().is_some();
    if arguments.output.json {
        return print_json(&json!({ "flattened": name, "has_parent": has_parent }));
    }
    match has_parent {
        false => print_line!("image '{name}' needs no parent any more"),
        true => print_line!(
            "image '{name}' has all its data; its older snapshots show its parent as long as they are there"
        ),
    }
    Ok(())
}
