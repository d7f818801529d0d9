//! Output of the programs `atoll` and `atoll-lab`: tables, JSON and progress bars. It knows nothing about the
//! content.

// They panic when nobody reads; `print_line!` and `print_note!` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod output;
mod visible;

use std::cell::RefCell;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub use output::{clear, finish, is_closed, kept, write_line, write_note, write_status};
pub use visible::{visible_line, visible_text};

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_line!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints columns aligned under their headings.
pub fn print_table(headings: &[&str], rows: &[Vec<String>]) {
    let visible = |row: &Vec<String>| row.iter().map(|cell| visible_line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(visible).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    print_line!("{}", line(headings.to_vec()));
    for row in &rows {
        print_line!("{}", line(row.iter().map(String::as_str).collect()));
    }
}

/// A progress bar that appears when there is something to show.
pub fn progress_bar(what: &'static str) -> impl Fn(u64, u64) {
    let bar: RefCell<Option<ProgressBar>> = RefCell::new(None);
    move |done, all| {
        let mut bar = bar.borrow_mut();
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
            ProgressBar::new(all)
                .with_message(what)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
    }
}
