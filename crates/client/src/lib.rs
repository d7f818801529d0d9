//! The object client: finds the primary of an object's placement group (PG), sends requests to it over the secure
//! wire, and repeats retryable requests under the same request id. It knows objects and PGs, and follows the
//! cluster map; it does not know images, buckets or keys.
//!
//! The router (`router.rs`) is the sans-IO core. [`LocalClient`] runs it on the caller's own reactor
//! thread; [`ClientThreads`] have one each, for tasks of tokio that run there.

mod invariants;
mod local;
mod map_feed;
mod rdma;
mod router;
mod threads;

pub use atoll_objects::{ClientError, Extent, ObjectClient, PoolClient, visit_objects};
pub use local::{ClientConfig, LocalClient};
pub use router::fence_write;
pub use threads::{ClientThreads, ThreadClient};
