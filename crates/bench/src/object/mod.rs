//! Load on any S3 endpoint.

mod body;
mod endpoint;
mod listing;
mod mix;
mod operations;
mod population;
mod sizes;

pub use endpoint::ObjectTarget;
pub use mix::{ObjectOperation, OperationMix};
pub use operations::{ObjectOperations, ObjectWorkload};
pub use sizes::SizeDistribution;
