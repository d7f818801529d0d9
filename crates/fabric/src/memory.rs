//! Memory that a device uses: buffers for messages, and buffers of others while they are registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use bytes::Bytes;

use crate::error::FabricError;
use crate::message::MESSAGE_BYTES_MAX;
use crate::sys::{Access, Domain, Memory, Region};

/// Message buffers that are made and registered together.
const SLAB_BUFFERS: usize = 64;

/// Pause after memory could not be registered; until then callers wait for an existing buffer.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A buffer of [`MESSAGE_BYTES_MAX`] bytes. Its holder may use it; a device uses it during its operation.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageBuffer(u32);

struct Slab {
    // Before the memory, so that it is closed before that is freed.
    region: Option<Region>,
    start: *mut u8,
    _memory: BlockBuffer,
}

// SAFETY: the pointer is into the memory that the slab owns.
unsafe impl Send for Slab {}

/// Message buffers of one device: made when they are needed, up to a limit, and kept.
pub struct MessageBuffers {
    /// Away when the device is.
    domain: Option<Arc<Domain>>,
    /// Kind of access that they are registered for, if needed.
    access: Option<Access>,
    slabs: Vec<Slab>,
    free: Vec<MessageBuffer>,
    count_max: usize,
    /// When more could not be registered.
    refused_at: Option<Instant>,
    /// The reason, until it is reported.
    refusal: Option<FabricError>,
}

impl MessageBuffers {
    /// Returns an empty pool of at most `count_max` buffers.
    pub fn new(domain: &Arc<Domain>, access: Option<Access>, count_max: usize) -> Self {
        MessageBuffers {
            domain: Some(Arc::clone(domain)),
            access,
            slabs: Vec::new(),
            free: Vec::new(),
            count_max,
            refused_at: None,
            refusal: None,
        }
    }

    /// A buffer, if there may be one more.
    pub fn take(&mut self) -> Option<MessageBuffer> {
        if self.free.is_empty() && self.growth() > 0 {
            self.refused_at = None;
            if let Err(error) = self.add_slab() {
                (self.refused_at, self.refusal) = (Some(Instant::now()), Some(error));
            }
        }
        self.free.pop()
    }

    /// Makes buffers until `count` are free, or memory runs out; returns the number of free ones.
    pub fn make_free(&mut self, count: usize) -> usize {
        while self.free.len() < count && self.growth() > 0 {
            self.refused_at = None;
            if let Err(error) = self.add_slab() {
                (self.refused_at, self.refusal) = (Some(Instant::now()), Some(error));
            }
        }
        self.free.len()
    }

    /// Returns true if `count` are free or can surely be made.
    pub fn has_plenty(&self, count: usize) -> bool {
        self.refused_at.is_none() && self.available() >= count
    }

    /// Returns true if there is a buffer at all, in use or not. The first ones are made for it.
    pub fn has_some(&mut self) -> bool {
        if let Some(buffer) = self.take() {
            self.give_back(buffer);
        }
        self.count() > 0
    }

    /// Why more could not be registered, once.
    pub fn take_refusal(&mut self) -> Option<FabricError> {
        self.refusal.take()
    }

    /// Buffers that may be made now.
    fn growth(&self) -> usize {
        if self.refused_at.is_some_and(|at| at.elapsed() < REFUSED_PAUSE) {
            return 0;
        }
        self.count_max.saturating_sub(self.count()) / SLAB_BUFFERS * SLAB_BUFFERS
    }

    fn add_slab(&mut self) -> Result<(), FabricError> {
        let mut memory = BlockBuffer::zeroed(SLAB_BUFFERS * MESSAGE_BYTES_MAX / BLOCK_BYTES);
        let domain = self.domain.as_ref().ok_or(FabricError::Ended)?;
        let bytes = memory.as_mut_slice();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        let region = match self.access {
            // SAFETY: the slab keeps the memory longer than the region.
            Some(access) => Some(unsafe { domain.register(start, length, access, random_number())? }),
            None => None,
        };
        let first = self.count() as u32;
        self.slabs.push(Slab { region, start, _memory: memory });
        self.free.extend((first..first + SLAB_BUFFERS as u32).map(MessageBuffer));
        Ok(())
    }

    /// Frees everything, or loses it if a device may still use some of it. There are no buffers from now on.
    pub fn close(&mut self, is_in_use: bool) {
        (self.domain, self.count_max) = (None, 0);
        self.free.clear();
        let slabs = std::mem::take(&mut self.slabs);
        if is_in_use {
            std::mem::forget(slabs);
        }
    }

    /// A buffer is not needed any more.
    pub fn give_back(&mut self, buffer: MessageBuffer) {
        self.free.push(buffer);
    }

    /// Returns the number of unused buffers.
    #[cfg(test)]
    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Buffers that there are.
    pub fn count(&self) -> usize {
        self.slabs.len() * SLAB_BUFFERS
    }

    /// Buffers that could be taken.
    pub fn available(&self) -> usize {
        self.free.len() + self.growth()
    }

