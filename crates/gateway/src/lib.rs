//! What the S3 gateway stands on in a real cluster: its buckets and users as records in etcd
//! ([`EtcdDirectory`]) and its objects by the object client ([`ClusterObjects`]).
//!
//! This crate joins atoll-s3 with cluster state and the client, which atoll-s3 may not know. It may not
//! know S3 itself: no requests, no bucket index, no keys.

mod directory;
mod objects;

pub use directory::EtcdDirectory;
pub use objects::ClusterObjects;
