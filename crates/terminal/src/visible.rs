//! Texts without characters that act on a terminal. Names that others have chosen are in texts: of hosts, of processes,
//! of keys and in errors. A control character in one could hide or forge a line, or type for the reader.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns true for control characters, and for those that reverse the direction of a text.
fn acts(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a text with the numbers of such characters in their place, as JSON has them: `\u001b`. A text of JSON stays
/// the same document.
fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let must_go = |character: char| acts(character) && !is_kept(character);
    if !text.chars().any(must_go) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if must_go(character) {
            // Writing to a string does not fail.
            let _ = write!(visible, "\\u{:04x}", u32::from(character));
        } else {
            visible.push(character);
        }
    }
    Cow::Owned(visible)
}

/// Returns a text that does nothing to a terminal. Ends of lines and tabs stay.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    escaped(text, |character| matches!(character, '\n' | '\t'))
}

/// Returns a text that does nothing to a terminal and has no end of a line: a cell of a table, a line of a log.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_acts_on_a_terminal() {
        assert_eq!(visible_text("a\x1b[2Jb\r\nc\td"), "a\\u001b[2Jb\\u000d\nc\td");
        assert_eq!(visible_line("a\nb\tc"), "a\\u000ab\\u0009c");
        for acting in ["\0", "\x07", "\x08", "\x7f", "\u{85}", "\u{9b}31m", "\u{202e}", "\u{2066}"] {
            assert!(visible_text(acting).starts_with("\\u"), "{acting:?}");
        }
        for plain in ["", "disk-1", "Schlüssel 鍵", "a\\b"] {
            assert!(matches!(visible_line(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
    }

    /// serde_json leaves some of them as they are.
    #[test]
    fn a_document_stays_the_same() {
        let value = serde_json::json!({ "name": "a\u{7f}\u{9b}\u{202e}\x1b\n" });
        let printed = serde_json::to_string_pretty(&value).unwrap();
        let visible = visible_text(&printed).into_owned();
        assert_ne!(visible, printed);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&visible).unwrap(), value);
    }
}
