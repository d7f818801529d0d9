//! Differences between two records.

use std::path::PathBuf;

use atoll_terminal::{print_json, print_line, print_table};
use clap::Args;

use crate::matrix::Record;
use crate::report::Comparison;

/// Examples, for the end of the help text.
pub const HELP: &str = "\
Examples:
  atoll bench compare before.jsonl after.jsonl
  atoll bench compare before.jsonl after.jsonl --json

Loads and subjects are joined by name; each figure is the second's relative to the first's. The two were not
measured alternately: changes of the machine between them count as differences, too. Exit code 0: they
were compared, whether or not they differ.";

/// Arguments of `atoll bench compare`.
#[derive(Args)]
pub struct CompareArguments {
    /// The first record
    #[arg(value_name = "A.jsonl")]
    pub before: PathBuf,
    /// The second
    #[arg(value_name = "B.jsonl")]
    pub after: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// Runs `atoll bench compare`.
pub fn run(arguments: &CompareArguments) -> anyhow::Result<()> {
    let comparison = Comparison::of(&Record::read(&arguments.before)?, &Record::read(&arguments.after)?);
    if arguments.json {
        return print_json(&comparison);
    }
    anyhow::ensure!(!comparison.cells.is_empty(), "the records have no load and subject in common");
    let table = comparison.table();
    let headings: Vec<&str> = table.headings.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|cell| cell.marked("*")).collect()).collect();
    print_line!("{} relative to {}\n", arguments.after.display(), arguments.before.display());
    print_table(&headings, &rows);
    let (different, all) = comparison.counts();
    print_line!("\n{different} of {all} figures differ beyond noise (*). {}", table.note);
    comparison.remarks().iter().for_each(|remark| print_line!("{remark}"));
    Ok(())
}
