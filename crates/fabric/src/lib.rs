//! Ordered byte streams between two processes over RDMA: InfiniBand, RoCE and iWARP through libfabric's connected
//! endpoints, or plain TCP through its provider `tcp`, which all tests use. It moves bytes and reports events. It
//! does not know frames, and it trusts no peer: each value from a peer is checked, and an impossible one ends the
//! link.
//!
//! Short bytes are copied into messages. Long ones are announced by reference, and the peer reads them from this
//! process's memory straight into the buffer that waits for them. [docs/internals/rdma.md] has the protocol, and why
//! it is as it is.
//!
//! [`Fabric`] belongs to one thread, blocks nowhere, and has a descriptor to wait on.

mod credits;
#[allow(unsafe_code)]
mod device;
mod error;
mod fabric;
mod link;
mod locked;
#[allow(unsafe_code)]
mod memory;
mod message;
#[allow(unsafe_code, missing_docs)]
mod sys;
#[cfg(test)]
mod tests;

pub use error::FabricError;
pub use fabric::{Event, Fabric, LinkId, ListenerId, Settings, Usage, Way};
pub use locked::LockedMemory;
