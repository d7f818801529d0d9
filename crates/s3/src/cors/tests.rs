use atoll_types::cors::CorsRule;
use http::{HeaderMap, HeaderName, Method};
use proptest::prelude::*;

use super::{ASKED_HEADERS_MAX, answer_headers, matches};

fn list(items: &str) -> Vec<String> {
    items.split_whitespace().map(str::to_owned).collect()
}

fn rule(origins: &str, methods: &str, headers: &str) -> CorsRule {
    CorsRule {
        allowed_origins: list(origins),
        allowed_methods: list(methods),
        allowed_headers: list(headers),
        ..Default::default()
    }
}

fn request(lines: &[(&str, &str)]) -> HeaderMap {
    let lines = lines.iter().map(|(name, value)| (HeaderName::try_from(*name).unwrap(), value.parse().unwrap()));
    lines.collect()
}

/// The named header of the answer to a GET with these headers.
fn told(rules: &[CorsRule], lines: &[(&str, &str)], name: &str) -> Option<String> {
    let answer = answer_headers(rules, &Method::GET, &request(lines));
    answer.get(name).map(|value| value.to_str().unwrap().to_owned())
}

fn allowed_origin(rules: &[CorsRule], lines: &[(&str, &str)]) -> Option<String> {
    told(rules, lines, "access-control-allow-origin")
}

#[test]
fn origins_match_as_a_whole() {
    for (pattern, origin, is_allowed) in [
        ("https://a.example", "https://a.example", true),
        ("https://a.example", "https://A.example", false),
        ("https://a.example", "https://a.example:8080", false),
        ("https://*.example", "https://a.b.example", true),
        ("https://*.example", "https://example", false),
        ("*", "null", true),
        ("start*end", "startend", true),
        ("start*tend", "startend", false),
        ("aba*aba", "aba", false),
        ("*end", "end", true),
        ("start*", "0start", false),
    ] {
        let found = allowed_origin(&[rule(pattern, "GET", "")], &[("origin", origin)]);
        assert_eq!(found.is_some(), is_allowed, "{pattern} and {origin}");
    }
}

#[test]
fn the_first_rule_that_fits_counts() {
    let mut rules = vec![rule("https://a", "PUT", ""), rule("https://*", "GET HEAD", ""), rule("*", "GET", "")];
    rules[1].max_age_seconds = Some(60);
    rules[1].expose_headers = list("ETag x-amz-meta-a");
    let from_a: &[(&str, &str)] = &[("origin", "https://a")];
    for (name, value) in [
        ("access-control-allow-origin", Some("https://a")),
        ("access-control-allow-credentials", Some("true")),
        ("access-control-allow-methods", Some("GET, HEAD")),
        ("access-control-allow-headers", None),
        ("access-control-expose-headers", Some("ETag, x-amz-meta-a")),
        ("access-control-max-age", Some("60")),
        ("vary", Some("Origin, Access-Control-Request-Headers, Access-Control-Request-Method")),
    ] {
        assert_eq!(told(&rules, from_a, name).as_deref(), value, "{name}");
    }
    let other: &[(&str, &str)] = &[("origin", "http://b")];
    assert_eq!(allowed_origin(&rules, other).as_deref(), Some("*"));
    assert_eq!(told(&rules, other, "access-control-allow-credentials"), None, "browsers want a name with it");
    let preflight = [("origin", "https://a"), ("access-control-request-method", "PUT")];
    assert_eq!(told(&rules, &preflight, "access-control-allow-methods").as_deref(), Some("PUT"));
}

#[test]
fn every_header_must_be_allowed() {
    let rules = [rule("*", "GET", "X-Amz-Meta-* content-TYPE")];
    for (asked, answer) in [
        ("Content-Type", Some("content-type")),
        ("x-amz-META-one,content-type , ,", Some("x-amz-meta-one, content-type")),
        ("x-amz-meta-", Some("x-amz-meta-")),
        ("x-amz-meta", None),
        ("content-type, authorization", None),
    ] {
        let lines = [("origin", "o"), ("access-control-request-headers", asked)];
        assert_eq!(told(&rules, &lines, "access-control-allow-headers").as_deref(), answer, "{asked}");
        assert_eq!(allowed_origin(&rules, &lines).is_some(), answer.is_some(), "{asked}");
    }
    assert!(allowed_origin(&[rule("*", "GET", "")], &[("origin", "o")]).is_some(), "none is asked for");
    let many = vec!["x-amz-meta-a"; ASKED_HEADERS_MAX + 1].join(",");
    for (names, is_allowed) in [(&many[..many.len() - "x-amz-meta-a,".len()], true), (&many[..], false)] {
        let lines = [("origin", "o"), ("access-control-request-headers", names)];
        assert_eq!(allowed_origin(&rules, &lines).is_some(), is_allowed);
    }
}

#[test]
fn nothing_is_said_where_nobody_asks() {
    let rules = [rule("https://a", "GET", "")];
    assert!(answer_headers(&rules, &Method::GET, &HeaderMap::new()).is_empty());
    let from_a = request(&[("origin", "https://a")]);
    assert!(answer_headers(&[], &Method::GET, &from_a).is_empty());
    // A cache must not give this answer to a script of another origin.
    let refused = answer_headers(&rules, &Method::PUT, &from_a);
    assert_eq!(refused.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["vary"]);
    let strange = HeaderMap::from_iter([(http::header::ORIGIN, http::HeaderValue::from_bytes(b"\xff").unwrap())]);
    assert!(!answer_headers(&rules, &Method::GET, &strange).contains_key("access-control-allow-origin"));
}

proptest! {
    /// Against every way to cut the text in three.
    #[test]
    fn a_wildcard_stands_for_any_text(start in "[ab]{0,3}", end in "[ab]{0,3}", text in "[ab]{0,7}") {
        let cuts = (0..=text.len()).flat_map(|from| (from..=text.len()).map(move |to| (from, to)));
        let expected = cuts.into_iter().any(|(from, to)| text[..from] == start && text[to..] == end);
        prop_assert_eq!(matches(&format!("{start}*{end}"), &text, <[u8]>::eq), expected);
        prop_assert_eq!(matches(&format!("{start}{end}"), &text, <[u8]>::eq), format!("{start}{end}") == text);
    }
}
