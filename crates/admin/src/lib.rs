//! What operators can do with a cluster, as one API: look at OSDs, pools, PGs, images, buckets, keys and flags, and
//! change them. The command line calls it, and so does the HTTP API under the console, whose calls are commands.
//!
//! Functions take a connection to cluster state, some a key service, and typed requests; they return typed
//! results that serialise as scripts see them, or an [`AdminError`] that says what to do. A change is one
//! transaction that takes effect as a whole or not at all, and is tried again if somebody else has changed the
//! same records meanwhile; what follows from it is done by the primaries of PGs and by the coordinator.
//!
//! This crate prints nothing and knows no data directory and no process: those are `atoll-node`'s.

pub mod api_tokens;
pub mod approvals;
pub mod bucket_reader;
pub mod buckets;
mod error;
pub mod events;
pub mod hosts;
pub mod identities;
pub mod images;
pub mod key_policies;
pub mod keys;
pub mod login_oidc;
pub mod metrics_tokens;
pub mod nvme_hosts;
pub mod operators;
pub mod osds;
pub mod overview;
pub mod peer_keys;
pub mod pg_copies;
pub mod pgs;
pub mod policies;
pub mod pools;
pub mod second_factor;
pub mod sessions;
pub mod settings;
pub mod sts_key;
pub mod totp;
pub mod wrapped_secrets;

pub use error::AdminError;

#[cfg(test)]
mod tests;
