//! Flattening clones, and moving images to other pools: both copy the blocks that an image reads from its parent,
//! while it is in use.

use std::time::Duration;

use atoll_admin::images;
use atoll_image::{AttachedImage, Destination, ImageError};
use atoll_terminal::print_line;
use atoll_types::records::ImageRecord;
use atoll_types::size::parse_size_bytes;
use clap::Args;
use serde_json::json;

use super::super::arguments::{OutputArguments, SealingArgument};
use super::super::output::{print_json, progress_bar};
use super::{ImageAccess, TIMEOUT_MS};

/// How often one looks how far it is.
const POLL: Duration = Duration::from_millis(200);

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image flatten vm1
  atoll image flatten vm1 --rate 50M               copy at most 50 MiB/s
  atoll image flatten vm1 --no-wait                let its writer copy in the background
  atoll image flatten vm1 --stop                   copy no more; what was copied stays

The image can be in use meanwhile: its writer copies, or this command while there is no writer. After an interruption
the copying resumes when the image is opened for writing, or when the command is repeated.
Existing snapshots of the clone still read from the parent, whose snapshot can be removed after them.")]
pub struct FlattenArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The clone
    pub name: String,
    /// Copy at most this many bytes per second, such as 50M
    #[arg(long, value_parser = parse_size_bytes)]
    pub rate: Option<u64>,
    /// Do not wait for the end
    #[arg(long)]
    pub no_wait: bool,
    /// Copy no more
    #[arg(long, conflicts_with_all = ["rate", "no_wait"])]
    pub stop: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image migrate vm1 --pool fast
  atoll image migrate vm1 --pool archive --rate 50M    copy at most 50 MiB/s
  atoll image migrate vm1 --pool images --sealing on   seal an image that was not
  atoll image migrate vm1 --cancel                     return to its previous pool

The image stays in use: its writer switches to the new pool within moments, and its data follows. Its snapshots move
with it, and data that they share is copied once. Until all data has moved, the image cannot be snapshotted, rolled back,
cloned, shrunk, renamed or removed, nor its snapshots, and the old data is listed as IMAGE.before-NUMBER. After an
interruption the copying resumes when the image is opened for writing, or when the command is repeated.
An image whose snapshots have clones cannot be moved: flatten these first.
With --cancel an image that is being moved returns to its old pool at once, and stays in use. Writes since the move are
copied back; until that is done, the data in the new pool is listed as IMAGE.after-NUMBER. A cancel is possible until
all data is in the new pool. If the image was not written since, the new pool need not answer.")]
pub struct MigrateArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// The image
    pub name: String,
    /// The pool that is to hold its data
    #[arg(long, required_unless_present = "cancel")]
    pub pool: Option<String>,
    /// Sealing of its blocks there [default: unchanged]
    #[arg(long, value_enum)]
    pub sealing: Option<SealingArgument>,
    /// Copy at most this many bytes per second, such as 50M
    #[arg(long, value_parser = parse_size_bytes)]
    pub rate: Option<u64>,
    /// Do not wait until everything is copied
    #[arg(long)]
    pub no_wait: bool,
    /// Go back to the pool that the image is being moved from
    #[arg(long, conflicts_with_all = ["pool", "sealing"])]
    pub cancel: bool,
}

/// `atoll image flatten`.
pub fn flatten(arguments: &FlattenArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let name = &arguments.name[..];
    if arguments.stop {
        access.block_on_tokio(access.admin.stop_flatten(name))?;
        return say(
            &arguments.output,
            json!({ "stopped": name }),
            &format!("image '{name}' is not flattened any more"),
        );
    }
    access.block_on_tokio(access.admin.begin_flatten(name, arguments.rate))?;
    if arguments.no_wait {
        let text =
            format!("the writer of image '{name}' flattens it; 'atoll image info {name}' shows the progress");
        return say(&arguments.output, json!({ "flattening": name }), &text);
    }
    let has_parent = copy_until_done(&access, name, "flattening")?.parent().is_some();
    let text = match has_parent {
        false => format!("image '{name}' needs no parent any more"),
        true => format!(
            "image '{name}' has all its data; its older snapshots show its parent as long as they are there"
        ),
    };
    say(&arguments.output, json!({ "flattened": name, "has_parent": has_parent }), &text)
}

