//! Load on any S3 endpoint.

mod endpoint;
mod operations;

pub use endpoint::ObjectTarget;
pub use operations::{ObjectOperation, ObjectOperations, ObjectWorkload};
