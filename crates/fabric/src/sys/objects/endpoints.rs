//! Endpoints: listeners, and the ends of connections with their sends, receives and reads.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::{CompletionQueue, Domain, EventQueue};
use crate::error::FabricError;
use crate::sys::library::{Info, Library, socket_address};
use crate::sys::{QueueSizes, abi};

object!(
    /// An address that accepts connections.
    PassiveEndpoint, abi::FidPep, { _events: Arc<EventQueue> }
);

impl PassiveEndpoint {
    /// Listens on the address of a way.
    pub fn listen(events: &Arc<EventQueue>, info: &Info) -> Result<Self, FabricError> {
        let fabric = &events.fabric;
        let (mut endpoint, parent) = (ptr::null_mut(), fabric.pointer.as_ptr());
        // SAFETY: the fabric is open and the description valid.
        let code =
            unsafe { call!(parent, ops.passive_ep(info.pointer.as_ptr(), &raw mut endpoint, ptr::null_mut())) };
        fabric.library.check("fi_passive_ep", code)?;
        let pointer = NonNull::new(endpoint).expect("the library gives an object where it reports none missing");
        let endpoint = PassiveEndpoint { pointer, is_closed: false, _events: Arc::clone(events) };
        // SAFETY: both objects are open, and the endpoint keeps the queue.
        let code = unsafe { call!(endpoint.fid(), ops.bind(events.fid(), 0)) };
        fabric.library.check("fi_pep_bind", code)?;
        let raw = endpoint.pointer.as_ptr();
        // SAFETY: the endpoint is open and bound.
        let code = unsafe { call!(raw, cm.listen()) };
        fabric.library.check("fi_listen", code)?;
        Ok(endpoint)
    }

    /// Returns the number that identifies it in events.
    pub fn number(&self) -> usize {
        self.fid() as usize
    }

    /// The address with the port that was chosen.
    pub fn address(&self) -> Option<SocketAddr> {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let mut length = size_of::<libc::sockaddr_storage>();
        // SAFETY: the endpoint is open, and at most `length` bytes are written.
        unsafe {
            let cm = (*self.pointer.as_ptr()).cm;
            let code = ((*cm).getname)(self.fid(), storage.as_mut_ptr().cast(), &raw mut length);
            if code == 0 { socket_address(storage.as_ptr().cast(), length) } else { None }
        }
    }

    /// Turns a request away.
    pub fn reject(&self, request: &Info) {
        let raw = self.pointer.as_ptr();
        // SAFETY: the handle is that of a request of this endpoint. What cannot be rejected is left to the peer's
        // patience.
        unsafe { call!(raw, cm.reject((*request.pointer.as_ptr()).handle, ptr::null(), 0)) };
    }
}

object!(
    /// Receives that all endpoints of a device share.
    SharedReceives, abi::FidEp, { domain: Arc<Domain> }
);

impl SharedReceives {
    /// Opens shared receives, at most `count_max`; `info` describes the device.
    pub fn open(domain: &Arc<Domain>, info: &Info, count_max: usize) -> Result<Arc<Self>, FabricError> {
        let (mut receives, parent) = (ptr::null_mut(), domain.pointer.as_ptr());
        // SAFETY: the domain is open. The attributes are the library's own, of this description, which is ours. They get
        // their size back, because it is more than providers allow for the endpoints that are made of them.
        let code = unsafe {
            let attributes = (*info.pointer.as_ptr()).rx_attr;
            let size = std::mem::replace(&mut (*attributes).size, count_max);
            let code = call!(parent, ops.srx_ctx(attributes, &raw mut receives, ptr::null_mut()));
            (*attributes).size = size;
            code
        };
        domain.fabric.library.check("fi_srx_context", code)?;
        let pointer = NonNull::new(receives).expect("the library gives an object where it reports none missing");
        Ok(Arc::new(SharedReceives { pointer, is_closed: false, domain: Arc::clone(domain) }))
    }

    /// As [`Endpoint::receive`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn receive(&self, memory: Memory, context: u64) -> Result<bool, FabricError> {
        // SAFETY: the caller's promise.
        unsafe { receive(self.pointer.as_ptr(), memory, context, &self.domain.fabric.library) }
    }
}

/// Where bytes are or go.
#[derive(Clone, Copy)]
pub struct Memory {
    /// The first byte.
    pub start: *mut u8,
    /// How many.
    pub length: usize,
    /// The device's descriptor of it, or null.
    pub descriptor: *mut libc::c_void,
}

/// # Safety
/// The memory is left alone until the operation completes or the endpoint is closed.
unsafe fn receive(
    endpoint: *mut abi::FidEp,
    memory: Memory,
    context: u64,
    library: &Library,
) -> Result<bool, FabricError> {
    let context = ptr::without_provenance_mut(context as usize);
    // SAFETY: the endpoint is open; the memory is the caller's promise. A context is only given back.
    let code = unsafe {
        call!(endpoint, msg.recv(memory.start.cast(), memory.length, memory.descriptor, u64::MAX, context))
    };
    started(code, "fi_recv", library)
}

/// False if there is no room for the operation now.
fn started(code: isize, what: &'static str, library: &Library) -> Result<bool, FabricError> {
    match code {
        0.. => Ok(true),
        _ if code == -abi::FI_EAGAIN => Ok(false),
        _ => Err(library.failure(what, code)),
    }
}

object!(
    /// One end of a connection.
    Endpoint, abi::FidEp, {
        events: Arc<EventQueue>,
        _completions: Arc<CompletionQueue>,
        _shared: Option<Arc<SharedReceives>>
    }
);

