//! TLS for NBD: its policy, and the conversion between records and their content. None of it sees a socket.

mod channel;

#[cfg(test)]
mod tests;

use std::io;

use atoll_reactor::ListenAddress;
use atoll_tls::{TlsError, TlsFiles, TlsIdentity};

pub(super) use channel::TlsChannel;

use crate::protocol::TlsPolicy;

/// Why a connection's TLS ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The peer did not keep to TLS, or is not who it should be.
    #[error(transparent)]
    Peer(#[from] rustls::Error),
    /// The peer's records do not fit the bounds of TLS.
    #[error("TLS records cannot be read: {0}")]
    Records(io::Error),
}

/// The operator's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// No TLS.
    Off,
    /// TLS for clients that ask for it, if there is a certificate.
    On,
    /// Nothing without TLS.
    Required,
}

/// The mode that the operator wants and the files that it takes.
#[derive(Debug, Clone)]
pub struct TlsChoice {
    /// The mode.
    pub mode: TlsMode,
    /// The files.
    pub files: TlsFiles,
}

impl TlsChoice {
    /// Returns the policy for clients that connect to an address. Where clients need certificates, TCP is served
    /// with TLS only, since otherwise a client without a certificate could connect; a Unix socket has its owner
    /// and mode.
    pub fn policy(&self, address: &ListenAddress) -> TlsPolicy {
        let needs_certificate = self.files.client_authorities.is_some();
        match (self.mode, address) {
            (TlsMode::Off, _) => TlsPolicy::Unavailable,
            (TlsMode::Required, _) => TlsPolicy::Required,
            (TlsMode::On, ListenAddress::Tcp(_)) if needs_certificate => TlsPolicy::Required,
            (TlsMode::On, _) => TlsPolicy::Offered,
        }
    }

    /// Reads the files, unless there is to be no TLS. A certificate may come later if no client is required
    /// to use TLS.
    pub fn load(&self) -> Result<Option<TlsIdentity>, TlsError> {
        if self.mode == TlsMode::Off {
            return Ok(None);
        }
        let may_come_later = self.mode == TlsMode::On && self.files.client_authorities.is_none();
        TlsIdentity::load(self.files.clone(), may_come_later).map(Some)
    }
}
