//! Lists of networks, as operators write them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

/// A list is no longer.
pub const NETWORKS_MAX: usize = 64;

/// Networks into which calls may go although they are not public.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Returns true if an address is in one of them. An address of IPv4 counts in the form in which IPv6 maps it,
    /// too, because a connection goes to the same host.
    #[must_use]
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Networks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let networks = parts.map(parse).collect::<Result<Vec<_>, _>>()?;
        match networks.len() <= NETWORKS_MAX {
            true => Ok(Networks(networks)),
            false => Err(format!("there are {} networks; {NETWORKS_MAX} are the most", networks.len())),
        }
    }
}

fn parse(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().ok().map(|address| IpNet::from(address.to_canonical()));
    let network = text.parse::<IpNet>().ok().or_else(address);
    let network = network.ok_or_else(|| {
        format!("'{text}' is neither a network nor an address: give such as 10.0.0.0/8,fd00::/8,127.0.0.1")
    })?;
    if network.trunc() != network {
        return Err(format!("'{text}' has bits behind its prefix: {} is the network", network.trunc()));
    }
    Ok(mapped(network).unwrap_or(network))
}

/// A network of mapped addresses, as one of IPv4.
fn mapped(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(network) = network else { return None };
    let address: Ipv6Addr = network.network();
    let prefix = network.prefix_len().checked_sub(96)?;
    Some(Ipv4Net::new(address.to_ipv4_mapped()?, prefix).ok()?.into())
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_networks_and_addresses() {
        let networks: Networks = " 10.0.0.0/8, fd00::/8,127.0.0.1 ,::ffff:192.168.0.0/112".parse().unwrap();
        assert_eq!(networks.to_string(), "10.0.0.0/8,fd00::/8,127.0.0.1/32,192.168.0.0/16");
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "127.0.0.1", "192.168.7.7"] {
            assert!(networks.contain(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "127.0.0.2", "::1", "::10.1.2.3", "64:ff9b::a01:203"] {
            assert!(!networks.contain(outside.parse().unwrap()), "{outside}");
        }
        assert!("".parse::<Networks>().unwrap().is_empty());
        for wrong in ["10.0.0.1/8", "10.0.0.0/33", "private", "10.0.0.0/8;fd00::/8", "vault.example"] {
            assert!(wrong.parse::<Networks>().is_err(), "{wrong}");
        }
        assert!("10.0.0.1,".repeat(NETWORKS_MAX + 1).parse::<Networks>().is_err());
    }
}
