//! Reports of matrices: one HTML file with plots, and the same tables in Markdown; two records
//! beside each other.

mod answers;
mod cells;
mod charts;
mod compare;
mod contents;
mod figures_table;
mod html;
mod markdown;
mod metric;
mod noise;
mod plot;
mod statistics;
mod table;
#[cfg(test)]
mod tests;
mod text;

use std::fs;
use std::path::Path;

pub use compare::{Change, ChangedCell, Comparison};
pub use metric::Metric;
pub(crate) use statistics::geometric_mean;
pub use statistics::{Interval, Ratio, Spread};
pub use table::{Mark, Table, TableCell};

use crate::error::LabError;
use crate::matrix::Record;
use contents::Contents;

/// Writes the report of a record as HTML and as Markdown.
pub fn write_reports(record: &Record, html: &Path, markdown: &Path) -> Result<(), LabError> {
    let contents = Contents::of(record);
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| LabError::File {
            path: path.into(),
            detail: format!("the report cannot be written: {error}"),
        })
    };
    write(html, html::html(record, &contents))?;
    write(markdown, markdown::markdown(&contents))
}
