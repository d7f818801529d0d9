//! The one thread that writes. It takes whatever requests have queued up while the last commit was
//! on its way to the disk, applies them in order, commits them together, shows the new state to
//! readers and watchers, and only then answers. So an answer means that it is on disk, and many
//! clients share the price of one flush.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use super::batch::Batch;
use super::change::Change;
use super::disk::Disk;
use super::history::History;
use super::limits;
use super::metrics;
use super::state::State;
use super::status;

/// Informs the requester of the outcome, once the commit has succeeded or failed.
type Deliver = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// A request: its work, and if its effects are to be kept.
type Job = Box<dyn FnOnce(&mut Change) -> (bool, Deliver) + Send>;

enum Message {
    Job(Job),
    Stop,
}

/// The way to the writer, and the writer's last published state.
#[derive(Clone)]
pub struct WriterHandle {
    queue: mpsc::Sender<Message>,
    published: watch::Receiver<Arc<State>>,
    history: Arc<Mutex<History>>,
}

impl WriterHandle {
    /// Starts the thread; it owns the disk until it is joined.
    pub fn start(disk: Disk, state: State) -> std::io::Result<(WriterHandle, std::thread::JoinHandle<()>)> {
        let (queue, jobs) = mpsc::channel(limits::WRITE_QUEUE);
        let history = Arc::new(Mutex::new(History::new(state.revision)));
        let (publish, published) = watch::channel(Arc::new(state.clone()));
        let writer = Writer { disk, state, history: history.clone(), publish, broken: false };
        let thread = std::thread::Builder::new().name("cluster-state".into()).spawn(move || writer.run(jobs))?;
        Ok((WriterHandle { queue, published, history }, thread))
    }

    /// The newest durable state.
    pub fn state(&self) -> Arc<State> {
        self.published.borrow().clone()
    }

    /// Follows the newest durable state.
    pub fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.published.clone()
    }

    /// Runs `read` on the recent events.
    pub fn with_history<R>(&self, read: impl FnOnce(&History) -> R) -> R {
        read(&self.history.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies `work` and returns its answer when it is durable. The work continues even if the caller stops
    /// waiting.
    pub async fn submit<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Change) -> Result<R, Status> + Send + 'static,
    ) -> Result<R, Status> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |change| {
            let result = work(change);
            let keep = result.is_ok();
            let deliver = move |committed: Result<(), Status>| {
                // A requester that went away does not want to know.
                let _ = reply.send(committed.and(result));
            };
            (keep, Box::new(deliver))
        });
        self.queue.send(Message::Job(job)).await.map_err(|_| status::stopped())?;
        answer.await.map_err(|_| status::stopped())?
    }

    /// Lets it finish the queue and end.
    pub async fn stop(&self) {
        // An error means that it has ended already.
        let _ = self.queue.send(Message::Stop).await;
    }
}

struct Writer {
    disk: Disk,
    state: State,
    history: Arc<Mutex<History>>,
    publish: watch::Sender<Arc<State>>,
    /// After a failed commit the content of the disk is unknown: nothing more is accepted, and the thread ends. A
    /// later opening of the file finds all answered commits.
    broken: bool,
}

impl Writer {
    fn run(mut self, mut jobs: mpsc::Receiver<Message>) {
        let mut stopping = false;
        while !stopping {
            let Some(first) = jobs.blocking_recv() else { break };
            let mut round = vec![first];
            while round.len() < limits::WRITE_BATCH
                && let Ok(next) = jobs.try_recv()
            {
                round.push(next);
            }
            let mut work = Vec::with_capacity(round.len());
            for message in round {
                match message {
                    Message::Job(job) => work.push(job),
                    Message::Stop => stopping = true,
                }
            }
            self.perform(work);
            if self.broken {
                return;
            }
        }
    }

    fn perform(&mut self, work: Vec<Job>) {
        let mut next = self.state.clone();
        let mut batch = Batch::default();
        let mut revisions = Vec::new();
        let mut answers = Vec::with_capacity(work.len());
        for job in work {
            let mut change = Change::begin(&next);
            let (keep, deliver) = job(&mut change);
            answers.push(deliver);
            if keep {
                let finished = change.finish();
                batch.add(&finished);
                if !finished.events.is_empty() {
                    revisions.push((finished.state.revision, finished.events));
                }
                next = finished.state;
            }
        }
        if !batch.is_empty() && !self.broken {
            let started = Instant::now();
            match self.disk.commit(&batch, &next) {
                Ok(()) => {
                    metrics::committed(started.elapsed(), next.stored_bytes);
                    self.show(next, revisions);
                }
                Err(error) => {
                    tracing::error!(%error, "cluster state cannot be written any more");
                    self.broken = true;
                }
            }
        }
        for deliver in answers {
            deliver(if self.broken { Err(status::disk_failed()) } else { Ok(()) });
        }
    }

    /// Events first: a reader that sees the new revision must find its events.
    fn show(&mut self, next: State, revisions: Vec<(i64, Vec<super::change::Event>)>) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, events) in revisions {
            history.push(number, events);
        }
        history.compact(next.compacted);
        drop(history);
        self.state = next.clone();
        self.publish.send_replace(Arc::new(next));
    }
}
