//! Tasks over the loop: streams, listeners, sleeping and wake-ups for futures that stay on one
//! thread. Everything that tasks send in one turn goes to the kernel together.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atoll_buffers::{BlockBuffer, Received};
use bytes::Bytes;

use crate::connection::{ConnectionId, ListenAddress, ListenerId, PeerAddress};
use crate::executor::LocalExecutor;
use crate::file::DirectFile;
use crate::reactor::{CloseCause, Event, FileId, FileOperation, Reactor, ReactorError};
use crate::transport::rdma::RdmaAddress;
use crate::wake::Wake;

#[derive(Default)]
struct StreamState {
    waker: Option<Waker>,
    is_connected: bool,
    has_news: bool,
    closed: Option<io::ErrorKind>,
}

#[derive(Default)]
struct ListenerState {
    waker: Option<Waker>,
    accepted: VecDeque<ConnectionId>,
}

/// A file operation that some task waits for.
enum FileState {
    Waiting(Waker),
    Done(io::Result<Option<BlockBuffer>>),
}

type Hook = Rc<dyn Fn()>;

struct Inner {
    reactor: RefCell<Reactor>,
    executor: LocalExecutor,
    streams: RefCell<HashMap<ConnectionId, StreamState>>,
    listeners: RefCell<HashMap<ListenerId, ListenerState>>,
    timers: RefCell<HashMap<u64, Waker>>,
    next_timer: Cell<u64>,
    files: RefCell<HashMap<u64, FileState>>,
    next_file_operation: Cell<u64>,
    wake_hooks: RefCell<Vec<Hook>>,
    turn_hooks: RefCell<Vec<Hook>>,
    /// True if peers that share memory know that this thread sleeps.
    is_asleep: Cell<bool>,
    started: Instant,
}

/// A reactor and the tasks that use it. Clones are handles to the same one.
#[derive(Clone)]
pub struct LocalRuntime(Rc<Inner>);

impl LocalRuntime {
    /// Sets up a ring for this thread.
    pub fn new() -> Result<Self, ReactorError> {
        Ok(LocalRuntime(Rc::new(Inner {
            reactor: RefCell::new(Reactor::new()?),
            executor: LocalExecutor::default(),
            streams: RefCell::default(),
            listeners: RefCell::default(),
            timers: RefCell::default(),
            next_timer: Cell::new(1),
            files: RefCell::default(),
            next_file_operation: Cell::new(1),
            wake_hooks: RefCell::default(),
            turn_hooks: RefCell::default(),
            is_asleep: Cell::new(false),
            started: Instant::now(),
        })))
    }

