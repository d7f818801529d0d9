//! The threads that hash: each takes whatever waits, as many streams at a time as there are lanes, and
//! goes on with all of them in step. The more bodies arrive at once, the less each of them costs.

use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Stream;
use super::compress::{BLOCK_BYTES, LANES_MAX, State, compress_all};

/// The next pieces of a stream.
pub(super) struct Job {
    pub stream: Stream,
    pub pieces: VecDeque<Bytes>,
    pub answer: oneshot::Sender<Stream>,
}

/// One thread hashes some gigabytes a second when it is busy: a few are enough for any host.
const THREADS_MAX: usize = 4;
const CORES_PER_THREAD: usize = 8;

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    has_jobs: Condvar,
}

static QUEUE: LazyLock<&'static Queue> = LazyLock::new(|| {
    let queue: &'static Queue = Box::leak(Box::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..(cores / CORES_PER_THREAD).clamp(1, THREADS_MAX) {
        let thread = std::thread::Builder::new().name("md5".into());
        thread.spawn(|| queue.work()).expect("a process may have a few threads");
    }
    queue
});

/// Hands a job to the hashers.
pub(super) fn add(job: Job) {
    let queue = *QUEUE;
    queue.jobs.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
    queue.has_jobs.notify_one();
}

/// A job on its way, and blocks of it that come next.
struct Lane {
    job: Job,
    blocks: Bytes,
}

impl Lane {
    /// The lane, unless the job is done: then it is answered.
    fn ready(mut self) -> Option<Self> {
        if self.blocks.is_empty() {
            match self.job.stream.next_blocks(&mut self.job.pieces) {
                Some(blocks) => self.blocks = blocks,
                None => {
                    // Whoever asked may be gone.
                    let _ = self.job.answer.send(self.job.stream);
                    return None;
                }
            }
        }
        Some(self)
    }
}

impl Queue {
    fn work(&self) {
        let mut lanes: Vec<Lane> = Vec::with_capacity(LANES_MAX);
        loop {
            self.fill(&mut lanes);
            lanes = lanes.into_iter().filter_map(Lane::ready).collect();
            advance(&mut lanes);
        }
    }

    /// Takes jobs for the lanes that are free; waits if none is taken.
    fn fill(&self, lanes: &mut Vec<Lane>) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        while lanes.is_empty() && jobs.is_empty() {
            jobs = self.has_jobs.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        let count = (LANES_MAX - lanes.len()).min(jobs.len());
        lanes.extend(jobs.drain(..count).map(|job| Lane { job, blocks: Bytes::new() }));
    }
}

/// Goes on with all lanes by as much as each has.
fn advance(lanes: &mut [Lane]) {
    let Some(bytes) = lanes.iter().map(|lane| lane.blocks.len()).min() else { return };
    assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "lanes have whole blocks");
    let taken: Vec<Bytes> = lanes.iter_mut().map(|lane| lane.blocks.split_to(bytes)).collect();
    let mut states: Vec<State> = lanes.iter().map(|lane| lane.job.stream.state).collect();
    let blocks: Vec<&[u8]> = taken.iter().map(|blocks| &blocks[..]).collect();
    compress_all(&mut states, &blocks);
    lanes.iter_mut().zip(states).for_each(|(lane, state)| lane.job.stream.state = state);
}
