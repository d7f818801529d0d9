//! Key-value pairs of images.

use atoll_terminal::print_line;
use clap::Subcommand;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::output::print_json;
use super::{ImageAccess, TIMEOUT_MS};

#[derive(Subcommand)]
pub enum MetadataCommand {
    /// List the pairs
    Ls {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
    },
    /// Set pairs
    #[command(after_help = "Example:\n  atoll image meta set disk1 owner=ann backup=daily")]
    Set {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// KEY=VALUE
        #[arg(required = true, value_parser = parse_pair)]
        pairs: Vec<(String, String)>,
    },
    /// Remove pairs
    Rm {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
    },
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err(format!("'{text}' is not KEY=VALUE")),
    }
}

/// Runs a command about key-value pairs.
pub fn run(command: &MetadataCommand) -> anyhow::Result<()> {
    let (output, name, changes) = match command {
        MetadataCommand::Ls { output, name } => (output, name, Vec::new()),
        MetadataCommand::Set { output, name, pairs } => {
            (output, name, pairs.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect())
        }
        MetadataCommand::Rm { output, name, keys } => {
            (output, name, keys.iter().map(|key| (key.clone(), None)).collect())
        }
    };
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let record = match changes.is_empty() {
        true => access.block_on_tokio(access.admin.get(name))?.0,
        false => access.block_on_tokio(access.admin.set_metadata(name, &changes))?,
    };
    if output.json {
        return print_json(&json!(record.metadata));
    }
    record.metadata.iter().for_each(|(key, value)| print_line!("{key}={value}"));
    Ok(())
}
