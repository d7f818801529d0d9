//! Cluster state: the small, shared, authoritative records of a cluster (OSDs, pools, placement
//! groups, images, buckets, users), kept as JSON under etcd keys.
//!
//! This crate knows how to reach an etcd cluster, how to read, change and watch keys, how to hold a lease, and how
//! to stand in for etcd on one machine ([`server`]). It does not know the meaning of the records: no placement, no
//! protocol decisions, no data path.

pub mod client;
pub mod keys;
pub mod kinds;
mod map;
mod map_watch;
mod pg_changes;
pub mod process;
pub mod roles;
pub mod server;

pub use client::{
    Answer, ClusterClient, ClusterError, ConnectOptions, Contention, GuardFault, Lease, LeaseStatus, Listing,
    LoginSource, Place, PrefixWatch, Proposer, RESERVED, RecordGuard, SnapshotError, StateSize, StaticKey, Stored,
    TermEnd, TlsFiles, Transaction, WatchEvent, retried, verify_snapshot,
};
pub use map::{ClusterMap, MapChange, RefusedChange};
pub use map_watch::MapWatch;
pub use server::{EmbeddedServer, Protection};
