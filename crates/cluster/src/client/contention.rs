//! Attempts to change records that others change, too.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const ATTEMPTS_MAX: u32 = 64;
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Pauses between the attempts of a change that comes to nothing because others have changed the same records
/// meanwhile. They are random and grow, so that of many who try, none is always the last ("Exponential Backoff And
/// Jitter", AWS Architecture Blog, 2015: full jitter).
#[derive(Debug, Default)]
pub struct Contention {
    attempts: u32,
}

impl Contention {
    /// Waits until the next attempt; false if there were too many.
    pub async fn pause(&mut self) -> bool {
        self.attempts += 1;
        let longest = PAUSE_MAX.min(Duration::from_millis(1 << self.attempts.min(16)));
        tokio::time::sleep(longest.mul_f64(random_share())).await;
        self.attempts < ATTEMPTS_MAX
    }
}

/// Attempts something again while others change the same records, which `is_conflict` knows from the error. After
/// many attempts the last one's error is returned.
pub async fn retried<T, E, F: Future<Output = Result<T, E>>>(
    is_conflict: impl Fn(&E) -> bool,
    attempt: impl Fn() -> F,
) -> Result<T, E> {
    let mut contention = Contention::default();
    loop {
        match attempt().await {
            Err(error) if is_conflict(&error) && contention.pause().await => {}
            outcome => return outcome,
        }
    }
}

/// From 0 to 1. The standard library seeds its hashers at random.
fn random_share() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
