//! Threads that each run tasks of tokio and a client of their own: a call and its answer go from one task to another
//! on the same thread, and wake no other one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};

use atoll_cluster::MapChange;
use atoll_metrics::current_span::current_span;
use atoll_objects::{ClientError, ObjectClient};
use atoll_reactor::{GuestTurns, LocalRuntime, Wake};
use atoll_types::limits::CLIENT_CALLS_MAX;
use atoll_types::{ObjectName, PoolId, ReadOutcome, ReadRequest, WriteRequest};
use bytes::Bytes;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::local::{ClientConfig, LocalClient};
use crate::map_feed::{self, Follower};
use crate::router::{Answer, Call, Target};

/// Shared state of the tasks of one thread. It is found by the thread and not by the task, so that tasks are as
/// tokio wants them: fit for any thread.
struct Shared {
    reactor: LocalRuntime,
    client: LocalClient,
    /// Bounds the calls that are under way.
    permits: Arc<Semaphore>,
    /// Wakes the task that runs the client's loop.
    looper: RefCell<Waker>,
}

thread_local! {
    static SHARED: RefCell<Option<Rc<Shared>>> = const { RefCell::new(None) };
}

fn shared() -> Rc<Shared> {
    SHARED.with_borrow(Clone::clone).expect("who uses the client of a thread runs on a client thread")
}

/// Threads with a client each. They run as long as the process, unless one [fails](ClientThreads::failed).
///
/// ```no_run
/// use atoll_client::{ClientConfig, ClientThreads, ObjectClient, ThreadClient};
/// use atoll_types::{ObjectName, PoolId};
///
/// async fn size_of(config: &ClientConfig, name: &str) -> Result<u64, Box<dyn std::error::Error>> {
///     let threads = ClientThreads::start(1, config)?;
///     let object = ObjectName::new(name).ok_or("a name has 1 to 255 bytes")?;
///     let asking = threads.handles()[0].spawn(async { ThreadClient.stat(PoolId(1), object).await });
///     let (size_bytes, _version) = asking.await??;
///     Ok(size_bytes)
/// }
/// ```
pub struct ClientThreads {
    handles: Vec<Handle>,
    failed: UnboundedReceiver<io::Error>,
}

impl ClientThreads {
    /// Starts the threads.
    pub fn start(count: usize, config: &ClientConfig) -> io::Result<Self> {
        let (mut handles, mut followers) = (Vec::new(), Vec::new());
        let (fail, failed) = unbounded_channel();
        for index in 0..count {
            let (changes, receiver) = mpsc::channel();
            let (handle, wake) = start_thread(index, config.clone(), receiver, fail.clone())?;
            handles.push(handle);
            followers.push(Follower { changes, wake });
        }
        map_feed::start(config.cluster.clone(), followers)?;
        Ok(ClientThreads { handles, failed })
    }

    /// Waits until the event loop of one fails, and returns the reason: its tasks have ended, and tasks that are
    /// spawned there from now on end at once.
    pub async fn failed(&mut self) -> io::Error {
        self.failed.recv().await.unwrap_or_else(|| io::Error::other("all threads have ended"))
    }

