//! Listening over RDMA: at once, or as soon as there is an adapter and libfabric. Peers use TCP meanwhile.

use std::net::SocketAddr;

use atoll_reactor::{ListenerId, RdmaAddress, Reactor};
use atoll_types::records::OsdUpRecord;

use crate::config::OsdConfig;

/// Time after which the same problem is reported again.
const TELL_AGAIN_MS: u64 = 600_000;

/// Reports a problem when it is new, and again when it has lasted.
#[derive(Default)]
struct Told(Option<(String, u64)>);

impl Told {
    fn is_news(&mut self, problem: &str, now_ms: u64) -> bool {
        let is_known =
            self.0.as_ref().is_some_and(|(told, at_ms)| told == problem && now_ms < at_ms + TELL_AGAIN_MS);
        if !is_known {
            self.0 = Some((problem.to_owned(), now_ms));
        }
        !is_known
    }
}

/// The listener of an OSD that has to listen over RDMA.
pub(crate) struct RdmaListening {
    listener: Option<ListenerId>,
    told: Told,
}

impl RdmaListening {
    /// By the configured provider, at the address that is announced.
    pub fn start(config: &OsdConfig, reactor: &mut Reactor) -> std::io::Result<Self> {
        let ip = config.advertise.unwrap_or(config.listen.ip());
        let wanted = config.rdma_provider.clone();
        let wanted = wanted.map(|provider| RdmaAddress { provider, address: SocketAddr::new(ip, 0) });
        let listener = wanted.map(|wanted| reactor.listen_rdma(&wanted)).transpose()?;
        Ok(RdmaListening { listener, told: Told::default() })
    }

    /// Reports problems. Gives where it listens (empty: nowhere), if something else is announced.
    pub fn look(&mut self, announced: &OsdUpRecord, reactor: &mut Reactor, now_ms: u64) -> Option<String> {
        if let Some(error) = reactor.take_rdma_problem() {
            let problem = error.to_string();
            if self.told.is_news(&problem, now_ms) {
                tracing::warn!("RDMA: {problem}; peers that get no connection use TCP, and it is tried again");
            }
        }
        let listening = self.listener.and_then(|listener| reactor.rdma_address(listener));
        let address = listening.map_or(String::new(), |address| address.to_string());
        if address == announced.rdma_address {
            return None;
        }
        let id = announced.id;
        match address.is_empty() {
            true => tracing::warn!("{id} serves over RDMA no more, because its device is away; peers use TCP"),
            false => tracing::info!("{id} serves over RDMA on {address}"),
        }
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_that_lasts_is_told_now_and_then() {
        let mut told = Told::default();
        assert!(told.is_news("no adapter", 0));
        assert!(!told.is_news("no adapter", TELL_AGAIN_MS - 1));
        assert!(told.is_news("no library", TELL_AGAIN_MS - 1));
        assert!(told.is_news("no library", 2 * TELL_AGAIN_MS));
    }
}
