//! The operations of a client on objects.

use std::cell::{Cell, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::body::{Check, ObjectStamp, Payloads, VERIFIED_BYTES_MIN};
use super::endpoint::Endpoint;
use super::population::{OBJECTS_MAX, Population};
use super::{ObjectOperation, ObjectTarget, OperationMix, SizeDistribution};
use crate::error::BenchError;
use crate::load::{Done, Operations, Random};

/// Objects that are uploaded at once before a run.
const PREFILL_DEPTH: usize = 8;
/// Names in one answer to LIST, the most that S3 gives.
const PAGE_KEYS: usize = 1000;

/// Work of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectWorkload {
    /// Operations and their shares.
    pub mix: OperationMix,
    /// Bytes per object.
    pub sizes: SizeDistribution,
    /// Number of different keys of this client.
    pub object_count: u64,
    /// Which of all clients this is; each has keys of its own.
    pub client: u32,
    /// True if objects of an earlier run that have the right size need not be uploaded before.
    pub keeps_objects: bool,
    /// True if each object has a stamp of its writer and time, and GETs and LISTs are compared with it.
    pub is_verified: bool,
}

/// The operations of one client.
pub struct ObjectOperations {
    endpoint: Endpoint,
    workload: ObjectWorkload,
    payloads: Payloads,
    population: RefCell<Population>,
    random: RefCell<Random>,
    next: Cell<u64>,
    /// Random id of the writer; a new one for each run.
    writer: u64,
}

impl ObjectOperations {
    /// Makes the bucket if need be.
    pub async fn new(target: &ObjectTarget, workload: ObjectWorkload) -> Result<Self, BenchError> {
        if !(1..=OBJECTS_MAX).contains(&workload.object_count) {
            return Err(BenchError::Invalid(format!("the number of objects must be 1 to {OBJECTS_MAX}")));
        }
        if workload.is_verified && workload.sizes.min_bytes() < VERIFIED_BYTES_MIN {
            return Err(BenchError::Invalid(format!(
                "objects of less than {VERIFIED_BYTES_MIN} bytes cannot be verified"
            )));
        }
        let endpoint = Endpoint::new(target)?;
        endpoint.create_bucket(target.pool.as_deref()).await?;
        let seed = 11 + u64::from(workload.client);
        let mut random = Random::new(seed);
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(ObjectOperations {
            payloads: Payloads::new(&mut random, workload.sizes.max_bytes()),
            population: RefCell::new(Population::new(workload.object_count)),
            writer: Random::new(seed ^ since_epoch.as_nanos() as u64).next(),
            random: RefCell::new(random),
            next: Cell::new(0),
            endpoint,
            workload,
        })
    }

    /// Uploads every object, if any will be downloaded, listed or deleted.
    pub async fn prefill(&self, progress: &dyn Fn(u64, u64)) -> Result<(), BenchError> {
        if self.workload.mix == OperationMix::only(ObjectOperation::Put) {
            return Ok(());
        }
        let (begun, done, count) = (Cell::new(0), Cell::new(0), self.workload.object_count);
        let fill = || async {
            while begun.get() < count {
                begun.set(begun.get() + 1);
                self.fill_one().await?;
                done.set(done.get() + 1);
                progress(done.get(), count);
            }
            Ok::<(), BenchError>(())
        };
        futures::future::try_join_all((0..PREFILL_DEPTH).map(|_| fill())).await.map(drop)
    }

    /// Uploads an object, or takes it as it is there from an earlier run.
    async fn fill_one(&self) -> Result<(), BenchError> {
        if !self.workload.keeps_objects || self.workload.is_verified {
            return self.put().await.map(drop);
        }
        let draw = self.next.replace(self.next.get() + 1);
        let (number, sequence) = self.population.borrow_mut().begin_put(draw).ok_or_else(|| self.no_object())?;
        let wanted = self.workload.sizes.size_bytes(number);
        let found = self.endpoint.size_bytes(&self.key(number)).await;
        let is_there = matches!(found, Ok(Some(bytes)) if bytes == wanted);
        let filled = match found {
            Ok(_) if !is_there => {
                self.endpoint.put(&self.key(number), self.payloads.body(number, wanted, None)).await
            }
            other => other.map(drop),
        };
        self.population.borrow_mut().end_put(number, sequence, filled.is_ok());
        filled
    }

    fn prefix(&self) -> String {
        format!("bench-{}-", self.workload.client)
    }

    fn key(&self, number: u64) -> String {
        format!("{}{number:09}", self.prefix())
    }

