//! How much clients' requests and their answers may hold in memory. Beyond that nothing more is read
//! from clients until enough is answered and sent: the rest waits in sockets, and so at clients.
//!
//! A request holds memory until it is answered, its answer until the client has taken it. While both of all
//! clients hold more than the limit, each may have its share of it and no more. So at most twice the limit is
//! held, and one large request more for each connection, unless there are so many connections that their smallest
//! shares exceed it.
//!
//! Messages of other OSDs are not held up, because answers may wait for them. Their own admission bounds it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use atoll_pending::Pending;

use crate::invariants;

/// Memory of the requests of one number on one connection. A client sends a request again under its number when
/// its PG has moved away and back.
struct Held {
    requests: u32,
    bytes: u64,
}

/// Memory of a connection.
#[derive(Default)]
struct OfConnection {
    /// By its requests in flight.
    in_flight_bytes: u64,
    /// By answers that it has not taken, when last looked at.
    unsent_bytes: u64,
    /// In flight, by number.
    requests: Pending<Held>,
}

/// A connection's share of the limit: room for one large answer at least, however many connections
/// there are or how little memory, and no more than keeps a link busy.
const SHARE_BYTES: RangeInclusive<u64> = 4 << 20..=64 << 20;

/// Fewer bytes of answers do not count: most are sent in the next turn.
const UNSENT_BYTES_MIN: u64 = 64 << 10;

pub(crate) struct Admission {
    limit_bytes: u64,
    /// By requests in flight of all connections.
    held_bytes: u64,
    /// By answers that were not taken, of all connections.
    unsent_bytes: u64,
    is_closed: bool,
    connections: BTreeMap<u64, OfConnection>,
    /// Those that have not taken answers.
    slow: BTreeSet<u64>,
}

impl Admission {
    /// A quarter of the memory target is for requests.
    pub fn new(memory_target_bytes: u64) -> Self {
        Admission {
            limit_bytes: memory_target_bytes / 4,
            held_bytes: 0,
            unsent_bytes: 0,
            is_closed: false,
            connections: BTreeMap::new(),
            slow: BTreeSet::new(),
        }
    }

    /// Returns true if nothing more is to be read from clients.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns true if one of `connections` connections holds its whole share.
    pub fn holds_its_share(&self, connection: u64, connections: usize) -> bool {
        let Some(own) = self.connections.get(&connection) else { return false };
        let share_bytes = self.limit_bytes / connections.max(1) as u64;
        let share_bytes = share_bytes.clamp(*SHARE_BYTES.start(), *SHARE_BYTES.end());
        // All that is in flight may come to be unsent, too.
        let is_over = self.held_bytes + self.unsent_bytes > self.limit_bytes;
        own.unsent_bytes > share_bytes || (is_over && own.in_flight_bytes + own.unsent_bytes > share_bytes)
    }

    /// Notes that `unsent_bytes` of answers wait for the client of a connection.
    pub fn set_unsent(&mut self, connection: u64, unsent_bytes: usize) {
        if unsent_bytes as u64 >= UNSENT_BYTES_MIN {
            self.connections.entry(connection).or_default();
        }
        let Some(own) = self.connections.get_mut(&connection) else { return };
        let unsent_bytes = if unsent_bytes as u64 >= UNSENT_BYTES_MIN { unsent_bytes as u64 } else { 0 };
        self.unsent_bytes = self.unsent_bytes - own.unsent_bytes + unsent_bytes;
        own.unsent_bytes = unsent_bytes;
        if unsent_bytes > 0 {
            self.slow.insert(connection);
        } else {
            self.slow.remove(&connection);
        }
    }

    /// Returns the most bytes that wait for a peer that takes its messages: clients' requests in flight, which are
    /// passed on to members, answers, bounded by each client's share, and little else.
    pub fn unread_bytes_max(&self) -> u64 {
        self.limit_bytes.max(self.held_bytes) + SHARE_BYTES.end()
    }

    /// Connections that had not taken answers when last looked at.
    pub fn slow(&self) -> Vec<u64> {
        self.slow.iter().copied().collect()
    }

    /// Notes a request that takes `bytes` bytes, with the data that is read for it.
    pub fn arrived(&mut self, connection: u64, number: u64, bytes: u64) {
        let own = self.connections.entry(connection).or_default();
        match own.requests.get_mut(number) {
            Some(held) => {
                held.requests += 1;
                held.bytes += bytes;
            }
            None => drop(own.requests.insert(number, Held { requests: 1, bytes })),
        }
        own.in_flight_bytes += bytes;
        self.held_bytes += bytes;
        self.is_closed |= self.held_bytes > self.limit_bytes;
    }

