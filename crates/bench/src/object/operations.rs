//! The operations of a client on objects.

use std::cell::Cell;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::ObjectTarget;
use super::endpoint::Endpoint;
use crate::error::BenchError;
use crate::load::{Done, Operations, Random};

const PAYLOADS: usize = 8;
/// Objects that are uploaded at once before a run.
const PREFILL_DEPTH: usize = 8;

/// What to do with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectOperation {
    /// Upload them.
    Put,
    /// Download them.
    Get,
}

impl ObjectOperation {
    /// Its name, such as `put`.
    pub fn name(self) -> &'static str {
        match self {
            ObjectOperation::Put => "put",
            ObjectOperation::Get => "get",
        }
    }
}

/// What a client does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectWorkload {
    /// What to do.
    pub operation: ObjectOperation,
    /// Bytes per object.
    pub size_bytes: u64,
    /// Number of different keys of this client.
    pub object_count: u64,
    /// Which of all clients this is; each has keys of its own.
    pub client: u32,
}

/// The operations of one client.
pub struct ObjectOperations {
    endpoint: Endpoint,
    workload: ObjectWorkload,
    payloads: Vec<Bytes>,
    next: Cell<u64>,
}

impl ObjectOperations {
    /// Makes the bucket if need be.
    pub async fn new(target: &ObjectTarget, workload: ObjectWorkload) -> Result<Self, BenchError> {
        if workload.object_count == 0 {
            return Err(BenchError::Invalid("the number of objects must be above 0".into()));
        }
        let endpoint = Endpoint::new(target)?;
        endpoint.create_bucket().await?;
        let mut random = Random::new(11 + u64::from(workload.client));
        let payloads = (0..PAYLOADS).map(|_| Bytes::from(random.fill(workload.size_bytes as usize))).collect();
        Ok(ObjectOperations { endpoint, workload, payloads, next: Cell::new(0) })
    }

    /// Uploads every key that will be downloaded.
    pub async fn prefill(&self, progress: &dyn Fn(u64, u64)) -> Result<(), BenchError> {
        if self.workload.operation == ObjectOperation::Put {
            return Ok(());
        }
        let count = self.workload.object_count;
        let next = Cell::new(0);
        let fill = || async {
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                self.endpoint.put(&self.key(number), self.payload(number)).await?;
                progress(number, count);
            }
            Ok::<(), BenchError>(())
        };
        futures::future::try_join_all((0..PREFILL_DEPTH).map(|_| fill())).await.map(drop)
    }

    fn key(&self, number: u64) -> String {
        let ObjectWorkload { client, size_bytes, object_count, .. } = self.workload;
        format!("bench-{client}-{size_bytes}-{:08}", number % object_count)
    }

    fn payload(&self, number: u64) -> Bytes {
        self.payloads[(number % self.workload.object_count) as usize % PAYLOADS].clone()
    }
}

impl Operations for ObjectOperations {
    async fn perform(&self) -> Result<Done, BenchError> {
        let number = self.next.replace(self.next.get() + 1);
        let key = self.key(number);
        match self.workload.operation {
            ObjectOperation::Put => self.endpoint.put(&key, self.payload(number)).await?,
            ObjectOperation::Get => self.endpoint.get(&key, self.workload.size_bytes).await?,
        }
        Ok(Done { kind: self.workload.operation.name(), bytes: self.workload.size_bytes, is_verified: false })
    }
}
