use std::cell::Cell;

use proptest::prelude::*;

use super::{compile, matches, matches_from, matches_ignore_case};

fn naive(pattern: &[char], text: &[char]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some(('*', rest)), None) => naive(rest, text),
        (Some(('*', rest)), Some((_, text_rest))) => naive(rest, text) || naive(pattern, text_rest),
        (Some(('?', rest)), Some((_, text_rest))) => naive(rest, text_rest),
        (Some((expected, rest)), Some((found, text_rest))) => expected == found && naive(rest, text_rest),
        (Some(_), None) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn as_the_naive_matcher(pattern in "[abé*?]{0,8}", text in "[abé]{0,9}") {
        let expected = naive(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
        prop_assert_eq!(matches(&pattern, &text), expected, "{} on {}", pattern, text);
        let upper = pattern.replace('a', "A");
        prop_assert_eq!(matches_ignore_case(&upper, &text), expected, "{} on {}", upper, text);
    }

    #[test]
    fn never_panics(pattern in any::<String>(), text in any::<String>()) {
        matches(&pattern, &text);
        matches_ignore_case(&pattern, &text);
    }
}

#[test]
fn table() {
    for (pattern, text, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("?", "", false),
        ("?", "é", true),
        ("??", "é", false),
        ("*?", "日本", true),
        ("a*c", "abbbc", true),
        ("a*c", "abbbcd", false),
        ("*b*", "abc", true),
        ("a**", "a", true),
        ("Get*", "getObject", false),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} on {text}");
    }
    assert!(matches_ignore_case("s3:get*", "S3:GetObject"));
}

/// Comparisons are counted, not time: each run costs at most the rest of the text once.
#[test]
fn many_runs_end_soon() {
    let pattern = format!("{}b", "a*".repeat(2_000));
    let text = "a".repeat(20_000);
    let compared = Cell::new(0);
    let is_same = |pattern, text| {
        compared.set(compared.get() + 1);
        pattern == text
    };
    assert!(!matches_from(&compile(&pattern), text.as_bytes(), is_same));
    assert!(compared.get() <= pattern.len() * text.len(), "{} comparisons", compared.get());
    assert!(!matches(&pattern, &text) && !matches_ignore_case(&pattern, &text));
}