    /// The first `length` bytes of a buffer, for a device.
    pub fn memory(&self, buffer: &MessageBuffer, length: usize) -> Memory {
        assert!(length <= MESSAGE_BYTES_MAX, "a message fits into its buffer");
        let number = buffer.0 as usize;
        let slab = &self.slabs[number / SLAB_BUFFERS];
        // SAFETY: the slab has SLAB_BUFFERS buffers of this size.
        let start = unsafe { slab.start.add(number % SLAB_BUFFERS * MESSAGE_BYTES_MAX) };
        let descriptor = slab.region.as_ref().map_or(std::ptr::null_mut(), Region::descriptor);
        Memory { start, length, descriptor }
    }

    /// The first bytes of a buffer that no device uses.
    pub fn bytes(&self, buffer: &MessageBuffer, length: usize) -> &[u8] {
        let memory = self.memory(buffer, length);
        // SAFETY: the memory lives as long as the pool and has been written. Whoever has the buffer is its only user,
        // and the loan of `buffer` keeps it from an operation meanwhile.
        unsafe { std::slice::from_raw_parts(memory.start, memory.length) }
    }

    /// All bytes of a buffer that no device uses, writable.
    pub fn bytes_mut(&mut self, buffer: &mut MessageBuffer) -> &mut [u8] {
        let memory = self.memory(buffer, MESSAGE_BYTES_MAX);
        // SAFETY: as above; the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(memory.start, memory.length) }
    }
}

/// Returns a number that cannot be guessed.
pub fn random_number() -> u64 {
    let mut bytes = [0; 8];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert!(count == Ok(8), "the kernel always has eight random bytes");
    u64::from_le_bytes(bytes)
}

/// Bytes that the peer may read until this is dropped.
pub struct Referred {
    // Before the bytes, so that it is closed before they are freed.
    region: Region,
    bytes: Bytes,
}

impl Referred {
    /// Lets a peer read these bytes, and nothing else, until this is dropped. The key is used where the provider chooses
    /// none, which has keys of `key_bytes`.
    pub fn register(domain: &Arc<Domain>, bytes: Bytes, key_bytes: usize) -> Result<Self, (FabricError, Bytes)> {
        let key = if key_bytes >= 8 { random_number() } else { random_number() & ((1 << (8 * key_bytes)) - 1) };
        // SAFETY: `Bytes` neither moves nor changes its memory; it is kept longer than the region.
        match unsafe { domain.register(bytes.as_ptr(), bytes.len(), Access::PeerReads, key) } {
            Ok(region) => Ok(Referred { region, bytes }),
            Err(error) => Err((error, bytes)),
        }
    }

    /// The key for the peer.
    pub fn key(&self) -> u64 {
        self.region.key()
    }

    /// Returns the address for peers that use addresses of this process.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// How many bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }
}

/// Registrations of buffers into which this side reads, kept for the next time. Peers get no keys to them. They go by
/// the number of the buffer's memory: memory that was freed and came back, at the same address or not, has another.
pub struct ReadTargets {
    /// Away when the device is.
    domain: Option<Arc<Domain>>,
    /// By number of memory: when it was used last, its bytes and its registration.
    entries: BTreeMap<u64, (u64, usize, Arc<Region>)>,
    bytes: usize,
    bytes_max: usize,
    uses: u64,
}

impl ReadTargets {
    /// Returns an empty cache that keeps at most `bytes_max` bytes registered. Memory of operations beyond that is
    /// registered for them alone.
    pub fn new(domain: &Arc<Domain>, bytes_max: usize) -> Self {
        ReadTargets { domain: Some(Arc::clone(domain)), entries: BTreeMap::new(), bytes: 0, bytes_max, uses: 0 }
    }

    /// Frees everything.
    pub fn close(&mut self) {
        (self.domain, self.bytes) = (None, 0);
        self.entries.clear();
    }

    /// The registration of a buffer's memory. The caller keeps both until its operation is complete.
    pub fn register(&mut self, buffer: &BlockBuffer) -> Result<Arc<Region>, FabricError> {
        self.uses += 1;
        if let Some((used, _, region)) = self.entries.get_mut(&buffer.memory_number()) {
            *used = self.uses;
            return Ok(Arc::clone(region));
        }
        let memory = buffer.whole_memory();
        let region = match self.register_memory(memory) {
            Err(FabricError::NoMemory { .. }) if !self.entries.is_empty() => {
                // What is kept for the next time takes what there may be.
                self.entries.clear();
                self.bytes = 0;
                self.register_memory(memory)
            }
            registered => registered,
        };
        let region = Arc::new(region?);
        if memory.len() > self.bytes_max {
            return Ok(region);
        }
        while self.bytes + memory.len() > self.bytes_max
            && let Some((&number, _)) = self.entries.iter().min_by_key(|(_, (used, _, _))| *used)
        {
            let (_, bytes, _) = self.entries.remove(&number).expect("it was just found");
            self.bytes -= bytes;
        }
        self.bytes += memory.len();
        self.entries.insert(buffer.memory_number(), (self.uses, memory.len(), Arc::clone(&region)));
        Ok(region)
    }

    fn register_memory(&self, memory: &[u8]) -> Result<Region, FabricError> {
        let domain = self.domain.as_ref().ok_or(FabricError::Ended)?;
        // SAFETY: an operation keeps the buffer. Between operations the device does not use the memory, even if it was
        // freed: the registration is found by its number only, which no other memory has.
        unsafe { domain.register(memory.as_ptr(), memory.len(), Access::Reads, random_number()) }
    }

    /// Bytes that are registered for later.
    pub fn kept_bytes(&self) -> usize {
        self.bytes
    }
}
