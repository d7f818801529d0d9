//! Clients at work: operations at once or per second, the duration, and the counts. The targets define an
//! operation.

mod client;
mod pace;
mod processes;
mod random;

pub use client::{Done, Operations, Plan, Timer, run_client};
pub use pace::Pace;
pub use processes::{ClientVoice, Outcome, run_processes};
pub use random::Random;
