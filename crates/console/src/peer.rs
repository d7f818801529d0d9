//! The other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use atoll_connection_limits::Place;

/// The other end of a connection; travels with each request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub address: SocketAddr,
    place: Arc<Place>,
}

impl Peer {
    pub fn new(address: SocketAddr, place: Arc<Place>) -> Self {
        Peer { address, place }
    }

    /// Returns true if the other end has authenticated.
    pub fn is_member(&self) -> bool {
        self.place.is_member()
    }

    /// Notes that the other end has authenticated.
    pub fn log_in(&self) {
        self.place.log_in();
    }
}
