//! Commands about images.

use std::cell::RefCell;

use atoll_base::records::ImageRecord;
use atoll_base::size::format_size;
use atoll_client::LocalClient;
use atoll_cluster::ClusterClient;
use atoll_image::{Bridge, ImageAdmin};
use atoll_reactor::LocalRuntime;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{DataArgument, ImageCommand, OutputArguments};

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

/// A progress bar that appears when there is something to show.
pub(super) fn progress_bar(what: &'static str) -> impl Fn(u64, u64) {
    let bar: RefCell<Option<ProgressBar>> = RefCell::new(None);
    move |done, all| {
        let mut bar = bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
            ProgressBar::new(all)
                .with_message(what)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
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
            print_image(&output, &resized, "resized")
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
            println!("removed image '{removed}'");
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
    let open = OpenCluster::open(&output.data)?;
    let record = tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        let admin = ImageAdmin::new(state.clone(), open.keys()?);
        make(&state, &admin, name, size_bytes, pool, is_sealed).await
    })?;
    print_image(output, &record, "created")
}

/// Makes an image.
pub(super) async fn make(
    state: &ClusterClient,
    admin: &ImageAdmin,
    name: &str,
    size_bytes: u64,
    pool: &str,
    is_sealed: bool,
) -> anyhow::Result<ImageRecord> {
    let pools = state.list::<atoll_base::records::PoolRecord>(atoll_cluster::keys::POOLS).await?;
    let found = pools.entries.iter().find(|(_, found, _)| found.name == pool);
    let pool = found.ok_or_else(|| anyhow::anyhow!("there is no pool '{pool}'; see 'atoll pool ls'"))?.1.id;
    Ok(admin.create(name, size_bytes, pool, is_sealed).await?)
}

fn print_image(output: &OutputArguments, record: &ImageRecord, what: &str) -> anyhow::Result<()> {
    if output.json {
        return print_json(&public(record));
    }
    let note = if record.key.is_sealed() { "" } else { ", not sealed" };
    println!("{what} image '{}', {}{note}", record.name, format_size(record.size_bytes));
    Ok(())
}

/// Whether an image is sealed, as one of the protections of a measurement.
pub(super) fn sealing_text(is_sealed: bool) -> &'static str {
    if is_sealed { "image sealed per 4 KiB block" } else { "image not sealed" }
}

/// The parts of a record that are for people and scripts; the wrapped key is not.
fn public(record: &ImageRecord) -> serde_json::Value {
    json!({
        "name": record.name, "id": record.id, "size_bytes": record.size_bytes, "pool": record.pool,
        "object_bytes": record.object_bytes, "created_unix_ms": record.created_unix_ms,
        "attach_count": record.attach_ids.len(), "sealed": record.key.is_sealed(),
    })
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let images = tokio_runtime()?.block_on(async {
        let admin = ImageAdmin::new(open.connect().await?, open.keys()?);
        anyhow::Ok(admin.list().await?)
    })?;
    if output.json {
        return print_json(&images.iter().map(public).collect::<Vec<_>>());
    }
    let row = |image: &ImageRecord| {
        let sealed = if image.key.is_sealed() { "yes" } else { "no" };
        vec![image.name.clone(), format_size(image.size_bytes), sealed.to_owned()]
    };
    let rows: Vec<_> = images.iter().map(row).collect();
    print_table(&["NAME", "SIZE", "SEALED"], &rows);
    Ok(())
}

fn info(output: &OutputArguments, name: &str) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let (record, lock) = tokio_runtime()?.block_on(async {
        let admin = ImageAdmin::new(open.connect().await?, open.keys()?);
        let (record, _) = admin.get(name).await?;
        let lock = admin.lock(&record.id).await?.map(|(lock, _)| lock);
        anyhow::Ok((record, lock))
    })?;
    if output.json {
        let mut value = public(&record);
        value["writer"] = serde_json::to_value(&lock)?;
        return print_json(&value);
    }
    println!("name     {}", record.name);
    println!("id       {}", record.id);
    println!("size     {} ({} bytes)", format_size(record.size_bytes), record.size_bytes);
    println!("objects  {} each, named img.{}.*", format_size(record.object_bytes), record.id);
    match record.key.is_sealed() {
        true => println!("sealed   AES-256-GCM per 4 KiB block; {} attachments so far", record.attach_ids.len()),
        false => println!("sealed   no: OSDs and their devices hold it in clear, with a CRC-32C per 4 KiB"),
    }
    match lock {
        Some(lock) => println!("writer   {} (process {} on {})", lock.purpose, lock.process_id, lock.host),
        None => println!("writer   none"),
    }
    Ok(())
}
