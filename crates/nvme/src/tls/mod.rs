//! TLS 1.3 with pre-shared keys under NVMe/TCP (NVMe/TCP Transport Specification 1.0, section 3.6.1):
//! derived keys, the key that a host offers, and the conversion between records and their content. None of
//! it sees a socket.

mod channel;
mod client_hello;
mod psk;

#[cfg(test)]
mod tests;

pub(crate) use channel::TlsChannel;
pub(crate) use client_hello::{ClientHello, RECORD_HANDSHAKE, read_client_hello};
pub(crate) use psk::{Identity, TlsPsk};

pub use client_hello::HelloError;

/// decrypt_error (RFC 8446, section 6.2).
const ALERT_UNPROVED: u8 = 51;
/// internal_error.
const ALERT_INTERNAL: u8 = 80;

/// Why there is no TLS with a host, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Its first message.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// It has none of the keys that it offers, or they are not of this cluster. The host does not learn which.
    #[error("the host does not prove a key that it has here")]
    Unproved,
    /// The keys of hosts are not known now.
    #[error("keys of hosts are not known now: {0}")]
    Keys(String),
    /// Errors of its other messages and records, from the library.
    #[error("{0}")]
    Library(#[from] s2n_tls::error::Error),
    /// The key has sealed as much as one may. The host connects again, with another.
    #[error("the key of this connection is used up")]
    KeyUsedUp,
    /// The library takes nothing more.
    #[error("TLS takes nothing more")]
    Stuck,
}

impl TlsError {
    /// Returns the alert in plain text while there are no keys.
    pub(crate) fn alert_record(&self) -> [u8; 7] {
        let alert = match self {
            TlsError::Hello(error) => error.alert(),
            TlsError::Unproved => ALERT_UNPROVED,
            TlsError::Keys(_) | TlsError::Library(_) | TlsError::KeyUsedUp | TlsError::Stuck => ALERT_INTERNAL,
        };
        // A fatal alert of two bytes, in the version that all records have.
        [21, 3, 3, 0, 2, 2, alert]
    }
}
