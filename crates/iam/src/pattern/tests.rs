use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{matches, matches_ignore_case};

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

#[test]
fn many_runs_end_soon() {
    let pattern = format!("{}b", "a*".repeat(2_000));
    let text = "a".repeat(20_000);
    let begun = Instant::now();
    assert!(!matches(&pattern, &text));
    assert!(!matches_ignore_case(&pattern, &text));
    assert!(begun.elapsed() < Duration::from_secs(5), "took {:?}", begun.elapsed());
}
