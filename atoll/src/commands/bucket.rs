//! Commands about buckets.

use atoll_base::records::BucketRecord;
use atoll_cluster::keys;
use atoll_supervisor::set_bucket_sealing;
use serde_json::json;

use super::{OpenCluster, print_json, print_table, tokio_runtime};
use crate::cli::{BucketCommand, BucketKeyArgument, OutputArguments};

/// Runs a command about buckets.
pub fn run(command: &BucketCommand) -> anyhow::Result<()> {
    match command {
        BucketCommand::Ls(output) => list(output),
        BucketCommand::Set { output, name, key: BucketKeyArgument::Sealing, value } => {
            set_sealing(output, name, value.is_on())
        }
    }
}

/// The parts of a record that are for people and scripts; wrapped keys are not.
fn public(record: &BucketRecord) -> serde_json::Value {
    json!({
        "name": record.name, "id": record.id, "owner": record.owner, "pool": record.pool,
        "data_pool": record.data_pool(), "created_unix_ms": record.created_unix_ms,
        "new_objects_sealed": record.seals_by_default(), "default_encryption": record.default_encryption,
    })
}

fn new_objects(record: &BucketRecord) -> &'static str {
    match &record.default_encryption {
        _ if !record.seals_by_default() => "not sealed",
        Some(encryption) if encryption.is_kms => "sealed, SSE-KMS",
        _ => "sealed, SSE-S3",
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let listing = tokio_runtime()?
        .block_on(async { anyhow::Ok(open.connect().await?.list::<BucketRecord>(keys::BUCKETS).await?) })?;
    let buckets = listing.entries.iter().map(|(_, record, _)| record);
    if output.json {
        return print_json(&buckets.map(public).collect::<Vec<_>>());
    }
    let row = |bucket: &BucketRecord| {
        vec![
            bucket.name.clone(),
            bucket.owner.clone(),
            bucket.data_pool().to_string(),
            new_objects(bucket).to_owned(),
        ]
    };
    let rows: Vec<_> = buckets.map(row).collect();
    print_table(&["NAME", "OWNER", "DATA POOL", "NEW OBJECTS"], &rows);
    Ok(())
}

fn set_sealing(output: &OutputArguments, name: &str, is_sealed: bool) -> anyhow::Result<()> {
    let open = OpenCluster::open(&output.data)?;
    let record = tokio_runtime()?.block_on(async {
        let state = open.connect().await?;
        anyhow::Ok(set_bucket_sealing(&state, &*open.keys()?, name, is_sealed).await?)
    })?;
    if output.json {
        return print_json(&public(&record));
    }
    let new = new_objects(&record);
    println!("new objects of bucket '{name}' are {new}, within 2 s; those that are there stay as they are");
    Ok(())
}