    /// A request is answered.
    pub fn answered(&mut self, connection: u64, number: u64) {
        let Some(own) = self.connections.get_mut(&connection) else { return };
        let Some(held) = own.requests.get_mut(number) else { return };
        held.requests -= 1;
        if held.requests == 0 {
            let bytes = held.bytes;
            own.requests.remove(number);
            own.in_flight_bytes -= bytes;
            self.give_back(bytes);
        }
    }

    /// A connection is gone; its requests do not count any more.
    pub fn left(&mut self, connection: u64) {
        if let Some(own) = self.connections.remove(&connection) {
            self.slow.remove(&connection);
            self.unsent_bytes -= own.unsent_bytes;
            self.give_back(own.in_flight_bytes);
        }
    }

    /// How many requests of a connection are in flight.
    pub fn requests_of(&self, connection: u64) -> usize {
        let own = self.connections.get(&connection);
        own.map_or(0, |own| own.requests.iter().map(|(_, held)| held.requests as usize).sum())
    }

    /// Checks invariants at any time.
    pub fn check(&self) {
        for own in self.connections.values() {
            invariants::held_bytes_add_up(
                own.in_flight_bytes,
                own.requests.iter().map(|(_, held)| held.bytes).sum(),
            );
        }
        let all = self.connections.values();
        invariants::held_bytes_add_up(self.held_bytes, all.clone().map(|own| own.in_flight_bytes).sum());
        invariants::held_bytes_add_up(self.unsent_bytes, all.map(|own| own.unsent_bytes).sum());
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

    fn requests(admission: &Admission) -> usize {
        admission.connections.keys().map(|connection| admission.requests_of(*connection)).sum()
    }

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
        assert_eq!((admission.held_bytes, requests(&admission)), (0, 0));
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
        let mut admission = Admission::new(1 << 30);
        admission.arrived(1, 1, 1);
        for (connections, share_mib) in [(0, 64), (4, 64), (16, 16), (4096, 4)] {
            admission.set_unsent(1, share_mib << 20);
            assert!(!admission.holds_its_share(1, connections), "{connections}");
            admission.set_unsent(1, (share_mib << 20) + 1);
            assert!(admission.holds_its_share(1, connections), "{connections}");
            assert!(!admission.holds_its_share(2, connections), "it is another's");
        }
        assert_eq!(admission.slow(), [1]);
        admission.set_unsent(1, 100);
        assert!(admission.slow().is_empty());
    }

    #[test]
    fn requests_in_flight_count_when_all_hold_more_than_the_limit() {
        const MIB: usize = 1 << 20;
        let mut admission = Admission::new(1 << 30);
        admission.arrived(1, 1, 100 << 20);
        admission.arrived(2, 1, 1);
        admission.set_unsent(1, 60 * MIB);
        assert!(!admission.holds_its_share(1, 4));
        admission.set_unsent(2, 100 * MIB);
        assert!(admission.holds_its_share(1, 4));
        admission.answered(1, 1);
        assert!(!admission.holds_its_share(1, 4));
        admission.left(2);
        admission.arrived(1, 2, 100 << 20);
        assert!(!admission.holds_its_share(1, 4));
        admission.check();
    }

    /// Clients ask for all they may, stop to read, and are answered in bursts one after the other.
    #[test]
    fn twice_the_limit_bounds_what_is_held() {
        const CLIENTS: u64 = 8;
        const REQUEST_BYTES: u64 = 4 << 20;
        let mut admission = Admission::new(256 << 20);
        let mut unsent = [0; CLIENTS as usize];
        let mut number = 0;
        let mut held_bytes_max = 0;
        for round in 0..10 * CLIENTS {
            // Each in its turn has just read all answers.
            let reader = round % CLIENTS;
            unsent[reader as usize] = 0;
            admission.set_unsent(reader, 0);
            for client in (0..CLIENTS).map(|client| (reader + client) % CLIENTS) {
                let first = number;
                while !admission.is_closed() && !admission.holds_its_share(client, CLIENTS as usize) {
                    admission.arrived(client, number, REQUEST_BYTES);
                    number += 1;
                }
                held_bytes_max = held_bytes_max.max(admission.held_bytes + admission.unsent_bytes);
                unsent[client as usize] += (number - first) as usize * REQUEST_BYTES as usize;
                admission.set_unsent(client, unsent[client as usize]);
                (first..number).for_each(|number| admission.answered(client, number));
                admission.check();
            }
        }
        let bounds = admission.limit_bytes..=2 * admission.limit_bytes + (CLIENTS + 1) * REQUEST_BYTES;
        assert!(bounds.contains(&held_bytes_max), "{held_bytes_max}");
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
        assert_eq!((admission.held_bytes, requests(&admission)), (0, 0));
    }
}
