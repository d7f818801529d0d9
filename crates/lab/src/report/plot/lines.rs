//! Lines over an axis, in one panel or in several above each other.

use maud::{Markup, html};

use super::WIDTH;
use super::drawing::{self, Anchor};
use super::scale::Scale;

const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 14.0;
const TITLE_HEIGHT: f64 = 22.0;
const AXIS_HEIGHT: f64 = 38.0;
const GAP: f64 = 12.0;
const HEIGHT: f64 = 250.0;

/// An axis.
pub struct Axis {
    /// Where values are.
    pub scale: Scale,
    /// Position and text of each tick.
    pub ticks: Vec<(f64, String)>,
    /// Title of the axis.
    pub title: String,
}

/// One line.
pub struct Line {
    /// Its colour and dashes.
    pub style: usize,
    /// Description of the line.
    pub tooltip: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// Lines over one axis.
pub struct Panel {
    /// The upright axis; its title is written above the panel.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A plot of lines; all panels share the axis at the bottom.
pub fn lines(label: &str, x: &Axis, panels: &[Panel]) -> Markup {
    let count = panels.len().max(1) as f64;
    let height = (HEIGHT - AXIS_HEIGHT - (count - 1.0) * GAP) / count;
    let bottom = HEIGHT - AXIS_HEIGHT;
    let shapes = html! {
        @for (index, panel) in panels.iter().enumerate() {
            @let top = index as f64 * (height + GAP);
            (shapes_of(x, panel, top + TITLE_HEIGHT, top + height))
        }
        @for (value, tick) in &x.ticks {
            (drawing::text("tick", (x_of(x, *value), bottom + 15.0), Anchor::Middle, tick))
        }
        (drawing::text("tick", (f64::midpoint(LEFT, RIGHT), bottom + 32.0), Anchor::Middle, &x.title))
    };
    drawing::picture(label, HEIGHT, &shapes)
}

fn x_of(x: &Axis, value: f64) -> f64 {
    LEFT + x.scale.share(value) * (RIGHT - LEFT)
}

fn shapes_of(x: &Axis, panel: &Panel, top: f64, bottom: f64) -> Markup {
    let y_of = |value: f64| bottom - panel.y.scale.share(value) * (bottom - top);
    let place = |(at, value): &(f64, f64)| (x_of(x, *at), y_of(*value));
    html! {
        (drawing::text("tick", (0.0, top - 9.0), Anchor::Start, &panel.y.title))
        @for (value, tick) in &panel.y.ticks {
            (drawing::line("grid", (LEFT, y_of(*value)), (RIGHT, y_of(*value))))
            (drawing::text("tick", (LEFT - 6.0, y_of(*value) + 4.0), Anchor::End, tick))
        }
        @for (value, _) in &x.ticks {
            (drawing::line("grid", (x_of(x, *value), top), (x_of(x, *value), bottom)))
        }
        @for line in &panel.lines {
            @let points: Vec<_> = line.points.iter().map(place).collect();
            (drawing::curve(line.style, &points, &line.tooltip))
        }
    }
}
