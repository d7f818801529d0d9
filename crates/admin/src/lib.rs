//! Operations of operators on a cluster, as one API: look at OSDs, pools, PGs, images, buckets, keys and flags,
//! and change them. The command line calls it, and so does the HTTP API under the console, whose calls are
//! commands.
//!
//! Functions take a connection to cluster state, some a key service, and typed requests. They return typed results
//! that serialise in the form for scripts, or an [`AdminError`] with the remedy. A change is one transaction that
//! takes effect as a whole or not at all, and is repeated if another process has changed the same records
//! meanwhile; the primaries of PGs and the coordinator carry out its consequences.
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
