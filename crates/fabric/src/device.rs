//! One device (an RDMA adapter, or an interface): its queues, its memory, and its operations under way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::credits::GRANT_MAX;
use crate::error::FabricError;
use crate::fabric::{LinkId, Settings};
use crate::link::Read;
use crate::memory::{MessageBuffer, MessageBuffers, ReadTargets, Referred};
use crate::message::{MESSAGE_BYTES_MAX, Reference};
use crate::sys::{
    Access, CompletionQueue, Domain, Endpoint, Info, Memory, NetworkFabric, QueueSizes, SharedReceives,
};

/// Completions that may wait in the queue; more than there are operations at any time.
const QUEUE_ENTRIES: usize = 32_000;
/// Sends and reads that an endpoint may have under way: the messages that a peer grants, and some.
const TRANSMITS_MAX: usize = 64;

/// Buffers for reads whose targets cannot be registered.
const ASIDES_MAX: usize = 64;

/// Opens the largest that a device allows for, of half the size as long as it refuses, and gives its size.
fn largest<T>(size: usize, open: impl Fn(usize) -> Result<T, FabricError>) -> Result<(T, usize), FabricError> {
    match open(size) {
        Err(_) if size >= 2 * SIZE_MIN => largest(size / 2, open),
        opened => Ok((opened?, size)),
    }
}

/// Where [`largest`] gives up.
const SIZE_MIN: usize = 1000;

/// Operation of a device for a link, with the memory that it uses meanwhile.
pub enum Operation {
    Send {
        link: LinkId,
        buffer: MessageBuffer,
    },
    /// A receive of a link, or of all links that share their receives.
    Receive {
        link: Option<LinkId>,
        buffer: MessageBuffer,
    },
    Read {
        link: LinkId,
        read: Read,
    },
}

pub struct Device {
    pub network: usize,
    pub name: String,
    // What operations use is dropped behind what they run on: fields are dropped in this order.
    pub shared: Option<Arc<SharedReceives>>,
    /// Away when the device is.
    pub completions: Option<Arc<CompletionQueue>>,
    domain: Option<Arc<Domain>>,
    pub sends: MessageBuffers,
    pub receives: MessageBuffers,
    read_targets: ReadTargets,
    /// Where reads go whose targets cannot be registered.
    asides: MessageBuffers,
    operations: BTreeMap<u64, Operation>,
    next_context: u64,
    /// Shared receives that are posted.
    pub posted: usize,
    /// Messages that peers may send, among those with shared receives.
    pub granted: usize,
    /// Credits of peers beyond the first grant.
    pub extra: usize,
    /// Bytes that peers may read.
    pub referred_bytes: usize,
    needs_local_registration: bool,
    has_virtual_addresses: bool,
    key_bytes: usize,
    /// Limits of an endpoint's pending operations.
    pub sizes: QueueSizes,
    /// An endpoint could not be closed: the device may use the memory of its operations for ever.
    has_lost_operations: bool,
    /// Why memory of others could not be registered, until it is reported.
    refusal: Option<FabricError>,
}

impl Device {
    pub fn open(
        settings: &Settings,
        network: usize,
        fabric: &Arc<NetworkFabric>,
        info: &Info,
    ) -> Result<Self, FabricError> {
        let domain = Domain::open(fabric, info, settings.registered_bytes_max)?;
        let (completions, _) = largest(QUEUE_ENTRIES, |entries| CompletionQueue::open(&domain, entries))?;
        let receive_count_max = settings.receive_buffers_max;
        let (shared, receive_count_max) = match settings.shares_receives && info.has_shared_receives() {
            // Where the device allows for none, links have receives of their own.
            true => largest(receive_count_max, |count| SharedReceives::open(&domain, info, count))
                .map_or((None, receive_count_max), |(shared, count)| (Some(shared), count)),
            false => (None, receive_count_max),
        };
        let needs_local_registration = settings.registers_everything || info.needs_local_registration();
        let buffers = |access, count_max| {
            MessageBuffers::new(&domain, needs_local_registration.then_some(access), count_max)
        };
        // Where peers may write to what was read into, that is registered for one read alone.
        let kept_bytes_max = if info.is_iwarp() { 0 } else { settings.read_target_bytes_max };
        Ok(Device {
            network,
            name: info.names().1,
            shared,
            completions: Some(completions),
            sends: buffers(Access::Sends, settings.send_buffers_max),
            receives: buffers(Access::Receives, receive_count_max),
            read_targets: ReadTargets::new(&domain, kept_bytes_max),
            asides: buffers(Access::Reads, ASIDES_MAX),
            domain: Some(domain),
            operations: BTreeMap::new(),
            next_context: 1,
            posted: 0,
            granted: 0,
            extra: 0,
            referred_bytes: 0,
            needs_local_registration,
            has_virtual_addresses: info.has_virtual_addresses(),
            key_bytes: if info.chooses_keys() { 8 } else { info.key_bytes() },
            sizes: QueueSizes {
                transmits: info.transmit_count_max().min(TRANSMITS_MAX) as u32,
                receives: GRANT_MAX,
            },
            has_lost_operations: false,
            refusal: None,
        })
    }

