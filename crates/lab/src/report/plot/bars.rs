//! Bars that lie beside each other, each with its name on the left and its figure on the right.

use maud::{Markup, html};

use super::drawing::{self, Anchor};
use super::scale::Scale;
use super::{WIDTH, style_class};
use crate::report::text;

const BAR_HEIGHT: f64 = 15.0;
const BAR_PITCH: f64 = 23.0;
const HEADING_HEIGHT: f64 = 24.0;
const AXIS_HEIGHT: f64 = 24.0;
const FIGURE_WIDTH: f64 = 84.0;
const NAME_WIDTH_MAX: f64 = 150.0;
/// Average width of a character at the size of names.
const CHARACTER_WIDTH: f64 = 6.7;

/// One bar.
pub struct Bar {
    /// Written above it, where another group of bars begins.
    pub heading: Option<String>,
    /// Its name.
    pub name: String,
    /// Which colour.
    pub style: usize,
    /// Its parts, from the left; the second is paler.
    pub parts: Vec<f64>,
    /// The ends of the error bar.
    pub range: Option<(f64, f64)>,
    /// Its figure in words.
    pub figure: String,
    /// Further text about it.
    pub tooltip: String,
}

impl Bar {
    fn end(&self) -> f64 {
        self.parts.iter().sum::<f64>()
    }
}

/// A plot of bars. The reference is a value that is marked by a line.
pub fn bars(label: &str, bars: &[Bar], reference: Option<f64>) -> Markup {
    let names = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0) as f64;
    let left = (names * CHARACTER_WIDTH + 8.0).min(NAME_WIDTH_MAX);
    let right = WIDTH - FIGURE_WIDTH;
    let ends =
        bars.iter().flat_map(|bar| [bar.end(), bar.range.map_or(0.0, |(_, high)| high.min(bar.end() * 2.0))]);
    let scale = Scale::linear(ends.chain(reference));
    let headings = bars.iter().filter(|bar| bar.heading.is_some()).count() as f64;
    let bottom = bars.len() as f64 * BAR_PITCH + headings * HEADING_HEIGHT + 4.0;
    let x_of = |value: f64| left + scale.share(value) * (right - left);

    let shapes = html! {
        @for tick in every_other(scale.ticks()) {
            (drawing::line("grid", (x_of(tick), 0.0), (x_of(tick), bottom)))
            (drawing::text("tick", (x_of(tick), bottom + 15.0), Anchor::Middle, &text::short(tick)))
        }
        @for (bar, top) in bars.iter().zip(tops(bars)) {
            @if let Some(text) = &bar.heading { (heading(text, top - HEADING_HEIGHT)) }
            (shapes_of(bar, top, left, &x_of))
            @if let Some(x) = reference.map(x_of) {
                (drawing::line("reference", (x, top), (x, top + BAR_PITCH)))
            }
        }
    };
    drawing::picture(label, bottom + AXIS_HEIGHT, &shapes)
}

/// The upper edge of each bar, below its heading.
fn tops(bars: &[Bar]) -> impl Iterator<Item = f64> {
    bars.iter().scan(2.0, |next, bar| {
        let top = *next + if bar.heading.is_some() { HEADING_HEIGHT } else { 0.0 };
        *next = top + BAR_PITCH;
        Some(top)
    })
}

fn heading(text: &str, top: f64) -> Markup {
    let size = (text.chars().count() as f64 * 7.0, HEADING_HEIGHT - 4.0);
    html! {
        (drawing::rectangle("blank", (0.0, top + 2.0), size))
        (drawing::text("heading", (0.0, top + 17.0), Anchor::Start, &shortened(text, WIDTH)))
    }
}

fn shapes_of(bar: &Bar, top: f64, left: f64, x_of: &dyn Fn(f64) -> f64) -> Markup {
    let (middle, baseline) = (top + BAR_PITCH / 2.0, top + BAR_PITCH / 2.0 + 4.0);
    html! {
        g {
            title { (bar.tooltip) }
            (drawing::text("name", (left - 6.0, baseline), Anchor::End, &shortened(&bar.name, left)))
            @for index in 0..bar.parts.len() {
                @let from = x_of(bar.parts[..index].iter().sum());
                @let to = x_of(bar.parts[..=index].iter().sum());
                @let class = format!("bar {}{}", style_class(bar.style), if index == 0 { "" } else { " pale" });
                (drawing::rectangle(&class, (from, middle - BAR_HEIGHT / 2.0), (to - from, BAR_HEIGHT)))
            }
            @if let Some((low, high)) = bar.range {
                (drawing::line("error", (x_of(low), middle), (x_of(high), middle)))
                @for end in [low, high] {
                    (drawing::line("error", (x_of(end), middle - 4.0), (x_of(end), middle + 4.0)))
                }
            }
            (drawing::text("figure", (WIDTH, baseline), Anchor::End, &bar.figure))
        }
    }
}

fn every_other(ticks: Vec<f64>) -> Vec<f64> {
    let step = if ticks.len() > 6 { 2 } else { 1 };
    ticks.into_iter().step_by(step).collect()
}

fn shortened(name: &str, width: f64) -> String {
    let most = (width / CHARACTER_WIDTH) as usize;
    if name.chars().count() <= most {
        return name.to_owned();
    }
    name.chars().take(most.saturating_sub(2)).chain("...".chars()).collect()
}
