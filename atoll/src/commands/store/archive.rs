//! Taking PGs out of a store that does not open, or has damage, and putting them back into a cluster.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use atoll_client::{LocalClient, ObjectClient};
use atoll_files::Access;
use atoll_reactor::LocalRuntime;
use atoll_store::{ArchiveReader, ArchiveRecord, ArchiveWriter, SalvageOptions, Salvaged, salvage};
use atoll_terminal::{print_line, print_note};
use atoll_types::{Condition, Mutation, PgId, PoolId, Transaction, WriteRequest};
use clap::Args;
use serde::Serialize;

use super::devices::{StoreDevices, context, open, without_store};
use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::{OpenCluster, tokio_runtime};
use crate::commands::output::print_json;

const TIMEOUT_MS: u64 = 60_000;
/// Losses that are listed; all are counted.
const LOSSES_LISTED: usize = 256;

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll store export --device ./atoll-data/osd-0/device pgs.export
  atoll store export --device /dev/disk/by-id/nvme-A --pg 1.2f --pg 1.30 two.export
  atoll store export --device ./atoll-data/osd-0/device --pg 1.2f --keep-gaps pg.export

For the last copy of data on a device whose OSD does not start any more. It reads all readable data, compares it with the \
checksums, and changes nothing on the device. It lists the losses: damaged objects are left out, or kept without their \
damaged blocks with --keep-gaps; objects below an unreadable page of the metadata are not known by name. If the log cannot \
be replayed, writes after the last checkpoint are missing. Sealed data stays sealed. Keys of objects, such as names in buckets, \
are readable in the file: keep it like the device.

