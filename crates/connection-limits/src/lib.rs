//! How many connections of a listener strangers may hold: those that have not logged in yet. Each address has a limit, all
//! addresses together have one, and those who have logged in have places of their own. A stranger that comes when there
//! is no room takes the place of the oldest stranger of the same address, or of the address that has most.
//!
//! Log-ins under way, and look-ups of names that strangers make up, have limits of the same kind.
//!
//! This crate knows addresses and numbers. It has no clock and no socket, and uses no other crate.

mod login_turns;
mod look_ups;
mod places;
mod strangers;

use std::net::{IpAddr, Ipv6Addr};

pub use login_turns::{LoginTurn, LoginTurns};
pub use look_ups::{ALL_BUDGET, Budget, LookUp, LookUps, MISS_LIFETIME, NETWORK_BUDGET};
pub use places::{Evicted, Place, Places};
pub use strangers::{Entered, Strangers};

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Strangers of all addresses.
    pub strangers_max: usize,
    /// Strangers of one address.
    pub address_max: usize,
    /// Connections that have logged in.
    pub members_max: usize,
}

/// The network whose connections count together. A host with IPv6 has as many addresses as it likes in its /64.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_count_together() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1:2"), network("2001:db8::ffff:ffff:ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }
}
