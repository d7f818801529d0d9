//! libfabric, loaded at run time, behind types that close the objects that they opened. All `unsafe` code of this
//! crate is in this module and in `memory.rs`.

pub mod abi;
mod library;
mod objects;
mod registered;

pub use library::{Info, Library};
pub use objects::{
    Completion, CompletionQueue, Connecting, Domain, Endpoint, EventQueue, Memory, NetworkFabric, PassiveEndpoint,
    Region, SharedReceives,
};

/// Lends a descriptor that one of the library's queues owns and that is open.
pub fn with_descriptor<T>(
    descriptor: std::os::fd::RawFd,
    use_it: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> T,
) -> T {
    // SAFETY: the queue that gave it is open, because only open queues give theirs.
    use_it(unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) })
}

/// Purpose of registered memory; a device does nothing else with it.
#[derive(Clone, Copy)]
pub enum Access {
    /// Messages that this side sends.
    Sends,
    /// Messages that it receives.
    Receives,
    /// Target of reads from peers. Over iWARP a peer that is read from may write there.
    Reads,
    /// Source of reads by a peer that has the key.
    PeerReads,
}

/// How much an endpoint may have under way.
#[derive(Clone, Copy)]
pub struct QueueSizes {
    /// Sends and reads.
    pub transmits: u32,
    /// Receives of its own.
    pub receives: u32,
}
