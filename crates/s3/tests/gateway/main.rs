//! The gateway over HTTP, on a cluster and a directory in memory.
// One program: each that speaks HTTP takes the better part of a minute to compile.

#![allow(clippy::unwrap_used)]

mod access;
mod beside;
mod boto3;
mod cuts;
mod faults;
mod forms;
mod inline;
mod look_ups;
mod memory;
mod moved_clock;
mod orphans;
mod pools;
mod sealing;
mod support;
mod tls;
mod unconfirmed;
