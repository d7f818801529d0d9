//! Commands about buckets.

use atoll_admin::buckets::{self, BucketSummary};
use atoll_terminal::print_line;
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::arguments::{OutputArguments, SealingArgument};
use super::open_cluster::connected;
use super::output::{print_json, print_table};

#[derive(Subcommand)]
pub enum BucketCommand {
    /// List buckets
    Ls(OutputArguments),
    /// Change a bucket
    #[command(after_help = "\
Examples:
  atoll bucket set scratch sealing off     new objects are stored as they are, unless a request asks for encryption
  atoll bucket set scratch sealing on

Gateways follow within 2 s; existing objects are unchanged. Without sealing, anyone with a device or the root
password of an OSD's host can read the objects, and change them unnoticed (docs/reference/threat-model.md). Buckets are made by
S3 clients.")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The bucket
        name: String,
        /// Property to change
        key: BucketKeyArgument,
        /// The new value
        value: SealingArgument,
    },
}

/// Properties of a bucket that can be changed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BucketKeyArgument {
    /// Sealing of new objects
    Sealing,
}

/// Runs a command about buckets.
pub fn run(command: &BucketCommand) -> anyhow::Result<()> {
    match command {
        BucketCommand::Ls(output) => list(output),
        BucketCommand::Set { output, name, key: BucketKeyArgument::Sealing, value } => {
            set_sealing(output, name, value.is_on())
        }
    }
}

fn new_objects(bucket: &BucketSummary) -> &'static str {
    match &bucket.default_encryption {
        _ if !bucket.new_objects_sealed => "not sealed",
        Some(encryption) if encryption.is_kms => "sealed, SSE-KMS",
        _ => "sealed, SSE-S3",
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let all = connected(output, async |_, state| Ok(buckets::list(&state).await?))?;
    if output.json {
        return print_json(&json!(all));
    }
    let row = |bucket: &BucketSummary| {
        vec![
            bucket.name.clone(),
            bucket.owner_name.clone().unwrap_or_else(|| bucket.owner.clone()),
            bucket.data_pool.to_string(),
            new_objects(bucket).to_owned(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    print_table(&["NAME", "OWNER", "DATA POOL", "NEW OBJECTS"], &rows);
    Ok(())
}

fn set_sealing(output: &OutputArguments, name: &str, is_sealed: bool) -> anyhow::Result<()> {
    let bucket = connected(output, async |open, state| {
        Ok(buckets::set_sealing(&state, &*open.keys()?, name, is_sealed).await?)
    })?;
    if output.json {
        return print_json(&json!(bucket));
    }
    let new = new_objects(&bucket);
    print_line!("new objects of bucket '{name}' are {new}, within 2 s; those that are there stay as they are");
    Ok(())
}
