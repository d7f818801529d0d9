//! How a request came in: over an encrypted connection or not, and from whom. A proxy's headers about that count
//! only if the operator trusts its address.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Travels with each request, as one of its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// True if no host between the client and this host could read the request: it came over our own TLS, or a
    /// trusted proxy reports that it came to it over TLS.
    pub is_encrypted: bool,
    /// The version of our own TLS, as policies have it.
    pub tls_version: Option<&'static str>,
    /// The client's address, if it is known; its port is 0 if it is not.
    pub client: Option<SocketAddr>,
}

/// Addresses of trusted proxies: one, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedProxy(IpNet);

impl FromStr for TrustedProxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map(TrustedProxy)
            .map_err(|_| format!("'{text}' is neither an IP address nor a network such as 10.0.0.0/8"))
    }
}

/// All trusted proxies. Clones share the list.
#[derive(Clone, Debug)]
pub(crate) struct TrustedProxies(Arc<[TrustedProxy]>);

impl TrustedProxies {
    pub(crate) fn new(proxies: &[TrustedProxy]) -> Self {
        TrustedProxies(proxies.into())
    }

    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        // A listener on [::] sees IPv4 peers as mapped addresses.
        self.0.iter().any(|proxy| proxy.0.contains(&address.to_canonical()))
    }
}

/// Facts about a connection before its requests are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// True for our own TLS.
    pub(crate) is_tls: bool,
    /// Its version.
    pub(crate) tls_version: Option<&'static str>,
    /// The peer that speaks HTTP to us, or the client that a trusted peer's PROXY header names. Absent if that
    /// header does not say.
    pub(crate) speaker: Option<SocketAddr>,
}

impl Origin {
    /// Facts that one of its requests claims are believed only if the *speaker* is trusted: behind a proxy that
    /// passes bytes on, the headers are the client's own.
    pub(crate) fn arrival(&self, headers: &HeaderMap, trusted: &TrustedProxies) -> Arrival {
        let tls_version = self.tls_version;
        let own = Arrival { is_encrypted: self.is_tls, tls_version, client: self.speaker };
        let Some(speaker) = self.speaker.filter(|speaker| trusted.contain(speaker.ip())) else { return own };
        let mut schemes = items(headers, &FORWARDED_PROTO).peekable();
        // A proxy that took the request without TLS and passes it on over TLS says so, too.
        let is_encrypted = match schemes.peek() {
            Some(_) => schemes.all(|scheme| scheme.eq_ignore_ascii_case("https")),
            None => own.is_encrypted,
        };
        let client = match last_stranger(headers, trusted) {
            Some(Ok(address)) => Some(SocketAddr::new(address, 0)),
            Some(Err(Unreadable)) => None,
            None => Some(speaker),
        };
        // Between a proxy and us, and not between the client and anybody.
        let tls_version = None;
        Arrival { is_encrypted, tls_version, client }
    }
}

/// An item of `X-Forwarded-For` that is no address. It is a stranger's, and not the proxy's: the proxy's own may be
/// one that policies trust.
struct Unreadable;

/// Returns the client by `X-Forwarded-For`: each proxy appends whom it talked to, so it is the first stranger from
/// the end.
fn last_stranger(headers: &HeaderMap, trusted: &TrustedProxies) -> Option<Result<IpAddr, Unreadable>> {
    let named: Vec<&str> = items(headers, &FORWARDED_FOR).filter(|item| !item.is_empty()).collect();
    let mut addresses = named.iter().rev().map(|item| address_of(item).ok_or(Unreadable));
    addresses.find(|found| !matches!(found, Ok(address) if trusted.contain(*address)))
}

