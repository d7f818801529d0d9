//! Space of images: the list of all, and one in detail.

use std::collections::HashMap;

use atoll_admin::images::{self, ImageListing};
use atoll_image::ImageUsage;
use atoll_terminal::{print_line, print_note};
use atoll_types::PoolId;
use atoll_types::records::Redundancy;
use atoll_types::size::format_size;
use serde::Serialize;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::output::{explain, print_json, print_table};
use super::{ImageAccess, ListArguments, TIMEOUT_MS};

/// Timeout after which a list leaves out PGs that do not answer.
const LIST_TIMEOUT_MS: u64 = 5_000;
/// Characters of a name in a table.
const NAME_WIDTH_MAX: usize = 40;

/// Blocks that the primary's shard stands for.
fn data_shards(redundancy: &Redundancy) -> u64 {
    u64::from(redundancy.copies_needed())
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    image: ImageListing,
    /// `None` if it was not counted.
    used_bytes: Option<u64>,
}

/// `atoll image ls`.
pub fn list(arguments: &ListArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.output.data, LIST_TIMEOUT_MS)?;
    let all = access.block_on_tokio(images::list(access.admin.state(), access.open.keys()?))?;
    let used = if arguments.fast { HashMap::new() } else { used_bytes(&access, &all)? };
    let used_of = |image: &ImageListing| {
        let of_pool = used.get(&image.image.pool)?;
        Some(of_pool.get(&image.image.id).copied().unwrap_or(0))
    };
    let rows: Vec<Row> = all.into_iter().map(|image| Row { used_bytes: used_of(&image), image }).collect();
    if arguments.output.json {
        return print_json(&json!(rows));
    }
    let cells = |row: &Row| {
        let Row { image: ImageListing { image, pool_name, snapshots, writer, parent }, used_bytes } = row;
        let name = if arguments.full { image.name.clone() } else { shortened(&image.name) };
        let mut cells = vec![name, pool_name.clone(), format_size(image.size_bytes)];
        if !arguments.fast {
            cells.push(used_bytes.map_or_else(|| "?".into(), format_size));
        }
        cells.push(snapshots.to_string());
        cells.push(if image.sealed { "yes" } else { "no" }.into());
        cells
            .push(writer.as_ref().map_or_else(|| "-".into(), |lock| format!("{}:{}", lock.host, lock.process_id)));
        cells.push(parent.clone().unwrap_or_else(|| "-".into()));
        cells
    };
    let mut headings = vec!["NAME", "POOL", "SIZE"];
    if !arguments.fast {
        headings.push("USED");
    }
    headings.extend(["SNAPS", "SEALED", "WRITER", "CLONE OF"]);
    print_table(&headings, &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}

/// A long name keeps its beginning and its end, which differ more than its middle.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME_WIDTH_MAX {
        return name.into();
    }
    let end = NAME_WIDTH_MAX / 3;
    let head: String = name.chars().take(NAME_WIDTH_MAX - end - 1).collect();
    let tail: String = name.chars().skip(count - end).collect();
    format!("{head}…{tail}")
}

/// The bytes that images take, by their ids, of each pool that answers.
fn used_bytes(
    access: &ImageAccess,
    all: &[ImageListing],
) -> anyhow::Result<HashMap<PoolId, HashMap<String, u64>>> {
    let mut pools: Vec<_> = all.iter().map(|image| (image.image.pool, &image.pool_name)).collect();
    pools.sort_unstable();
    pools.dedup();
    let redundancy = access.block_on_tokio(images::redundancy(access.admin.state()))?;
    let mut used = HashMap::new();
    for (pool, name) in pools {
        let shards = redundancy.get(&pool).map_or(1, data_shards);
        let counted =
            access.admin_call(|admin, client| async move { admin.used_in_pool(&client, pool, shards).await });
        match counted {
            Ok(of_pool) => drop(used.insert(pool, of_pool)),
            Err(error) => {
                print_note!("atoll: the used space in pool '{name}' cannot be counted now: {}", explain(&error));
            }
        }
    }
    Ok(used)
}

/// `atoll image du`.
pub fn usage(output: &OutputArguments, name: &str) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let (record, _) = access.block_on_tokio(access.admin.get(name))?;
    let redundancy = access.block_on_tokio(images::redundancy(access.admin.state()))?;
    let shards = redundancy.get(&record.pool).map_or(1, data_shards);
    let usage: ImageUsage =
        access.admin_call(|admin, client| async move { admin.usage(&client, &record, shards).await })?;
    if output.json {
        return print_json(&json!(usage));
    }
    let row = |name: String, provisioned: String, bytes: u64, exclusive_bytes: u64| {
        vec![name, provisioned, format_size(bytes), format_size(exclusive_bytes)]
    };
    let snapshot_rows = usage.snapshots.iter().map(|snapshot| {
        row(format!("{name}@{}", snapshot.name), "-".into(), snapshot.kept_bytes, snapshot.exclusive_bytes)
    });
    let provisioned = format_size(usage.provisioned_bytes);
    let own = row(name.to_owned(), provisioned, usage.used_bytes, usage.exclusive_bytes);
    let rows: Vec<_> = snapshot_rows.chain([own]).collect();
    print_table(&["NAME", "PROVISIONED", "USED", "EXCLUSIVE"], &rows);
    if !usage.snapshots.is_empty() {
        print_line!("Removing a snapshot frees its exclusive data; other images and snapshots share the rest.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("disk"), "disk");
        let long = format!("{}{}", "a".repeat(60), "-the-end-of-it");
        let short = shortened(&long);
        assert!(short.chars().count() == NAME_WIDTH_MAX && short.ends_with("the-end-of-it"), "{short}");
    }
}
