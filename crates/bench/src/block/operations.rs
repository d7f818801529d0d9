//! The operations of a client on blocks: their places, their data, and, if requested, a comparison of read data
//! with written data.

use std::cell::{Cell, RefCell};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{AccessPattern, BlockTarget, Stamp};
use crate::error::BenchError;
use crate::load::{Done, Operations, Random};

/// The most that one operation moves.
const BLOCK_BYTES_MAX: u64 = 256 << 20;
/// Smallest block of targets; others are multiples of it.
const SECTOR_BYTES: u64 = 512;
/// Amount of different data for writes; compressible or equal data would flatter some targets.
const PAYLOAD_BYTES_MAX: usize = 32 << 20;
const PAYLOADS_MAX: usize = 16;
/// Bytes that share one stamp.
const STAMPED_BYTES: usize = BLOCK_BYTES;

/// Work of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockWorkload {
    /// Which blocks are accessed, and how.
    pub pattern: AccessPattern,
    /// Reads among 100 operations of a mixed pattern.
    pub read_percent: u32,
    /// Bytes per operation.
    pub block_bytes: u64,
    /// The part of the target that is used, from its beginning.
    pub working_set_bytes: u64,
    /// True if each written 4 KiB are stamped with their writer and time, and read ones are compared with the
    /// stamp. Takes a copy and two checksums per operation.
    pub is_verified: bool,
    /// Draws places and data.
    pub seed: u64,
}

/// The operations of one client.
pub struct BlockOperations<T> {
    target: T,
    workload: BlockWorkload,
    slots: u64,
    next_slot: Cell<u64>,
    random: RefCell<Random>,
    payloads: Vec<Bytes>,
    verifier: Option<Verifier>,
}

impl<T: BlockTarget> BlockOperations<T> {
    /// Checks the workload against the target.
    pub fn new(target: T, workload: BlockWorkload) -> Result<Self, BenchError> {
        let working_set_bytes = workload.working_set_bytes.min(target.size_bytes());
        let slots = working_set_bytes.checked_div(workload.block_bytes).unwrap_or(0);
        let block_bytes = workload.block_bytes;
        if slots == 0 || block_bytes > BLOCK_BYTES_MAX || !block_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(BenchError::Invalid(format!(
                "operations of {block_bytes} bytes on {working_set_bytes} bytes make no run: they are of 512 bytes to \
                 256 MiB, in multiples of 512, and at least one fits the working set"
            )));
        }
        if workload.is_verified && !block_bytes.is_multiple_of(STAMPED_BYTES as u64) {
            return Err(BenchError::Invalid("only operations of whole 4 KiB can be verified".into()));
        }
        let mut random = Random::new(workload.seed);
        let payloads = (PAYLOAD_BYTES_MAX / block_bytes as usize).clamp(1, PAYLOADS_MAX);
        Ok(BlockOperations {
            payloads: (0..payloads).map(|_| payload(&random.fill(block_bytes as usize))).collect(),
            verifier: workload.is_verified.then(|| Verifier::new(random.next(), slots, block_bytes)),
            slots,
            next_slot: Cell::new(0),
            random: RefCell::new(random),
            target,
            workload,
        })
    }

    /// Returns the target.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Returns the verifier, if there is one.
    pub fn verifier(&self) -> Option<&Verifier> {
        self.verifier.as_ref()
    }

    /// The part of the target that is used, in bytes.
    pub fn working_set_bytes(&self) -> u64 {
        self.slots * self.workload.block_bytes
    }

    fn is_next_a_write(&self) -> bool {
        let pattern = self.workload.pattern;
        pattern.is_write()
            || pattern.is_mixed() && self.random.borrow_mut().below(100) >= self.workload.read_percent.into()
    }

    fn next_slot(&self) -> u64 {
        if self.workload.pattern.is_random() {
            return self.random.borrow_mut().below(self.slots);
        }
        self.next_slot.replace((self.next_slot.get() + 1) % self.slots)
    }

    /// A slot that no write is on its way to: which of two would be last is unknown.
    fn next_slot_to_write(&self) -> Option<u64> {
        let Some(verifier) = &self.verifier else { return Some(self.next_slot()) };
        (0..self.slots.min(1000)).map(|_| self.next_slot()).find(|slot| verifier.take(*slot))
    }

    async fn write(&self) -> Result<Done, BenchError> {
        let slot = self.next_slot_to_write().ok_or_else(|| {
            BenchError::Invalid(
                "the working set is too small to verify writes at this depth; use a larger one".into(),
            )
        })?;
        let offset = slot * self.workload.block_bytes;
        let payload = self.payloads[slot as usize % self.payloads.len()].clone();
        let done = Done { kind: "write", bytes: self.workload.block_bytes, is_verified: false };
        let Some(verifier) = &self.verifier else {
            return self.target.write(offset, payload).await.map(|()| done);
        };
        let (data, sequence) = verifier.stamped(&payload, slot);
        let written = self.target.write(offset, data).await;
        verifier.give_back(slot, sequence, written.is_ok());
        written.map(|()| done)
    }

    async fn read(&self) -> Result<Done, BenchError> {
        let slot = self.next_slot();
        let offset = slot * self.workload.block_bytes;
        let expected = self.verifier.as_ref().map(|verifier| verifier.expected(slot));
        let data = self.target.read(offset, self.workload.block_bytes as u32).await?;
        if data.len() as u64 != self.workload.block_bytes {
            let wanted = self.workload.block_bytes;
            return Err(BenchError::WrongData(format!("{} bytes at {offset} instead of {wanted}", data.len())));
        }
        if let (Some(verifier), Some(acknowledged)) = (&self.verifier, expected) {
            verifier.check(&data, slot, acknowledged)?;
        }
        Ok(Done { kind: "read", bytes: self.workload.block_bytes, is_verified: self.verifier.is_some() })
    }
}

