//! The store as a whole on a simulated device.

#![allow(clippy::unwrap_used)]

mod check;
mod crash;
mod driver;
mod scrub;

mod simulated_disk;
