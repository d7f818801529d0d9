//! Which requests have come to a primary: one that is above all of its session is no retry of a request that
//! waits or is in flight here, so none of these need be looked at.

use std::collections::BTreeMap;

/// Sessions remembered at once.
const SESSIONS_MAX: usize = 4096;

/// The highest request of each session that has come.
#[derive(Default)]
pub(crate) struct Arrivals {
    newest: BTreeMap<u64, u64>,
    /// From then on the known requests of a session may be incomplete.
    has_forgotten: bool,
}

impl Arrivals {
    /// A request has come. True if none of its session with its number or a higher one had.
    pub fn is_news(&mut self, session: u64, sequence: u64) -> bool {
        if self.newest.len() >= SESSIONS_MAX && !self.newest.contains_key(&session) {
            self.newest.clear();
            self.has_forgotten = true;
        }
        let newest = self.newest.entry(session).or_insert(0);
        let is_news = sequence > *newest;
        *newest = (*newest).max(sequence);
        is_news && !self.has_forgotten
    }

    /// Nothing waits and nothing is in flight, so whatever comes is no retry of such a request.
    pub fn nothing_waits(&mut self) {
        if self.has_forgotten {
            *self = Arrivals::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_above_all_that_came_is_news() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.is_news(1, 5));
        assert!(!arrivals.is_news(1, 5), "a retry");
        assert!(!arrivals.is_news(1, 4), "it may have come before");
        assert!(arrivals.is_news(1, 6));
        assert!(arrivals.is_news(2, 1));
    }

    #[test]
    fn after_too_many_sessions_nothing_is_news_until_nothing_waits() {
        let mut arrivals = Arrivals::default();
        assert!((0..SESSIONS_MAX as u64).all(|session| arrivals.is_news(session, 1)));
        assert!(!arrivals.is_news(SESSIONS_MAX as u64, 1));
        assert!(!arrivals.is_news(0, 2), "who was forgotten may have more here");
        assert_eq!(arrivals.newest.len(), 2);
        arrivals.nothing_waits();
        assert!(arrivals.is_news(0, 3));
    }
}
