//! Names to addresses that a call may go to. Connections go to the checked address, so a name that resolves
//! otherwise the next moment gains nothing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::caller::Guard;

/// The addresses of a name.
pub(crate) type Lookup =
    Arc<dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> + Send + Sync>;

/// As this host resolves names.
pub(crate) fn system() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move {
            let addresses = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    })
}

pub(crate) struct Resolver {
    pub guard: Arc<Guard>,
    pub lookup: Lookup,
    pub is_plain: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, is_plain) = (Arc::clone(&self.guard), self.is_plain);
        let found = (self.lookup)(name.as_str().to_owned());
        Box::pin(async move {
            let rules = guard.rules();
            let (mut fit, mut refusal) = (Vec::new(), None);
            for address in found.await? {
                match rules.check_address(address, is_plain) {
                    // The port is the URL's.
                    Ok(()) => fit.push(SocketAddr::new(address, 0)),
                    Err(refused) => refusal = Some(refused),
                }
            }
            match (fit.is_empty(), refusal) {
                (true, Some(refusal)) => Err(refusal.into()),
                (true, None) => Err(io::Error::other("the name has no address").into()),
                _ => Ok(Box::new(fit.into_iter()) as Addrs),
            }
        })
    }
}
