//! The client on its caller's own reactor thread.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use atoll_cluster::{ConnectOptions, MapChange};
use atoll_metrics::current_span::current_span;
use atoll_objects::{ClientError, ObjectClient, PoolClient};
use atoll_reactor::{LocalRuntime, RdmaAddress, Stream, is_not_offered};
use atoll_types::frames::FrameMode;
use atoll_types::rdma_searches::RdmaSearches;
use atoll_types::records::PoolRecord;
use atoll_types::transports::{Transport, Way};
use atoll_types::{
    ObjectName, OsdId, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, TraceContext, WriteRequest,
};
use atoll_wire::{KeyPair, Link, LinkInput, Message};
use bytes::Bytes;
use futures::channel::oneshot;
use futures::future::{Either, select};

use crate::map_feed::{self, Follower};
use crate::router::{Answer, Call, Router, RouterAction, Target, fence_write};

/// How a client is set up.
#[derive(Clone)]
pub struct ClientConfig {
    /// The client's static key.
    pub key: KeyPair,
    /// Where cluster state is.
    pub cluster: ConnectOptions,
    /// Time limit of a call, retries included, in milliseconds.
    pub timeout_ms: u64,
}

pub(crate) struct OpenLink {
    pub stream: Rc<Stream>,
    pub transport: Transport,
    link: Link,
    silent_ticks: Cell<u32>,
    /// Time at which the key of sent frames was set.
    keyed_at_ms: u64,
}

pub(crate) struct Shell {
    pub runtime: LocalRuntime,
    config: ClientConfig,
    pub router: RefCell<Router>,
    pub links: RefCell<BTreeMap<OsdId, OpenLink>>,
    pub rdma_searches: RefCell<RdmaSearches>,
    /// OSDs that are sought over RDMA while they are reached without it.
    pub sought: RefCell<BTreeSet<OsdId>>,
    with_output: RefCell<BTreeSet<OsdId>>,
    callers: RefCell<HashMap<u64, oneshot::Sender<Answer>>>,
}

const TICK: Duration = Duration::from_millis(20);
const PING_TICKS: u32 = 50;
/// A connection on which nothing was heard for this long, while requests waited or after a ping, is
/// given up: a new one is there at once when the network is, while TCP sends again only after ever
/// longer pauses.
const SILENT_TICKS_MAX: u32 = 200;
/// The same for a connection that is being made.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// The handle that lives on a reactor's own thread. Clones share one client.
///
/// ```no_run
/// use atoll_client::{ClientConfig, LocalClient};
/// use atoll_reactor::LocalRuntime;
///
/// fn wait_for_pool(config: ClientConfig, name: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let runtime = LocalRuntime::new()?;
///     let client = LocalClient::start(&runtime, config)?;
///     runtime.block_on(async {
///         let pool = client.pool_by_name(name).await?;
///         client.wait_until_active(pool.id).await?;
///         Ok::<(), Box<dyn std::error::Error>>(())
///     })?
/// }
/// ```
#[derive(Clone)]
pub struct LocalClient(pub(crate) Rc<Shell>);

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system's random source does not fail once booted");
    bytes
}

impl LocalClient {
    /// Starts a client on this thread's runtime.
    pub fn start(runtime: &LocalRuntime, config: ClientConfig) -> io::Result<Self> {
        let (sender, changes) = mpsc::channel();
        let follower = Follower { changes: sender, wake: runtime.wake_handle() };
        map_feed::start(config.cluster.clone(), vec![follower])?;
        Ok(LocalClient::following(runtime, config, changes))
    }

    /// Returns a client that gets changes of the cluster map, each followed by a wake-up of the runtime.
    pub(crate) fn following(
        runtime: &LocalRuntime,
        config: ClientConfig,
        changes: mpsc::Receiver<Vec<MapChange>>,
    ) -> Self {
        let router = Router::new(u64::from_le_bytes(random()), hex::encode(config.key.public()));
        let client = LocalClient(Rc::new(Shell {
            runtime: runtime.clone(),
            config,
            router: RefCell::new(router),
            links: RefCell::default(),
            rdma_searches: RefCell::default(),
            sought: RefCell::default(),
            with_output: RefCell::default(),
            callers: RefCell::default(),
        }));
        let on_wake = client.clone();
        runtime.on_wake(move || {
            while let Ok(batch) = changes.try_recv() {
                let now_ms = on_wake.0.runtime.now_ms();
                on_wake.0.router.borrow_mut().map_changed(now_ms, batch);
            }
            on_wake.perform();
        });
        let on_turn_end = client.clone();
        runtime.on_turn_end(move || on_turn_end.send_output());
        let ticking = client.clone();
        runtime.spawn(async move {
            loop {
                ticking.0.runtime.sleep(TICK).await;
                ticking.tick();
            }
        });
        client
    }

