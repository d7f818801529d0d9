//! Series of things that users name: there may be any number of them, and a time series database suffers from each.

use std::collections::HashMap;
use std::time::Instant;

/// Things of one kind that have series of their own.
pub const NAMES_MAX: usize = 1_000;

/// Series by name, of at most [`NAMES_MAX`] names: those that were used last. `T` takes its series out of the
/// registry when it is dropped.
pub struct Bounded<T>(HashMap<String, (Instant, T)>);

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Bounded(HashMap::new())
    }
}

impl<T> Bounded<T> {
    /// Returns the series of a name.
    pub fn of(&mut self, name: &str, make: impl FnOnce(&str) -> T) -> &T {
        if self.0.len() >= NAMES_MAX && !self.0.contains_key(name) {
            let oldest = self.0.iter().min_by_key(|(_, (used_at, _))| *used_at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                self.0.remove(&oldest);
            }
        }
        let (used_at, found) = self.0.entry(name.to_owned()).or_insert_with(|| (Instant::now(), make(name)));
        *used_at = Instant::now();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_limit_and_the_oldest_give_way() {
        let mut bounded = Bounded::default();
        for number in 0..=NAMES_MAX {
            bounded.of(&format!("name-{number}"), |_| ());
            bounded.of("name-0", |_| ());
        }
        assert_eq!(bounded.0.len(), NAMES_MAX);
        assert!(bounded.0.contains_key("name-0"), "it is in use");
        assert!(!bounded.0.contains_key("name-1"), "it was used before all others");
    }
}
