//! Connections that fell back from RDMA return to it: an OSD is sought over RDMA beside the connection that it has, and if
//! it is there, that connection is ended and the next one is over RDMA. Requests that were under way are sent again.

use atoll_types::OsdId;
use atoll_types::transports::Transport;

use crate::local::LocalClient;

impl LocalClient {
    /// Returns true if an OSD is to be sought at this address now.
    pub(crate) fn may_seek_by_rdma(&self, osd: OsdId, address: &str) -> bool {
        let now_ms = self.0.runtime.now_ms();
        self.0.rdma_searches.borrow_mut().is_due(osd, address, now_ms)
    }

    /// An OSD was not reached by a transport.
    pub(crate) fn note_not_reached(&self, osd: OsdId, transport: Transport) {
        if transport == Transport::Rdma {
            self.0.rdma_searches.borrow_mut().failed(osd, self.0.runtime.now_ms());
        }
    }

    /// Looks for OSDs that are connected without RDMA though they are to be reached by it.
    pub(crate) fn seek_by_rdma(&self, now_ms: u64) {
        for (osd, address) in self.to_seek(now_ms) {
            self.0.sought.borrow_mut().insert(osd);
            let client = self.clone();
            self.0.runtime.spawn(async move {
                client.return_to_rdma(osd, &address).await;
                client.0.sought.borrow_mut().remove(&osd);
            });
        }
        if let Some(error) = self.0.runtime.take_rdma_problem() {
            tracing::debug!("RDMA: {error}; data is copied");
        }
    }

    fn to_seek(&self, now_ms: u64) -> Vec<(OsdId, String)> {
        let (links, router, sought) = (self.0.links.borrow(), self.0.router.borrow(), self.0.sought.borrow());
        let mut searches = self.0.rdma_searches.borrow_mut();
        let mut found = Vec::new();
        for (osd, open) in links.iter() {
            match router.rdma_address(*osd) {
                None => searches.forget(*osd),
                Some(_) if open.transport == Transport::Rdma || sought.contains(osd) => {}
                Some(address) if searches.is_due(*osd, address, now_ms) => found.push((*osd, address.to_owned())),
                Some(_) => {}
            }
        }
        found
    }

    async fn return_to_rdma(&self, osd: OsdId, address: &str) {
        match self.connect_rdma(address).await {
            Ok(_) => {
                let links = self.0.links.borrow();
                if let Some(open) = links.get(&osd).filter(|open| open.transport != Transport::Rdma) {
                    tracing::info!("{osd} is reached over RDMA again; reconnecting");
                    open.stream.abort();
                }
            }
            Err(error) => {
                tracing::debug!("{osd} is not reached over RDMA at {address}: {error}");
                self.note_not_reached(osd, Transport::Rdma);
            }
        }
    }
}
