#![allow(clippy::unwrap_used)]

//! Tests over the provider `tcp`, which needs no RDMA hardware, or over the one that ATOLL_TEST_FABRIC_PROVIDER names.

mod bounds;
mod ends;
mod hostile;
mod pair;
mod refused;
mod streams;
