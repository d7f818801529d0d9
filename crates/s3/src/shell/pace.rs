//! The least that a client must do while something waits for it: one that sends or takes a byte now and then holds
//! memory, and is no client.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes per second, on average over the time in which one who does nothing is given up.
pub(crate) const LEAST_BYTES_PER_SECOND: u64 = 1 << 10;

/// Watches one direction of a client. Only the time counts in which it is waited for.
pub(super) struct Pace {
    stall_timeout: Duration,
    /// Waited time of this period, which ends at a limit.
    waited: Duration,
    bytes: u64,
    silence: Option<Silence>,
}

/// The client is waited for, and does nothing.
struct Silence {
    since: Instant,
    /// Time up to which it was counted.
    counted: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Pace {
    pub(super) fn new(stall_timeout: Duration) -> Self {
        Pace { stall_timeout, waited: Duration::ZERO, bytes: 0, silence: None }
    }

    /// The client is waited for; ready when it is given up.
    pub(super) fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let left = self.stall_timeout.saturating_sub(self.waited);
        let silence = self.silence.get_or_insert_with(|| {
            let now = Instant::now();
            Silence { since: now, counted: now, timer: Box::pin(sleep_until(now + left)) }
        });
        let least = LEAST_BYTES_PER_SECOND * self.stall_timeout.as_millis() as u64 / 1_000;
        while silence.timer.as_mut().poll(context).is_ready() {
            let is_given_up = self.bytes < least.max(1) || silence.since.elapsed() >= self.stall_timeout;
            // Another period begins.
            (self.waited, self.bytes) = (Duration::ZERO, 0);
            if is_given_up {
                self.silence = None;
                return Poll::Ready(());
            }
            silence.counted = Instant::now();
            silence.timer.as_mut().reset(silence.since + self.stall_timeout);
        }
        Poll::Pending
    }

    /// Notes that the client has transferred `bytes` bytes.
    pub(super) fn went_on(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(silence) = self.silence.take() {
            self.waited += silence.counted.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns how long the gateway waits for a client that transfers `bytes` bytes after each pause.
    async fn patience(bytes: usize, pause: Duration) -> Option<Duration> {
        let (begun, mut pace) = (Instant::now(), Pace::new(MINUTE));
        while begun.elapsed() < 10 * MINUTE {
            if tokio::time::timeout(pause, poll_fn(|context| pace.wait(context))).await.is_ok() {
                return Some(begun.elapsed());
            }
            pace.went_on(bytes);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn who_drips_is_given_up() {
        let second = Duration::from_secs(1);
        assert_eq!(patience(0, 10 * MINUTE).await, Some(MINUTE));
        for (bytes, pause) in [(1, second), (1_000, second), (1, second / 10), (10_000, 20 * second)] {
            let patience = patience(bytes, pause).await.expect("it is given up");
            assert!(patience <= MINUTE + 20 * second, "{bytes} bytes each {pause:?}: {patience:?}");
        }
        for (bytes, pause) in [(1_100, second), (110, second / 10), (70_000, 50 * second)] {
            assert_eq!(patience(bytes, pause).await, None, "{bytes} bytes each {pause:?}");
        }
    }

    /// Time in which the gateway does not wait for the client is not the client's.
    #[tokio::test(start_paused = true)]
    async fn the_pace_of_others_does_not_count() {
        let mut pace = Pace::new(MINUTE);
        for _ in 0..100 {
            let waited = tokio::time::timeout(Duration::from_millis(1), poll_fn(|context| pace.wait(context)));
            assert!(waited.await.is_err());
            pace.went_on(1);
            tokio::time::sleep(MINUTE).await;
        }
    }
}
