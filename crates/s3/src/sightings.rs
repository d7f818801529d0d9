//! Times since when something is in its state, by the clock of this process and by its own sightings. Wall-clock
//! times in gateways' records order and inform; they never decide that time has passed.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

struct Sight {
    since: Instant,
    last: Instant,
}

/// Seen things, by a hash with a key of this process.
pub(crate) struct Sightings {
    hasher: RandomState,
    seen: HashMap<u64, Sight>,
    seen_max: usize,
}

impl Sightings {
    /// Returns sightings of at most `seen_max` things.
    pub(crate) fn new(seen_max: usize) -> Self {
        Sightings { hasher: RandomState::new(), seen: HashMap::new(), seen_max }
    }

    /// How long ago this was seen first, if it is seen `now`. `None` if it is new and there is no room for it.
    pub(crate) fn age(&mut self, thing: impl Hash, now: Instant) -> Option<Duration> {
        let key = self.hasher.hash_one(thing);
        if self.seen.len() >= self.seen_max && !self.seen.contains_key(&key) {
            return None;
        }
        let sight = self.seen.entry(key).or_insert(Sight { since: now, last: now });
        sight.last = now;
        Some(now.saturating_duration_since(sight.since))
    }

    /// Drops things that were not seen since then.
    pub(crate) fn forget_before(&mut self, then: Instant) {
        self.seen.retain(|_, sight| sight.last >= then);
        // What a flood has left would otherwise stay.
        if self.seen.capacity() > 4 * self.seen.len() {
            self.seen.shrink_to_fit();
        }
    }
}

/// Garbage records that wait at the same time, at some 40 bytes each. Records behind them are looked at when they
/// are gone.
const WAITING_MAX: usize = 400_000;
/// Holds and intents that are watched at the same time.
const SIGNS_MAX: usize = 100_000;

/// A collector's knowledge from its earlier walks.
pub(crate) struct CollectorMemory {
    pub garbage: Sightings,
    pub signs: Sightings,
}

impl CollectorMemory {
    pub(crate) fn new() -> Self {
        CollectorMemory { garbage: Sightings::new(WAITING_MAX), signs: Sightings::new(SIGNS_MAX) }
    }
}

const STANDING_MAX: usize = 50_000;
/// Time without a question after which a thing is dropped: it is gone, or will be seen again.
const STANDING_LIFETIME: Duration = Duration::from_secs(3_600);

/// Work that another request has begun, and perhaps left.
pub(crate) struct Standing(Mutex<Sightings>);

impl Standing {
    pub(crate) fn new() -> Self {
        Standing(Mutex::new(Sightings::new(STANDING_MAX)))
    }

    /// Returns true if this was first seen at least `duration` before `now`.
    pub(crate) fn is_since(&self, thing: impl Hash, duration: Duration, now: Instant) -> bool {
        let mut sightings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let age = sightings.age(&thing, now).or_else(|| {
            sightings.forget_before(now.checked_sub(STANDING_LIFETIME)?);
            sightings.age(&thing, now)
        });
        age.is_some_and(|age| age >= duration)
    }
}

/// How often something is renewed that others take for abandoned after this time.
pub(crate) fn renewal_interval(abandoned_after: Duration) -> Duration {
    abandoned_after / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_as_old_as_they_have_been_seen() {
        let (mut sightings, begun, second) = (Sightings::new(2), Instant::now(), Duration::from_secs(1));
        assert_eq!(sightings.age(("a", 1), begun), Some(Duration::ZERO));
        assert_eq!(sightings.age(("a", 1), begun + second), Some(second));
        assert_eq!(sightings.age(("a", 2), begun + second), Some(Duration::ZERO), "it has changed");
        assert_eq!(sightings.age(("b", 1), begun + second), None, "there is no room");
        sightings.age(("a", 2), begun + 3 * second);
        sightings.forget_before(begun + 2 * second);
        assert_eq!(sightings.age(("a", 1), begun + 3 * second), Some(Duration::ZERO));
        assert_eq!(sightings.age(("a", 2), begun + 3 * second), Some(2 * second));
    }

    #[test]
    fn long_standing_work_counts_as_abandoned() {
        let (standing, begun, hour) = (Standing::new(), Instant::now(), Duration::from_secs(3_600));
        assert!(!standing.is_since("a", hour, begun));
        assert!(!standing.is_since("a", hour, begun + hour - Duration::from_millis(1)));
        assert!(standing.is_since("a", hour, begun + hour));
        assert!(!standing.is_since("b", hour, begun + hour), "it is new");
        // A flood takes no room from what comes when nobody has asked about the flood for an hour.
        let flooded = Standing::new();
        (0..STANDING_MAX).for_each(|number| assert!(!flooded.is_since(number, hour, begun)));
        assert!(!flooded.is_since("c", Duration::ZERO, begun + hour), "there is no room");
        assert!(flooded.is_since("c", Duration::ZERO, begun + hour + Duration::from_millis(1)));
    }
}
