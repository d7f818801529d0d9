//! Creating, showing and renaming images: their records in cluster state.

use atoll_admin::images::{self, ImageDetails};
use atoll_terminal::print_line;
use atoll_types::records::{ExportAccess, ImageFlattening, ImageLockRecord, ImageWatcherRecord};
use atoll_types::size::format_size;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::open_cluster::connected;
use super::super::output::{ago, print_json};
use super::print_image;

pub fn create(
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

pub fn rename(output: &OutputArguments, name: &str, new_name: &str) -> anyhow::Result<()> {
    let image =
        connected(output, async |open, state| Ok(images::rename(&state, open.keys()?, name, new_name).await?))?;
    print_image(output, &image, &format!("'{name}' is now"))
}

pub fn info(output: &OutputArguments, name: &str) -> anyhow::Result<()> {
    let details = connected(output, async |open, state| Ok(images::info(&state, open.keys()?, name).await?))?;
    if output.json {
        return print_json(&json!(details));
    }
    print_info(&details);
    Ok(())
}

fn print_info(details: &ImageDetails) {
    let image = &details.image;
    print_line!("name      {}", image.name);
    print_line!("id        {}", image.id);
    print_line!("size      {} ({} bytes)", format_size(image.size_bytes), image.size_bytes);
    print_line!("pool      {}", details.pool_name);
    print_line!("objects   {} each, named img.{}.*", format_size(image.object_bytes), image.id);
    match image.sealed {
        true => print_line!("sealed    AES-256-GCM per 4 KiB block; {} attachments so far", image.attach_count),
        false => print_line!("sealed    no: OSDs and their devices hold it in clear, with a CRC-32C per 4 KiB"),
    }
    if let Some(parent) = &details.parent {
        print_line!("clone of  {parent}, for {}", format_size(details.overlap_bytes));
    }
    for snapshot in &details.snapshots {
        let clones: Vec<&str> =
            details.clones.iter().filter(|(of, _)| *of == snapshot.name).map(|(_, clone)| &clone[..]).collect();
        let clones = if clones.is_empty() { String::new() } else { format!(", cloned as {}", clones.join(", ")) };
        let pending = if snapshot.is_pending { ", being taken" } else { "" };
        let (name, size) = (&snapshot.name, format_size(snapshot.size_bytes));
        print_line!("snapshot  {name} ({size}, {} ago{pending}{clones})", ago(snapshot.created_unix_ms));
    }
    if let Some(flattening) = &details.flattening {
        print_line!("copying   {}", flattening_text(flattening));
    }
    if let Some(work) = &details.unfinished {
        print_line!("WARNING   {work}");
    }
    let access = match details.export.access {
        ExportAccess::Exclusive => "one client at a time",
        ExportAccess::MultiAttach => "several clients at once",
        ExportAccess::ReadOnly => "read-only",
    };
    let clients = if details.export.clients.is_empty() {
        "by TCP those with a certificate".into()
    } else {
        format!("by TCP {}", details.export.clients.join(", "))
    };
    print_line!("access    {access}; {clients}");
    for (key, value) in &image.metadata {
        print_line!("meta      {key} = {value}");
    }
    match &details.writer {
        Some(lock) => print_line!("writer    {}", writer_text(lock)),
        None => print_line!("writer    none"),
    }
    details.watchers.iter().for_each(|watcher| print_line!("reader    {}", reader_text(watcher, details)));
}

/// How far the copying from the parent is.
fn flattening_text(flattening: &ImageFlattening) -> String {
    let why = match &flattening.moving {
        Some(moving) if moving.goes_back => "from where it was while it was being moved",
        Some(_) => "from where it was before it was moved",
        None => "from its parent",
    };
    match flattening.all_bytes {
        0 => format!("{why}, when a writer opens it"),
        all => format!("{} of {} {why}", format_size(flattening.done_bytes), format_size(all)),
    }
}

/// Returns the description of a writer.
pub fn writer_text(lock: &ImageLockRecord) -> String {
    format!("{} (process {} on {}) for {}", lock.purpose, lock.process_id, lock.host, ago(lock.taken_unix_ms))
}

fn reader_text(watcher: &ImageWatcherRecord, details: &ImageDetails) -> String {
    let snapshot = details.snapshots.iter().find(|snapshot| Some(snapshot.number) == watcher.number);
    let what = snapshot.map_or_else(String::new, |snapshot| format!("@{} by ", snapshot.name));
    format!(
        "{what}{} (process {} on {}) for {}",
        watcher.purpose,
        watcher.process_id,
        watcher.host,
        ago(watcher.since_unix_ms)
    )
}
