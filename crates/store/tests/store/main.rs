//! The store as a whole on simulated devices.

#![allow(clippy::unwrap_used)]

mod check;
mod crash;
mod damage;
mod damage_met;
mod directed;
mod discards;
mod driver;
mod full;
mod fuzz;
mod history;
mod hostile;
mod little_memory;
mod model;
mod pg_logs;
mod pool_counts;
mod pre_images;
mod random;
mod regressions;
mod rollback;
mod salvage;
mod scrub;
mod small;
mod split;
mod verify;
mod workload;