    /// Where tasks that use a [`ThreadClient`] are spawned, one for each thread.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

fn start_thread(
    index: usize,
    config: ClientConfig,
    changes: mpsc::Receiver<Vec<MapChange>>,
    fail: UnboundedSender<io::Error>,
) -> io::Result<(Handle, Wake)> {
    let (ready, is_ready) = mpsc::channel();
    thread::Builder::new().name(format!("client-{index}")).spawn(move || {
        match start_client(config, changes) {
            Ok((tasks, turns, wake)) => {
                let _ = ready.send(Ok((tasks.handle().clone(), wake)));
                // As a task, not as what the runtime blocks on: to wake that takes a system call.
                let ended = tasks.block_on(async { tokio::spawn(run_loop(turns)).await });
                // Nobody may want to know any more.
                let _ = fail.send(ended.unwrap_or_else(io::Error::other));
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    is_ready.recv().map_err(|_| io::Error::other("the thread of an object client ended at once"))?
}

fn start_client(
    config: ClientConfig,
    changes: mpsc::Receiver<Vec<MapChange>>,
) -> io::Result<(Runtime, GuestTurns, Wake)> {
    let tasks = Builder::new_current_thread().enable_all().build()?;
    let reactor = LocalRuntime::new().map_err(|error| io::Error::other(error.to_string()))?;
    let turns = {
        let _within = tasks.enter();
        GuestTurns::new(&reactor)?
    };
    let client = LocalClient::following(&reactor, config, changes);
    let wake = reactor.wake_handle();
    let permits = Arc::new(Semaphore::new(CLIENT_CALLS_MAX));
    let shared = Shared { reactor, client, permits, looper: RefCell::new(Waker::noop().clone()) };
    SHARED.set(Some(Rc::new(shared)));
    Ok((tasks, turns, wake))
}

/// Runs the loop of this thread's client; returns why it failed.
async fn run_loop(mut turns: GuestTurns) -> io::Error {
    poll_fn(|context| {
        let shared = shared();
        shared.looper.borrow_mut().clone_from(context.waker());
        match turns.poll(&shared.reactor, context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    })
    .await
}

/// The client of the thread that a task runs on: one of [`ClientThreads`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadClient;

/// Drops the caller of a call of this thread.
struct ForgetOnDrop {
    sequence: u64,
    thread: ThreadId,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        // When the thread ends, the client may be gone before the last tasks. Another thread has other calls.
        let shared = SHARED.try_with(|shared| shared.borrow().clone());
        if thread::current().id() == self.thread
            && let Ok(Some(shared)) = shared
        {
            shared.client.forget(self.sequence);
        }
    }
}

impl ThreadClient {
    async fn call(self, target: Target, call: Call) -> Answer {
        let permits = Arc::clone(&shared().permits);
        let _permit = permits.acquire_owned().await.expect("it is never closed");
        let (sequence, receiver) = {
            let shared = shared();
            let begun = shared.client.begin(current_span(), target, call);
            shared.looper.borrow().wake_by_ref();
            begun
        };
        let _forget = ForgetOnDrop { sequence, thread: thread::current().id() };
        receiver.await.unwrap_or(Err(ClientError::ShutDown))
    }
}

impl ObjectClient for ThreadClient {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        let answer = self.call(Target::ByName(pool), Call::Read(object.clone(), request)).await?;
        answer.ok_or(ClientError::UnexpectedAnswer { object })
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        self.call(Target::ByName(pool), Call::Write(request)).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Context;

    use atoll_cluster::ConnectOptions;
    use atoll_wire::KeyPair;
    use futures::FutureExt;

    use super::*;

    /// A thread with a client whose cluster state does not answer.
    fn one_thread() -> ClientThreads {
        let cluster = ConnectOptions::new(["http://127.0.0.1:1"]);
        let config = ClientConfig { key: KeyPair::from_private([1; 32]), cluster, timeout_ms: 60_000 };
        ClientThreads::start(1, &config).unwrap()
    }

    /// Runs a task on such a thread.
    fn run(task: impl Future<Output = ()> + Send + 'static) {
        futures::executor::block_on(one_thread().handles()[0].spawn(task)).unwrap();
    }

    /// A call that has been begun, if it has its turn.
    fn begun() -> Pin<Box<impl Future<Output = Result<(u64, u64), ClientError>>>> {
        let object = ObjectName::new("nowhere").unwrap();
        let mut call = Box::pin(async { ThreadClient.stat(PoolId(1), object).await.map(|_| (0, 0)) });
        assert!(call.poll_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    }

    async fn calls_beyond_the_limit() {
        let mut calls: Vec<_> = (0..CLIENT_CALLS_MAX).map(|_| begun()).collect();
        assert_eq!(shared().permits.available_permits(), 0);
        let next = begun();
        drop(calls.pop());
        assert_eq!(shared().permits.available_permits(), 0, "the next one has the turn");
        drop(next);
        assert_eq!(shared().permits.available_permits(), 1);
    }

    #[test]
    fn calls_beyond_the_limit_wait_for_their_turn() {
        run(calls_beyond_the_limit());
    }

    async fn a_call_that_nobody_waits_for() {
        let call = begun();
        assert!(shared().client.0.router.borrow().has_outstanding());
        drop(call);
        assert!(!shared().client.0.router.borrow().has_outstanding());
    }

    #[test]
    fn an_abandoned_call_is_forgotten() {
        run(a_call_that_nobody_waits_for());
    }

    #[test]
    fn a_failed_loop_is_reported() {
        let mut threads = one_thread();
        threads.handles()[0].spawn(async { SHARED.set(None) });
        let error = futures::executor::block_on(threads.failed());
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
