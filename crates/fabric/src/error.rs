//! Errors of the fabric.

use std::io;
use std::net::SocketAddr;

use crate::locked::LockedMemory;

/// Errors of this crate. Those about a link end it.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// libfabric cannot be loaded.
    #[error(
        "RDMA needs libfabric, which cannot be loaded ({reason}); install it with 'apt-get install libfabric1', or \
         choose the transport tcp"
    )]
    NoLibrary {
        /// The loader's reason.
        reason: String,
    },
    /// The provider has no way to the address, or does not exist here.
    #[error(
        "the libfabric provider '{provider}' has no way to this address: {reason}; 'fi_info -t FI_EP_MSG' lists \
         the addresses"
    )]
    NoProvider {
        /// Its name.
        provider: String,
        /// The library's reason.
        reason: String,
    },
    /// A call of the library failed, or an operation did.
    #[error("{what}: {text}")]
    Failed {
        /// The call or the operation.
        what: &'static str,
        /// The library's number for it: that of the system below 256.
        code: i32,
        /// The library's text for it.
        text: String,
    },
    /// The system refuses memory that a device is to use.
    #[error("{what}: {text}; {limit}")]
    NoMemory {
        /// Purpose of the memory.
        what: &'static str,
        /// The library's text for it.
        text: String,
        /// Limit of the memory that this process may lock.
        limit: LockedMemory,
    },
    /// Listening at this address failed.
    #[error("cannot listen over RDMA on {address}: {source}")]
    NoListener {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: Box<FabricError>,
    },
    /// The peer violated the protocol.
    #[error("the peer breaks the rules of the fabric link: {0}")]
    Peer(String),
    /// The peer has closed the link.
    #[error("the peer has closed the link")]
    Ended,
    /// The link was not there in time.
    #[error("the peer did not complete the connection in time")]
    TimedOut,
    /// The system refused something.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for FabricError {
    fn from(error: rustix::io::Errno) -> Self {
        FabricError::Io(error.into())
    }
}

impl From<FabricError> for io::Error {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::Io(error) => error,
            FabricError::Ended => io::Error::new(io::ErrorKind::UnexpectedEof, error),
            FabricError::TimedOut => io::Error::new(io::ErrorKind::TimedOut, error),
            FabricError::Failed { code: libc::ECONNREFUSED, .. } => {
                io::Error::new(io::ErrorKind::ConnectionRefused, error)
            }
            FabricError::NoMemory { .. } => io::Error::new(io::ErrorKind::OutOfMemory, error),
            FabricError::NoLibrary { .. } | FabricError::NoProvider { .. } => {
                io::Error::new(io::ErrorKind::Unsupported, error)
            }
            FabricError::Failed { .. } | FabricError::Peer(_) | FabricError::NoListener { .. } => {
                io::Error::other(error)
            }
        }
    }
}