/// Where a device can take it from without a copy, if it is whole blocks.
fn payload(bytes: &[u8]) -> Bytes {
    if bytes.len().is_multiple_of(BLOCK_BYTES) {
        return Bytes::from_owner(BlockBuffer::from_bytes(bytes));
    }
    Bytes::copy_from_slice(bytes)
}

impl<T: BlockTarget> Operations for BlockOperations<T> {
    async fn perform(&self) -> Result<Done, BenchError> {
        if self.is_next_a_write() { self.write().await } else { self.read().await }
    }
}

/// Knows the written data.
pub struct Verifier {
    writer: u64,
    block_bytes: u64,
    slots: RefCell<Vec<Slot>>,
    sequence: Cell<u64>,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The newest write that was acknowledged.
    acknowledged: u64,
    /// The newest that was begun.
    begun: u64,
    is_taken: bool,
}

impl Verifier {
    fn new(writer: u64, slots: u64, block_bytes: u64) -> Self {
        let slots = RefCell::new(vec![Slot::default(); slots as usize]);
        Verifier { writer, block_bytes, slots, sequence: Cell::new(0) }
    }

    fn take(&self, slot: u64) -> bool {
        !std::mem::replace(&mut self.slots.borrow_mut()[slot as usize].is_taken, true)
    }

    /// The payload with stamps of the next operation.
    fn stamped(&self, payload: &[u8], slot: u64) -> (Bytes, u64) {
        self.sequence.set(self.sequence.get() + 1);
        let sequence = self.sequence.get();
        self.slots.borrow_mut()[slot as usize].begun = sequence;
        let mut data = payload.to_vec();
        self.stamp(&mut data, slot * self.block_bytes, sequence);
        (Bytes::from(data), sequence)
    }

    /// Stamps data that is written before the run.
    pub(super) fn stamp_prefill(&self, data: &mut [u8], offset: u64) {
        self.stamp(data, offset, 0);
    }

