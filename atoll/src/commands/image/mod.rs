//! Commands about images.

mod access;
mod clone;
mod export;
mod flatten;
mod import;
mod lock;
mod metadata;
mod qemu;
mod raw_file;
mod records;
mod snapshot;
mod target;
mod trash;
mod usage;

use atoll_admin::images::ImageSummary;
use atoll_admin::pools::POOL_IMAGES;
use atoll_client::LocalClient;
use atoll_image::{Bridge, ImageAdmin, ImageError};
use atoll_reactor::LocalRuntime;
use atoll_terminal::print_line;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::{Args, Subcommand};
use serde_json::json;

use super::arguments::{DataArgument, OutputArguments, SealingArgument};
use super::open_cluster::{OpenCluster, tokio_runtime};
use super::output::{explain, print_json, progress_bar};

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Create an image; it takes no space until it is written
    #[command(after_help = "\
Examples:
  atoll image create --data ./atoll-data disk1 --size 4G
  atoll image create --data ./atoll-data archive1 --size 1T --pool archive
  atoll image create --data ./atoll-data scratch --size 100G --sealing off

Without sealing, anyone with a device or the root password of an OSD's host can read the image, and change it unnoticed
(docs/reference/threat-model.md).

'atoll image migrate NAME --pool POOL --sealing on' seals it later, while it is in use.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Letters, digits, '-', '_' and '.', not beginning with '-' or '.'
        name: String,
        /// Such as 512M, 4G, 1T
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
        /// The pool that holds its data; 'atoll pool ls' names them
        #[arg(long, default_value = POOL_IMAGES)]
        pool: String,
        /// Sealing of its blocks (AES-256-GCM) before they leave this host
        #[arg(long, value_enum, default_value = "on")]
        sealing: SealingArgument,
    },
    /// List images
    Ls(ListArguments),
    /// Show an image, its writer and its readers
    Info {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
    /// Show the space that an image and its snapshots take
    #[command(after_help = "Examples:\n  atoll image du disk1\n  atoll image du disk1 --json")]
    Du {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
    /// Change an image's size; its writer sees that it has grown, NBD clients when they reconnect
    Resize {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// The new size
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
        /// Allow a smaller size, which destroys the data beyond it
        #[arg(long)]
        allow_shrink: bool,
    },
    /// Give an image another name
    Rename {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// Its new name
        new_name: String,
    },
    /// Remove images and their data
    #[command(after_help = "\
Examples:
  atoll image rm disk1
  atoll image rm disk1 disk2 disk3
  atoll image trash mv disk1 --keep 7d      remove it in 7 days unless it is brought back

From the first moment on the images cannot be used any more. If the command is interrupted, the NBD servers remove the
rest in the background; the same command again does it at once.")]
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The images
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Take, list, remove and rename snapshots, and roll back to one
    #[command(subcommand)]
    Snap(snapshot::SnapshotCommand),
    /// Make an image that begins as a snapshot of another one
    Clone(clone::CloneArguments),
    /// Make a clone an image of its own, so that its parent's snapshot is not needed any more
    Flatten(flatten::FlattenArguments),
    /// Move an image to another pool while it is in use
    Migrate(flatten::MigrateArguments),
    /// Write an image or a snapshot to a file or a pipe
    Export(export::ExportArguments),
    /// Make an image from a file or a pipe, or import changes
    Import(import::ImportArguments),
    /// Copy an image or a snapshot to a new image
    Cp(import::CopyArguments),
    /// Give the space of blocks that are all zeros back
    Sparsify {
        #[command(flatten)]
        data: DataArgument,
        /// The image
        name: String,
    },
    /// Put images into the trash, bring them back, or remove them for good
    #[command(subcommand)]
    Trash(trash::TrashCommand),
    /// Show or change who may use an image through NBD and NVMe/TCP, and how many at once
    Access(access::AccessArguments),
    /// Show who writes to images, and take an image away from its writer
    #[command(subcommand)]
    Lock(lock::LockCommand),
    /// Show and change key-value pairs of an image
    #[command(subcommand)]
    Meta(metadata::MetadataCommand),
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image ls
  atoll image ls --fast                 without the column USED, which counts written blocks
  atoll image ls --json | jq -r '.[].name'")]
pub struct ListArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// Do not count the space in use: that takes longer the more was written
    #[arg(long)]
    pub fast: bool,
    /// Show names in full, however long
    #[arg(long)]
    pub full: bool,
}

const TIMEOUT_MS: u64 = 60_000;

/// Access to an image's data for commands: both runtimes and the client.
pub(super) struct ImageAccess {
    pub runtime: LocalRuntime,
    pub client: LocalClient,
    pub bridge: Bridge,
    pub admin: ImageAdmin,
    pub open: OpenCluster,
    /// Must outlive the futures that run on it.
    tokio: tokio::runtime::Runtime,
}

impl ImageAccess {
    pub fn new(data: &DataArgument, timeout_ms: u64) -> anyhow::Result<Self> {
        let open = OpenCluster::open(data)?;
        let tokio = tokio_runtime()?;
        let admin = ImageAdmin::new(tokio.block_on(open.connect())?, open.keys()?);
        let runtime = LocalRuntime::new()?;
        let client = LocalClient::start(&runtime, open.client_config("client", timeout_ms)?)?;
        let bridge = Bridge::new(tokio.handle().clone(), runtime.wake_handle());
        Ok(ImageAccess { runtime, client, bridge, admin, open, tokio })
    }

    /// Runs a call that needs cluster state only.
    pub fn block_on_tokio<T>(&self, call: impl Future<Output = T>) -> T {
        self.tokio.block_on(call)
    }

    /// Returns true if there is an image of this name.
    pub fn has_image(&self, name: &str) -> anyhow::Result<bool> {
        match self.block_on_tokio(self.admin.get(name)) {
            Ok(_) => Ok(true),
            Err(ImageError::NoSuchImage(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Runs a call that needs tokio for cluster state and the reactor for objects.
    pub fn admin_call<T, F>(&self, call: impl FnOnce(ImageAdmin, LocalClient) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, ImageError>>,
    {
        let _inside = self.tokio.enter();
        let call = call(self.admin.clone(), self.client.clone());
        Ok(self.runtime.block_on(call)??)
    }
}

/// Runs an image command.
pub fn run(command: ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Create { output, name, size, pool, sealing } => {
            records::create(&output, &name, size, &pool, sealing.is_on())
        }
        ImageCommand::Ls(arguments) => usage::list(&arguments),
        ImageCommand::Info { output, name } => records::info(&output, &name),
        ImageCommand::Du { output, name } => usage::usage(&output, &name),
        ImageCommand::Resize { output, name, size, allow_shrink } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let resized = access.admin_call(|admin, client| async move {
                admin.resize(&client, &name, size, allow_shrink).await
            })?;
            print_image(&output, &ImageSummary::from(&resized), "resized")
        }
        ImageCommand::Rename { output, name, new_name } => records::rename(&output, &name, &new_name),
        ImageCommand::Rm { output, names } => remove(&output, &names),
        ImageCommand::Snap(command) => snapshot::run(command),
        ImageCommand::Clone(arguments) => clone::clone(&arguments),
        ImageCommand::Flatten(arguments) => flatten::flatten(&arguments),
        ImageCommand::Migrate(arguments) => flatten::migrate(&arguments),
        ImageCommand::Export(arguments) => export::run(&arguments),
        ImageCommand::Import(arguments) => import::import(&arguments),
        ImageCommand::Cp(arguments) => import::copy(&arguments),
        ImageCommand::Sparsify { data, name } => import::sparsify(&data, &name),
        ImageCommand::Trash(command) => trash::run(command),
        ImageCommand::Access(arguments) => access::run(&arguments),
        ImageCommand::Lock(command) => lock::run(command),
        ImageCommand::Meta(command) => metadata::run(&command),
    }
}

/// Removes images one after the other; one that cannot be removed does not keep the others.
fn remove(output: &OutputArguments, names: &[String]) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        let wanted = name.clone();
        let done = access.admin_call(|admin, client| async move {
            let progress = progress_bar("removing");
            admin.remove(&client, &wanted, &progress).await
        });
        match done {
            Ok(()) => removed.push(name),
            Err(error) => failed.push(explain(&error)),
        }
    }
    if output.json {
        print_json(&json!({ "removed": removed }))?;
    } else {
        removed.iter().for_each(|name| print_line!("removed image '{name}'"));
    }
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("\natoll: "));
    Ok(())
}

pub(super) fn print_image(output: &OutputArguments, image: &ImageSummary, what: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&json!(image));
    }
    let note = if image.sealed { "" } else { ", not sealed" };
    print_line!("{what} image '{}', {}{note}", image.name, format_size(image.size_bytes));
    Ok(())
}

/// Returns the sealing of an image, as one of the protections of a measurement.
pub(super) fn sealing_text(is_sealed: bool) -> &'static str {
    if is_sealed { "image sealed per 4 KiB block" } else { "image not sealed" }
}

/// `IMAGE@SNAPSHOT`.
#[derive(Clone, Debug)]
pub struct SnapshotName {
    pub image: String,
    pub snapshot: String,
}

impl std::str::FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('@') {
            Some((image, snapshot)) if !image.is_empty() && !snapshot.is_empty() => {
                Ok(SnapshotName { image: image.into(), snapshot: snapshot.into() })
            }
            _ => Err(format!("'{text}' is not a snapshot: name it as IMAGE@SNAPSHOT")),
        }
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.image, self.snapshot)
    }
}
