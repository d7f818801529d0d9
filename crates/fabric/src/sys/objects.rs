//! The library's objects. Each keeps its parents alive and is closed when it is dropped. One thread at a time uses
//! all objects of a process loop, as `FI_THREAD_DOMAIN` requires: they are owned by one [`crate::Fabric`].

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::FabricError;
use crate::sys::library::{Info, Library};
use crate::sys::registered::{Registered, Share};
use crate::sys::{Access, abi};

/// Declares an owned object: its pointer, and `Drop`, which closes it.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $raw:ty, { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        pub struct $name {
            pointer: NonNull<$raw>,
            is_closed: bool,
            $($field: $type,)*
        }

        // SAFETY: the library's objects have no ties to a thread; uses are serialised by their one owner.
        unsafe impl Send for $name {}
        // SAFETY: shared references are only held by objects of the same owner, which is used by one thread at a time.
        unsafe impl Sync for $name {}

        impl $name {
            fn fid(&self) -> *mut abi::Fid {
                self.pointer.as_ptr().cast()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if self.is_closed {
                    return;
                }
                let fid = self.fid();
                // SAFETY: the object is open and this is its only owner; what was made from it keeps it alive.
                unsafe { ((*(*fid).ops).close)(fid) };
            }
        }
    };
}

/// Calls a function of an object's table with the object first.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* )) => {
        ((*(*$object).$table).$function)($object, $($argument),*)
    };
}

// After the macros, which it uses.
mod endpoints;

pub use endpoints::{Endpoint, Memory, PassiveEndpoint, SharedReceives};

object!(
    /// A network, as the library sees it.
    NetworkFabric, abi::FidFabric, { library: Arc<Library> }
);

impl NetworkFabric {
    /// Opens the network of a way.
    pub fn open(info: &Info) -> Result<Arc<Self>, FabricError> {
        let library = Arc::clone(&info.library);
        let mut fabric = ptr::null_mut();
        // SAFETY: the description is the library's own; the object it gives is owned below.
        let code = unsafe {
            (library.open_fabric)((*info.pointer.as_ptr()).fabric_attr, &raw mut fabric, ptr::null_mut())
        };
        library.check("fi_fabric", code)?;
        let pointer = NonNull::new(fabric).expect("the library gives an object where it reports none missing");
        Ok(Arc::new(NetworkFabric { pointer, is_closed: false, library }))
    }

    /// Returns true if the loop may sleep on the descriptors of these queues.
    pub fn may_wait(&self, events: &EventQueue, completions: &[&CompletionQueue]) -> bool {
        let mut fids: Vec<*mut abi::Fid> = completions.iter().map(|queue| queue.fid()).collect();
        fids.push(events.fid());
        let fabric = self.pointer.as_ptr();
        // SAFETY: all objects are open, and the list has as many as is said.
        unsafe { call!(fabric, ops.trywait(fids.as_mut_ptr(), fids.len() as i32)) == 0 }
    }
}

object!(
    /// Events of connecting.
    EventQueue, abi::FidEq, { fabric: Arc<NetworkFabric> }
);

/// Events of an event queue.
pub enum Connecting {
    /// A request for a connection to the passive endpoint, with the private data of the peer.
    Requested(usize, Info, Vec<u8>),
    /// The endpoint is connected; with the private data of the peer, if it is this side that connected.
    Established(usize, Vec<u8>),
    /// The peer has closed the connection of the endpoint.
    Ended(usize),
    /// The endpoint cannot be connected, or has failed.
    Failed(usize, FabricError),
}

