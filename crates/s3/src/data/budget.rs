//! Memory for data on its way: all requests of a gateway together stay within a budget, and wait
//! when it is used up.

use std::sync::Arc;

use atoll_objects::ClientError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::CHUNK_BYTES;
use crate::error::GatewayError;

const UNIT_BYTES: u64 = 1 << 10;
/// Less would not let a single request go on.
const SHARE_BYTES_MIN: u64 = 16 << 20;

/// Most that a copy has read and not yet written: the reads that run ahead, and the one in hand.
const COPY_BYTES_MAX: u64 = 3 * CHUNK_BYTES;

/// The budget. Reads and writes have halves of their own, and nobody waits for a share of the reads
/// who holds one of the writes: a copy takes its share of the reads once, before it begins, and
/// reads without asking again. Otherwise copies could wait for each other forever.
#[derive(Clone)]
pub(crate) struct Budget {
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// A part of the budget; comes back when dropped.
pub(crate) type Share = OwnedSemaphorePermit;

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        let units =
            usize::try_from((bytes / 2).max(SHARE_BYTES_MIN) / UNIT_BYTES).unwrap_or(Semaphore::MAX_PERMITS);
        let half = || Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        Budget { reads: half(), writes: half() }
    }

    /// Waits for memory to read `bytes` into.
    pub(super) async fn for_read(&self, bytes: u64) -> Result<Share, GatewayError> {
        share(&self.reads, bytes).await
    }

    /// Waits for memory for all the reading that a copy of `bytes` does.
    pub(crate) async fn for_copy(&self, bytes: u64) -> Result<Share, GatewayError> {
        share(&self.reads, bytes.min(COPY_BYTES_MAX)).await
    }

    /// Waits for memory for a form of `bytes`. It is held while the form arrives.
    pub(crate) async fn for_form(&self, bytes: u64) -> Result<Share, GatewayError> {
        share(&self.writes, bytes).await
    }

    /// Waits for memory to collect `bytes` for a write in.
    pub(super) async fn for_write(&self, bytes: u64) -> Result<Share, GatewayError> {
        share(&self.writes, bytes).await
    }
}

async fn share(half: &Arc<Semaphore>, bytes: u64) -> Result<Share, GatewayError> {
    let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
    // The semaphore is never closed.
    half.clone().acquire_many_owned(units).await.map_err(|_| ClientError::ShutDown.into())
}
