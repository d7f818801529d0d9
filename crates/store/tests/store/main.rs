//! The store as a whole on a simulated device.

#![allow(clippy::unwrap_used)]

mod crash;

mod simulated_disk;
