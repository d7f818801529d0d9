//! Images as NVMe namespaces: NVMe/TCP as state machines without I/O ([`protocol`]), and the target that drives them
//! on a reactor thread.
//!
//! This crate knows NVMe and the reads and writes of an attached image. It may not know how an image is cut into
//! objects, sealed or locked: that is atoll-image's, which knows no NVMe.

mod association;
mod authentication;
mod connection;
mod handshake;
mod host_secrets;
mod metrics;
mod names;
mod perform;
pub mod protocol;
mod target;
pub mod tls;

pub use host_secrets::{HostSecretStore, SecretsError};
pub use target::NvmeTarget;
