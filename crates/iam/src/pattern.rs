//! Patterns with `*` for any characters and `?` for one, without recursion and in time that grows with
//! the product of both lengths at worst.

#[cfg(test)]
mod tests;

/// Stands for `*` in a compiled pattern. No UTF-8 text has this byte, so all others stand for themselves.
pub(crate) const ANY_RUN: u8 = 0xFF;
/// Stands for `?` in a compiled pattern.
pub(crate) const ANY_ONE: u8 = 0xFE;

/// Returns true if the pattern matches the whole text.
pub fn matches(pattern: &str, text: &str) -> bool {
    matches_compiled(&compile(pattern), text)
}

/// As [`matches()`], whatever the case of ASCII letters.
pub fn matches_ignore_case(pattern: &str, text: &str) -> bool {
    matches_compiled_ignore_case(&compile(pattern), text)
}

/// Replaces wildcards by bytes of their own.
pub(crate) fn compile(pattern: &str) -> Vec<u8> {
    pattern.bytes().map(compile_byte).collect()
}

pub(crate) fn compile_byte(byte: u8) -> u8 {
    match byte {
        b'*' => ANY_RUN,
        b'?' => ANY_ONE,
        other => other,
    }
}

pub(crate) fn matches_compiled(pattern: &[u8], text: &str) -> bool {
    // Most texts differ from the pattern before its first wildcard.
    let literal = pattern.iter().position(|byte| *byte >= ANY_ONE).unwrap_or(pattern.len());
    let Some(rest) = text.as_bytes().strip_prefix(&pattern[..literal]) else { return false };
    match pattern[literal..] {
        [] => rest.is_empty(),
        [ANY_RUN] => true,
        ref wild => matches_from(wild, rest, |pattern, text| pattern == text),
    }
}

pub(crate) fn matches_compiled_ignore_case(pattern: &[u8], text: &str) -> bool {
    matches_from(pattern, text.as_bytes(), |pattern, text| pattern.eq_ignore_ascii_case(&text))
}

/// Goes through both at once. Where they differ, the last run takes one character more; earlier runs need not,
/// since the part behind them is matched as early as possible.
fn matches_from(pattern: &[u8], text: &[u8], is_same: impl Fn(u8, u8) -> bool) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    let mut last_run: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match pattern.get(at_pattern) {
            Some(&ANY_RUN) => {
                at_pattern += 1;
                last_run = Some((at_pattern, at_text));
                continue;
            }
            Some(&ANY_ONE) => {
                at_pattern += 1;
                at_text = next_character(text, at_text);
                continue;
            }
            Some(&byte) if is_same(byte, text[at_text]) => {
                at_pattern += 1;
                at_text += 1;
                continue;
            }
            _ => {}
        }
        let Some((behind_run, run_end)) = last_run else { return false };
        if behind_run == pattern.len() {
            return true;
        }
        let run_end = next_character(text, run_end);
        last_run = Some((behind_run, run_end));
        (at_pattern, at_text) = (behind_run, run_end);
    }
    pattern[at_pattern..].iter().all(|byte| *byte == ANY_RUN)
}

/// Where the character after this one begins.
fn next_character(text: &[u8], at: usize) -> usize {
    let is_continued = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    at + 1 + text[at + 1..].iter().take_while(is_continued).count()
}
