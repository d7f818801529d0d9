//! Bounds of values that clients choose themselves.

use serde::Serialize;

/// Bytes of a path, a key or a name.
pub const PATH_BYTES_MAX: usize = 1 << 10;
/// Longest name of a client for itself, in bytes.
pub const AGENT_BYTES_MAX: usize = 256;
/// Bytes of a method's name.
pub const METHOD_BYTES_MAX: usize = 32;

/// A text of a client, cut to a length. A record names the fields that were cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Bounded<'a> {
    text: &'a str,
    #[serde(skip)]
    is_cut: bool,
}

impl<'a> Bounded<'a> {
    /// The first `bytes_max` bytes of a text, or less where a character would be cut.
    pub fn new(text: &'a str, bytes_max: usize) -> Self {
        let end = text.floor_char_boundary(bytes_max);
        Bounded { text: &text[..end], is_cut: end < text.len() }
    }

    /// Returns the kept part of the text.
    pub fn text(self) -> &'a str {
        self.text
    }

    /// Returns true if some of the text is missing.
    pub fn is_cut(self) -> bool {
        self.is_cut
    }
}

/// Names of those fields that were cut, for the field `cut` of a record.
pub fn cut_fields(fields: &[(&'static str, Bounded<'_>)]) -> Vec<&'static str> {
    fields.iter().filter(|(_, text)| text.is_cut).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters_and_say_so() {
        let path = "/".repeat(60_000);
        let bounded = Bounded::new(&path, PATH_BYTES_MAX);
        assert_eq!((bounded.text().len(), bounded.is_cut()), (PATH_BYTES_MAX, true));
        assert_eq!(Bounded::new("aé", 2), Bounded { text: "a", is_cut: true });
        let whole = Bounded::new("/a", 2);
        assert_eq!(cut_fields(&[("path", bounded), ("method", whole)]), ["path"]);
        assert_eq!(serde_json::to_string(&whole).unwrap(), r#""/a""#);
    }
}
