//! Ages a simulated 1 TiB device and prints the fragmentation and the cost of new allocations: for the allocator
//! of the store and for next-fit, its predecessor.
//!
//! `cargo run --release -p atoll-store --example fragmentation [turnovers] [GiB] [percent]...`
//!
//! Four fifths of the bytes are objects of 4 MiB, the rest objects of 4 to 64 KiB; metadata takes one block in a
//! hundred. In each round, until every byte has been replaced `turnovers` times, 1 GiB of random objects is
//! deleted and as much written in random order, and a checkpoint rewrites 8192 random metadata pages in batches of
//! 256. Deleted or rewritten blocks become free when the checkpoint ends. The figures are those of the last
//! turnover. Calls are timed one by one, so that a figure includes about 20 ns for reading the clock.

use std::time::Instant;

use atoll_store::allocator::{Allocator, Run, Zone};

const LARGE_BLOCKS: u32 = 1024;
const SMALL_BLOCKS_MAX: u32 = 16;
/// About 1 GiB: 204 large objects and a quarter as much in small ones.
const ROUND_BLOCKS: u32 = 204 * LARGE_BLOCKS / 4 * 5;
const PAGES_PER_CHECKPOINT: usize = 8192;
const BATCH_PAGES: usize = 256;

trait Policy {
    fn new(block_count: u32) -> Self;
    fn allocate(&mut self, count: u32, zone: Zone) -> Option<Vec<Run>>;
    fn release_run(&mut self, run: Run);
}

impl Policy for Allocator {
    fn new(block_count: u32) -> Self {
        Allocator::new(0, block_count.into())
    }

    fn allocate(&mut self, count: u32, zone: Zone) -> Option<Vec<Run>> {
        self.allocate(count, zone)
    }

    fn release_run(&mut self, (first, count): Run) {
        self.release_run(first, count);
    }
}

/// The store's former allocator: a bitmap and a cursor.
struct NextFit {
    words: Vec<u64>,
    block_count: u32,
    free_count: u32,
    cursor: u32,
}

impl NextFit {
    fn is_used(&self, index: u32) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 == 1
    }

    fn next_free(&self, from: u32) -> Option<u32> {
        let mut word_index = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while word_index < self.words.len() {
            let free = !self.words[word_index] & mask;
            if free != 0 {
                let index = word_index as u32 * 64 + free.trailing_zeros();
                return (index < self.block_count).then_some(index);
            }
            word_index += 1;
            mask = u64::MAX;
        }
        None
    }
}

impl Policy for NextFit {
    fn new(block_count: u32) -> Self {
        let words = vec![0; (block_count as usize).div_ceil(64)];
        NextFit { words, block_count, free_count: block_count, cursor: 0 }
    }

    fn allocate(&mut self, count: u32, _zone: Zone) -> Option<Vec<Run>> {
        if count > self.free_count {
            return None;
        }
        let mut runs = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let start = self.next_free(self.cursor).or_else(|| self.next_free(0));
            let start = start.expect("the free count says that a block is free");
            let mut length = 0;
            while length < missing && start + length < self.block_count && !self.is_used(start + length) {
                let index = start + length;
                self.words[index as usize / 64] |= 1 << (index % 64);
                length += 1;
            }
            runs.push((start, length));
            self.cursor = start + length;
            missing -= length;
        }
        self.free_count -= count;
        Some(runs)
    }

    fn release_run(&mut self, (first, count): Run) {
        for index in first..first + count {
            assert!(self.is_used(index), "block {index} is released twice");
            self.words[index as usize / 64] &= !(1 << (index % 64));
        }
        self.free_count += count;
    }
}

/// SplitMix64: the same sequence on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * bound as u128) >> 64) as usize
    }
}

/// Run counts and times of the allocations of one size.
#[derive(Default)]
struct Figures {
    run_counts: Vec<u32>,
    times_ns: Vec<u32>,
}

impl Figures {
    fn mean(values: &[u32]) -> f64 {
        values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len().max(1) as f64
    }

    fn p99(values: &mut [u32]) -> u32 {
        values.sort_unstable();
        values.get(values.len() * 99 / 100).copied().unwrap_or(0)
    }
}

struct Device<P> {
    policy: P,
    random: Random,
    large: Vec<Box<[Run]>>,
    small: Vec<Box<[Run]>>,
    pages: Vec<u32>,
    freed: Vec<Run>,
    /// Blocks of objects and pages, without those that wait for a checkpoint to be free.
    used_blocks: u32,
    large_figures: Figures,
    /// Figures of allocations of one block.
    small_figures: Figures,
    page_figures: Figures,
}

impl<P: Policy> Device<P> {
    fn new(block_count: u32) -> Self {
        let mut device = Device {
            policy: P::new(block_count),
            random: Random(7),
            large: Vec::new(),
            small: Vec::new(),
            pages: Vec::new(),
            freed: Vec::new(),
            used_blocks: 0,
            large_figures: Figures::default(),
            small_figures: Figures::default(),
            page_figures: Figures::default(),
        };
        for _ in 0..block_count as usize / 100 / BATCH_PAGES {
            let batch = device.write_pages();
            device.pages.extend(batch);
        }
        device.used_blocks = device.pages.len() as u32;
        device
    }