    /// The runtime that the client runs on.
    pub fn runtime(&self) -> &LocalRuntime {
        &self.0.runtime
    }

    /// The pool of this name, once the cluster map is there.
    pub async fn pool_by_name(&self, name: &str) -> Result<PoolRecord, String> {
        self.wait_for_map().await?;
        let router = self.0.router.borrow();
        let found = router.map().pools.values().find(|pool| pool.name == name).cloned();
        found.ok_or_else(|| format!("there is no pool '{name}'; see 'atoll pool ls'"))
    }

    async fn wait_for_map(&self) -> Result<(), String> {
        let deadline_ms = self.0.runtime.now_ms() + self.0.config.timeout_ms;
        while !self.0.router.borrow().has_map() {
            if self.0.runtime.now_ms() > deadline_ms {
                return Err(format!("cluster state at {:?} does not answer", self.0.config.cluster.endpoints));
            }
            self.0.runtime.sleep(TICK).await;
        }
        Ok(())
    }

    /// Waits until every PG of a pool serves reads, or until the time limit.
    pub async fn wait_until_active(&self, pool: PoolId) -> Result<(), ClientError> {
        let object = ObjectName::new(atoll_types::operation::PG_META_OBJECT).expect("the name is short");
        let pgs = self.0.router.borrow().pgs(pool)?;
        let calls = pgs.into_iter().map(|(pg, _)| {
            let call = Call::Read(object.clone(), ReadRequest::Stat);
            self.call(Target::Pg(pg), call)
        });
        for answer in futures::future::join_all(calls).await {
            match answer {
                Err(error) if !error.is_no_such_object() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn call(&self, target: Target, call: Call) -> Answer {
        self.call_within(current_span(), target, call).await
    }

    /// A call that is part of a span, if that is exported.
    pub(crate) async fn call_within(&self, span: Option<TraceContext>, target: Target, call: Call) -> Answer {
        let (sequence, receiver) = self.begin(span, target, call);
        let _forget = ForgetOnDrop { client: self, sequence };
        receiver.await.unwrap_or(Err(ClientError::ShutDown))
    }

    /// Begins a call. A caller that stops waiting for the answer calls [`LocalClient::forget`].
    pub(crate) fn begin(
        &self,
        span: Option<TraceContext>,
        target: Target,
        call: Call,
    ) -> (u64, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let now_ms = self.0.runtime.now_ms();
        let sequence = self.0.router.borrow_mut().start(now_ms, self.0.config.timeout_ms, target, call, span);
        self.0.callers.borrow_mut().insert(sequence, sender);
        self.perform();
        (sequence, receiver)
    }

    /// Drops the caller of a call, if the call is not over.
    pub(crate) fn forget(&self, sequence: u64) {
        if self.0.callers.borrow_mut().remove(&sequence).is_some() {
            self.0.router.borrow_mut().forget(sequence);
        }
    }

    /// Carries out the router's actions.
    fn perform(&self) {
        loop {
            let Some(action) = self.0.router.borrow_mut().next_action() else { return };
            match action {
                RouterAction::Connect { osd, ways, public_key } => {
                    let client = self.clone();
                    self.0.runtime.spawn(async move {
                        let problem = client.serve_link(osd, &ways, &public_key).await;
                        tracing::debug!("connection with {osd}: {problem}");
                        client.0.links.borrow_mut().remove(&osd);
                        let now_ms = client.0.runtime.now_ms();
                        client.0.router.borrow_mut().disconnected(now_ms, osd, &problem);
                        client.perform();
                    });
                }
                RouterAction::Disconnect { osd } => {
                    if let Some(open) = self.0.links.borrow().get(&osd) {
                        open.stream.abort();
                    }
                }
                RouterAction::Send { osd, message } => self.send(osd, message),
                RouterAction::Complete { sequence, answer } => {
                    if let Some(caller) = self.0.callers.borrow_mut().remove(&sequence) {
                        // The caller may have stopped waiting.
                        let _ = caller.send(answer);
                    }
                }
            }
        }
    }

    fn send(&self, osd: OsdId, message: Message) {
        if let Some(open) = self.0.links.borrow_mut().get_mut(&osd) {
            match open.link.send(message) {
                Ok(()) => drop(self.0.with_output.borrow_mut().insert(osd)),
                Err(error) => tracing::warn!("cannot send to {osd}: {error}"),
            }
        }
    }

    fn send_output(&self) {
        for osd in std::mem::take(&mut *self.0.with_output.borrow_mut()) {
            if let Some(open) = self.0.links.borrow_mut().get_mut(&osd) {
                match open.link.take_output() {
                    Ok(output) => open.stream.send(output),
                    Err(error) => {
                        tracing::warn!("cannot send to {osd}: {error}");
                        open.stream.abort();
                    }
                }
            }
        }
    }

    /// Connects by the first way that leads there; gives the transport and the mode of its frames, too.
    async fn connect(&self, osd: OsdId, ways: &[Way]) -> Result<(Stream, Transport, FrameMode), String> {
        let mut problem = String::new();
        for Way { transport, address, mode } in ways {
            if *transport == Transport::Rdma && !self.may_seek_by_rdma(osd, address) {
                continue;
            }
            let connected = match transport {
                Transport::SharedMemory => self.0.runtime.connect_shared(address),
                Transport::Unix => self.0.runtime.connect_local(address),
                Transport::Tcp => self.connect_tcp(address).await,
                Transport::Rdma => self.connect_rdma(address).await,
            };
            match (connected, transport) {
                (Ok(stream), _) => return Ok((stream, *transport, *mode)),
                (Err(error), Transport::Tcp) => problem = format!("cannot connect to {address}: {error}"),
                (Err(error), Transport::SharedMemory | Transport::Unix) if is_not_offered(&error) => {}
                (Err(error), _) => {
                    tracing::warn!("cannot connect to {address} by {transport}: {error}; trying the next way");
                    self.note_not_reached(osd, *transport);
                }
            }
        }
        Err(problem)
    }

    async fn connect_tcp(&self, address: &str) -> io::Result<Stream> {
        let address = address.parse().map_err(|_| io::Error::other("it is not an address"))?;
        self.in_time(self.0.runtime.connect(address)).await
    }

    pub(crate) async fn connect_rdma(&self, address: &str) -> io::Result<Stream> {
        let address: RdmaAddress = address.parse().map_err(io::Error::other)?;
        self.in_time(self.0.runtime.connect_rdma(&address)).await
    }

    async fn in_time(&self, connecting: impl Future<Output = io::Result<Stream>>) -> io::Result<Stream> {
        let (connecting, limit) = (pin!(connecting), pin!(self.0.runtime.sleep(CONNECT_LIMIT)));
        match select(connecting, limit).await {
            Either::Left((connected, _)) => connected,
            Either::Right(_) => Err(io::Error::other("no answer")),
        }
    }

    /// Serves a connection from its making to its end; returns why it ended.
    async fn serve_link(&self, osd: OsdId, ways: &[Way], public_key: &str) -> String {
        let mut remote = [0; 32];
        if hex::decode_to_slice(public_key, &mut remote).is_err() {
            return "its record has no valid public key".into();
        }
        let (stream, transport, mode) = match self.connect(osd, ways).await {
            Ok((stream, transport, mode)) => (Rc::new(stream), transport, mode),
            Err(problem) => return problem,
        };
        let link = Link::initiate(&self.0.config.key, &remote, mode, random());
        let keyed_at_ms = self.0.runtime.now_ms();
        let silent_ticks = Cell::new(0);
        let open = OpenLink { stream: Rc::clone(&stream), transport, link, silent_ticks, keyed_at_ms };
        self.0.links.borrow_mut().insert(osd, open);
        self.0.with_output.borrow_mut().insert(osd);
        loop {
            if let Err(error) = stream.receive().await {
                return format!("the connection ended: {error}");
            }
            if let Err(problem) = self.received(osd, &stream) {
                return problem;
            }
        }
    }

    fn received(&self, osd: OsdId, stream: &Stream) -> Result<(), String> {
        loop {
            let (input, missing_bytes) = {
                let mut links = self.0.links.borrow_mut();
                let open = links.get_mut(&osd).ok_or("the connection was given up")?;
                open.silent_ticks.set(0);
                let looked = stream.with_received(|received| {
                    let input = open.link.receive(received);
                    (input, open.link.missing_bytes(received))
                });
                if open.link.has_output() {
                    self.0.with_output.borrow_mut().insert(osd);
                }
                looked.ok_or("the connection was closed")?
            };
            let now_ms = self.0.runtime.now_ms();
            match input.map_err(|error| error.to_string())? {
                Some(LinkInput::Ready { .. }) => self.0.router.borrow_mut().connected(now_ms, osd),
                Some(LinkInput::Asked { .. }) => return Err("the OSD asks for a connection on ours".into()),
                Some(LinkInput::Message(message)) => self.0.router.borrow_mut().reply(now_ms, osd, message),
                None => {
                    stream.expect_bytes(missing_bytes);
                    return Ok(());
                }
            }
            self.perform();
        }
    }

    fn tick(&self) {
        let now_ms = self.0.runtime.now_ms();
        self.0.router.borrow_mut().tick(now_ms);
        self.perform();
        self.seek_by_rdma(now_ms);
        let is_idle = !self.0.router.borrow().has_outstanding();
        let rekey_ms = self.0.router.borrow().map().frames.rekey_seconds.saturating_mul(1_000);
        let mut silent = Vec::new();
        for (osd, open) in self.0.links.borrow_mut().iter_mut() {
            if now_ms.saturating_sub(open.keyed_at_ms) >= rekey_ms {
                open.keyed_at_ms = now_ms;
                open.link.rekey();
            }
            // Nobody waits, and no answer to a ping is due.
            if is_idle && open.silent_ticks.get() < PING_TICKS {
                continue;
            }
            let ticks = open.silent_ticks.get() + 1;
            open.silent_ticks.set(ticks);
            if ticks >= SILENT_TICKS_MAX {
                open.stream.abort();
            } else if ticks % PING_TICKS == 0 {
                silent.push(*osd);
            }
        }
        silent.into_iter().for_each(|osd| self.send(osd, Message::Ping { tag: 0 }));
    }
}

struct ForgetOnDrop<'a> {
    client: &'a LocalClient,
    sequence: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.client.forget(self.sequence);
    }
}

impl PoolClient for LocalClient {
    async fn pgs(&self, pool: PoolId) -> Result<Vec<(PgId, u32)>, ClientError> {
        // Without a map within the time limit, the pool counts as absent.
        self.wait_for_map().await.map_err(|_| ClientError::NoSuchPool(pool))?;
        self.0.router.borrow().pgs(pool)
    }

