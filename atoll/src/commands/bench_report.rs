//! Commands that show what matrices have measured.

use std::path::{Path, PathBuf};

use atoll_bench::{Comparison, Record, write_reports};

use super::{print_json, print_table};
use crate::cli::{CompareArguments, ReportArguments};

/// Runs `atoll bench report`.
pub fn report(arguments: &ReportArguments) -> anyhow::Result<()> {
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
    println!(
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

/// Runs `atoll bench compare`.
pub fn compare(arguments: &CompareArguments) -> anyhow::Result<()> {
    let comparison = Comparison::of(&Record::read(&arguments.before)?, &Record::read(&arguments.after)?);
    if arguments.json {
        return print_json(&comparison);
    }
    anyhow::ensure!(!comparison.cells.is_empty(), "the records have no load and subject in common");
    let table = comparison.table();
    let headings: Vec<&str> = table.headings.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|cell| cell.marked("*")).collect()).collect();
    println!("{} relative to {}\n", name(&arguments.after), name(&arguments.before));
    print_table(&headings, &rows);
    let (different, all) = comparison.counts();
    println!("\n{different} of {all} figures differ beyond noise (*). {}", table.note);
    comparison.remarks().iter().for_each(|remark| println!("{remark}"));
    Ok(())
}
