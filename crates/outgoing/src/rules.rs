//! Rules that say where a call may go.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use reqwest::Url;

use crate::{Class, Networks};

/// Origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// An account, or a document of a server that an account has chosen. Calls go over TLS to public hosts, and to
    /// networks that operators have named for accounts.
    Account,
    /// An operator, by a record of cluster state. Calls go over TLS to public hosts, and in any way to networks that
    /// operators have named.
    Operator,
    /// The user that starts processes on this host, by an argument or a file there. Calls go over TLS to hosts
    /// that are public, private or this one, without TLS to this one, and in any way to networks that operators
    /// have named.
    Host,
}

/// Allowed targets of calls, by the origin of their addresses.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The origin.
    pub chooser: Chooser,
    /// Networks that are named for him.
    pub named: Networks,
}

/// Why a call does not go to an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The address is of a class that calls of this origin do not reach.
    #[error("{address} is {class}, and calls go there only if its network is named{}", hint(*.chooser))]
    Class {
        /// The address.
        address: IpAddr,
        /// Its kind.
        class: Class,
        /// Its origin.
        chooser: Chooser,
    },
    /// Nothing that answers can have this address.
    #[error("{address} is {class}: no host has it")]
    Never {
        /// The address.
        address: IpAddr,
        /// Its kind.
        class: Class,
    },
    /// The call would go in clear.
    #[error("calls to {host} go over https:// alone: its network is not named{}", hint(*.chooser))]
    Plain {
        /// An address or a name.
        host: String,
        /// Its origin.
        chooser: Chooser,
    },
    /// It is neither `https://` nor `http://`.
    #[error("'{scheme}' is no way to call: use https://")]
    Scheme {
        /// The scheme in its place.
        scheme: String,
    },
}

fn hint(chooser: Chooser) -> String {
    let setting = match chooser {
        Chooser::Account => "outgoing_networks_of_accounts",
        Chooser::Operator | Chooser::Host => "outgoing_networks",
    };
    format!(" ('atoll settings set {setting} NETWORK,...')")
}

struct Configured {
    operators: Networks,
    accounts: Networks,
}

/// Networks in the settings of the cluster. Nothing until they are read.
static CONFIGURED: Mutex<Option<Configured>> = Mutex::new(None);

/// From here on these networks are named, for operators and for accounts. A list that cannot be read names none.
pub fn configure(operators: &str, accounts: &str) {
    let parsed = |name: &str, text: &str| {
        text.parse().unwrap_or_else(|error| {
            tracing::warn!("the setting {name} cannot be read, so it names no network: {error}");
            Networks::default()
        })
    };
    let configured = Configured {
        operators: parsed("outgoing_networks", operators),
        accounts: parsed("outgoing_networks_of_accounts", accounts),
    };
    *CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner) = Some(configured);
}

impl Rules {
    /// The rules of now for an address that this one has chosen.
    #[must_use]
    pub fn of(chooser: Chooser) -> Rules {
        let configured = CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner);
        let named = configured.as_ref().map(|configured| match chooser {
            Chooser::Account => configured.accounts.clone(),
            Chooser::Operator | Chooser::Host => configured.operators.clone(),
        });
        Rules { chooser, named: named.unwrap_or_default() }
    }

    /// Checks the parts of a URL that do not need its name resolved.
    pub fn check_url(&self, url: &Url) -> Result<(), Refusal> {
        let is_plain = match url.scheme() {
            "https" => false,
            "http" => true,
            scheme => return Err(Refusal::Scheme { scheme: scheme.to_owned() }),
        };
        match literal(url) {
            Some(address) => self.check_address(address, is_plain),
            // Names of this host resolve without any network being named.
            None if is_plain && self.named.is_empty() && self.chooser != Chooser::Host => {
                Err(self.plain(url.host_str().unwrap_or_default()))
            }
            None => Ok(()),
        }
    }

    /// Checks an address before a connection to it is made.
    pub fn check_address(&self, address: IpAddr, is_plain: bool) -> Result<(), Refusal> {
        let class = Class::of(address);
        if let Some(class) = class.filter(|class| class.is_never_allowed()) {
            return Err(Refusal::Never { address, class });
        }
        if self.named.contain(address) {
            // What an account is believed to be depends on the answer.
            let is_fit = !is_plain || self.chooser != Chooser::Account || class == Some(Class::Loopback);
            return if is_fit { Ok(()) } else { Err(self.plain(&address.to_string())) };
        }
        let is_fit_over_tls = match class {
            None => true,
            Some(Class::Loopback) if self.chooser == Chooser::Host => return Ok(()),
            Some(Class::Private | Class::SharedByProviders) => self.chooser == Chooser::Host,
            Some(_) => false,
        };
        match (class, is_fit_over_tls) {
            (_, true) if is_plain => Err(self.plain(&address.to_string())),
            (Some(class), false) => Err(Refusal::Class { address, class, chooser: self.chooser }),
            _ => Ok(()),
        }
    }

    fn plain(&self, host: &str) -> Refusal {
        Refusal::Plain { host: host.to_owned(), chooser: self.chooser }
    }
}

