//! The few shapes that plots are made of. All have an end tag: inside of HTML, an element of SVG
//! without one (`line;` instead of `line {}`) swallows the shapes after it.

use maud::{Markup, html};

use super::{STYLES, WIDTH, style_class};

/// Which end of a text is at its place.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Returns a picture; the label describes it for readers who do not see it.
pub fn picture(label: &str, height: f64, shapes: &Markup) -> Markup {
    html! {
        svg viewBox=(format_args!("0 0 {WIDTH:.0} {height:.0}")) role="img" aria-label=(label) { (shapes) }
    }
}

/// A straight line.
pub fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(place);
    html! { line class=(class) x1=(x1) y1=(y1) x2=(x2) y2=(y2) {} }
}

/// A rectangle.
pub fn rectangle(class: &str, corner: (f64, f64), size: (f64, f64)) -> Markup {
    let [x, y, width, height] = [corner.0, corner.1, size.0.max(0.0), size.1].map(place);
    html! { rect class=(class) x=(x) y=(y) width=(width) height=(height) {} }
}

/// Text.
pub fn text(class: &str, at: (f64, f64), anchor: Anchor, text: &str) -> Markup {
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    html! { text class=(class) x=(place(at.0)) y=(place(at.1)) text-anchor=(anchor) { (text) } }
}

/// A line through several points, with a tooltip.
pub fn curve(style: usize, points: &[(f64, f64)], tooltip: &str) -> Markup {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    html! { polyline class=(curve_class(style)) points=(points.join(" ")) { title { (tooltip) } } }
}

/// A piece of line, for a legend.
pub fn swatch(style: usize) -> Markup {
    html! {
        svg.swatch viewBox="0 0 28 12" aria-hidden="true" {
            line class=(curve_class(style)) x1="0" y1="6" x2="28" y2="6" {}
        }
    }
}

/// A tenth of a pixel is as fine as anyone sees.
fn place(value: f64) -> String {
    format!("{value:.1}")
}

/// Returns the class of a line. Lines differ in their dashes, too, for readers who do not distinguish the colours.
fn curve_class(style: usize) -> String {
    format!("curve {} d{}", style_class(style), (style + style / STYLES) % 4)
}
