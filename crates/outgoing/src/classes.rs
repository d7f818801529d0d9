//! Ranges of addresses that are no public hosts (IANA IPv4 and IPv6 Special-Purpose Address Registries).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of an address that is no public host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `0.0.0.0/8`, `::`.
    Unspecified,
    /// `127.0.0.0/8`, `::1`.
    Loopback,
    /// `10.0.0.0/8`, `172.16.0.0/12`, `192.168.0.0/16`, `fc00::/7`, and site-local addresses of old.
    Private,
    /// `100.64.0.0/10`.
    SharedByProviders,
    /// `169.254.0.0/16`, `fe80::/10`. Clouds answer there with credentials of the machine.
    LinkLocal,
    /// `224.0.0.0/4`, `ff00::/8`, and the broadcast address.
    Multicast,
    /// IPv6 addresses that stand for one of IPv4: mapped, compatible, NAT64, 6to4, Teredo.
    Embedding,
    /// Reserved addresses, or those for documents and measurements.
    Reserved,
}

impl Class {
    /// The kind of an address; `None` if it is public.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Class> {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }

    /// Returns true if no list of networks can allow it: no host has such an address.
    #[must_use]
    pub fn is_never_allowed(self) -> bool {
        matches!(self, Class::Unspecified | Class::Multicast)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Unspecified => "unspecified",
            Class::Loopback => "of loopback",
            Class::Private => "private",
            Class::SharedByProviders => "of a provider's NAT",
            Class::LinkLocal => "link-local",
            Class::Multicast => "multicast",
            Class::Embedding => "one of IPv6 that stands for one of IPv4",
            Class::Reserved => "reserved",
        })
    }
}

fn of_v4(address: Ipv4Addr) -> Option<Class> {
    Some(match address.octets() {
        [0, ..] => Class::Unspecified,
        [127, ..] => Class::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Class::Private,
        [100, 64..=127, ..] => Class::SharedByProviders,
        [169, 254, ..] => Class::LinkLocal,
        [224..=239, ..] | [255, 255, 255, 255] => Class::Multicast,
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => {
            Class::Reserved
        }
        [240..=255, ..] => Class::Reserved,
        _ => return None,
    })
}

fn of_v6(address: Ipv6Addr) -> Option<Class> {
    if address.is_unspecified() {
        return Some(Class::Unspecified);
    }
    if address.is_loopback() {
        return Some(Class::Loopback);
    }
    Some(match address.segments() {
        // Mapped, compatible, and translated by IPv4/IPv6 translators.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Class::Embedding,
        [0x64, 0xff9b, ..] | [0x2002, ..] | [0x2001, 0, ..] => Class::Embedding,
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Class::Private,
        [0xfe80..=0xfebf, ..] => Class::LinkLocal,
        [0xff00..=0xffff, ..] => Class::Multicast,
        // Protocol assignments, among them ORCHID; documents.
        [0x2001, 1..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Reserved,
        [0x2000..=0x3fff, ..] => return None,
        // Nothing else is given to hosts.
        _ => Class::Reserved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The first and the last address of each range, and those beside it.
    #[test]
    fn each_range_has_its_class() {
        use Class::*;
        for (addresses, class) in [
            (&["0.0.0.0", "0.255.255.255", "::"][..], Some(Unspecified)),
            (&["127.0.0.0", "127.0.0.1", "127.255.255.255", "::1"], Some(Loopback)),
            (&["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255"], Some(Private)),
            (&["192.168.0.0", "192.168.255.255", "fc00::", "fdff::1", "fec0::1"], Some(Private)),
            (&["100.64.0.0", "100.127.255.255"], Some(SharedByProviders)),
            (&["169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::1", "febf::1"], Some(LinkLocal)),
            (&["224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"], Some(Multicast)),
            (&["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:10.0.0.1"], Some(Embedding)),
            (&["64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001::1"], Some(Embedding)),
            (&["192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"], Some(Reserved)),
            (&["192.88.99.1", "240.0.0.1", "255.255.255.254"], Some(Reserved)),
            (&["2001:db8::1", "2001:20::1", "3fff::1", "100::1", "5f00::1", "4000::1"], Some(Reserved)),
            (&["8.8.8.8", "1.0.0.0", "9.255.255.255", "11.0.0.0", "126.255.255.255", "128.0.0.0"], None),
            (&["100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.167.1.1"], None),
            (&["169.253.255.255", "169.255.0.0", "223.255.255.255", "192.0.1.1", "198.20.0.1"], None),
            (&["2606:4700::1111", "2001:4860:4860::8888", "2a00::1", "2003::1"], None),
        ] {
            for address in addresses {
                assert_eq!(Class::of(address.parse().unwrap()), class, "{address}");
            }
        }
    }

    proptest! {
        /// An address of IPv4 that is not public is not public in any of the forms in which IPv6 can carry it.
        #[test]
        fn no_form_of_ipv6_hides_an_address_of_ipv4(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let low = u128::from(bits);
            for high in ["::ffff:0:0", "::", "64:ff9b::", "64:ff9b:1::", "::ffff:0:0:0"] {
                let high = u128::from(high.parse::<Ipv6Addr>().unwrap());
                prop_assert!(Class::of(Ipv6Addr::from(high | low).into()).is_some(), "{address}");
            }
            let six_to_four = 0x2002_u128 << 112 | low << 80;
            prop_assert!(Class::of(Ipv6Addr::from(six_to_four).into()).is_some());
        }
    }
}