'atoll store import' puts the objects of replicated pools back. Fences of image writers are not in the file: let no former \
writer run. Stop the OSD first; encrypted devices are unlocked as by the OSD. Exit codes: 0 everything is in the file, 1 \
something is lost, or it failed and there is no file, 2 wrong usage.")]
pub struct StoreExportArguments {
    #[command(flatten)]
    pub devices: StoreDevices,
    /// The file, which must not exist
    pub file: PathBuf,
    /// Only this PG; may be repeated
    #[arg(long = "pg", value_name = "PG")]
    pub pgs: Vec<PgId>,
    /// Keep objects with lost blocks, which are absent
    #[arg(long)]
    pub keep_gaps: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll pg accept 1.2f --from osd.3 --yes && atoll store import pg.export
  atoll store import pg.export --pool archive

Objects go to the pool with the number that they had, or to --pool. Objects and keys that exist are left as they are, so the \
command can be repeated. Objects that were deleted after the export come back. Import before clients use the PG. Shards of \
an erasure-coded pool cannot be imported. Exit codes: 0 done, 1 it failed, 2 wrong usage.")]
pub struct StoreImportArguments {
    #[command(flatten)]
    pub output: OutputArguments,
    /// A file of 'atoll store export'
    pub file: PathBuf,
    /// The pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

// ---- export ---------------------------------------------------------------------------------

#[derive(Default, Serialize)]
struct Exported {
    /// Objects with their data.
    objects: u64,
    entries: u64,
    data_bytes: u64,
    /// Losses in all; the first ones are listed.
    loss_count: u64,
    losses: Vec<String>,
}

impl Exported {
    fn note(&mut self, found: &Salvaged) {
        match found {
            Salvaged::Change(change) => {
                let entries =
                    change.mutations.iter().filter(|one| matches!(one, Mutation::OmapSet { .. })).count();
                self.entries += entries as u64;
                self.objects += u64::from(entries == 0);
                self.data_bytes += change.payload.len() as u64;
            }
            Salvaged::Lost(what) => {
                self.loss_count += 1;
                if self.losses.len() < LOSSES_LISTED {
                    self.losses.push(what.clone());
                }
            }
        }
    }
}

pub fn export(arguments: &StoreExportArguments) -> anyhow::Result<()> {
    let file = &arguments.file;
    ensure!(!file.exists(), "{} exists: name a new file", file.display());
    let partial = file.with_added_extension("partial");
    let exported = write_file(arguments, &partial);
    if exported.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    let exported = exported?;
    atoll_files::rename(&partial, file)?;
    if arguments.json {
        print_json(&exported)?;
    } else {
        let Exported { objects, entries, data_bytes, losses, .. } = &exported;
        print_line!(
            "{objects} objects, {data_bytes} bytes of data and {entries} omap entries are in {}",
            file.display()
        );
        losses.iter().for_each(|what| print_line!("lost        {what}"));
        let more = exported.loss_count - losses.len() as u64;
        if more > 0 {
            print_line!("            and {more} more");
        }
    }
    match exported.loss_count {
        0 => Ok(()),
        count => {
            bail!("{}: {count} losses; all that is readable is in {}", context(&arguments.devices), file.display())
        }
    }
}

fn write_file(arguments: &StoreExportArguments, partial: &Path) -> anyhow::Result<Exported> {
    let mut disk = open(&arguments.devices)?;
    let file = atoll_files::make_anew(partial, Access::Owner)
        .with_context(|| format!("cannot create {}", partial.display()))?;
    let mut writer = ArchiveWriter::new(BufWriter::new(file))?;
    let mut exported = Exported::default();
    let mut written = Ok(());
    let options = SalvageOptions { pgs: arguments.pgs.clone(), keeps_gaps: arguments.keep_gaps };
    salvage(&mut disk, &options, &mut |found| {
        exported.note(&found);
        written = writer.add(&found);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .map_err(without_store)
    .with_context(|| context(&arguments.devices))?;
    written.with_context(|| format!("cannot write {}", partial.display()))?;
    let file = writer.finish()?.into_inner().map_err(|error| anyhow!("{}: {error}", partial.display()))?;
    file.sync_all()?;
    Ok(exported)
}

// ---- import ---------------------------------------------------------------------------------

#[derive(Default, Serialize)]
struct Imported {
    objects: u64,
    entries: u64,
    /// Objects and entries that were there already.
    left: u64,
    /// Losses that the export noted.
    loss_count: u64,
}

pub fn import(arguments: &StoreImportArguments) -> anyhow::Result<()> {
    let name = arguments.file.display();
    let file = File::open(&arguments.file).with_context(|| format!("cannot open {name}"))?;
    let mut reader = ArchiveReader::new(BufReader::new(file)).with_context(|| name.to_string())?;
    let open = OpenCluster::open(&arguments.output.data)?;
    let tokio = tokio_runtime()?;
    let map =
        tokio.block_on(async { anyhow::Ok(atoll_admin::pg_copies::read_map(&open.connect().await?).await?) })?;
    let find = |wanted: &String| {
        let pool = map.pools.values().find(|pool| pool.name == *wanted).map(|pool| pool.id);
        pool.ok_or_else(|| anyhow!("there is no pool '{wanted}'"))
    };
    let into = arguments.pool.as_ref().map(find).transpose()?;
    let runtime = LocalRuntime::new()?;
    let _inside = tokio.enter();
    let client = LocalClient::start(&runtime, open.client_config("client", TIMEOUT_MS)?)?;
    let mut imported = Imported::default();
    loop {
        match reader.read().with_context(|| name.to_string())? {
            ArchiveRecord::Found(Salvaged::Change(change)) => {
                let pool = into.unwrap_or(change.pg.pool);
                ensure!(
                    map.pools.contains_key(&pool),
                    "the objects are of pool {pool}, which does not exist: name another with --pool"
                );
                runtime.block_on(import_change(&client, pool, change, &mut imported))??;
            }
            ArchiveRecord::Found(Salvaged::Lost(_)) => imported.loss_count += 1,
            ArchiveRecord::End => break,
        }
    }
    if arguments.output.json {
        return print_json(&imported);
    }
    let Imported { objects, entries, left, loss_count } = imported;
    print_line!(
        "{objects} objects and {entries} omap entries are in the cluster again; {left} were there already"
    );
    if loss_count > 0 {
        print_note!("atoll: the export noted {loss_count} losses: see its output, and compare the data");
    }
    Ok(())
}

async fn import_change(
    client: &LocalClient,
    pool: PoolId,
    change: Transaction,
    imported: &mut Imported,
) -> anyhow::Result<()> {
    match change.mutations.first() {
        Some(Mutation::SetShardOf { .. }) => {
            bail!(
                "{} of pg {} is a shard of an erasure-coded pool: shards cannot be imported",
                change.object,
                change.pg
            )
        }
        Some(Mutation::OmapSet { .. }) => return import_entries(client, pool, change, imported).await,
        _ => {}
    }
    let is_new = add(client, pool, vec![Condition::ObjectAbsent], change).await?;
    imported.objects += u64::from(is_new);
    imported.left += u64::from(!is_new);
    Ok(())
}

/// Adds omap entries that are not there: all at once, or one by one if some are.
async fn import_entries(
    client: &LocalClient,
    pool: PoolId,
    change: Transaction,
    imported: &mut Imported,
) -> anyhow::Result<()> {
    let absent = |mutation: &Mutation| match mutation {
        Mutation::OmapSet { key, .. } => Some(Condition::OmapAbsent { key: key.clone() }),
        _ => None,
    };
    if add(client, pool, change.mutations.iter().filter_map(absent).collect(), change.clone()).await? {
        imported.entries += change.mutations.len() as u64;
        return Ok(());
    }
    for mutation in change.mutations.clone() {
        let conditions = absent(&mutation).into_iter().collect();
        let one = Transaction { mutations: vec![mutation], ..change.clone() };
        let is_new = add(client, pool, conditions, one).await?;
        imported.entries += u64::from(is_new);
        imported.left += u64::from(!is_new);
    }
    Ok(())
}

/// Returns true if a change was made, and false if a condition does not hold.
async fn add(
    client: &LocalClient,
    pool: PoolId,
    conditions: Vec<Condition>,
    change: Transaction,
) -> anyhow::Result<bool> {
    let Transaction { object, mutations, payload, payload_sealed, .. } = change;
    let request = WriteRequest { object, conditions, mutations, payload, payload_sealed };
    match client.send_write(pool, request).await {
        Ok(()) => Ok(true),
        Err(error) if error.failed_condition().is_some() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
