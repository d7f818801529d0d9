//! Detects that the system's clock stood still: that of a virtual machine may while its host has paused it, and
//! then measured times are too short. The processor's own counter continues meanwhile.

use std::time::Duration;

/// A gap of this length between two clocks is noticed; users of the clock must tolerate shorter ones.
const GAP_MIN: Duration = Duration::from_millis(50);
/// Time in which the counter is compared with the clock at first, to learn its rate.
const LEARNING: Duration = Duration::from_millis(200);
/// Interval after which the clocks are set equal again, or small differences of their rates would add up.
const WINDOW: Duration = Duration::from_secs(1);

/// Ticks of the processor's counter, which nothing but a reset stops; `None` where there is none.
fn processor_ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and it changes nothing but registers.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Compares the clock that a process goes by with the processor's counter.
#[derive(Default)]
pub struct ClockWatch {
    /// When both were set equal: the clock, and the counter.
    equal_at: Option<(Duration, u64)>,
    ticks_per_us: Option<f64>,
}

impl ClockWatch {
    /// Compares the clock's time with the processor's counter; to be called often. True if it stood still for 50
    /// ms or more in the last second. For 200 ms from the beginning, and after each time that it did, nothing is
    /// noticed: the rate is learned.
    pub fn stood_still(&mut self, now: Duration) -> bool {
        processor_ticks().is_some_and(|ticks| self.compare(now, ticks))
    }

    fn compare(&mut self, now: Duration, ticks: u64) -> bool {
        let Some((clock, counter)) = self.equal_at else {
            self.equal_at = Some((now, ticks));
            return false;
        };
        let passed = now.saturating_sub(clock);
        // Less is another processor's counter, after a migration: who knows how long that took.
        let Some(counted) = ticks.checked_sub(counter) else { return self.begin_anew(now, ticks) };
        let Some(ticks_per_us) = self.ticks_per_us else {
            if passed >= LEARNING {
                self.ticks_per_us = Some(counted as f64 / passed.as_secs_f64() / 1e6);
                self.equal_at = Some((now, ticks));
            }
            return false;
        };
        let gap_us = counted as f64 / ticks_per_us - passed.as_secs_f64() * 1e6;
        if gap_us >= GAP_MIN.as_secs_f64() * 1e6 {
            return self.begin_anew(now, ticks);
        }
        if passed >= WINDOW {
            // A gap while the rate was learned would have made it too high.
            let rate = counted as f64 / passed.as_secs_f64() / 1e6;
            self.ticks_per_us = Some(ticks_per_us.min(rate));
            self.equal_at = Some((now, ticks));
        }
        false
    }

    fn begin_anew(&mut self, now: Duration, ticks: u64) -> bool {
        *self = ClockWatch { equal_at: Some((now, ticks)), ticks_per_us: None };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS_PER_MS: u64 = 2_900_000;

    /// Asks every 10 ms of the counter's time.
    struct World {
        watch: ClockWatch,
        clock: Duration,
        ticks: u64,
    }

    impl World {
        fn new() -> Self {
            World { watch: ClockWatch::default(), clock: Duration::from_secs(5), ticks: 77 }
        }

        fn passes(&mut self, ms: u64) -> bool {
            (0..ms / 10).fold(false, |noticed, _| {
                self.clock += Duration::from_millis(10);
                self.ticks += 10 * TICKS_PER_MS;
                self.watch.compare(self.clock, self.ticks) || noticed
            })
        }

        fn stands_still(&mut self, ms: u64) -> bool {
            self.ticks += ms * TICKS_PER_MS;
            self.watch.compare(self.clock, self.ticks)
        }
    }

    #[test]
    fn a_clock_that_stood_still_is_noticed_once() {
        let mut world = World::new();
        assert!(!world.passes(10_000));
        assert!(world.stands_still(60));
        assert!(!world.passes(10_000));
        assert!(world.stands_still(3_600_000));
        assert!(!world.passes(10_000));
        assert!(!world.stands_still(20), "what is relied on bears that");
    }

    #[test]
    fn short_gaps_add_up() {
        let mut world = World::new();
        assert!(!world.passes(2_000));
        assert!(!world.stands_still(30));
        assert!(!world.passes(50));
        assert!(world.stands_still(30));
    }

    #[test]
    fn a_gap_while_the_rate_is_learned_is_forgotten_within_seconds() {
        let mut world = World::new();
        world.passes(100);
        world.stands_still(500);
        assert!(!world.passes(3_000));
        assert!(world.stands_still(60));
    }

    #[test]
    fn another_counter_is_noticed() {
        let mut world = World::new();
        world.passes(2_000);
        world.ticks = 5;
        assert!(world.passes(10));
        assert!(!world.passes(5_000));
    }

    #[test]
    fn the_clocks_of_this_machine_agree() {
        let (mut watch, begun) = (ClockWatch::default(), std::time::Instant::now());
        let noticed = (0..100).filter(|_| {
            std::thread::sleep(Duration::from_millis(10));
            watch.stood_still(begun.elapsed())
        });
        assert!(noticed.count() <= 1, "more than the host can have paused this");
    }
}