    fn stamp(&self, data: &mut [u8], offset: u64, sequence: u64) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        for (index, block) in data.chunks_exact_mut(STAMPED_BYTES).enumerate() {
            let place = offset + (index * STAMPED_BYTES) as u64;
            Stamp { writer: self.writer, sequence, place, unix_ms }.put(block);
        }
    }

    fn give_back(&self, slot: u64, sequence: u64, is_acknowledged: bool) {
        let slot = &mut self.slots.borrow_mut()[slot as usize];
        slot.is_taken = false;
        if is_acknowledged {
            slot.acknowledged = sequence;
        }
    }

    /// The write that a read which begins now must see, or a later one.
    fn expected(&self, slot: u64) -> u64 {
        self.slots.borrow()[slot as usize].acknowledged
    }

    /// A read may see any write from the last that was acknowledged when it began to the last that
    /// was begun before it ended.
    fn check(&self, data: &[u8], slot: u64, acknowledged: u64) -> Result<(), BenchError> {
        let newest = self.slots.borrow()[slot as usize].begun;
        for (index, block) in data.chunks(STAMPED_BYTES).enumerate() {
            let place = slot * self.block_bytes + (index * STAMPED_BYTES) as u64;
            let stamp = Stamp::check(block, place)?;
            if stamp.writer != self.writer {
                return Err(BenchError::WrongData(format!("the block at {place} is not this run's: {stamp}")));
            }
            if !(acknowledged..=newest).contains(&stamp.sequence) {
                return Err(BenchError::WrongData(format!(
                    "the block at {place} does not have the data of operations {acknowledged} to {newest}: \
                     {stamp}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::block::{Prefill, prefill};
    use crate::load::{Plan, Timer, run_client};

    /// A disk in memory that may lose a write that it has acknowledged.
    struct Memory {
        bytes: RefCell<Vec<u8>>,
        /// Each write whose number is a multiple of this is lost.
        loses_every: u64,
        writes: Cell<u64>,
    }

    impl Memory {
        fn new(loses_every: u64) -> Self {
            Memory { bytes: RefCell::new(vec![0; 1 << 20]), loses_every, writes: Cell::new(0) }
        }
    }

    impl BlockTarget for Memory {
        fn size_bytes(&self) -> u64 {
            self.bytes.borrow().len() as u64
        }

        async fn read(&self, offset: u64, length: u32) -> Result<Bytes, BenchError> {
            tokio::task::yield_now().await;
            Ok(Bytes::copy_from_slice(&self.bytes.borrow()[offset as usize..][..length as usize]))
        }

        async fn write(&self, offset: u64, data: Bytes) -> Result<(), BenchError> {
            tokio::task::yield_now().await;
            self.writes.set(self.writes.get() + 1);
            if !self.writes.get().is_multiple_of(self.loses_every) {
                self.bytes.borrow_mut()[offset as usize..][..data.len()].copy_from_slice(&data);
            }
            tokio::task::yield_now().await;
            Ok(())
        }

        async fn extents(&self, _offset: u64, length: u64) -> Result<Vec<(u64, bool)>, BenchError> {
            Ok(vec![(length, true)])
        }
    }

    fn workload(is_verified: bool) -> BlockWorkload {
        BlockWorkload {
            pattern: AccessPattern::RandomMixed,
            read_percent: 50,
            block_bytes: 8192,
            working_set_bytes: 1 << 20,
            is_verified,
            seed: 1,
        }
    }

    async fn run(loses_every: u64) -> crate::figures::ClientMeasurement {
        let operations = BlockOperations::new(Memory::new(loses_every), workload(true)).unwrap();
        let plan = Plan {
            depth: 8,
            rate_per_second: None,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(200),
            bytes_max: None,
        };
        prefill(operations.target(), 1 << 20, Prefill::All, operations.verifier(), &|_, _| ()).await.unwrap();
        run_client(&operations, &plan, &Timer::Tokio, &|| ()).await.unwrap()
    }

    #[tokio::test]
    async fn reads_return_written_data() {
        let measured = run(u64::MAX).await;
        assert_eq!(measured.errors, 0, "{:?}", measured.first_error);
        assert!(measured.verified > 100, "{}", measured.verified);
        assert_eq!(measured.by_kind.keys().collect::<Vec<_>>(), ["read", "write"]);
    }

    #[tokio::test]
    async fn a_write_that_was_lost_is_noticed() {
        let measured = run(20).await;
        let error = measured.first_error.expect("a lost write is an error");
        assert!(error.contains("does not have the data of operations"), "{error}");
    }

    #[test]
    fn invalid_runs_are_refused() {
        let refused = |workload: BlockWorkload| BlockOperations::new(Memory::new(u64::MAX), workload).is_err();
        assert!(refused(BlockWorkload { block_bytes: 0, ..workload(false) }));
        assert!(refused(BlockWorkload { block_bytes: 1000, ..workload(false) }));
        assert!(refused(BlockWorkload { block_bytes: 2 << 20, ..workload(false) }));
        assert!(refused(BlockWorkload { block_bytes: 512, ..workload(true) }));
    }
}
