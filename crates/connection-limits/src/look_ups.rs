//! Look-ups of unknown names. A made-up name is free for its sender, and each look-up costs cluster state a read. So
//! misses are remembered for a moment, and each address has a budget of look-ups.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::network_of;

/// Lifetime of a miss. A name that is created meanwhile looks missing until then.
pub const MISS_LIFETIME: Duration = Duration::from_millis(800);
/// Misses that are remembered. Budgets allow fewer.
const MISSES_MAX: usize = 4_096;
/// Networks with a budget of their own. Further ones share one.
const NETWORKS_MAX: usize = 1_024;

/// How many look-ups are allowed.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// At once.
    pub burst: u32,
    /// In each second.
    pub per_second: u32,
}

/// Budget of one network.
pub const NETWORK_BUDGET: Budget = Budget { burst: 32, per_second: 16 };
/// Budget of all networks together.
pub const ALL_BUDGET: Budget = Budget { burst: 512, per_second: 256 };

/// State of a budget.
#[derive(Clone, Copy, Debug)]
struct Account {
    used: f64,
    since: Instant,
}

impl Account {
    fn used_at(&self, budget: Budget, now: Instant) -> f64 {
        let regained = now.saturating_duration_since(self.since).as_secs_f64() * f64::from(budget.per_second);
        (self.used - regained).max(0.0)
    }

    fn has_one(&self, budget: Budget, now: Instant) -> bool {
        self.used_at(budget, now) + 1.0 <= f64::from(budget.burst)
    }

    fn take_one(&mut self, budget: Budget, now: Instant) {
        let used = (self.used_at(budget, now) + 1.0).min(f64::from(budget.burst));
        *self = Account { used, since: now };
    }
}

#[derive(Debug)]
struct State {
    misses: HashMap<String, Instant>,
    by_network: HashMap<Option<IpAddr>, Account>,
    all: Account,
}

/// Misses and budgets of a process.
#[derive(Debug)]
pub struct LookUps {
    all_budget: Option<Budget>,
    state: Mutex<State>,
}

/// Decision about an unknown name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// Look it up.
    Ask,
    /// It was missing a moment ago.
    Missing,
    /// The budget is used up.
    TooMany,
}

