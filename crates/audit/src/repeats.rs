//! Lines that are alike. A caller that makes them in a loop would push out the lines of others. So the first ones are
//! listed, then one a minute, and a line has the number of the rest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// Lines of one kind that are listed at once.
const BURST: u32 = 64;
/// Time after which one more is.
const REFILL: Duration = Duration::from_secs(60);
/// Interval for which the others are counted.
pub(crate) const COUNTED: Duration = Duration::from_secs(60);
/// Kinds with bounds of their own; further ones count as one.
const KINDS_MAX: usize = 16_384;

/// The line about lines that are not listed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Unlisted {
    #[serde(skip)]
    pub source: &'static str,
    /// The operation of these lines.
    pub repeated: &'static str,
    pub lines: u64,
    /// The latest of them.
    pub latest: Value,
}

struct Kind {
    /// How many may be listed at once, as of `refilled`.
    left: u32,
    refilled: Instant,
    unlisted: Option<Unlisted>,
}

#[derive(Default)]
pub(crate) struct Repeats {
    kinds: HashMap<String, Kind>,
    /// When kinds were forgotten last.
    forgotten: Option<Instant>,
    /// A thread will report the lines that are not listed.
    is_awaited: bool,
}

impl Repeats {
    fn kind(&mut self, name: &str, now: Instant) -> &mut Kind {
        if self.kinds.len() >= KINDS_MAX
            && self.forgotten.is_none_or(|at| now.saturating_duration_since(at) >= REFILL)
        {
            self.forget(now);
        }
        let is_known = self.kinds.len() < KINDS_MAX || self.kinds.contains_key(name);
        let name = if is_known { name } else { "" };
        let kind = self.kinds.entry(name.to_owned());
        let kind = kind.or_insert(Kind { left: BURST, refilled: now, unlisted: None });
        let refills = now.saturating_duration_since(kind.refilled).as_secs() / REFILL.as_secs();
        if refills > 0 {
            kind.left = u32::try_from(refills).unwrap_or(BURST).saturating_add(kind.left).min(BURST);
            kind.refilled = now;
        }
        kind
    }

    /// Returns true if a line is listed.
    pub fn takes(&mut self, name: &str, now: Instant) -> bool {
        let kind = self.kind(name, now);
        let is_taken = kind.left > 0;
        kind.left = kind.left.saturating_sub(1);
        is_taken
    }

    /// Counts a line that is not listed. Returns true if the caller is to see that it is reported.
    pub fn count(&mut self, name: &str, unlisted: Unlisted, now: Instant) -> bool {
        let kind = self.kind(name, now);
        let lines = kind.unlisted.as_ref().map_or(0, |unlisted| unlisted.lines);
        kind.unlisted = Some(Unlisted { lines: lines + 1, ..unlisted });
        !std::mem::replace(&mut self.is_awaited, true)
    }

    /// Takes the counts.
    pub fn end_interval(&mut self) -> Vec<Unlisted> {
        self.is_awaited = false;
        self.kinds.values_mut().filter_map(|kind| kind.unlisted.take()).collect()
    }

    /// Forgets kinds that would have as many lines listed as new ones.
    fn forget(&mut self, now: Instant) {
        self.forgotten = Some(now);
        let is_full = |kind: &Kind| now.saturating_duration_since(kind.refilled) >= REFILL * BURST;
        self.kinds.retain(|_, kind| kind.unlisted.is_some() || !is_full(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlisted(repeated: &'static str, lines: u64) -> Unlisted {
        Unlisted { source: "images", repeated, lines, latest: Value::Null }
    }

    #[test]
    fn a_caller_in_a_loop_has_few_lines_and_a_count() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let mut listed = 0;
        for second in 0..3_600 {
            let now = begun + Duration::from_secs(second);
            for _ in 0..100 {
                if repeats.takes("attach a", now) {
                    listed += 1;
                } else {
                    repeats.count("attach a", unlisted("AttachImage", 0), now);
                }
            }
            // Another caller is listed meanwhile.
            assert!(second % 120 != 0 || repeats.takes("attach b", now));
        }
        assert_eq!(listed, u64::from(BURST) + 59, "of 360,000");
        assert_eq!(repeats.end_interval(), [unlisted("AttachImage", 360_000 - listed)]);
        assert_eq!(repeats.end_interval(), []);
    }

    #[test]
    fn kinds_are_forgotten_and_many_count_as_one() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let mut take = |number: usize, now| repeats.takes(&format!("attach {number}"), now);
        let listed = (0..KINDS_MAX + 1_000).filter(|number| take(*number, begun)).count();
        assert_eq!(listed, KINDS_MAX + BURST as usize);
        assert!(!take(usize::MAX, begun + REFILL - Duration::from_millis(1)));
        assert!(take(usize::MAX, begun + REFILL * BURST));
        assert_eq!(repeats.kinds.len(), 1);
    }

    #[test]
    fn one_thread_reports() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        assert!(repeats.count("a", unlisted("AttachImage", 0), now));
        assert!(!repeats.count("b", unlisted("DetachImage", 0), now));
        let mut found = repeats.end_interval();
        found.sort_by_key(|unlisted| unlisted.repeated);
        assert_eq!(found, [unlisted("AttachImage", 1), unlisted("DetachImage", 1)]);
        assert!(repeats.count("a", unlisted("AttachImage", 0), now));
    }
}
