//! Images as network block devices: the NBD protocol with TLS, two state machines without I/O
//! ([`protocol`], `tls`), and the server that drives them on a reactor thread.
//!
//! This crate knows NBD and the reads and writes of an attached image. It may not know how an image is
//! cut into objects, sealed or locked: that is atoll-image's, which knows no NBD.

mod connection;
mod metrics;
pub mod protocol;
mod server;
mod tls;

pub use server::NbdServer;
pub use tls::{TlsChoice, TlsMode};
