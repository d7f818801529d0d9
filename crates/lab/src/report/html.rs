//! A report as one HTML file that needs nothing else: no scripts, no network.

use std::fmt::Write;

use super::charts::{self, Chart, style_of};
use super::contents::{Contents, Group};
use super::plot::{escape, swatch};
use super::table::{Mark, Table, TableCell};
use crate::matrix::{Load, Record};

const STYLE: &str = include_str!("style.css");

/// A report as HTML.
pub fn html(record: &Record, contents: &Contents<'_>) -> String {
    let mut page = Page { text: String::new(), sections: 0 };
    page.add(format_args!("<h1>{}</h1>", escape(&contents.title)));
    if !contents.about.is_empty() {
        page.add(format_args!(r#"<p class="about">{}</p>"#, escape(&contents.about)));
    }
    page.alarms(contents);
    page.table_of_contents(contents);
    if !contents.answers.is_empty() {
        page.heading("answer", "", "The answer");
        contents.answers.iter().for_each(|table| page.titled(table));
    }
    page.heading("method", "", "What was measured, and how");
    contents.setting.iter().for_each(|table| page.titled(table));
    for (index, group) in contents.groups.iter().enumerate() {
        page.group(record, group, index);
    }
    if let Some(warnings) = &contents.warnings {
        page.heading("warnings", "group", "Warnings");
        page.table(warnings);
    }
    let title = escape(&contents.title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n{}</body>\n</html>\n",
        page.text
    )
}

struct Page {
    text: String,
    /// Loads so far, for the anchors of the table of contents.
    sections: usize,
}

impl Page {
    fn add(&mut self, piece: std::fmt::Arguments<'_>) {
        self.text.write_fmt(piece).expect("a string takes what is written to it");
        self.text.push('\n');
    }

    fn heading(&mut self, anchor: &str, class: &str, text: &str) {
        self.add(format_args!(r#"<h2 id="{anchor}" class="{class}">{}</h2>"#, escape(text)));
    }

    /// What must not be overlooked.
    fn alarms(&mut self, contents: &Contents<'_>) {
        if let Some(failed) = &contents.failed {
            self.add(format_args!(r#"<div class="warning"><h3>Runs that failed: {}</h3>"#, failed.rows.len()));
            self.table(failed);
            self.add(format_args!("</div>"));
        }
        let doubtful = contents.warnings.as_ref().map_or(0, |warnings| warnings.rows.len());
        if doubtful == 0 && contents.doubts.is_empty() {
            return;
        }
        self.add(format_args!(r#"<div class="warning"><h3>To be taken with care</h3>"#));
        contents.doubts.iter().for_each(|doubt| self.add(format_args!("<p>{}</p>", escape(doubt))));
        if doubtful > 0 {
            self.add(format_args!(
                r##"<p>{doubtful} cells have <a href="#warnings">warnings</a>; they are marked with <span class="doubt">!</span></p>"##
            ));
        }
        self.add(format_args!("</div>"));
    }

    fn table_of_contents(&mut self, contents: &Contents<'_>) {
        self.add(format_args!("<nav aria-label=\"Contents\"><ol>"));
        if !contents.answers.is_empty() {
            self.add(format_args!(r##"<li><a href="#answer">The answer</a></li>"##));
        }
        self.add(format_args!(r##"<li><a href="#method">What was measured, and how</a></li>"##));
        let mut section = 0;
        for (index, group) in contents.groups.iter().enumerate() {
            self.add(format_args!(r##"<li><a href="#group-{index}">{}</a><ul>"##, escape(&group.name)));
            for (load, _) in &group.loads {
                self.add(format_args!(r##"<li><a href="#load-{section}">{}</a></li>"##, escape(&load.name)));
                section += 1;
            }
            self.add(format_args!("</ul></li>"));
        }
        if contents.warnings.is_some() {
            self.add(format_args!(r##"<li><a href="#warnings">Warnings</a></li>"##));
        }
        self.add(format_args!("</ol></nav>"));
    }

    fn group(&mut self, record: &Record, group: &Group<'_>, index: usize) {
        self.heading(&format!("group-{index}"), "group", &group.name);
        let loads: Vec<&Load> = group.loads.iter().map(|(load, _)| *load).collect();
        self.charts(&charts::of_group(record, &loads));
        for (load, table) in &group.loads {
            let (section, name) = (self.sections, escape(&load.name));
            self.add(format_args!(r#"<section class="load"><h3 id="load-{section}">{name}</h3>"#));
            self.sections += 1;
            self.legend(record);
            self.charts(&charts::of_load(record, load));
            self.table(table);
            self.add(format_args!("</section>"));
        }
        group.roles.iter().for_each(|table| self.titled(table));
    }

    fn legend(&mut self, record: &Record) {
        let subjects = record
            .begun
            .subjects
            .iter()
            .map(|subject| format!("<li>{}{}</li>", swatch(style_of(record, subject)), escape(&subject.name)));
        let subjects: String = subjects.collect();
        self.add(format_args!(r#"<ul class="legend">{subjects}</ul>"#));
    }

    fn charts(&mut self, charts: &[Chart]) {
        self.add(format_args!(r#"<div class="charts">"#));
        for Chart { title, note, svg } in charts {
            let (title, note) = (escape(title), escape(note));
            self.add(format_args!("<figure><figcaption>{title}<span>{note}</span></figcaption>{svg}</figure>"));
        }
        self.add(format_args!("</div>"));
    }

    fn titled(&mut self, table: &Table) {
        self.add(format_args!("<h3>{}</h3>", escape(&table.title)));
        if !table.note.is_empty() {
            self.add(format_args!(r#"<p class="note">{}</p>"#, escape(&table.note)));
        }
        self.table(table);
    }

    fn table(&mut self, table: &Table) {
        let class = |column: usize| match column {
            0 if table.columns_of_words > 0 => r#" class="words first""#,
            column if column < table.columns_of_words => r#" class="words""#,
            _ => "",
        };
        self.add(format_args!(r#"<div class="scroll"><table>"#));
        if table.headings.iter().any(|heading| !heading.is_empty()) {
            let headings = table.headings.iter().enumerate();
            let headings: String = headings
                .map(|(column, text)| format!(r#"<th scope="col"{}>{}</th>"#, class(column), escape(text)))
                .collect();
            self.add(format_args!("<thead><tr>{headings}</tr></thead>"));
        }
        self.add(format_args!("<tbody>"));
        for row in &table.rows {
            let cells: String = row
                .iter()
                .enumerate()
                .map(|(column, one)| format!("<td{}>{}</td>", class(column), cell(one)))
                .collect();
            self.add(format_args!("<tr>{cells}</tr>"));
        }
        self.add(format_args!("</tbody></table></div>"));
    }
}

fn cell(cell: &TableCell) -> String {
    let text = escape(&cell.text);
    let mut html = match cell.mark {
        Mark::None => text,
        Mark::Different => format!(r#"<span class="different">{text}</span>"#),
        Mark::Same => format!(r#"<span class="same">{text} =</span>"#),
    };
    if cell.is_doubtful {
        html.push_str(r##" <a class="doubt" href="#warnings" title="see the warnings">!</a>"##);
    }
    if let Some(detail) = &cell.detail {
        html.push_str(&format!(r#"<span class="detail">{}</span>"#, escape(detail)));
    }
    html
}
