//! Memory for data on its way: [`BlockBuffer`], aligned as devices need it, and [`Received`], which collects bytes
//! that arrive on a connection so that a device can take them without a copy.
//!
//! This crate knows no device and no connection, and uses no other crate of the workspace.

mod block;
mod received;

pub use block::{BLOCK_BYTES, BlockBuffer, keep_at_most};
pub use received::{LongRun, Received};
