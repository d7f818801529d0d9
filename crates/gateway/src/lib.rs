//! The S3 gateway's dependencies in a real cluster: its buckets and identities as records in etcd
//! ([`EtcdDirectory`]) and its objects by the object client ([`ClusterObjects`]).
//!
//! This crate joins atoll-s3 with cluster state and the client, which atoll-s3 may not know. It may not
//! know S3 itself: no requests, no bucket index, no keys.

mod directory;
#[cfg(test)]
mod identities_tests;
mod objects;

pub use directory::{EtcdDirectory, clock_ahead_ms};
pub use objects::ClusterObjects;
