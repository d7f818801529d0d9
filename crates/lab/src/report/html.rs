//! A report as one HTML file that needs nothing else: no scripts, no network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts::{self, Chart, style_of};
use super::contents::Contents;
use super::plot::swatch;
use super::table::{Mark, Table, TableCell};
use crate::matrix::{Load, Record};

const STYLE: &str = include_str!("style.css");

/// A report as HTML.
pub fn html(record: &Record, contents: &Contents<'_>) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (contents.title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body(record, contents)) }
        }
        "\n"
    };
    page.into_string()
}

fn body(record: &Record, contents: &Contents<'_>) -> Markup {
    html! {
        h1 { (contents.title) }
        @if !contents.about.is_empty() {
            p.about { (contents.about) }
        }
        (alarms(contents))
        (table_of_contents(contents))
        @if !contents.answers.is_empty() {
            h2 #answer { "The answer" }
            @for answer in &contents.answers { (titled(answer)) }
        }
        h2 #method { "Method" }
        @for setting in &contents.setting { (titled(setting)) }
        @for index in 0..contents.groups.len() { (group(record, contents, index)) }
        @if let Some(warnings) = &contents.warnings {
            h2.group #warnings { "Warnings" }
            (table(warnings))
        }
    }
}

/// Returns the alarms on top of a report: failures and doubts.
fn alarms(contents: &Contents<'_>) -> Markup {
    let doubtful = contents.warnings.as_ref().map_or(0, |warnings| warnings.rows.len());
    html! {
        @if let Some(failed) = &contents.failed {
            div.warning {
                h3 { "Runs that failed: " (failed.rows.len()) }
                (table(failed))
            }
        }
        @if doubtful > 0 || !contents.doubts.is_empty() {
            div.warning {
                h3 { "To be taken with care" }
                @for doubt in &contents.doubts { p { (doubt) } }
                @if doubtful > 0 {
                    p {
                        (doubtful) " cells have " a href="#warnings" { "warnings" }
                        "; they are marked with " span.doubt { "!" }
                    }
                }
            }
        }
    }
}

fn table_of_contents(contents: &Contents<'_>) -> Markup {
    html! {
        nav aria-label="Contents" {
            ol {
                @if !contents.answers.is_empty() {
                    li { a href="#answer" { "The answer" } }
                }
                li { a href="#method" { "Method" } }
                @for (index, group) in contents.groups.iter().enumerate() {
                    li {
                        a href={ "#group-" (index) } { (group.name) }
                        ul {
                            @for (section, (load, _)) in (first_section(contents, index)..).zip(&group.loads) {
                                li { a href={ "#load-" (section) } { (load.name) } }
                            }
                        }
                    }
                }
                @if contents.warnings.is_some() {
                    li { a href="#warnings" { "Warnings" } }
                }
            }
        }
    }
}

/// The number of a group's first load in anchors, which count the loads of all groups.
fn first_section(contents: &Contents<'_>, group: usize) -> usize {
    contents.groups[..group].iter().map(|group| group.loads.len()).sum()
}

fn group(record: &Record, contents: &Contents<'_>, index: usize) -> Markup {
    let group = &contents.groups[index];
    let loads: Vec<&Load> = group.loads.iter().map(|(load, _)| *load).collect();
    html! {
        h2.group id={ "group-" (index) } { (group.name) }
        (figures(&charts::of_group(record, &loads)))
        @for (section, (load, cells)) in (first_section(contents, index)..).zip(&group.loads) {
            section.load {
                h3 id={ "load-" (section) } { (load.name) }
                (legend(record))
                (figures(&charts::of_load(record, load)))
                (table(cells))
            }
        }
        @if let Some(roles) = &group.roles { (titled(roles)) }
    }
}

fn legend(record: &Record) -> Markup {
    html! {
        ul.legend {
            @for subject in &record.begun.subjects {
                li { (swatch(style_of(record, subject))) (subject.name) }
            }
        }
    }
}

fn figures(charts: &[Chart]) -> Markup {
    html! {
        div.charts {
            @for Chart { title, note, svg } in charts {
                figure {
                    figcaption { (title) span { (note) } }
                    (svg)
                }
            }
        }
    }
}

fn titled(one: &Table) -> Markup {
    html! {
        h3 { (one.title) }
        @if !one.note.is_empty() {
            p.note { (one.note) }
        }
        (table(one))
    }
}

fn table(table: &Table) -> Markup {
    let class = |column: usize| match column {
        0 if table.columns_of_words > 0 => Some("words first"),
        column if column < table.columns_of_words => Some("words"),
        _ => None,
    };
    html! {
        div.scroll {
            table {
                @if table.headings.iter().any(|heading| !heading.is_empty()) {
                    thead {
                        tr {
                            @for (column, heading) in table.headings.iter().enumerate() {
                                th scope="col" class=[class(column)] { (heading) }
                            }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (column, one) in row.iter().enumerate() {
                                td class=[class(column)] { (cell(one)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell(cell: &TableCell) -> Markup {
    html! {
        @match cell.mark {
            Mark::None => { (cell.text) }
            Mark::Different => { span.different { (cell.text) } }
            Mark::Same => { span.same { (cell.text) " =" } }
        }
        @if cell.is_doubtful {
            " " a.doubt href="#warnings" title="see the warnings" { "!" }
        }
        @if let Some(detail) = &cell.detail {
            span.detail { (detail) }
        }
    }
}