    fn allocate(policy: &mut P, count: u32, zone: Zone, figures: &mut Figures) -> Vec<Run> {
        let start = Instant::now();
        let runs = policy.allocate(count, zone).expect("the simulation never fills the device");
        figures.times_ns.push(start.elapsed().as_nanos() as u32);
        figures.run_counts.push(runs.len() as u32);
        runs
    }

    fn write_pages(&mut self) -> impl Iterator<Item = u32> + use<P> {
        let count = BATCH_PAGES as u32;
        let runs = Self::allocate(&mut self.policy, count, Zone::Metadata, &mut self.page_figures);
        runs.into_iter().flat_map(|(first, count)| first..first + count)
    }

    /// Writes objects of `block_count` blocks altogether.
    fn write(&mut self, block_count: u32) {
        let (mut large, mut small) = (block_count / 5 * 4, block_count / 5);
        while large >= LARGE_BLOCKS || small > 0 {
            // Either kind has its share of the bytes at any time.
            if large >= LARGE_BLOCKS && large / 4 >= small {
                let runs = Self::allocate(&mut self.policy, LARGE_BLOCKS, Zone::Data, &mut self.large_figures);
                self.large.push(runs.into());
                large -= LARGE_BLOCKS;
                self.used_blocks += LARGE_BLOCKS;
            } else {
                let count = (1 + self.random.below(SMALL_BLOCKS_MAX as usize) as u32).min(small);
                let runs = if count == 1 {
                    Self::allocate(&mut self.policy, 1, Zone::Data, &mut self.small_figures)
                } else {
                    self.policy.allocate(count, Zone::Data).expect("the simulation never fills the device")
                };
                self.small.push(runs.into());
                small -= count;
                self.used_blocks += count;
            }
        }
    }

    /// Deletes objects of `block_count` blocks altogether.
    fn delete(&mut self, block_count: u32) {
        for (objects, share) in [(&mut self.large, block_count / 5 * 4), (&mut self.small, block_count / 5)] {
            let mut deleted = 0;
            while deleted < share {
                let runs = objects.swap_remove(self.random.below(objects.len()));
                deleted += runs.iter().map(|run| run.1).sum::<u32>();
                self.freed.extend(runs);
            }
            self.used_blocks -= deleted;
        }
    }

    fn checkpoint(&mut self) {
        for _ in 0..PAGES_PER_CHECKPOINT.min(self.pages.len()) / BATCH_PAGES {
            for page in self.write_pages() {
                let index = self.random.below(self.pages.len());
                let old = std::mem::replace(&mut self.pages[index], page);
                self.freed.push((old, 1));
            }
        }
        for run in self.freed.drain(..) {
            self.policy.release_run(run);
        }
    }
}

fn age<P: Policy>(name: &str, block_count: u32, fill_percent: u32, turnovers: u32) {
    let mut device = Device::<P>::new(block_count);
    let target = (u64::from(block_count) * u64::from(fill_percent) / 100) as u32;
    let data_blocks = target - device.used_blocks;
    for _ in 0..data_blocks / ROUND_BLOCKS {
        device.write(ROUND_BLOCKS);
    }
    for turnover in 0..turnovers {
        if turnover + 1 == turnovers {
            device.large_figures = Figures::default();
            device.small_figures = Figures::default();
            device.page_figures = Figures::default();
        }
        for _ in 0..data_blocks / ROUND_BLOCKS {
            // A round may delete up to one object too much; the next one makes up for it.
            let missing = target - device.used_blocks.min(target);
            device.delete(ROUND_BLOCKS.saturating_sub(missing));
            device.write(ROUND_BLOCKS);
            device.checkpoint();
        }
    }
    let Figures { run_counts: mut large_runs, times_ns: large_ns } = device.large_figures;
    let Figures { times_ns: small_ns, .. } = device.small_figures;
    let Figures { run_counts: page_runs, times_ns: page_ns } = device.page_figures;
    println!(
        "| {fill_percent}% | {name} | {:.1} | {} | {:.0} | {:.0} | {:.1} | {:.0} |",
        Figures::mean(&large_runs),
        Figures::p99(&mut large_runs),
        Figures::mean(&large_ns),
        Figures::mean(&small_ns),
        Figures::mean(&page_runs),
        Figures::mean(&page_ns),
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u32>().expect("a number"));
    let turnovers = arguments.next().unwrap_or(3);
    let block_count = arguments.next().unwrap_or(1024) << 18;
    let mut fill_percents: Vec<u32> = arguments.collect();
    if fill_percents.is_empty() {
        fill_percents = vec![50, 80, 90, 95];
    }
    println!("| full | policy | runs per 4 MiB | p99 | ns per 4 MiB | ns per 4 KiB | runs per 256 pages | ns |");
    println!("|---|---|---|---|---|---|---|---|");
    for fill_percent in fill_percents {
        age::<NextFit>("next-fit", block_count, fill_percent, turnovers);
        age::<Allocator>("new", block_count, fill_percent, turnovers);
    }
}