    async fn read_pg(&self, pg: PgId, request: ReadRequest) -> Result<(ReadOutcome, Bytes), ClientError> {
        let object = ObjectName::new(atoll_types::operation::PG_META_OBJECT).expect("the name is short");
        let answer = self.call(Target::Pg(pg), Call::Read(object.clone(), request)).await?;
        answer.ok_or(ClientError::UnexpectedAnswer { object })
    }

    async fn fence(&self, pool: PoolId, name: Bytes, generation: u64) -> Result<(), ClientError> {
        let deadline_ms = self.0.runtime.now_ms() + self.0.config.timeout_ms;
        loop {
            let pgs = self.pgs(pool).await?;
            let calls = pgs.into_iter().map(|(pg, pg_num)| {
                let call = Call::Write(fence_write(&name, generation, pg_num));
                self.call(Target::Pg(pg), call)
            });
            match futures::future::try_join_all(calls).await {
                // A PG was split meanwhile; the new one may not have the fence.
                Err(ClientError::Refused { refusal: Refusal::ConditionFailed { .. }, .. })
                    if self.0.runtime.now_ms() < deadline_ms =>
                {
                    self.sleep(TICK).await;
                }
                // A fence may be set twice.
                Err(ClientError::OutcomeUnknown { .. }) if self.0.runtime.now_ms() < deadline_ms => {}
                result => return result.map(|_| ()),
            }
        }
    }

    async fn sleep(&self, delay: Duration) {
        self.0.runtime.sleep(delay).await;
    }
}

impl ObjectClient for LocalClient {
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
