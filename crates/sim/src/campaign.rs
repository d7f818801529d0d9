//! Many seeds, on several threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Setup, Statistics, simulate};

/// Which seeds to run and how.
#[derive(Clone, Debug)]
pub struct Campaign {
    pub first: u64,
    pub seeds: u64,
    pub jobs: usize,
    /// Setup of every run.
    pub setup: Setup,
    /// Runs each seed twice: both runs must give the same trace.
    pub twice: bool,
    /// Stops after this many failures.
    pub failures_max: usize,
}

/// A seed that failed, and its message.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub cause: String,
}

/// Results of all seeds together.
#[derive(Default, Debug)]
pub struct Report {
    pub seeds: u64,
    pub statistics: Statistics,
    /// In order of seeds.
    pub failures: Vec<Failure>,
}

impl Campaign {
    /// Runs the seeds. `progress` gets the number of those done and of all.
    pub fn run(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> Report {
        let next = AtomicU64::new(0);
        let has_enough = AtomicBool::new(false);
        let report = Mutex::new(Report::default());
        let work = || {
            while !has_enough.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.seeds {
                    return;
                }
                let seed = self.first.wrapping_add(index);
                let result = catch_unwind(AssertUnwindSafe(|| self.run_seed(seed)));
                let mut report = report.lock().unwrap();
                report.seeds += 1;
                match result {
                    Ok(statistics) => report.statistics.add(&statistics),
                    Err(panic) => report.failures.push(Failure { seed, cause: text_of(&*panic) }),
                }
                has_enough.store(report.failures.len() >= self.failures_max, Ordering::Relaxed);
                progress(report.seeds, self.seeds);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(work);
            }
        });
        let mut report = report.into_inner().unwrap();
        report.failures.sort_by_key(|failure| failure.seed);
        report
    }

    fn run_seed(&self, seed: u64) -> Statistics {
        let outcome = simulate(seed, self.setup);
        if self.twice {
            let again = simulate(seed, self.setup);
            assert_eq!(outcome.trace, again.trace, "the same seed gives the same trace");
        }
        outcome.statistics
    }
}

/// Returns the text of a panic.
pub fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
