//! Identities of clients, and the images that they may use.
//!
//! The identity of a client is the process at the other end of a Unix socket, and over TCP the client's
//! certificate, or else its host. Where a kernel before 6.9 has no number for a process of another container, each
//! of its connections counts as a client.

use std::net::IpAddr;

use atoll_reactor::PeerAddress;
use atoll_types::records::ImageExport;
use rustls::pki_types::CertificateDer;

/// A client of one connection. Connections with equal ones are of one client.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where it is.
    pub address: PeerAddress,
    /// The client's certificate, signed by an authority.
    pub certificate: Option<CertificateDer<'static>>,
    /// The name that an NVMe host gives itself. It is one client over all its addresses.
    pub nvme_host: Option<String>,
}

impl PartialEq for Client {
    fn eq(&self, other: &Self) -> bool {
        match (&self.nvme_host, &other.nvme_host) {
            (Some(own), Some(other)) => own == other,
            (None, None) => (self.address, &self.certificate) == (other.address, &other.certificate),
            _ => false,
        }
    }
}

impl Client {
    /// Checks that it may use an image that is exported like this; the error names the remedy.
    pub fn may_use(&self, image: &str, export: &ImageExport) -> Result<(), String> {
        let remedy = |name: &str| format!("'atoll image access {image} --allow {name}' lets it");
        let host = match self.address {
            // The socket's file says who may open it.
            PeerAddress::Process(_) | PeerAddress::Foreign(_) => return Ok(()),
            PeerAddress::Host(host) => host,
            PeerAddress::Unknown => {
                return Err("the system does not identify this client; connect over a Unix socket or TCP".into());
            }
        };
        let names = self.certificate_names();
        let is_certified = self.certificate.is_some();
        let allows = |rule: &String| {
            rule == "*"
                || rule.parse::<Network>().is_ok_and(|network| network.holds(host))
                || names.contains(rule)
                || self.nvme_host.as_ref() == Some(rule)
        };
        if export.clients.iter().any(allows) || export.clients.is_empty() && is_certified {
            return Ok(());
        }
        let name = names.first().cloned().unwrap_or_else(|| host.to_string());
        if let Some(host_name) = &self.nvme_host {
            return Err(format!(
                "image '{image}' is served over NVMe/TCP only to hosts that are named; {}, by its name or its address {host}",
                remedy(host_name)
            ));
        }
        match is_certified {
            true => Err(format!("image '{image}' is not for the client '{name}'; {}", remedy(&name))),
            false => Err(format!(
                "image '{image}' is served over TCP only to clients with a certificate; {} from its address",
                remedy(&host.to_string())
            )),
        }
    }

    /// The names in the certificate that it has shown.
    pub(crate) fn certificate_names(&self) -> Vec<String> {
        self.certificate.as_ref().map(names_of).unwrap_or_default()
    }

    /// In a word or two, for people.
    pub fn describe(&self) -> String {
        let name = self.certificate.as_ref().and_then(|certificate| names_of(certificate).into_iter().next());
        match (self.nvme_host.clone().or(name), self.address) {
            (Some(name), _) => format!("client '{name}'"),
            (None, PeerAddress::Process(process_id)) => format!("process {process_id}"),
            (None, PeerAddress::Foreign(_)) => "a process of another container".into(),
            (None, PeerAddress::Host(host)) => format!("host {host}"),
            (None, PeerAddress::Unknown) => "a client".into(),
        }
    }
}

/// The common name of a certificate, and its DNS and mail names.
fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok().map(ToOwned::to_owned));
    let mut names: Vec<String> = common.collect();
    if let Ok(Some(extension)) = parsed.subject_alternative_name() {
        names.extend(extension.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        }));
    }
    names
}

/// Addresses that begin alike: `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl std::str::FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix_bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(drop)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(drop)?;
        let all_bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix_bits.unwrap_or(all_bits);
        if prefix_bits <= all_bits { Ok(Network { address, prefix_bits }) } else { Err(()) }
    }
}

impl Network {
    fn holds(&self, other: IpAddr) -> bool {
        let (own, other, all_bits) = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u32::from(own).into(), u32::from(other).into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own), u128::from(other), 128),
            _ => return false,
        };
        // The types have more bits than an address of version 4, but none has more than one of version 6.
        self.prefix_bits == 0 || (own ^ other) >> (all_bits - self.prefix_bits) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::records::ExportAccess;

    fn export(clients: &[&str]) -> ImageExport {
        let clients = clients.iter().map(|client| (*client).to_owned()).collect();
        ImageExport { access: ExportAccess::Exclusive, clients }
    }

    fn host(text: &str, certificate_names: Option<&[&str]>) -> Client {
        let certificate = certificate_names.map(|names| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            rcgen::generate_simple_self_signed(names).unwrap().cert.der().clone()
        });
        Client { address: PeerAddress::Host(text.parse().unwrap()), certificate, nvme_host: None }
    }

    #[test]
    fn networks() {
        let holds = |network: &str, host: &str| network.parse::<Network>().unwrap().holds(host.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.1.2") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("192.0.2.7", "192.0.2.7") && !holds("192.0.2.7", "192.0.2.8"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "::1") && holds("::/0", "::1"));
        assert!(holds("fd00::/8", "fdff::1") && !holds("fd00::/8", "fe00::1") && holds("::1", "::1"));
        for wrong in ["", "10.0.0.0/33", "::/129", "host", "10.0.0.0/", "10.0.0/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_plain_client_reaches_only_images_open_to_it() {
        let plain = host("192.0.2.7", None);
        assert!(plain.may_use("disk", &export(&[])).unwrap_err().contains("--allow 192.0.2.7"));
        assert!(plain.may_use("disk", &export(&["vm1", "192.0.3.0/24"])).is_err());
        for rules in [&["*"][..], &["192.0.2.0/24"], &["vm1", "192.0.2.7"]] {
            assert_eq!(plain.may_use("disk", &export(rules)), Ok(()), "{rules:?}");
        }
        let local = Client { address: PeerAddress::Process(1), certificate: None, nvme_host: None };
        assert_eq!(local.may_use("disk", &export(&["vm1"])), Ok(()), "who may open the socket may use it");
    }

    #[test]
    fn a_client_with_a_certificate_is_known_by_its_names() {
        let known = host("192.0.2.7", Some(&["vm1.example", "vm2.example"]));
        assert_eq!(known.may_use("disk", &export(&[])), Ok(()));
        assert_eq!(known.may_use("disk", &export(&["vm2.example"])), Ok(()));
        assert!(known.may_use("disk", &export(&["vm3.example"])).unwrap_err().contains("is not for the client"));
    }

    #[test]
    fn an_nvme_host_is_known_by_its_name_or_its_address() {
        let named =
            Client { nvme_host: Some("nqn.2014-08.org.nvmexpress:uuid:1".into()), ..host("192.0.2.7", None) };
        assert!(named.may_use("disk", &export(&[])).unwrap_err().contains("--allow nqn.2014-08"));
        assert!(named.may_use("disk", &export(&["nqn.2014-08.org.nvmexpress:uuid:2", "192.0.2.8"])).is_err());
        for rule in ["nqn.2014-08.org.nvmexpress:uuid:1", "192.0.2.0/24", "*"] {
            assert_eq!(named.may_use("disk", &export(&[rule])), Ok(()));
        }
        let elsewhere = Client { address: PeerAddress::Host("192.0.2.9".parse().unwrap()), ..named.clone() };
        assert!(named == elsewhere && named != host("192.0.2.7", None));
    }
}