    /// Where to look for an object: in order, or anywhere if operations are mixed.
    fn draw(&self) -> u64 {
        if self.workload.mix.is_mixed() {
            return self.random.borrow_mut().next() >> 16;
        }
        self.next.replace(self.next.get() + 1)
    }

    /// No object can be taken: are there none left, or are all in use? Without PUTs the last are soon gone.
    fn no_object(&self) -> BenchError {
        let has_put = self.workload.mix.has(ObjectOperation::Put);
        if self.population.borrow().present_count() == 0 || !has_put {
            return BenchError::NothingLeft("all objects are deleted; put more of them before (--objects)".into());
        }
        BenchError::Invalid("operations are on their way to all objects; use more of them (--objects)".into())
    }

    async fn put(&self) -> Result<Done, BenchError> {
        let draw = self.draw();
        let taken = self.population.borrow_mut().begin_put(draw);
        let (number, sequence) = taken.ok_or_else(|| self.no_object())?;
        let bytes = self.workload.sizes.size_bytes(number);
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let stamp = ObjectStamp { writer: self.writer, sequence, number, unix_ms };
        let body = self.payloads.body(number, bytes, self.workload.is_verified.then_some(stamp));
        let put = self.endpoint.put(&self.key(number), body).await;
        self.population.borrow_mut().end_put(number, sequence, put.is_ok());
        put.map(|()| Done { kind: "put", bytes, is_verified: false })
    }

    async fn get(&self) -> Result<Done, BenchError> {
        let draw = self.draw();
        let taken = self.population.borrow_mut().begin_get(draw);
        let number = taken.ok_or_else(|| self.no_object())?;
        let got = self.get_object(number).await;
        self.population.borrow_mut().end_get(number);
        let is_verified = self.workload.is_verified;
        got.map(|bytes| Done { kind: "get", bytes, is_verified })
    }

    async fn get_object(&self, number: u64) -> Result<u64, BenchError> {
        let bytes = self.workload.sizes.size_bytes(number);
        let acknowledged = self.population.borrow().acknowledged(number);
        let check = self.workload.is_verified.then(|| Check::new(self.writer, number));
        if let Some(seen) = self.endpoint.get(&self.key(number), bytes, check).await? {
            self.population.borrow().check_get(number, acknowledged, seen)?;
        }
        Ok(bytes)
    }

    async fn delete(&self) -> Result<Done, BenchError> {
        let draw = self.draw();
        let taken = self.population.borrow_mut().begin_delete(draw);
        let number = taken.ok_or_else(|| self.no_object())?;
        let deleted = self.endpoint.delete(&self.key(number)).await;
        self.population.borrow_mut().end_delete(number, deleted.is_ok());
        deleted.map(|()| Done { kind: "delete", bytes: 0, is_verified: false })
    }

    /// A page of names from any place on.
    async fn list(&self) -> Result<Done, BenchError> {
        let from = self.random.borrow_mut().below(self.workload.object_count);
        // The smallest key behind which this object is the first.
        let behind = from.checked_sub(1).map_or(self.prefix(), |before| self.key(before));
        let since = self.population.borrow().changes();
        let page = self.endpoint.list(&self.prefix(), &behind, PAGE_KEYS).await?;
        if self.workload.is_verified {
            self.check_list(from, &page.keys, page.is_truncated, since)?;
        }
        Ok(Done { kind: "list", bytes: 0, is_verified: self.workload.is_verified })
    }

    fn check_list(&self, from: u64, keys: &[String], is_truncated: bool, since: u64) -> Result<(), BenchError> {
        let prefix = self.prefix();
        let number = |key: &String| {
            let number = key.strip_prefix(&prefix).and_then(|number| number.parse::<u64>().ok());
            number.filter(|number| self.key(*number) == *key).ok_or_else(|| {
                BenchError::WrongData(format!("LIST of '{prefix}' names '{key}', which no benchmark has written"))
            })
        };
        let mut numbers = keys.iter().map(number).collect::<Result<Vec<u64>, BenchError>>()?;
        let count = self.workload.object_count;
        let end = if is_truncated { numbers.last().map_or(from, |last| last + 1) } else { count };
        // Behind this run's objects there may be those of an earlier run that had more of them.
        numbers.retain(|number| *number < count);
        self.population.borrow().check_list(from..end.min(count), &numbers, since)
    }
}

impl Operations for ObjectOperations {
    async fn perform(&self) -> Result<Done, BenchError> {
        let operation = self.workload.mix.draw(&mut self.random.borrow_mut());
        match operation {
            ObjectOperation::Put => self.put().await,
            ObjectOperation::Get => self.get().await,
            ObjectOperation::List => self.list().await,
            ObjectOperation::Delete => self.delete().await,
        }
    }
}
