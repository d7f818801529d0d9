//! Commands about images.

use atoll_admin::images::{self, ImageSummary};
use atoll_admin::pools::POOL_IMAGES;
use atoll_client::LocalClient;
use atoll_image::{Bridge, ImageAdmin};
use atoll_reactor::LocalRuntime;
use atoll_terminal::print_line;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Subcommand;
use serde_json::json;

use super::arguments::{DataArgument, OutputArguments, SealingArgument};
use super::open_cluster::{OpenCluster, connected, tokio_runtime};
use super::output::{print_json, print_table, progress_bar};

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Create an image; it takes no space until it is written
    #[command(after_help = "\
Examples:
  atoll image create --data ./atoll-data disk1 --size 4G
  atoll image create --data ./atoll-data archive1 --size 1T --pool archive
  atoll image create --data ./atoll-data scratch --size 100G --sealing off

Without sealing, who has a device or the root password of an OSD's host can read the image, and change it unnoticed
(docs/reference/threat-model.md). This cannot be changed later.")]
    Create {
        #[command(flatten)]
        output: OutputArguments,
        /// Letters, digits, '-', '_' and '.'
        name: String,
        /// Such as 512M, 4G, 1T
        #[arg(long, value_parser = parse_size_bytes)]
        size: u64,
        /// The pool that holds its data; 'atoll pool ls' names them
        #[arg(long, default_value = POOL_IMAGES)]
        pool: String,
        /// Whether its blocks are sealed (AES-256-GCM) before they leave this host
        #[arg(long, value_enum, default_value = "on")]
        sealing: SealingArgument,
    },
    /// List images
    Ls(OutputArguments),
    /// Show an image
    Info {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
    /// Change an image's size; clients see it when they reconnect
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
    /// Remove an image and its data
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
}

const TIMEOUT_MS: u64 = 60_000;

/// What commands that touch an image's data need: both runtimes and the client.
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
}

/// Runs an image command.
pub fn run(command: ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Create { output, name, size, pool, sealing } => {
            create(&output, &name, size, &pool, sealing.is_on())
        }
        ImageCommand::Ls(output) => list(&output),
        ImageCommand::Info { output, name } => info(&output, &name),
        ImageCommand::Resize { output, name, size, allow_shrink } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let resized = access.admin_call(|admin, client| async move {
                admin.resize(&client, &name, size, allow_shrink).await
            })?;
            print_image(&output, &ImageSummary::from(&resized), "resized")
        }
        ImageCommand::Rm { output, name } => {
            let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
            let removed = name.clone();
            access.admin_call(|admin, client| async move {
                let progress = progress_bar("removing");
                admin.remove(&client, &name, &progress).await
            })?;
            if output.json {
                return print_json(&json!({ "removed": removed }));
            }
            print_line!("removed image '{removed}'");
            Ok(())
        }
    }
}

impl ImageAccess {
    /// Runs a call that needs cluster state only.
    pub fn block_on_tokio<T>(&self, call: impl Future<Output = T>) -> T {
        self.tokio.block_on(call)
    }

    /// Runs a call that needs tokio for cluster state and the reactor for objects.
    pub fn admin_call<T, F>(&self, call: impl FnOnce(ImageAdmin, LocalClient) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, atoll_image::ImageError>>,
    {
        let _inside = self.tokio.enter();
        let call = call(self.admin.clone(), self.client.clone());
        Ok(self.runtime.block_on(call)??)
    }
}

fn create(
    output: &OutputArguments,
    name: &str,
    size_bytes: u64,
    pool: &str,
    is_sealed: bool,
) -> anyhow::Result<()> {
    let image = connected(output, async |open, state| {
        Ok(images::create(&state, open.keys()?, name, size_bytes, pool, is_sealed).await?)
    })?;
    print_image(output, &image, "created")
}

fn print_image(output: &OutputArguments, image: &ImageSummary, what: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&json!(image));
    }
    let note = if image.sealed { "" } else { ", not sealed" };
    print_line!("{what} image '{}', {}{note}", image.name, format_size(image.size_bytes));
    Ok(())
}

/// Whether an image is sealed, as one of the protections of a measurement.
pub(super) fn sealing_text(is_sealed: bool) -> &'static str {
    if is_sealed { "image sealed per 4 KiB block" } else { "image not sealed" }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let all = connected(output, async |open, state| Ok(images::list(&state, open.keys()?).await?))?;
    if output.json {
        return print_json(&json!(all));
    }
    let row = |image: &ImageSummary| {
        let sealed = if image.sealed { "yes" } else { "no" };
        vec![image.name.clone(), format_size(image.size_bytes), sealed.to_owned()]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    print_table(&["NAME", "SIZE", "SEALED"], &rows);
    Ok(())
}

fn info(output: &OutputArguments, name: &str) -> anyhow::Result<()> {
    let details = connected(output, async |open, state| Ok(images::info(&state, open.keys()?, name).await?))?;
    if output.json {
        return print_json(&json!(details));
    }
    let image = &details.image;
    print_line!("name     {}", image.name);
    print_line!("id       {}", image.id);
    print_line!("size     {} ({} bytes)", format_size(image.size_bytes), image.size_bytes);
    print_line!("objects  {} each, named img.{}.*", format_size(image.object_bytes), image.id);
    match image.sealed {
        true => print_line!("sealed   AES-256-GCM per 4 KiB block; {} attachments so far", image.attach_count),
        false => print_line!("sealed   no: OSDs and their devices hold it in clear, with a CRC-32C per 4 KiB"),
    }
    match details.writer {
        Some(lock) => print_line!("writer   {} (process {} on {})", lock.purpose, lock.process_id, lock.host),
        None => print_line!("writer   none"),
    }
    Ok(())
}
