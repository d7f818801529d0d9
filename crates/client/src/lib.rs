//! The object client: finds the primary of an object's placement group, sends requests to it over
//! the secure wire, retries what may be retried under the same request id, and cuts large data
//! into pieces. It knows objects and placement groups; it does not know images, buckets or keys.

mod api;

pub use api::{ClientError, Extent, ObjectClient};
