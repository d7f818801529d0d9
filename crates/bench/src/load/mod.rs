//! Clients at work: how many operations at once or how many a second, for how long, and what is
//! counted meanwhile. What an operation is, the targets say.

mod client;
mod pace;
mod processes;
mod random;

pub use client::{Done, Operations, Plan, Timer, run_client};
pub use pace::Pace;
pub use processes::{ClientVoice, Outcome, run_processes};
pub use random::Random;