impl LookUps {
    /// Each network has [`NETWORK_BUDGET`]; all together have this one, if it is given.
    pub fn new(all_budget: Option<Budget>) -> Self {
        let all = Account { used: 0.0, since: Instant::now() };
        LookUps {
            all_budget,
            state: Mutex::new(State { misses: HashMap::new(), by_network: HashMap::new(), all }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Tables are whole between any two changes, so a panic elsewhere does not spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about a look-up for an address, and counts it.
    pub fn begin(&self, name: &str, address: Option<IpAddr>, now: Instant) -> LookUp {
        let found = self.look(name, address, now);
        if found == LookUp::Ask {
            self.count(address, now);
        }
        found
    }

    /// Decides without counting: callers that count failures alone call [`LookUps::count`] after one.
    pub fn look(&self, name: &str, address: Option<IpAddr>, now: Instant) -> LookUp {
        let mut state = self.state();
        if state.misses.get(name).is_some_and(|since| now.saturating_duration_since(*since) < MISS_LIFETIME) {
            return LookUp::Missing;
        }
        match state.has_one(address.map(network_of), self.all_budget, now) {
            true => LookUp::Ask,
            false => LookUp::TooMany,
        }
    }

    /// Counts a look-up for an address.
    pub fn count(&self, address: Option<IpAddr>, now: Instant) {
        let mut state = self.state();
        state.account(address.map(network_of), now).take_one(NETWORK_BUDGET, now);
        if let Some(all) = self.all_budget {
            state.all.take_one(all, now);
        }
    }

    /// Remembers a miss.
    pub fn missed(&self, name: &str, now: Instant) {
        let misses = &mut self.state().misses;
        if misses.len() >= MISSES_MAX {
            misses.retain(|_, since| now.saturating_duration_since(*since) < MISS_LIFETIME);
        }
        if misses.len() < MISSES_MAX {
            misses.insert(name.to_owned(), now);
        }
    }

    /// Forgets a miss: something of this name was made.
    pub fn forget(&self, name: &str) {
        self.state().misses.remove(name);
    }
}

impl State {
    fn account(&mut self, network: Option<IpAddr>, now: Instant) -> &mut Account {
        if self.by_network.len() >= NETWORKS_MAX {
            self.by_network.retain(|_, account| account.used_at(NETWORK_BUDGET, now) > 0.0);
        }
        let is_known = self.by_network.len() < NETWORKS_MAX || self.by_network.contains_key(&network);
        self.by_network.entry(network.filter(|_| is_known)).or_insert(Account { used: 0.0, since: now })
    }

    fn has_one(&mut self, network: Option<IpAddr>, all_budget: Option<Budget>, now: Instant) -> bool {
        self.account(network, now).has_one(NETWORK_BUDGET, now)
            && all_budget.is_none_or(|all| self.all.has_one(all, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::from(number.to_be_bytes()))
    }

    fn asked(look_ups: &LookUps, address: Option<IpAddr>, names: std::ops::Range<u32>, now: Instant) -> usize {
        let is_asked = |number: &u32| look_ups.begin(&format!("made-up-{number}"), address, now) == LookUp::Ask;
        names.filter(is_asked).count()
    }

    #[test]
    fn an_address_uses_up_its_own_budget_only() {
        let (look_ups, now) = (LookUps::new(Some(ALL_BUDGET)), Instant::now());
        assert_eq!(asked(&look_ups, address(1), 0..10_000, now), 32);
        assert_eq!(look_ups.begin("more", address(1), now), LookUp::TooMany);
        assert_eq!(look_ups.begin("more", address(2), now), LookUp::Ask);
        let later = now + Duration::from_secs(1);
        assert_eq!(asked(&look_ups, address(1), 0..10_000, later), 16);
        assert_eq!(asked(&look_ups, address(1), 0..10_000, now + Duration::from_secs(3_600)), 32);
    }

    #[test]
    fn many_addresses_are_bounded_together() {
        let (look_ups, now) = (LookUps::new(Some(ALL_BUDGET)), Instant::now());
        let all: usize = (0..5_000).map(|number| asked(&look_ups, address(number), 0..10, now)).sum();
        assert_eq!(all, 512);
        assert!(look_ups.state().by_network.len() <= NETWORKS_MAX + 1);
        let unbounded = LookUps::new(None);
        let all: usize = (0..5_000).map(|number| asked(&unbounded, address(number), 0..10, now)).sum();
        assert_eq!(all, 1_024 * 10 + 32, "those for which there is no room share a budget");
        let counted = LookUps::new(None);
        (0..100).for_each(|_| counted.count(address(1), now));
        assert_eq!(counted.look("a", address(1), now), LookUp::TooMany);
        assert_eq!(counted.look("a", address(2), now), LookUp::Ask);
    }

    #[test]
    fn a_miss_is_remembered_for_a_moment_or_until_it_is_made() {
        let (look_ups, now) = (LookUps::new(None), Instant::now());
        assert_eq!(look_ups.begin("a", address(1), now), LookUp::Ask);
        look_ups.missed("a", now);
        assert_eq!(look_ups.begin("a", address(2), now), LookUp::Missing);
        assert_eq!(look_ups.begin("a", address(2), now + MISS_LIFETIME), LookUp::Ask);
        look_ups.missed("a", now + MISS_LIFETIME);
        look_ups.forget("a");
        assert_eq!(look_ups.begin("a", address(2), now + MISS_LIFETIME), LookUp::Ask);
        (0..100_000).for_each(|number| look_ups.missed(&number.to_string(), now));
        assert!(look_ups.state().misses.len() <= MISSES_MAX);
    }
}
