//! Objects in the PGs of a simulated cluster, with all its faults. A request whose caller has gone is pending
//! nevertheless.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atoll_client::{ClientError, ObjectClient, PoolClient, fence_write};
use atoll_sim::{Answer, Driven, Kind, PG, Statistics};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, WriteRequest, mix};
use bytes::Bytes;

use crate::names::image_id_of;

/// A seal begins with the attachment and a counter, which no other seal under the image's key has.
const NONCE_BYTES: usize = 12;
/// The longest that a turn takes, in simulated microseconds.
const TURN_MAX: u64 = 2_000;

struct Shared {
    world: RefCell<Driven>,
    random: Cell<u64>,
    /// The nonces that sealed blocks came with, by image.
    nonces: RefCell<BTreeSet<(String, [u8; NONCE_BYTES])>>,
}

#[derive(Clone)]
pub struct SimulatedClient(Rc<Shared>);

impl SimulatedClient {
    pub fn new(seed: u64, is_coded: bool) -> Self {
        let world = RefCell::new(Driven::new(seed, is_coded));
        SimulatedClient(Rc::new(Shared { world, random: Cell::new(seed), nonces: RefCell::default() }))
    }

    /// Later requests come from another process.
    pub fn next_process(&self) {
        self.0.world.borrow_mut().next_process();
    }

    /// Runs work to its end, while simulated time passes.
    pub fn drive<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.0.world.borrow_mut().step();
        }
    }

    /// Ends all faults and checks the work of the PGs. Returns the remaining objects, and statistics.
    pub fn finish(self) -> (Vec<ObjectName>, Statistics) {
        let shared = Rc::into_inner(self.0).expect("nothing uses the cluster any more");
        shared.world.into_inner().finish()
    }

    /// An image's key meets no nonce twice.
    fn watch_nonces(&self, request: &WriteRequest) {
        let seals = request.mutations.iter().filter_map(|mutation| match mutation {
            Mutation::Write { seals, .. } => seals.as_ref().filter(|seals| seals.are_of_ciphertext()),
            _ => None,
        });
        for seal in seals.flat_map(|seals| seals.bytes.chunks(seals.seal_bytes.into())) {
            let image = image_id_of(&request.object).expect("only blocks of images are sealed").to_owned();
            let is_new = self.0.nonces.borrow_mut().insert((image, *seal.first_chunk().unwrap()));
            assert!(is_new, "a nonce comes again with {}", request.object);
        }
    }

    /// The answer to a request, which is sent until there is one.
    async fn ask(&self, pg: PgId, kind: Kind) -> Answer {
        let request = self.0.world.borrow_mut().start(pg, kind);
        self.until(|world| world.answer_of(request).cloned()).await
    }

    /// Waits for a condition, which is checked after every event.
    async fn until<T>(&self, found: impl Fn(&Driven) -> Option<T>) -> T {
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            found(&self.0.world.borrow()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    async fn read(
        &self,
        pg: PgId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        match self.ask(pg, Kind::Read(object.clone(), request)).await {
            Answer::Found(Ok(outcome), payload) => Ok((outcome, payload)),
            Answer::Found(Err(refusal), _) => Err(ClientError::Refused { pool: pg.pool, object, refusal }),
            Answer::Written(_) => Err(ClientError::UnexpectedAnswer { object }),
        }
    }

    async fn write(&self, pg: PgId, request: WriteRequest) -> Result<(), ClientError> {
        self.watch_nonces(&request);
        let object = request.object.clone();
        match self.ask(pg, Kind::Write(request)).await {
            Answer::Written(Ok(())) => Ok(()),
            Answer::Written(Err(Refusal::OutcomeUnknown)) => {
                Err(ClientError::OutcomeUnknown { pool: pg.pool, object })
            }
            Answer::Written(Err(refusal)) => Err(ClientError::Refused { pool: pg.pool, object, refusal }),
            Answer::Found(..) => Err(ClientError::UnexpectedAnswer { object }),
        }
    }
}

impl ObjectClient for SimulatedClient {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        assert_eq!(pool, PG.pool, "there is one pool");
        self.read(PG, object, request).await
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        assert_eq!(pool, PG.pool, "there is one pool");
        self.write(PG, request).await
    }
}

impl PoolClient for SimulatedClient {
    async fn pgs(&self, _: PoolId) -> Result<Vec<(PgId, u32)>, ClientError> {
        Ok(self.0.world.borrow().pgs())
    }

    async fn read_pg(&self, pg: PgId, request: ReadRequest) -> Result<(ReadOutcome, Bytes), ClientError> {
        self.read(pg, ObjectName::new(PG_META_OBJECT).unwrap(), request).await
    }

    async fn fence(&self, pool: PoolId, name: Bytes, generation: u64) -> Result<(), ClientError> {
        loop {
            let pgs = self.pgs(pool).await?;
            let set = pgs.into_iter().map(|(pg, pg_num)| self.write(pg, fence_write(&name, generation, pg_num)));
            match futures::future::try_join_all(set).await {
                // The PG was split meanwhile.
                Err(ClientError::Refused { refusal: Refusal::ConditionFailed { .. }, .. }) => {
                    self.sleep(Duration::from_millis(20)).await;
                }
                // A fence may be set twice.
                Err(ClientError::OutcomeUnknown { .. }) => {}
                result => return result.map(drop),
            }
        }
    }

    async fn sleep(&self, delay: Duration) {
        let random = mix(self.0.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0.random.set(random);
        let until = self.0.world.borrow().now() + delay.as_micros() as u64 + random % TURN_MAX;
        self.until(|world| (world.now() >= until).then_some(())).await;
    }
}
