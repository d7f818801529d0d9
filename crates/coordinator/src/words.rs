//! Numbers of things, and verbs that go with them.

pub(crate) fn count(count: usize, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

pub(crate) fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

pub(crate) fn was(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

pub(crate) fn its(count: usize) -> &'static str {
    if count == 1 { "its" } else { "their" }
}

pub(crate) fn takes(count: usize) -> &'static str {
    if count == 1 { "takes" } else { "take" }
}

pub(crate) fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

pub(crate) fn has(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

pub(crate) fn pgs_are(number: usize) -> String {
    format!("{} {}", count(number, "PG"), are(number))
}

pub(crate) fn wants(count: usize) -> &'static str {
    if count == 1 { "wants" } else { "want" }
}
