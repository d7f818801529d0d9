//! The reports of a matrix's record.

use std::path::{Path, PathBuf};

use atoll_terminal::{print_json, print_line};
use clap::Args;

use crate::matrix::Record;
use crate::report::write_reports;

/// Examples, for the end of the help text.
pub const HELP: &str = "\
Examples:
  atoll bench report encryption-block.jsonl                       encryption-block.html and encryption-block.md
  atoll bench report encryption-block.jsonl --html /srv/www/encryption.html --markdown docs/encryption.md

The page is one file that needs no network; it prints on A4. A record that is still being written, or was
cut short, has a report of the runs that it has.";

/// Arguments of `atoll bench report`.
#[derive(Args)]
pub struct ReportArguments {
    /// The record (JSON lines)
    #[arg(value_name = "RECORD.jsonl")]
    pub record: PathBuf,
    /// Where the page goes [default: beside the record]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where the Markdown goes [default: beside the record]
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Runs `atoll bench report`.
pub fn run(arguments: &ReportArguments) -> anyhow::Result<()> {
    let record = Record::read(&arguments.record)?;
    let beside = |asked: &Option<PathBuf>, extension: &str| -> anyhow::Result<PathBuf> {
        let path = asked.clone().unwrap_or_else(|| arguments.record.with_extension(extension));
        anyhow::ensure!(path != arguments.record, "{} is the record: name another file", path.display());
        Ok(path)
    };
    let (html, markdown) = (beside(&arguments.html, "html")?, beside(&arguments.markdown, "md")?);
    write_reports(&record, &html, &markdown)?;
    if arguments.json {
        return print_json(&serde_json::json!({ "html": html, "markdown": markdown }));
    }
    print_line!(
        "{} runs, {} that failed: {} and {}",
        record.runs.len(),
        record.failed.len(),
        name(&html),
        name(&markdown)
    );
    Ok(())
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