/// `atoll image migrate`.
pub fn migrate(arguments: &MigrateArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, TIMEOUT_MS)?;
    let name = &arguments.name[..];
    let Some(pool_name) = &arguments.pool else { return cancel(&access, arguments) };
    let pool = access.block_on_tokio(images::writable_pool(access.admin.state(), pool_name))?;
    let (before, _) = access.block_on_tokio(access.admin.get(name))?;
    let is_sealed = arguments.sealing.map_or(before.key.is_sealed(), SealingArgument::is_on);
    let moved =
        access.block_on_tokio(access.admin.begin_move(name, Destination { pool, is_sealed }, arguments.rate))?;
    if arguments.no_wait {
        let text = format!(
            "image '{name}' is in pool '{pool_name}' now; its writer copies its data there, and 'atoll image \
             info {name}' says how far it is"
        );
        return say(&arguments.output, json!({ "moving": name, "pool": pool_name }), &text);
    }
    let left = finish_move(&access, &moved, "moving")?;
    let (now, _) = access.block_on_tokio(access.admin.get(name))?;
    if now.id != moved.id {
        let pool_name = access.block_on_tokio(images::pool_name(access.admin.state(), now.pool))?;
        anyhow::bail!("the move of image '{name}' was cancelled; it is in pool '{pool_name}'");
    }
    let text = match &left {
        None => format!("image '{name}' is in pool '{pool_name}'"),
        Some(old) => format!(
            "image '{name}' is in pool '{pool_name}'; its old data is in use by others and stays as image '{old}'"
        ),
    };
    say(&arguments.output, json!({ "moved": name, "pool": pool_name, "left": left }), &text)
}

/// Goes back to the pool that an image is being moved from.
fn cancel(access: &ImageAccess, arguments: &MigrateArguments) -> anyhow::Result<()> {
    let (name, rate) = (&arguments.name[..], arguments.rate);
    let asked = name.to_owned();
    let back = access.admin_call(|admin, client| async move { admin.cancel_move(&client, &asked, rate).await })?;
    let pool_name = access.block_on_tokio(images::pool_name(access.admin.state(), back.pool))?;
    if back.moving().is_some() && arguments.no_wait {
        let text = format!(
            "image '{name}' is in pool '{pool_name}' again; its writer copies the writes made meanwhile back, \
             and 'atoll image info {name}' shows the progress"
        );
        return say(&arguments.output, json!({ "going_back": name, "pool": pool_name }), &text);
    }
    finish_move(access, &back, "going back")?;
    say(
        &arguments.output,
        json!({ "cancelled": name, "pool": pool_name }),
        &format!("image '{name}' is in pool '{pool_name}' as before"),
    )
}

/// Waits until an image is in its place with all its data, and removes the other place. Returns the name of that if
/// it stays, because others have made use of it.
fn finish_move(access: &ImageAccess, moved: &ImageRecord, title: &'static str) -> anyhow::Result<Option<String>> {
    let name = &moved.name[..];
    copy_until_done(access, name, title)?;
    let Some(moving) = moved.moving() else { return Ok(None) };
    let (old_id, old_name) = (moving.old_id.clone(), &moving.old_name);
    access.admin_call(|admin, client| async move {
        admin.trim(&client, name, &|_, _| {}).await?;
        admin.purge(&client, &old_id, &progress_bar("removing the old data")).await
    })?;
    Ok(access.has_image(old_name)?.then(|| old_name.clone()))
}

fn say(output: &OutputArguments, json: serde_json::Value, text: &str) -> anyhow::Result<()> {
    match output.json {
        true => print_json(&json)?,
        false => print_line!("{text}"),
    }
    Ok(())
}

/// Waits until an image reads nothing from its parent, and copies while there is no writer.
fn copy_until_done(access: &ImageAccess, name: &str, title: &'static str) -> anyhow::Result<ImageRecord> {
    let bridge = &access.bridge;
    access.admin_call(|admin, client| async move {
        let progress = progress_bar(title);
        let mut copier: Option<AttachedImage> = None;
        loop {
            let (record, _) = admin.get(name).await?;
            if let Some(image) = copier.take_if(|image| image.is_lost() || record.flattening.is_none()) {
                image.detach().await?;
            }
            let Some(flattening) = &record.flattening else { return Ok(record) };
            progress(flattening.done_bytes, flattening.all_bytes.max(1));
            if copier.is_none() && admin.live_lock(&record.id).await?.is_none() {
                copier = match AttachedImage::attach_to_flatten(&client, bridge, &admin, name).await {
                    Ok(image) => Some(image),
                    // Somebody was faster, and copies.
                    Err(ImageError::InUse { .. } | ImageError::Lost(_)) => None,
                    Err(error) => return Err(error),
                };
            }
            client.runtime().sleep(POLL).await;
        }
    })
}