    /// Adds a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(task);
    }

    /// Milliseconds since the runtime was made.
    pub fn now_ms(&self) -> u64 {
        self.0.started.elapsed().as_millis() as u64
    }

    /// Returns a handle with which other threads wake this one; see [`LocalRuntime::on_wake`].
    pub fn wake_handle(&self) -> Wake {
        self.0.reactor.borrow().wake_handle()
    }

    /// Calls `hook` whenever another thread has used a wake-up.
    pub fn on_wake(&self, hook: impl Fn() + 'static) {
        self.0.wake_hooks.borrow_mut().push(Rc::new(hook));
    }

    /// Calls `hook` at the end of every turn, before sent bytes go to the kernel.
    pub fn on_turn_end(&self, hook: impl Fn() + 'static) {
        self.0.turn_hooks.borrow_mut().push(Rc::new(hook));
    }

    /// Runs all tasks until `main` is done.
    pub fn block_on<T>(&self, main: impl Future<Output = T>) -> io::Result<T> {
        let mut main = pin!(main);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            // The main future is polled every turn; what it waits for wakes the loop in any case.
            if let Poll::Ready(value) = main.as_mut().poll(&mut context) {
                self.end_turn();
                return Ok(value);
            }
            self.0.executor.run_ready();
            if let Poll::Ready(value) = main.as_mut().poll(&mut context) {
                self.end_turn();
                return Ok(value);
            }
            self.turn(None)?;
        }
    }

    fn end_turn(&self) {
        let hooks = self.0.turn_hooks.borrow().clone();
        hooks.iter().for_each(|hook| hook());
    }

    /// Ends a turn, waits for events (at most `wait`), and runs the tasks that these make ready. True if something
    /// happened.
    fn turn(&self, wait: Option<Duration>) -> io::Result<bool> {
        self.end_turn();
        let mut events = Vec::new();
        self.0.reactor.borrow_mut().poll(wait, &mut events)?;
        let has_happened = !events.is_empty();
        for event in events {
            self.event(event);
        }
        self.0.executor.run_ready();
        Ok(has_happened)
    }

    /// A turn that does not wait. True if something happened: then there may be more.
    pub(crate) fn look(&self) -> io::Result<bool> {
        if self.0.is_asleep.replace(false) {
            self.0.reactor.borrow_mut().awake();
        }
        self.0.executor.run_ready();
        self.turn(Some(Duration::ZERO))
    }

    /// After a turn in which nothing happened: prepares for the thread to wait for the tellers. Gives how long it may
    /// wait, if there is a limit; zero: not at all.
    pub(crate) fn fall_asleep(&self) -> io::Result<Option<Duration>> {
        self.0.is_asleep.set(true);
        self.0.reactor.borrow_mut().fall_asleep()
    }

    /// Returns descriptors that report new events; see [`Reactor::tellers`].
    pub(crate) fn tellers(&self) -> io::Result<[OwnedFd; 3]> {
        self.0.reactor.borrow_mut().tellers()
    }

    fn event(&self, event: Event) {
        match event {
            Event::Accepted { listener, connection } => {
                let state = StreamState { is_connected: true, ..StreamState::default() };
                self.0.streams.borrow_mut().insert(connection, state);
                if let Some(listener) = self.0.listeners.borrow_mut().get_mut(&listener) {
                    listener.accepted.push_back(connection);
                    listener.waker.take().into_iter().for_each(Waker::wake);
                }
            }
            Event::Connected(id) => self.stream_news(id, |state| state.is_connected = true),
            Event::Received(id) => self.stream_news(id, |state| state.has_news = true),
            Event::Closed(id, cause) => self.stream_news(id, |state| {
                state.closed = Some(match cause {
                    CloseCause::EndOfStream => io::ErrorKind::UnexpectedEof,
                    CloseCause::Failed(error) => error.kind(),
                });
            }),
            Event::Timer(tag) => {
                let waker = self.0.timers.borrow_mut().remove(&tag);
                waker.into_iter().for_each(Waker::wake);
            }
            Event::Woken => {
                let hooks = self.0.wake_hooks.borrow().clone();
                hooks.iter().for_each(|hook| hook());
            }
            Event::File { tag, result } => {
                if let Some(FileState::Waiting(waker)) =
                    self.0.files.borrow_mut().insert(tag, FileState::Done(result))
                {
                    waker.wake();
                }
            }
        }
    }

    fn stream_news(&self, id: ConnectionId, change: impl FnOnce(&mut StreamState)) {
        if let Some(state) = self.0.streams.borrow_mut().get_mut(&id) {
            change(state);
            state.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Listens; returns the listener and the address with the port that was chosen.
    pub fn listen(&self, address: &ListenAddress) -> io::Result<(Listener, ListenAddress)> {
        let (id, address) = self.0.reactor.borrow_mut().listen(address)?;
        self.0.listeners.borrow_mut().insert(id, ListenerState::default());
        Ok((Listener { runtime: self.clone(), id }, address))
    }

    /// Connects to the abstract Unix socket of this name; see [`Reactor::connect_local`].
    pub fn connect_local(&self, name: &str) -> io::Result<Stream> {
        let id = self.0.reactor.borrow_mut().connect_local(name)?;
        Ok(self.add_stream(id))
    }

    /// Connects by shared memory to the listener of this name; see [`Reactor::connect_shared`].
    pub fn connect_shared(&self, name: &str) -> io::Result<Stream> {
        let id = self.0.reactor.borrow_mut().connect_shared(name)?;
        Ok(self.add_stream(id))
    }

    fn add_stream(&self, id: ConnectionId) -> Stream {
        self.0.streams.borrow_mut().insert(id, StreamState::default());
        Stream { runtime: self.clone(), id, closes_itself: Cell::new(false) }
    }

    /// Connects to a TCP address.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let id = self.0.reactor.borrow_mut().connect(address)?;
        self.connected(id).await
    }

    async fn connected(&self, id: ConnectionId) -> io::Result<Stream> {
        let stream = self.add_stream(id);
        std::future::poll_fn(|context| stream.poll_state(context, |state| state.is_connected)).await?;
        Ok(stream)
    }

    /// Connects over RDMA.
    pub async fn connect_rdma(&self, address: &RdmaAddress) -> io::Result<Stream> {
        let id = self.0.reactor.borrow_mut().connect_rdma(address)?;
        self.connected(id).await
    }

    /// The last thing that kept a peer from a connection over RDMA, or had bytes copied in vain; once.
    pub fn take_rdma_problem(&self) -> Option<io::Error> {
        self.0.reactor.borrow_mut().take_rdma_problem()
    }

    /// Hands a file to the loop.
    pub fn add_file(&self, file: DirectFile) -> LocalFile {
        LocalFile { runtime: self.clone(), id: self.0.reactor.borrow_mut().add_file(file) }
    }

    /// Waits for some time.
    pub async fn sleep(&self, delay: Duration) {
        let tag = self.0.next_timer.get();
        self.0.next_timer.set(tag + 1);
        let mut is_set = false;
        std::future::poll_fn(|context| {
            let mut timers = self.0.timers.borrow_mut();
            if !is_set {
                is_set = true;
                timers.insert(tag, context.waker().clone());
                self.0.reactor.borrow_mut().set_timer(delay, tag);
                return Poll::Pending;
            }
            match timers.get_mut(&tag) {
                None => Poll::Ready(()),
                Some(waker) => {
                    waker.clone_from(context.waker());
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

/// A file of the loop, for tasks. An operation whose task has gone is carried out all the same.
pub struct LocalFile {
    runtime: LocalRuntime,
    id: FileId,
}

impl LocalFile {
    /// Carries out an operation; a read gives its buffer.
    pub async fn perform(&self, operation: FileOperation) -> io::Result<Option<BlockBuffer>> {
        let inner = &self.runtime.0;
        let tag = inner.next_file_operation.get();
        inner.next_file_operation.set(tag + 1);
        inner.reactor.borrow_mut().start_file(self.id, tag, operation);
        std::future::poll_fn(|context| {
            let mut files = inner.files.borrow_mut();
            match files.remove(&tag) {
                Some(FileState::Done(result)) => Poll::Ready(result),
                _ => {
                    files.insert(tag, FileState::Waiting(context.waker().clone()));
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A listening socket.
pub struct Listener {
    runtime: LocalRuntime,
    id: ListenerId,
}

impl Listener {
    /// Waits for the next connection.
    pub async fn accept(&self) -> Stream {
        let id = std::future::poll_fn(|context| {
            let mut listeners = self.runtime.0.listeners.borrow_mut();
            let state = listeners.get_mut(&self.id).expect("a listener lives as long as its runtime");
            match state.accepted.pop_front() {
                Some(id) => Poll::Ready(id),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        Stream { runtime: self.runtime.clone(), id, closes_itself: Cell::new(false) }
    }
}

/// A connection; it is closed when it is dropped.
pub struct Stream {
    runtime: LocalRuntime,
    id: ConnectionId,
    closes_itself: Cell<bool>,
}

impl Stream {
    fn poll_state(
        &self,
        context: &Context<'_>,
        is_ready: impl FnOnce(&mut StreamState) -> bool,
    ) -> Poll<io::Result<()>> {
        let mut streams = self.runtime.0.streams.borrow_mut();
        let state = streams.get_mut(&self.id).expect("a stream's state lives as long as the stream");
        if is_ready(state) {
            return Poll::Ready(Ok(()));
        }
        if let Some(kind) = state.closed {
            return Poll::Ready(Err(kind.into()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Waits until bytes have arrived since the last call. They must be looked at with
    /// [`Stream::with_received`] before the task waits for anything else. An end of the stream is
    /// an error of kind `UnexpectedEof`.
    pub async fn receive(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_state(context, |state| std::mem::take(&mut state.has_news))).await
    }

    /// Looks at the bytes that have arrived; `look` takes whole messages off the front.
    pub fn with_received<T>(&self, look: impl FnOnce(&mut Received) -> T) -> Option<T> {
        self.runtime.0.reactor.borrow_mut().received(self.id).map(look)
    }

    /// Makes room for at least this many more bytes at the next receive.
    pub fn expect_bytes(&self, bytes: usize) {
        self.runtime.0.reactor.borrow_mut().expect_bytes(self.id, bytes);
    }

    /// Queues bytes for sending at the end of the turn.
    pub fn send(&self, chunks: impl IntoIterator<Item = Bytes>) {
        self.runtime.0.reactor.borrow_mut().send(self.id, chunks);
    }

    /// Returns the address of the other end.
    pub fn peer_address(&self) -> PeerAddress {
        self.runtime.0.reactor.borrow().peer_address(self.id)
    }

    /// The address of this end, over TCP.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.runtime.0.reactor.borrow().local_address(self.id)
    }

    /// Bytes queued or in flight to the peer.
    pub fn unsent_bytes(&self) -> usize {
        self.runtime.0.reactor.borrow().unsent_bytes(self.id)
    }

    /// Stops receiving: back-pressure.
    pub fn pause(&self) {
        self.runtime.0.reactor.borrow_mut().pause(self.id);
    }

    /// Receives again; bytes that were not taken before are reported again.
    pub fn resume(&self) {
        self.runtime.0.reactor.borrow_mut().resume(self.id);
    }

    /// Closes the connection now; a task that waits on it gets an error of kind `ConnectionAborted`.
    pub fn abort(&self) {
        if self.closes_itself.get() {
            return;
        }
        self.runtime.0.reactor.borrow_mut().close(self.id);
        self.runtime.stream_news(self.id, |state| state.closed = Some(io::ErrorKind::ConnectionAborted));
    }

    /// Sends the queue, then closes; a task that waits on it gets an error at once.
    pub fn close_after_send(&self) {
        self.runtime.0.reactor.borrow_mut().close_after_send(self.id);
        self.closes_itself.set(true);
        self.runtime.stream_news(self.id, |state| state.closed = Some(io::ErrorKind::ConnectionAborted));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.closes_itself.get() {
            self.runtime.0.reactor.borrow_mut().close(self.id);
        }
        self.runtime.0.streams.borrow_mut().remove(&self.id);
    }
}
