//! The store as a whole on simulated devices.

#![allow(clippy::unwrap_used)]

mod crash;
mod damage;
mod full;
mod fuzz;
mod history;
mod model;
mod random;
mod regressions;
mod simulated_disk;
mod verify;
mod workload;
