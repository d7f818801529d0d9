//! Patterns with `*` and `?`.

/// Whether the pattern matches the whole text.
pub fn matches(_pattern: &str, _text: &str) -> bool {
    todo!()
}

/// As [`matches`], whatever the case of ASCII letters.
pub fn matches_ignore_case(_pattern: &str, _text: &str) -> bool {
    todo!()
}