/// The address that a URL has in place of a name. Parsing has brought all ways to write one to one form.
fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(chooser: Chooser, named: &str) -> Rules {
        Rules { chooser, named: named.parse().unwrap() }
    }

    fn is_fit(rules: &Rules, url: &str) -> bool {
        rules.check_url(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn accounts_reach_public_hosts_over_tls_alone() {
        let rules = rules(Chooser::Account, "");
        for right in ["https://8.8.8.8/", "https://issuer.example/", "https://[2606:4700::1]:8443/"] {
            assert!(is_fit(&rules, right), "{right}");
        }
        for wrong in [
            "http://8.8.8.8/",
            "http://issuer.example/",
            "ftp://issuer.example/",
            "file:///etc/passwd",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://017700000001/",
            "https://127.0.0.1./",
            "https://%31%32%37.0.0.1/",
            "https://１２７.0.0.1/",
            "https://user@127.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:8.8.8.8]/",
            "https://[::ffff:7f00:1]/",
            "https://[64:ff9b::a00:1]/",
            "https://[fe80::1]/",
            "https://10.0.0.1/",
            "https://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data/",
            "https://224.0.0.1/",
            "https://0.0.0.0/",
            "https://0/",
            "https://[::]/",
        ] {
            assert!(!is_fit(&rules, wrong), "{wrong}");
        }
    }

    #[test]
    fn named_networks_are_reached_and_no_others() {
        let account = rules(Chooser::Account, "10.0.0.0/8,127.0.0.0/8");
        assert!(is_fit(&account, "https://10.0.0.1/") && is_fit(&account, "http://127.0.0.1:1/"));
        assert!(!is_fit(&account, "http://10.0.0.1/"), "keys of issuers never travel in clear");
        assert!(!is_fit(&account, "https://192.168.0.1/"));
        let operator = rules(Chooser::Operator, "10.0.0.0/8,127.0.0.1");
        for right in
            ["http://10.0.0.1/", "https://10.0.0.1/", "http://127.0.0.1:4318/", "http://collector.example/"]
        {
            assert!(is_fit(&operator, right), "{right}");
        }
        for wrong in ["http://8.8.8.8/", "https://127.0.0.2/", "https://169.254.169.254/"] {
            assert!(!is_fit(&operator, wrong), "{wrong}");
        }
        let all = rules(Chooser::Operator, "0.0.0.0/0,::/0");
        assert!(is_fit(&all, "http://8.8.8.8/") && is_fit(&all, "https://[64:ff9b::1]/"));
        for never in ["https://0.0.0.0/", "https://224.0.0.1/", "https://255.255.255.255/", "https://[ff02::1]/"] {
            assert!(!is_fit(&all, never), "{never}");
        }
    }

    #[test]
    fn addresses_of_the_host_reach_private_networks_over_tls_only() {
        let host = rules(Chooser::Host, "");
        for right in
            ["https://10.0.0.1/", "https://vault.internal/", "http://127.0.0.1:8200/", "http://localhost/"]
        {
            assert!(is_fit(&host, right), "{right}");
        }
        for wrong in
            ["http://10.0.0.1/", "https://169.254.169.254/", "http://8.8.8.8/", "https://[::ffff:10.0.0.1]/"]
        {
            assert!(!is_fit(&host, wrong), "{wrong}");
        }
        assert!(is_fit(&rules(Chooser::Host, "10.0.0.0/8"), "http://10.0.0.1/"));
    }

    #[test]
    fn refusals_name_the_setting() {
        let text =
            |chooser, url: &str| rules(chooser, "").check_url(&Url::parse(url).unwrap()).unwrap_err().to_string();
        let text_of_operator = text(Chooser::Operator, "https://10.0.0.1/");
        assert!(text_of_operator.contains("10.0.0.1 is private"), "{text_of_operator}");
        assert!(text_of_operator.contains("settings set outgoing_networks "), "{text_of_operator}");
        let text_of_account = text(Chooser::Account, "http://issuer.example/");
        assert!(text_of_account.contains("https://"), "{text_of_account}");
        assert!(text_of_account.contains("outgoing_networks_of_accounts"), "{text_of_account}");
    }
}