    fn add(&mut self, operation: Operation) -> u64 {
        let context = self.next_context;
        self.next_context += 1;
        self.operations.insert(context, operation);
        context
    }

    /// The operation that is complete, unless its link was closed before.
    pub fn take(&mut self, context: u64) -> Option<Operation> {
        self.operations.remove(&context)
    }

    /// Starts to send; gives the operation, or the message again if there is no room for it now.
    pub fn send(
        &mut self,
        link: LinkId,
        endpoint: &Endpoint,
        buffer: MessageBuffer,
        length: usize,
    ) -> Result<Result<u64, MessageBuffer>, FabricError> {
        let memory = self.sends.memory(&buffer, length);
        let context = self.add(Operation::Send { link, buffer });
        // SAFETY: the operation owns the buffer until it is complete or the endpoint closed.
        let started = unsafe { endpoint.send(memory, context) };
        if matches!(started, Ok(true)) {
            return Ok(Ok(context));
        }
        let Some(Operation::Send { buffer, .. }) = self.take(context) else { unreachable!("it was added") };
        match started {
            Ok(_) => Ok(Err(buffer)),
            Err(error) => {
                self.sends.give_back(buffer);
                Err(error)
            }
        }
    }

    /// Posts a receive with a buffer: that of a link, or a shared one. Gives its context, or nothing if there is no room
    /// for it; the buffer is free then.
    pub fn post(&mut self, own: Option<(LinkId, &Endpoint)>, buffer: MessageBuffer) -> Option<u64> {
        let memory = self.receives.memory(&buffer, MESSAGE_BYTES_MAX);
        let context = self.add(Operation::Receive { link: own.map(|(link, _)| link), buffer });
        // SAFETY: the operation owns the buffer until it is complete or the endpoint closed.
        let started = unsafe {
            match (own, &self.shared) {
                (Some((_, endpoint)), _) => endpoint.receive(memory, context),
                (None, Some(shared)) => shared.receive(memory, context),
                (None, None) => unreachable!("receives without a link are shared"),
            }
        };
        if matches!(started, Ok(true)) {
            return Some(context);
        }
        if let Some(Operation::Receive { buffer, .. }) = self.take(context) {
            self.receives.give_back(buffer);
        }
        None
    }

    /// Posts shared receives until there are `count` or no more can be had; gives how many there are.
    pub fn post_shared(&mut self, count: usize) -> usize {
        while self.posted < count {
            let Some(buffer) = self.receives.take() else { break };
            if self.post(None, buffer).is_none() {
                break;
            }
            self.posted += 1;
        }
        self.posted
    }

    /// Begins to read `length` bytes of the peer's memory to the front of the room of `target`. Gives the operation, or
    /// the read again if there is no room for it now.
    pub fn read(
        &mut self,
        link: LinkId,
        endpoint: &Endpoint,
        mut read: Read,
        reference: Reference,
    ) -> Result<Result<u64, Read>, FabricError> {
        let Some(memory) = self.memory_for(&mut read)? else { return Ok(Err(read)) };
        let context = self.add(Operation::Read { link, read });
        // SAFETY: the operation owns the target until it is complete or the endpoint closed. Its memory is on the heap
        // and does not move with it.
        let started = unsafe { endpoint.read(memory, reference.address, reference.key, context) };
        match started {
            Ok(true) => Ok(Ok(context)),
            not_started => {
                let Some(Operation::Read { mut read, .. }) = self.take(context) else {
                    unreachable!("it was added")
                };
                self.end_read(&mut read, false);
                not_started.map(|_| Err(read))
            }
        }
    }

