//! The threads that hash: each takes the waiting streams, as many at a time as there are lanes, and processes all
//! of them in step. The more bodies arrive at once, the less each of them costs: so a job waits for those of the
//! other bodies that are arriving, until its answer is needed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::Stream;
use crate::compress::{BLOCK_BYTES, LANES_MAX, State, compress_all};

/// The next pieces of a stream.
pub(crate) struct Job {
    pub stream: Stream,
    pub pieces: VecDeque<Bytes>,
    pub answer: oneshot::Sender<Stream>,
}

/// One thread hashes some gigabytes a second when it is busy: a few are enough for any host.
const THREADS_MAX: usize = 4;
const CORES_PER_THREAD: usize = 8;

/// Bodies that are arriving or wait for their digest, in this process.
static BODY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A body that may have jobs to come.
pub(crate) struct OpenBody(());

impl OpenBody {
    pub fn new() -> Self {
        BODY_COUNT.fetch_add(1, Ordering::Relaxed);
        OpenBody(())
    }
}

impl Drop for OpenBody {
    fn drop(&mut self) {
        BODY_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// The answer of one of them is needed.
    is_urgent: bool,
}

impl Waiting {
    /// Returns true if waiting for more jobs costs more than it saves.
    fn is_worth_it(&self) -> bool {
        let wanted = BODY_COUNT.load(Ordering::Relaxed).clamp(1, LANES_MAX);
        self.jobs.len() >= wanted || self.is_urgent
    }
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    has_work: Condvar,
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

/// Hands a job to the hashers. It may wait until [`hurry`].
pub(crate) fn add(job: Job) {
    QUEUE.change(|waiting| waiting.jobs.push_back(job));
}

/// Notes that the answer of a job is needed.
pub(crate) fn hurry() {
    QUEUE.change(|waiting| waiting.is_urgent = !waiting.jobs.is_empty());
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
                    // The receiver may be gone.
                    let _ = self.job.answer.send(self.job.stream);
                    return None;
                }
            }
        }
        Some(self)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        change(&mut waiting);
        if waiting.is_worth_it() {
            self.has_work.notify_one();
        }
    }

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
        let mut waiting = self.lock();
        while lanes.is_empty() && !waiting.is_worth_it() {
            waiting = self.has_work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let count = (LANES_MAX - lanes.len()).min(waiting.jobs.len());
        lanes.extend(waiting.jobs.drain(..count).map(|job| Lane { job, blocks: Bytes::new() }));
        // The one that is needed may be among those that are left.
        waiting.is_urgent &= !waiting.jobs.is_empty();
    }
}

/// Advances all lanes by as much as each has.
fn advance(lanes: &mut [Lane]) {
    let Some(bytes) = lanes.iter().map(|lane| lane.blocks.len()).min() else { return };
    assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "lanes have whole blocks");
    let taken: Vec<Bytes> = lanes.iter_mut().map(|lane| lane.blocks.split_to(bytes)).collect();
    let mut states: Vec<State> = lanes.iter().map(|lane| lane.job.stream.state).collect();
    let blocks: Vec<&[u8]> = taken.iter().map(|blocks| &blocks[..]).collect();
    compress_all(&mut states, &blocks);
    lanes.iter_mut().zip(states).for_each(|(lane, state)| lane.job.stream.state = state);
}
