//! The object client: finds the primary of an object's placement group, sends requests to it over
//! the secure wire, and retries what may be retried under the same request id. It knows objects
//! and placement groups; it does not know images, buckets or keys.
//!
//! [`Router`](router) is the sans-IO core. [`LocalClient`] runs it on the caller's own reactor
//! thread; [`RemoteClient`] sends calls to such a thread from anywhere.

mod api;
mod local;
mod map_feed;
mod remote;
mod router;

pub use api::{ClientError, Extent, ObjectClient};
pub use local::{ClientConfig, LocalClient};
pub use remote::RemoteClient;
