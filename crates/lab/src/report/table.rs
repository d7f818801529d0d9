//! Tables, as HTML, Markdown and the terminal show them.

use super::statistics::{Ratio, Spread};
use super::text;

/// Marks that are seen at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    #[default]
    None,
    /// A difference beyond chance.
    Different,
    /// No difference is shown.
    Same,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableCell {
    /// Text of the cell.
    pub text: String,
    /// A spread or interval, in brackets behind it.
    pub detail: Option<String>,
    /// Mark of the cell.
    pub mark: Mark,
    /// True if the figure is doubtful, for reasons that are listed elsewhere.
    pub is_doubtful: bool,
}

impl TableCell {
    /// Text from outside or from here.
    pub fn words(words: impl AsRef<str>) -> Self {
        TableCell { text: text::printable(words.as_ref()), ..TableCell::default() }
    }

    /// A figure.
    pub fn figure(value: Option<f64>) -> Self {
        TableCell::words(value.map_or("-".into(), text::figure))
    }

    /// A median with its spread.
    pub fn spread(spread: Option<Spread>) -> Self {
        let detail = spread.as_ref().and_then(text::ends);
        TableCell { detail, ..TableCell::figure(spread.map(|spread| spread.median)) }
    }

    /// A ratio with its interval.
    pub fn ratio(ratio: Option<&Ratio>, is_doubtful: bool) -> Self {
        let Some(ratio) = ratio else { return TableCell::words("-") };
        let mark = match ratio.is_different() {
            Some(true) => Mark::Different,
            Some(false) => Mark::Same,
            None => Mark::None,
        };
        TableCell { text: text::ratio(ratio.value), detail: text::interval(ratio), mark, is_doubtful }
    }

    /// The same with the mark for doubts if there are any.
    pub fn doubtful(self, is_doubtful: bool) -> Self {
        TableCell { is_doubtful, ..self }
    }

    /// As plain text: `0.99 (0.97 to 1.02) = !`.
    pub fn plain(&self) -> String {
        self.marked("")
    }

    /// The same with emphasis around the figure if it is different: `*0.50* (0.48 to 0.53)`.
    pub fn marked(&self, emphasis: &str) -> String {
        let emphasis = if self.mark == Mark::Different { emphasis } else { "" };
        let mut plain = format!("{emphasis}{}{emphasis}", self.text);
        if let Some(detail) = &self.detail {
            plain.push_str(&format!(" ({detail})"));
        }
        if self.mark == Mark::Same {
            plain.push_str(" =");
        }
        if self.is_doubtful {
            plain.push_str(" !");
        }
        plain
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// Headings of the columns.
    pub headings: Vec<String>,
    /// How many columns from the left are words; the others are figures.
    pub columns_of_words: usize,
    /// As many cells each as there are headings.
    pub rows: Vec<Vec<TableCell>>,
}

impl Table {
    /// One without rows.
    pub fn new(title: impl AsRef<str>, headings: &[&str], columns_of_words: usize) -> Self {
        Table {
            title: text::printable(title.as_ref()),
            headings: headings.iter().map(|heading| text::printable(heading)).collect(),
            columns_of_words,
            ..Table::default()
        }
    }

    /// One of words only.
    pub fn of_words(title: &str, headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        let rows = rows.into_iter().map(|row| row.into_iter().map(TableCell::words).collect()).collect();
        Table { rows, ..Table::new(title, headings, headings.len()) }
    }
}

/// How ratios are to be read.
pub const RATIO_NOTE: &str = "In brackets: where the true ratio is with a confidence of 95 %. \"=\": the interval \
    includes 1, so that no difference is shown. \"!\": see the warnings. With many ratios, one in twenty intervals \
    misses the truth.";
