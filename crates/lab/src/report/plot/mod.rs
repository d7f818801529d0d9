//! Plots as SVG inside of HTML. All colours are classes of the style sheet, so that the dark and the
//! printed page have their own.

mod bars;
mod drawing;
mod lines;
mod scale;

pub use bars::{Bar, bars};
pub use drawing::swatch;
pub use lines::{Axis, Line, Panel, lines};
pub use scale::Scale;

/// Width of every plot in the units of its own coordinates, about a pixel each.
const WIDTH: f64 = 480.0;

/// How many styles of lines and bars the style sheet has; after these they repeat with other dashes.
const STYLES: usize = 8;

/// The class of a style.
fn style_class(style: usize) -> String {
    format!("s{}", style % STYLES)
}