impl Endpoint {
    /// Makes an endpoint for a way or a request, with the given numbers of concurrent sends and reads, and
    /// receives of its own if it shares none.
    pub fn open(
        info: &Info,
        events: &Arc<EventQueue>,
        completions: &Arc<CompletionQueue>,
        shared: Option<&Arc<SharedReceives>>,
        sizes: QueueSizes,
    ) -> Result<Self, FabricError> {
        let domain = &completions.domain;
        let library = &domain.fabric.library;
        let (mut endpoint, parent) = (ptr::null_mut(), domain.pointer.as_ptr());
        // SAFETY: descriptions from the library have all their parts, and this one is ours.
        unsafe {
            let info = &mut *info.pointer.as_ptr();
            (*info.tx_attr).size = sizes.transmits as usize;
            // `verbs` keeps room for the receives of each endpoint among completions, even if they are shared.
            (*info.rx_attr).size = if shared.is_some() { 1 } else { sizes.receives as usize };
            if shared.is_some() {
                (*info.ep_attr).rx_ctx_cnt = abi::FI_SHARED_CONTEXT;
            }
        }
        // SAFETY: the domain is open and the description valid.
        let code =
            unsafe { call!(parent, ops.endpoint(info.pointer.as_ptr(), &raw mut endpoint, ptr::null_mut())) };
        library.check("fi_endpoint", code)?;
        let endpoint = Endpoint {
            pointer: NonNull::new(endpoint).expect("the library gives an object where it reports none missing"),
            is_closed: false,
            events: Arc::clone(events),
            _completions: Arc::clone(completions),
            _shared: shared.map(Arc::clone),
        };
        let bind = |what, fid, flags| {
            // SAFETY: both objects are open, and the endpoint keeps what it is bound to.
            let code = unsafe { call!(endpoint.fid(), ops.bind(fid, flags)) };
            library.check(what, code)
        };
        bind("binding an endpoint to its events", events.fid(), 0)?;
        bind("binding an endpoint to its completions", completions.fid(), abi::FI_SEND | abi::FI_RECV)?;
        if let Some(shared) = shared {
            bind("binding an endpoint to shared receives", shared.fid(), 0)?;
        }
        // SAFETY: the endpoint is open and bound.
        let code = unsafe { call!(endpoint.fid(), ops.control(abi::FI_ENABLE, ptr::null_mut())) };
        library.check("fi_enable", code)?;
        Ok(endpoint)
    }

    /// Returns the number that identifies it in events.
    pub fn number(&self) -> usize {
        self.fid() as usize
    }

    fn library(&self) -> &Library {
        &self.events.fabric.library
    }

    /// Begins to connect to the address of the way that the endpoint was made for.
    pub fn connect(&self, info: &Info, data: &[u8]) -> Result<(), FabricError> {
        let raw = self.pointer.as_ptr();
        // SAFETY: the endpoint is open; the address is the library's own, the data is copied.
        let code = unsafe {
            call!(raw, cm.connect((*info.pointer.as_ptr()).dest_addr, data.as_ptr().cast(), data.len()))
        };
        self.library().check("fi_connect", code)
    }

    /// Accepts the request that the endpoint was made for.
    pub fn accept(&self, data: &[u8]) -> Result<(), FabricError> {
        let raw = self.pointer.as_ptr();
        // SAFETY: the endpoint is open; the data is copied.
        let code = unsafe { call!(raw, cm.accept(data.as_ptr().cast(), data.len())) };
        self.library().check("fi_accept", code)
    }

    /// Informs the peer that the connection ends, and closes the endpoint. When this says true, no operation of it
    /// uses any memory any more.
    pub fn close(mut self) -> bool {
        let (raw, fid) = (self.pointer.as_ptr(), self.fid());
        self.is_closed = true;
        // SAFETY: the endpoint is open, and is not used after this. One that is not connected any more has nobody to tell.
        unsafe {
            call!(raw, cm.shutdown(0));
            ((*(*fid).ops).close)(fid) == 0
        }
    }

    /// Has the next message of the peer received. False if there is no room for the operation now.
    ///
    /// # Safety
    /// The memory is left alone until the operation completes or the endpoint is closed.
    pub unsafe fn receive(&self, memory: Memory, context: u64) -> Result<bool, FabricError> {
        // SAFETY: the caller's promise.
        unsafe { receive(self.pointer.as_ptr(), memory, context, self.library()) }
    }

    /// Sends a message. False if there is no room for the operation now.
    ///
    /// # Safety
    /// As for [`Endpoint::receive`].
    pub unsafe fn send(&self, memory: Memory, context: u64) -> Result<bool, FabricError> {
        let (endpoint, context) = (self.pointer.as_ptr(), ptr::without_provenance_mut(context as usize));
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        let code = unsafe {
            let start = memory.start.cast_const().cast();
            call!(endpoint, msg.send(start, memory.length, memory.descriptor, u64::MAX, context))
        };
        started(code, "fi_send", self.library())
    }

    /// Reads memory of the peer. False if there is no room for the operation now.
    ///
    /// # Safety
    /// As for [`Endpoint::receive`].
    pub unsafe fn read(&self, memory: Memory, address: u64, key: u64, context: u64) -> Result<bool, FabricError> {
        let (endpoint, context) = (self.pointer.as_ptr(), ptr::without_provenance_mut(context as usize));
        // SAFETY: the endpoint is open; the memory is the caller's promise.
        let code = unsafe {
            let start = memory.start.cast();
            call!(endpoint, rma.read(start, memory.length, memory.descriptor, u64::MAX, address, key, context))
        };
        started(code, "fi_read", self.library())
    }
}
