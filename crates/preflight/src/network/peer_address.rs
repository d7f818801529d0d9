//! The address of a host that answers.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use super::protocol::PORT_DEFAULT;

/// A host on which a responder listens: `HOST`, `HOST:PORT`, `[IPV6]:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("'{text}' is not a peer: use HOST or HOST:PORT, such as 10.0.0.2 or [fd00::2]:{PORT_DEFAULT}")
        };
        let port_of = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong);
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            match rest.split_once(']').ok_or_else(wrong)? {
                (host, "") => (host, PORT_DEFAULT),
                (host, rest) => (host, port_of(rest.strip_prefix(':').ok_or_else(wrong)?)?),
            }
        } else {
            match text.split_once(':') {
                // More than one colon is an IPv6 address without a port.
                Some((_, rest)) if rest.contains(':') => (text, PORT_DEFAULT),
                Some((host, port)) => (host, port_of(port)?),
                None => (text, PORT_DEFAULT),
            }
        };
        if host.is_empty() { Err(wrong()) } else { Ok(PeerAddress { host: host.to_owned(), port }) }
    }
}

impl std::fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl PeerAddress {
    /// The first address that the name has.
    pub(super) fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        addresses.next().ok_or_else(|| std::io::Error::other("the name has no address"))
    }
}
