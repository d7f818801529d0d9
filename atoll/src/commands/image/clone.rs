//! Making clones.

use atoll_admin::images::{self, ImageSummary};
use clap::Args;

use super::super::arguments::{OutputArguments, SealingArgument};
use super::{ImageAccess, SnapshotName, TIMEOUT_MS, print_image};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image snap create golden@v1
  atoll image clone golden@v1 vm1                  at once, whatever the size; it shares the snapshot's data
  atoll image clone golden@v1 vm2 --pool fast

A clone has a key of its own, which seals its writes. Its snapshot stays as long as it has clones.")]
pub struct CloneArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// IMAGE@SNAPSHOT
    pub snapshot: SnapshotName,
    /// The name of the clone
    pub name: String,
    /// The pool for the clone's writes [default: its parent's]
    #[arg(long)]
    pub pool: Option<String>,
    /// Sealing of the blocks that the clone writes
    #[arg(long, value_enum, default_value = "on")]
    pub sealing: SealingArgument,
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
    let made = access.admin.clone_snapshot(image, snapshot, &arguments.name, pool, is_sealed);
    let made = access.block_on_tokio(made)?;
    print_image(&arguments.output, &ImageSummary::from(&made), "cloned")
}
