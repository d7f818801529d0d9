//! Failures that disclose nothing about their cause.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

/// Runs a call for at most `time`. A failure is returned when the time is over and not before, so that its time
/// discloses nothing about the target. `None` if there was no answer.
pub async fn failing_late<T, E>(time: Duration, call: impl Future<Output = Result<T, E>>) -> Option<Result<T, E>> {
    let end = Instant::now() + time;
    let answer = timeout_at(end, call).await.ok();
    if !matches!(answer, Some(Ok(_))) {
        sleep_until(end).await;
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_take_the_same_time_and_answers_their_own() {
        let time = Duration::from_secs(5);
        for pause_ms in [0, 100, 4_999, 60_000] {
            let begun = Instant::now();
            let call = async {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                Err::<(), _>("refused")
            };
            let answer = failing_late(time, call).await;
            assert_eq!(answer.is_none(), pause_ms > 5_000);
            assert_eq!(begun.elapsed(), time, "{pause_ms} ms");
        }
        let begun = Instant::now();
        assert_eq!(failing_late(time, async { Ok::<_, ()>(1) }).await, Some(Ok(1)));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
