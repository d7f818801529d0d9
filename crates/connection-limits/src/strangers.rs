//! Connections that have not logged in, by address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::{Limits, network_of};

/// Connections of strangers. A connection that logs in or ends is no longer one of them.
#[derive(Debug)]
pub struct Strangers {
    limits: Limits,
    next: u64,
    by_number: BTreeMap<u64, Option<IpAddr>>,
    /// Numbers by network, ascending: the first is the oldest. Those without an address are no network.
    by_network: BTreeMap<Option<IpAddr>, BTreeSet<u64>>,
}

/// A stranger with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Its number, which no other gets.
    pub number: u64,
    /// The stranger whose place it has taken. That one's connection is to be closed.
    pub evicted: Option<u64>,
}

impl Strangers {
    /// Returns the limits without strangers.
    pub fn new(limits: Limits) -> Self {
        Strangers { limits, next: 0, by_number: BTreeMap::new(), by_network: BTreeMap::new() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_number.len()
    }

    /// A stranger has connected. Without an address, as over a Unix socket or from a trusted proxy, only the limit of
    /// all holds.
    pub fn enter(&mut self, address: Option<IpAddr>) -> Entered {
        let network = address.map(network_of);
        let own = self.by_network.get(&network);
        let is_address_full = network.is_some() && own.is_some_and(|own| own.len() >= self.limits.address_max);
        let evicted = match is_address_full {
            true => own.and_then(BTreeSet::first).copied(),
            false if self.by_number.len() >= self.limits.strangers_max => self.oldest_of_the_busiest(),
            false => None,
        };
        if let Some(number) = evicted {
            self.remove(number);
        }
        let number = self.next;
        self.next += 1;
        self.by_number.insert(number, network);
        self.by_network.entry(network).or_default().insert(number);
        Entered { number, evicted }
    }

    fn oldest_of_the_busiest(&self) -> Option<u64> {
        let busiest = self.by_network.values().max_by_key(|numbers| numbers.len());
        busiest.and_then(BTreeSet::first).copied()
    }

    /// One has logged in or is gone. False if it was gone before.
    pub fn remove(&mut self, number: u64) -> bool {
        let Some(network) = self.by_number.remove(&number) else { return false };
        if let Some(numbers) = self.by_network.get_mut(&network) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_network.remove(&network);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::from(number.to_be_bytes()))
    }

    fn strangers() -> Strangers {
        Strangers::new(Limits { strangers_max: 8, address_max: 4, members_max: 2 })
    }

    #[test]
    fn an_address_at_its_limit_pushes_out_its_own_oldest() {
        let mut strangers = strangers();
        let other = strangers.enter(address(2)).number;
        let numbers: Vec<u64> = (0..4).map(|_| strangers.enter(address(1)).number).collect();
        assert_eq!(strangers.enter(address(1)).evicted, Some(numbers[0]));
        assert_eq!(strangers.enter(address(1)).evicted, Some(numbers[1]));
        assert!(strangers.remove(other) && !strangers.remove(other));
        assert_eq!(strangers.count(), 4);
    }

    #[test]
    fn a_new_address_gets_a_place_of_the_busiest() {
        let mut strangers = strangers();
        let alone = strangers.enter(address(1)).number;
        let first = strangers.enter(address(2)).number;
        (0..3).for_each(|_| assert_eq!(strangers.enter(address(2)).evicted, None));
        (0..3).for_each(|_| assert_eq!(strangers.enter(address(3)).evicted, None));
        assert_eq!(strangers.enter(address(4)).evicted, Some(first));
        assert_eq!(strangers.count(), 8);
        assert!(strangers.remove(alone), "who has one only keeps it");
    }

    #[test]
    fn limits_hold_for_any_order_of_events() {
        let (mut strangers, mut state) = (strangers(), 1_u32);
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match state >> 29 {
                0 => drop(strangers.remove(u64::from(state >> 8) % (strangers.next + 1))),
                1 => drop(strangers.enter(None)),
                _ => drop(strangers.enter(address(state >> 27 & 3))),
            }
            assert!(strangers.count() <= 8);
            let most = strangers.by_network.iter().filter(|(network, _)| network.is_some());
            assert!(most.map(|(_, numbers)| numbers.len()).all(|count| (1..=4).contains(&count)));
            let sum: usize = strangers.by_network.values().map(BTreeSet::len).sum();
            assert_eq!(sum, strangers.count());
        }
    }
}
