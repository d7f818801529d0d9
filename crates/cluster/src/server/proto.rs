//! Code that `build.rs` generates from `proto/`.

/// The generated code of each package expects the others as its neighbours.
pub mod authpb {
    tonic::include_proto!("authpb");
}
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}
/// Requests, answers and services.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
pub use etcdserverpb::*;
pub use mvccpb::*;
