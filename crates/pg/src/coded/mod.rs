//! Erasure-coded groups: every member holds a shard of each object (DESIGN section 6, "EC").

mod shape;
mod update;