impl EventQueue {
    /// Opens a queue with a descriptor to wait on.
    pub fn open(fabric: &Arc<NetworkFabric>) -> Result<Arc<Self>, FabricError> {
        let mut attributes = abi::FiEqAttr {
            size: 0,
            flags: 0,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        let (mut queue, parent) = (ptr::null_mut(), fabric.pointer.as_ptr());
        // SAFETY: the fabric is open, and the attributes are valid during the call.
        let code = unsafe { call!(parent, ops.eq_open(&raw mut attributes, &raw mut queue, ptr::null_mut())) };
        fabric.library.check("fi_eq_open", code)?;
        let pointer = NonNull::new(queue).expect("the library gives an object where it reports none missing");
        Ok(Arc::new(EventQueue { pointer, is_closed: false, fabric: Arc::clone(fabric) }))
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> Result<RawFd, FabricError> {
        wait_descriptor(self.fid(), &self.fabric.library)
    }

    /// The next event.
    pub fn read(&self) -> Result<Option<Connecting>, FabricError> {
        let mut event = 0_u32;
        let mut entry = MaybeUninit::<abi::FiEqCmEntry>::zeroed();
        let queue = self.pointer.as_ptr();
        // SAFETY: the entry has the size that is said.
        let length = unsafe {
            call!(queue, ops.read(&raw mut event, entry.as_mut_ptr().cast(), size_of::<abi::FiEqCmEntry>(), 0))
        };
        if length == -abi::FI_EAVAIL {
            return self.read_error();
        }
        if length == -abi::FI_EAGAIN {
            return Ok(None);
        }
        if length < 0 {
            return Err(self.fabric.library.failure("fi_eq_read", length));
        }
        // SAFETY: all zeros is a valid entry, and the library wrote a valid one over it.
        let entry = unsafe { entry.assume_init() };
        let data_bytes = (length as usize).saturating_sub(std::mem::offset_of!(abi::FiEqCmEntry, data));
        let data = entry.data[..data_bytes.min(abi::CM_DATA_BYTES_MAX)].to_vec();
        Ok(match event {
            abi::FI_CONNREQ => {
                // SAFETY: the event hands the description over.
                let info = unsafe { Info::from_raw(entry.info, &self.fabric.library) };
                info.map(|info| Connecting::Requested(entry.fid as usize, info, data))
            }
            abi::FI_CONNECTED => Some(Connecting::Established(entry.fid as usize, data)),
            abi::FI_SHUTDOWN => Some(Connecting::Ended(entry.fid as usize)),
            // Nothing else is asked for.
            _ => None,
        })
    }

    fn read_error(&self) -> Result<Option<Connecting>, FabricError> {
        let mut entry = MaybeUninit::<abi::FiEqErrEntry>::zeroed();
        let queue = self.pointer.as_ptr();
        // SAFETY: the entry is valid; without room for error data none is written.
        let length = unsafe { call!(queue, ops.readerr(entry.as_mut_ptr(), 0)) };
        if length < 0 {
            return Err(self.fabric.library.failure("fi_eq_readerr", length));
        }
        // SAFETY: all zeros is a valid entry, and the library wrote a valid one over it.
        let entry = unsafe { entry.assume_init() };
        let error = self.fabric.library.failure("connecting over RDMA", -(entry.err.abs() as isize));
        Ok(Some(Connecting::Failed(entry.fid as usize, error)))
    }
}

object!(
    /// A device, with which memory is registered.
    Domain, abi::FidDomain, { fabric: Arc<NetworkFabric>, registered: Arc<Registered> }
);

impl Domain {
    /// Opens the device of a way, with at most `registered_bytes_max` registered bytes at a time.
    pub fn open(
        fabric: &Arc<NetworkFabric>,
        info: &Info,
        registered_bytes_max: usize,
    ) -> Result<Arc<Self>, FabricError> {
        let (mut domain, parent) = (ptr::null_mut(), fabric.pointer.as_ptr());
        // SAFETY: the fabric is open and the description valid.
        let code = unsafe { call!(parent, ops.domain(info.pointer.as_ptr(), &raw mut domain, ptr::null_mut())) };
        fabric.library.check("fi_domain", code)?;
        let pointer = NonNull::new(domain).expect("the library gives an object where it reports none missing");
        let registered = Registered::at_most(registered_bytes_max);
        Ok(Arc::new(Domain { pointer, is_closed: false, fabric: Arc::clone(fabric), registered }))
    }

    /// Registers memory: for this side's own operations, or for reads by the peer that has the key.
    ///
    /// # Safety
    /// The memory stays where it is until the region is dropped.
    pub unsafe fn register(
        self: &Arc<Self>,
        memory: *const u8,
        length: usize,
        access: Access,
        key: u64,
    ) -> Result<Region, FabricError> {
        let access = match access {
            Access::Sends => abi::FI_SEND,
            Access::Receives => abi::FI_RECV,
            Access::Reads => abi::FI_READ,
            Access::PeerReads => abi::FI_REMOTE_READ,
        };
        let share = self.registered.take(length);
        let share = share.ok_or_else(|| self.fabric.library.not_registered(-libc::ENOMEM))?;
        let (mut region, domain) = (ptr::null_mut(), self.pointer.as_ptr());
        // SAFETY: the domain is open; the caller keeps the memory.
        let code = unsafe {
            ((*(*domain).mr).reg)(
                self.fid(),
                memory.cast(),
                length,
                access,
                0,
                key,
                0,
                &raw mut region,
                ptr::null_mut(),
            )
        };
        if code < 0 {
            return Err(self.fabric.library.not_registered(code));
        }
        let pointer = NonNull::new(region).expect("the library gives an object where it reports none missing");
        Ok(Region { pointer, is_closed: false, _share: share, _domain: Arc::clone(self) })
    }
}

object!(
    /// Registered memory.
    Region, abi::FidMr, { _share: Share, _domain: Arc<Domain> }
);

impl Region {
    /// Returns the descriptor of the memory for operations of this side.
    pub fn descriptor(&self) -> *mut libc::c_void {
        // SAFETY: the region is open.
        unsafe { self.pointer.as_ref().mem_desc }
    }

    /// Returns the key of the memory for the peer.
    pub fn key(&self) -> u64 {
        // SAFETY: the region is open.
        unsafe { self.pointer.as_ref().key }
    }
}

object!(
    /// Completions of operations of one device.
    CompletionQueue, abi::FidCq, { domain: Arc<Domain> }
);

/// An operation is complete.
pub struct Completion {
    /// Context that the operation was started with.
    pub context: u64,
    /// Bytes of a received message; of an operation that failed, why.
    pub result: Result<usize, FabricError>,
}

/// Completions that are taken with one call.
const COMPLETIONS_AT_ONCE: usize = 32;

impl CompletionQueue {
    /// Opens a queue with a descriptor to wait on.
    pub fn open(domain: &Arc<Domain>, size: usize) -> Result<Arc<Self>, FabricError> {
        let mut attributes = abi::FiCqAttr {
            size,
            flags: 0,
            format: abi::FI_CQ_FORMAT_MSG,
            wait_obj: abi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        let (mut queue, parent) = (ptr::null_mut(), domain.pointer.as_ptr());
        // SAFETY: the domain is open, and the attributes are valid during the call.
        let code = unsafe { call!(parent, ops.cq_open(&raw mut attributes, &raw mut queue, ptr::null_mut())) };
        domain.fabric.library.check("fi_cq_open", code)?;
        let pointer = NonNull::new(queue).expect("the library gives an object where it reports none missing");
        Ok(Arc::new(CompletionQueue { pointer, is_closed: false, domain: Arc::clone(domain) }))
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> Result<RawFd, FabricError> {
        wait_descriptor(self.fid(), &self.domain.fabric.library)
    }

    /// Takes completed operations, some at a time; returns true if there may be more. Each call makes `tcp` ask
    /// the kernel for new data, so a call that finds nothing costs as much as others.
    pub fn read(&self, completions: &mut Vec<Completion>) -> Result<bool, FabricError> {
        let empty = abi::FiCqMsgEntry { op_context: ptr::null_mut(), flags: 0, len: 0 };
        let mut entries = [empty; COMPLETIONS_AT_ONCE];
        let queue = self.pointer.as_ptr();
        // SAFETY: the entries are as many as is said, in the format that the queue was opened with.
        let count = unsafe { call!(queue, ops.read(entries.as_mut_ptr().cast(), COMPLETIONS_AT_ONCE)) };
        match count {
            0.. => {
                let entries = &entries[..count as usize];
                completions.extend(
                    entries
                        .iter()
                        .map(|entry| Completion { context: entry.op_context as u64, result: Ok(entry.len) }),
                );
                Ok(count as usize == COMPLETIONS_AT_ONCE)
            }
            _ if count == -abi::FI_EAGAIN => Ok(false),
            _ if count == -abi::FI_EAVAIL => {
                let mut entry = MaybeUninit::<abi::FiCqErrEntry>::zeroed();
                // SAFETY: the entry is valid; without room for error data none is written.
                let length = unsafe { call!(queue, ops.readerr(entry.as_mut_ptr(), 0)) };
                if length < 0 {
                    return if length == -abi::FI_EAGAIN { Ok(false) } else { Err(self.failure(length)) };
                }
                // SAFETY: all zeros is a valid entry, and the library wrote a valid one over it.
                let entry = unsafe { entry.assume_init() };
                let error = self.domain.fabric.library.failure("an RDMA operation", -(entry.err.abs() as isize));
                completions.push(Completion { context: entry.op_context as u64, result: Err(error) });
                Ok(true)
            }
            _ => Err(self.failure(count)),
        }
    }

    fn failure(&self, code: isize) -> FabricError {
        self.domain.fabric.library.failure("fi_cq_read", code)
    }
}

fn wait_descriptor(fid: *mut abi::Fid, library: &Library) -> Result<RawFd, FabricError> {
    let mut descriptor: RawFd = -1;
    // SAFETY: the queue is open and was opened for waiting on a descriptor, which this call writes.
    let code = unsafe { call!(fid, ops.control(abi::FI_GETWAIT, (&raw mut descriptor).cast())) };
    library.check("asking for a descriptor to wait on", code)?;
    Ok(descriptor)
}
