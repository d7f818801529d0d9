//! Writers of images.

use atoll_terminal::print_line;
use clap::Subcommand;
use serde_json::json;

use super::super::arguments::OutputArguments;
use super::super::output::{print_json, print_table};
use super::records::writer_text;
use super::{ImageAccess, TIMEOUT_MS};

#[derive(Subcommand)]
pub enum LockCommand {
    /// List the images that have a writer
    Ls(OutputArguments),
    /// Take an image away from its writer, which can change nothing any more from then on
    #[command(after_help = "\
Example:
  atoll image lock break disk1 --yes     when its writer's host is gone, or a client does not let go of it")]
    Break {
        #[command(flatten)]
        output: OutputArguments,
        /// The image
        name: String,
        /// Confirm: pending writes of the writer are lost
        #[arg(long)]
        yes: bool,
    },
}

/// Runs a command about locks.
pub fn run(command: LockCommand) -> anyhow::Result<()> {
    match command {
        LockCommand::Ls(output) => list(&output),
        LockCommand::Break { output, name, yes } => break_lock(&output, &name, yes),
    }
}

fn list(output: &OutputArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    let locks = access.block_on_tokio(access.admin.locks())?;
    if output.json {
        let locks: Vec<_> = locks.iter().map(|(image, lock)| json!({ "image": image, "writer": lock })).collect();
        return print_json(&locks);
    }
    let rows: Vec<_> = locks.iter().map(|(image, lock)| vec![image.clone(), writer_text(lock)]).collect();
    print_table(&["IMAGE", "WRITER"], &rows);
    Ok(())
}

fn break_lock(output: &OutputArguments, name: &str, yes: bool) -> anyhow::Result<()> {
    let access = ImageAccess::new(&output.data, TIMEOUT_MS)?;
    if !yes {
        let (record, _) = access.block_on_tokio(access.admin.get(name))?;
        match access.block_on_tokio(access.admin.lock(&record.id))? {
            Some((lock, _)) => anyhow::bail!(
                "this takes image '{name}' away from {}, whose pending writes are lost; to confirm, add --yes",
                writer_text(&lock)
            ),
            None => anyhow::bail!("image '{name}' has no writer"),
        }
    }
    let wanted = name.to_owned();
    let broken = access.admin_call(|admin, client| async move { admin.break_lock(&client, &wanted).await })?;
    if output.json {
        return print_json(&json!({ "image": name, "writer": broken }));
    }
    match broken {
        Some(lock) => print_line!("took image '{name}' away from {}", writer_text(&lock)),
        None => print_line!("image '{name}' has no writer"),
    }
    Ok(())
}