/// Returns the address in an item: some proxies write it with a port, or in brackets.
fn address_of(item: &str) -> Option<IpAddr> {
    let in_brackets = item.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let alone = in_brackets.unwrap_or(item).parse().ok();
    alone.or_else(|| item.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// The items of a header that is a list, over all its lines.
fn items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name).into_iter();
    lines.flat_map(|line| line.to_str().unwrap_or("?").split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(
        is_tls: bool,
        speaker: Option<&str>,
        lines: &[(&HeaderName, &'static str)],
    ) -> (bool, Option<String>) {
        let trusted = TrustedProxies::new(&["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        let speaker = speaker.map(|text| text.parse().unwrap());
        let found = Origin { is_tls, tls_version: None, speaker }.arrival(&headers, &trusted);
        (found.is_encrypted, found.client.map(|address| address.to_string()))
    }

    #[test]
    fn only_trusted_speakers_are_believed() {
        let https = (&FORWARDED_PROTO, "https");
        let client = (&FORWARDED_FOR, "192.0.2.7");
        let known = |text: &str| Some(text.to_owned());
        assert_eq!(arrival(false, Some("10.1.2.3:99"), &[https, client]), (true, known("192.0.2.7:0")));
        assert_eq!(arrival(false, Some("[::1]:99"), &[https]), (true, known("[::1]:99")));
        assert!(arrival(false, Some("[::ffff:10.1.2.3]:99"), &[https]).0);
        assert_eq!(arrival(false, Some("11.1.2.3:99"), &[https, client]), (false, known("11.1.2.3:99")));
        assert_eq!(arrival(true, Some("11.1.2.3:99"), &[client]), (true, known("11.1.2.3:99")));
        assert_eq!(arrival(false, None, &[https, client]), (false, None));
    }

    #[test]
    fn every_hop_must_have_been_encrypted() {
        let proxy = Some("10.1.2.3:99");
        for (lines, is_encrypted) in [
            (vec![(&FORWARDED_PROTO, "HTTPS")], true),
            (vec![(&FORWARDED_PROTO, "https, http")], false),
            (vec![(&FORWARDED_PROTO, "https"), (&FORWARDED_PROTO, "http")], false),
            (vec![(&FORWARDED_PROTO, "")], false),
            (vec![], false),
        ] {
            assert_eq!(arrival(false, proxy, &lines).0, is_encrypted, "{lines:?}");
        }
        assert!(arrival(true, proxy, &[]).0, "a proxy that says nothing, over our TLS");
        assert!(
            !arrival(true, proxy, &[(&FORWARDED_PROTO, "http")]).0,
            "a client without TLS, behind a proxy with it"
        );
    }

    #[test]
    fn a_client_cannot_invent_an_address() {
        let proxy = Some("10.1.2.3:99");
        for (line, client) in [
            ("1.1.1.1, 192.0.2.7", Some("192.0.2.7:0")),
            ("1.1.1.1, 192.0.2.7, 10.9.9.9", Some("192.0.2.7:0")),
            ("1.1.1.1, 192.0.2.7:4711, 10.9.9.9:80", Some("192.0.2.7:0")),
            ("1.1.1.1, 192.0.2.7, , ", Some("192.0.2.7:0")),
            ("1.1.1.1, nonsense, 10.9.9.9", None),
            ("1.1.1.1, unknown", None),
            ("nonsense, 192.0.2.7", Some("192.0.2.7:0")),
            ("2001:db8::7", Some("[2001:db8::7]:0")),
            ("[2001:db8::7]", Some("[2001:db8::7]:0")),
            ("1.1.1.1, [2001:db8::7]:4711", Some("[2001:db8::7]:0")),
            ("10.9.9.9", Some("10.1.2.3:99")),
            ("", Some("10.1.2.3:99")),
        ] {
            assert_eq!(arrival(false, proxy, &[(&FORWARDED_FOR, line)]).1.as_deref(), client, "{line}");
        }
    }

    #[test]
    fn networks_and_addresses() {
        for right in ["127.0.0.1", "::1", "10.0.0.0/8", "2001:db8::/32"] {
            assert!(right.parse::<TrustedProxy>().is_ok(), "{right}");
        }
        for wrong in ["", "localhost", "10.0.0.0/33", "10.0.0"] {
            assert!(wrong.parse::<TrustedProxy>().is_err(), "{wrong}");
        }
    }
}
