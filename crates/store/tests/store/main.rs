//! The store as a whole on simulated devices.

#![allow(clippy::unwrap_used)]

mod check;
mod crash;
mod history;
mod model;
mod random;
mod regressions;
mod driver;
mod scrub;

mod simulated_disk;
mod verify;
mod workload;
