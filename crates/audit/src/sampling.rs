//! Which refusals of strangers get a line. A refusal is free for the stranger, so lines are few and the rest is
//! counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Interval for which refusals are counted before a line has their number.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);
/// Lines of one address in an interval.
const ADDRESS_LINES_MAX: u32 = 4;
/// Lines of all addresses in an interval.
const LINES_MAX: u32 = 64;
/// Addresses that are counted apart in an interval. Further ones count as one.
const ADDRESSES_MAX: usize = 1_024;

/// Refusals of an interval that have no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unlisted {
    pub refusals: u64,
    /// Addresses that they came from; of many, the first 1,024.
    pub clients: usize,
    pub interval_ms: u64,
}

pub(crate) struct Sampling {
    began: Instant,
    lines: u32,
    /// Lines and refusals without a line, by address.
    by_address: HashMap<Option<IpAddr>, (u32, u64)>,
}

impl Sampling {
    pub fn new(now: Instant) -> Self {
        Sampling { began: now, lines: 0, by_address: HashMap::new() }
    }

    /// Returns true if a refusal gets a line.
    pub fn takes(&mut self, address: Option<IpAddr>) -> bool {
        let known = self.by_address.len() < ADDRESSES_MAX || self.by_address.contains_key(&address);
        let (lines, unlisted) = self.by_address.entry(address.filter(|_| known)).or_default();
        let is_taken = self.lines < LINES_MAX && *lines < ADDRESS_LINES_MAX;
        if is_taken {
            self.lines += 1;
            *lines += 1;
        } else {
            *unlisted += 1;
        }
        is_taken
    }

    /// A refusal was to get a line, and there was no room for it.
    pub fn missed(&mut self, address: Option<IpAddr>) {
        self.by_address.entry(address).or_default().1 += 1;
    }

    /// When the interval is over.
    pub fn ends_at(&self) -> Instant {
        self.began + INTERVAL
    }

    /// Begins another interval; returns the unlisted refusals of the previous one.
    pub fn end_interval(&mut self, now: Instant) -> Option<Unlisted> {
        let unlisted = self.by_address.values().map(|(_, unlisted)| *unlisted);
        let (refusals, clients) = (unlisted.clone().sum(), unlisted.filter(|count| *count > 0).count());
        let interval_ms = now.duration_since(self.began).as_millis() as u64;
        *self = Sampling::new(now);
        (refusals > 0).then_some(Unlisted { refusals, clients, interval_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::from(number.to_be_bytes()))
    }

    #[test]
    fn an_address_gets_few_lines_and_does_not_hide_others() {
        let now = Instant::now();
        let mut sampling = Sampling::new(now);
        let taken = (0..10_000).filter(|_| sampling.takes(address(1))).count();
        assert_eq!(taken, 4);
        assert!(sampling.takes(address(2)), "another address has lines of its own");
        let over = now + INTERVAL;
        let unlisted = Unlisted { refusals: 9_996, clients: 1, interval_ms: 10_000 };
        assert_eq!(sampling.end_interval(over), Some(unlisted));
        assert_eq!(sampling.end_interval(over), None, "nothing has come since");
        assert!(sampling.takes(address(1)));
    }

    #[test]
    fn many_addresses_are_bounded_together() {
        let now = Instant::now();
        let mut sampling = Sampling::new(now);
        let taken = (0..100_000).filter(|number| sampling.takes(address(*number))).count();
        assert_eq!(taken, 64);
        assert!(sampling.by_address.len() <= ADDRESSES_MAX + 1);
        assert_eq!(sampling.end_interval(now).unwrap().refusals, 100_000 - 64);
    }
}
