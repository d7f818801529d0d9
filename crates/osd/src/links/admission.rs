//! How much clients' requests may hold in memory while they are not answered. Beyond that nothing more
//! is read from clients until enough are answered: the rest waits in sockets, and so at clients.
//!
//! What other OSDs send is not held up, because answers may wait for it. Their own admission bounds it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::invariants;

/// What the requests of one number on one connection hold. A client sends a request again under its
/// number when its PG has moved away and back.
#[derive(Default)]
struct Held {
    requests: u32,
    bytes: u64,
}

/// Bytes that may wait for a slow reader before nothing more is taken from it: as many, or its share of
/// the limit on a host with little memory or many connections, but room for one large answer.
const UNSENT_BYTES: RangeInclusive<u64> = 4 << 20..=64 << 20;

pub(crate) struct Admission {
    limit_bytes: u64,
    held_bytes: u64,
    is_closed: bool,
    /// By connection and the request's number.
    requests: BTreeMap<(u64, u64), Held>,
}

impl Admission {
    /// A quarter of the memory target is for requests.
    pub fn new(memory_target_bytes: u64) -> Self {
        Admission {
            limit_bytes: memory_target_bytes / 4,
            held_bytes: 0,
            is_closed: false,
            requests: BTreeMap::new(),
        }
    }

    /// Whether nothing more is to be read from clients.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Bytes of answers that may wait for one of so many connections.
    pub fn unsent_bytes_max(&self, connections: usize) -> usize {
        let share = self.limit_bytes / connections.max(1) as u64;
        share.clamp(*UNSENT_BYTES.start(), *UNSENT_BYTES.end()) as usize
    }

    /// A request has come that takes so many bytes, with the data that is read for it.
    pub fn arrived(&mut self, connection: u64, number: u64, bytes: u64) {
        let held = self.requests.entry((connection, number)).or_default();
        held.requests += 1;
        held.bytes += bytes;
        self.held_bytes += bytes;
        self.is_closed |= self.held_bytes > self.limit_bytes;
    }

    /// A request is answered.
    pub fn answered(&mut self, connection: u64, number: u64) {
        let Some(held) = self.requests.get_mut(&(connection, number)) else { return };
        held.requests -= 1;
        if held.requests == 0 {
            let bytes = held.bytes;
            self.requests.remove(&(connection, number));
            self.give_back(bytes);
        }
    }

    /// A connection is gone; its requests do not count any more.
    pub fn left(&mut self, connection: u64) {
        let mut own = self.requests.split_off(&(connection, 0));
        let mut after = own.split_off(&(connection + 1, 0));
        self.requests.append(&mut after);
        let bytes = own.values().map(|held| held.bytes).sum();
        self.give_back(bytes);
    }

    /// How many requests of a connection are in flight.
    pub fn requests_of(&self, connection: u64) -> usize {
        let own = self.requests.range((connection, 0)..=(connection, u64::MAX));
        own.map(|(_, held)| held.requests as usize).sum()
    }

    /// What must hold at any time.
    pub fn check(&self) {
        invariants::held_bytes_add_up(self.held_bytes, self.requests.values().map(|held| held.bytes).sum());
    }

    fn give_back(&mut self, bytes: u64) {
        invariants::held_bytes_cover(self.held_bytes, bytes);
        self.held_bytes -= bytes;
        // Not at once, or each answer would stop and resume one connection after the other.
        self.is_closed &= self.held_bytes > self.limit_bytes / 4 * 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_beyond_the_limit_and_opens_well_below() {
        let mut admission = Admission::new(4 * 100);
        admission.arrived(1, 1, 60);
        admission.arrived(2, 1, 40);
        assert!(!admission.is_closed());
        admission.arrived(2, 2, 1);
        assert!(admission.is_closed());
        admission.answered(2, 2);
        assert!(admission.is_closed(), "100 is not well below");
        admission.answered(2, 1);
        assert!(!admission.is_closed());
        admission.check();
        admission.answered(1, 1);
        assert_eq!((admission.held_bytes, admission.requests.len()), (0, 0));
    }

    #[test]
    fn a_number_that_came_twice_counts_until_both_are_answered() {
        let mut admission = Admission::new(400);
        admission.arrived(1, 7, 60);
        admission.arrived(1, 7, 60);
        assert!(admission.is_closed());
        admission.answered(1, 7);
        assert!(admission.is_closed());
        // Nobody has asked a third time.
        (0..2).for_each(|_| admission.answered(1, 7));
        assert!(!admission.is_closed());
        assert_eq!(admission.held_bytes, 0);
    }

    #[test]
    fn slow_readers_share_the_limit() {
        let admission = Admission::new(1 << 30);
        assert_eq!(admission.unsent_bytes_max(0), 64 << 20);
        assert_eq!(admission.unsent_bytes_max(4), 64 << 20);
        assert_eq!(admission.unsent_bytes_max(16), 16 << 20);
        assert_eq!(admission.unsent_bytes_max(4096), 4 << 20);
    }

    #[test]
    fn who_leaves_gives_back_its_own() {
        let mut admission = Admission::new(400);
        for (connection, number) in [(1, u64::MAX), (2, 0), (2, u64::MAX), (3, 0)] {
            admission.arrived(connection, number, 30);
        }
        assert!(admission.is_closed());
        (0..2).for_each(|_| admission.left(2));
        assert_eq!((admission.held_bytes, admission.is_closed()), (60, false));
        admission.left(3);
        admission.left(1);
        assert_eq!((admission.held_bytes, admission.requests.len()), (0, 0));
    }
}
