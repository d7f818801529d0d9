//! How a request came in: over an encrypted connection or not, and from whom.

use std::net::SocketAddr;

/// Travels with each request, as one of its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Whether nobody between the client and this host could read the request: it came over our own
    /// TLS, or a trusted proxy says that it came to it over TLS.
    pub is_encrypted: bool,
    /// The client's address, if it is known.
    pub client: Option<SocketAddr>,
}
