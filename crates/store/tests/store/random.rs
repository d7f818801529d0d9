//! A small deterministic random generator (xoshiro256++, Blackman and Vigna 2019), and settings of the
//! tests.

use atoll_store::simulated_disk::Chance;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

#[derive(Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

impl Chance for Random {
    fn below(&mut self, bound: u64) -> u64 {
        Random::below(self, bound)
    }
}

/// A number from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Runs `work` with the numbers from `first` on, on all cores, until it says that it is enough.
pub fn on_all_cores(first: u64, work: impl Fn(u64) -> bool + Sync) {
    let next = std::sync::atomic::AtomicU64::new(first);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while work(next.fetch_add(1, ordering)) {});
        }
    });
}
