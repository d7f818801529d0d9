//! The few shapes that plots are made of.

use std::fmt::Write;

use super::{STYLES, WIDTH, style_class};

/// An SVG picture in the making.
pub struct Drawing {
    height: f64,
    label: String,
    body: String,
}

/// Which end of a text is at its place.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    /// An empty picture; the label says what it shows to those who do not see it.
    pub fn new(label: &str, height: f64) -> Self {
        Drawing { height, label: escape(label), body: String::new() }
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        self.body.write_fmt(shape).expect("a string takes what is written to it");
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// A rectangle.
    pub fn rectangle(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let ((x, y), (width, height)) = (corner, size);
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}"/>"#,
            width.max(0.0)
        ));
    }

    /// Text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let ((x, y), text) = (at, escape(text));
        self.add(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// A line through several points, with a tooltip.
    pub fn curve(&mut self, style: usize, points: &[(f64, f64)], tooltip: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (class, dash, points, tooltip) =
            (style_class(style), dash_class(style), points.join(" "), escape(tooltip));
        self.add(format_args!(
            r#"<polyline class="curve {class} {dash}" points="{points}"><title>{tooltip}</title></polyline>"#
        ));
    }

    /// Begins shapes that share a tooltip.
    pub fn begin_group(&mut self, tooltip: &str) {
        let tooltip = escape(tooltip);
        self.add(format_args!("<g><title>{tooltip}</title>"));
    }

    /// Ends them.
    pub fn end_group(&mut self) {
        self.body.push_str("</g>");
    }

    /// The picture.
    pub fn finish(self) -> String {
        let Drawing { height, label, body } = self;
        format!(r#"<svg viewBox="0 0 {WIDTH:.0} {height:.0}" role="img" aria-label="{label}">{body}</svg>"#)
    }
}

/// A piece of line and a square, for a legend.
pub fn swatch(style: usize) -> String {
    let (class, dash) = (style_class(style), dash_class(style));
    format!(
        r#"<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true"><line class="curve {class} {dash}" x1="0" y1="6" x2="28" y2="6"/></svg>"#
    )
}

/// Lines differ in their dashes, too, for those who do not tell their colours apart.
fn dash_class(style: usize) -> String {
    format!("d{}", (style + style / STYLES) % 4)
}

/// Text inside of HTML or SVG, in elements and in attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            one if one.is_control() => escaped.push(' '),
            one => escaped.push(one),
        }
    }
    escaped
}
