#![allow(clippy::unwrap_used)]

//! Tests over the provider `tcp`, which needs no RDMA hardware.

mod bounds;
mod ends;
mod hostile;
mod pair;
mod streams;