    /// Where a read goes: to its target, or to a message buffer, and so less of it, if that cannot be registered. Nothing
    /// if there is no such buffer now.
    fn memory_for(&mut self, read: &mut Read) -> Result<Option<Memory>, FabricError> {
        let mut descriptor = std::ptr::null_mut();
        if self.needs_local_registration {
            match self.read_targets.register(read.target.buffer()) {
                Ok(region) => {
                    descriptor = region.descriptor();
                    read._region = Some(region);
                }
                Err(error @ FabricError::NoMemory { .. }) => {
                    self.refusal = Some(error);
                    let Some(buffer) = self.asides.take() else { return Ok(None) };
                    read.length = read.length.min(MESSAGE_BYTES_MAX);
                    let memory = self.asides.memory(&buffer, read.length);
                    read.aside = Some(buffer);
                    return Ok(Some(memory));
                }
                Err(error) => return Err(error),
            }
        }
        let length = read.length;
        let room = read.target.room();
        assert!(length <= room.len(), "the target has room for the read bytes");
        Ok(Some(Memory { start: room.as_mut_ptr(), length, descriptor }))
    }

    /// Copies the bytes of a completed read from its message buffer to its target.
    pub fn end_read(&mut self, read: &mut Read, has_come: bool) {
        let Some(buffer) = read.aside.take() else { return };
        if has_come {
            let bytes = self.asides.bytes(&buffer, read.length);
            read.target.room()[..bytes.len()].copy_from_slice(bytes);
        }
        self.asides.give_back(buffer);
    }

    /// Returns true if there is memory for sends, and for reads whose targets cannot be registered.
    pub fn has_some_memory(&mut self) -> bool {
        self.sends.has_some() && (!self.needs_local_registration || self.asides.has_some())
    }

    /// Why memory could not be registered, once.
    pub fn take_refusal(&mut self) -> Option<FabricError> {
        let of_messages =
            self.receives.take_refusal().or(self.sends.take_refusal()).or(self.asides.take_refusal());
        of_messages.or(self.refusal.take())
    }

    /// Lets the peer read these bytes, or gives them back if that cannot be.
    pub fn refer(&mut self, bytes: Bytes) -> Result<(Referred, Reference), Bytes> {
        let length = bytes.len();
        let Some(domain) = &self.domain else { return Err(bytes) };
        let referred = Referred::register(domain, bytes, self.key_bytes).map_err(|(error, bytes)| {
            self.refusal = Some(error);
            bytes
        })?;
        self.referred_bytes += length;
        let address = if self.has_virtual_addresses { referred.address() } else { 0 };
        let reference = Reference { address, key: referred.key(), length: length as u32 };
        Ok((referred, reference))
    }

    /// Frees the memory of operations, after their endpoint was closed. If it could not be, the device may use
    /// that memory for ever, and it is lost.
    pub fn abandon(&mut self, contexts: &[u64], is_closed: bool) {
        for context in contexts {
            match self.operations.remove(context) {
                Some(operation) if !is_closed => {
                    self.has_lost_operations = true;
                    std::mem::forget(operation);
                }
                Some(Operation::Send { buffer, .. }) => self.sends.give_back(buffer),
                Some(Operation::Receive { buffer, .. }) => self.receives.give_back(buffer),
                Some(Operation::Read { mut read, .. }) => self.end_read(&mut read, false),
                None => {}
            }
        }
    }

    /// Buffers for messages that there are.
    pub fn buffer_count(&self) -> usize {
        self.sends.count() + self.receives.count() + self.asides.count()
    }

    /// Bytes of read targets that are registered for the next time.
    pub fn kept_target_bytes(&self) -> usize {
        self.read_targets.kept_bytes()
    }

    /// The device does not work any more, and its links are closed: gives everything back that is of it, without which
    /// the kernel cannot remove it.
    pub fn close(&mut self) {
        // Shared receives stay posted until their queue is closed. Links, which keep it too, are closed before.
        self.shared = None;
        self.operations.clear();
        self.read_targets.close();
        self.sends.close(self.has_lost_operations);
        self.receives.close(self.has_lost_operations);
        self.asides.close(self.has_lost_operations);
        self.completions = None;
        self.domain = None;
        (self.posted, self.granted, self.extra) = (0, 0, 0);
    }

    pub fn is_gone(&self) -> bool {
        self.completions.is_none()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.close();
    }
}
