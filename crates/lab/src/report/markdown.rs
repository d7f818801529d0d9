//! A report in Markdown: all of its tables, without the plots.

use super::contents::Contents;
use super::table::{Mark, Table, TableCell};

/// A report in Markdown.
pub fn markdown(contents: &Contents<'_>) -> String {
    let mut text = format!("# {}\n\n", escape(&contents.title));
    if !contents.about.is_empty() {
        text.push_str(&format!("{}\n\n", escape(&contents.about)));
    }
    for doubt in &contents.doubts {
        text.push_str(&format!("> **{}**\n\n", escape(doubt)));
    }
    if let Some(failed) = &contents.failed {
        text.push_str(&section(2, failed));
    }
    contents.answers.iter().for_each(|table| text.push_str(&section(2, table)));
    contents.setting.iter().for_each(|table| text.push_str(&section(2, table)));
    for group in &contents.groups {
        text.push_str(&format!("## {}\n\n", escape(&group.name)));
        group.loads.iter().for_each(|(_, table)| text.push_str(&section(3, table)));
        group.roles.iter().for_each(|table| text.push_str(&section(3, table)));
    }
    contents.warnings.iter().for_each(|table| text.push_str(&section(2, table)));
    text
}

fn section(level: usize, table: &Table) -> String {
    let mut text = format!("{} {}\n\n", "#".repeat(level), escape(&table.title));
    if !table.note.is_empty() {
        text.push_str(&format!("{}\n\n", escape(&table.note)));
    }
    let headings = table.headings.iter().map(|heading| escape(heading));
    text.push_str(&line(headings));
    let ruler =
        (0..table.headings.len()).map(|column| if column < table.columns_of_words { "---" } else { "---:" });
    text.push_str(&line(ruler.map(str::to_owned)));
    table.rows.iter().for_each(|row| text.push_str(&line(row.iter().map(cell))));
    text.push('\n');
    text
}

fn cell(cell: &TableCell) -> String {
    if cell.mark != Mark::Different {
        return escape(&cell.plain());
    }
    let rest = cell.plain().split_off(cell.text.len());
    format!("**{}**{}", escape(&cell.text), escape(&rest))
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// Text from outside is text, not Markdown and not HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' => escaped.extend(['\\', one]),
            _ => escaped.push(one),
        }
    }
    escaped
}
