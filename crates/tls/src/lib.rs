//! Certificates of servers: reading their files ([`Tls`] for HTTP, [`TlsIdentity`] for one pair), following changes of
//! the files, and the contents of a certificate ([`Certificate`]).
//!
//! This crate knows PEM files, X.509 and the configuration of rustls. It may not know the protocol under TLS, nor its
//! sockets.

mod certificate;
mod error;
mod files;
mod identity;
mod listener;
mod pairs;

pub use certificate::Certificate;
pub use error::TlsError;
pub use identity::{TlsFiles, TlsIdentity};
pub use listener::{ALPN_HTTP_2, ClientAuthority, Tls, TlsSettings};
