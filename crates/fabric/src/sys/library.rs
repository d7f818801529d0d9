//! The library itself, and its ways to reach an address.

use std::ffi::{CStr, CString, c_char, c_int};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::error::FabricError;
use crate::locked::LockedMemory;
use crate::sys::abi;

/// The functions that libfabric exports; everything else is reached through its objects, which keep it loaded. It looks
/// for adapters once, when it is loaded, and keeps them open until it is unloaded.
pub struct Library {
    _loaded: Loaded,
    get_info: abi::GetInfo,
    free_info: abi::FreeInfo,
    duplicate_info: abi::DupInfo,
    pub(super) open_fabric: abi::OpenFabric,
    describe: abi::StrError,
}

const FILE_NAME: &CStr = c"libfabric.so.1";

impl Library {
    /// Loads the library, or uses it as it is loaded.
    pub fn load() -> Result<Arc<Self>, FabricError> {
        switch_cache_off();
        // SAFETY: the name is a C string. The initialisers of this library read its environment variables and start
        // no threads.
        let handle = unsafe { libc::dlopen(FILE_NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(FabricError::NoLibrary { reason: loader_error() });
        };
        let loaded = Loaded(handle);
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open and the name is a C string.
            let address = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            match address.is_null() {
                true => Err(FabricError::NoLibrary { reason: loader_error() }),
                false => Ok(address),
            }
        };
        // SAFETY: these are the functions of these names with the types that the headers declare; see `abi`.
        let library = unsafe {
            use std::mem::transmute;
            Library {
                _loaded: loaded,
                get_info: transmute::<*mut libc::c_void, abi::GetInfo>(symbol(c"fi_getinfo")?),
                free_info: transmute::<*mut libc::c_void, abi::FreeInfo>(symbol(c"fi_freeinfo")?),
                duplicate_info: transmute::<*mut libc::c_void, abi::DupInfo>(symbol(c"fi_dupinfo")?),
                open_fabric: transmute::<*mut libc::c_void, abi::OpenFabric>(symbol(c"fi_fabric")?),
                describe: transmute::<*mut libc::c_void, abi::StrError>(symbol(c"fi_strerror")?),
            }
        };
        Ok(Arc::new(library))
    }

    /// Returns the error of a call that returned `code`, which is negative.
    pub fn failure(&self, what: &'static str, code: isize) -> FabricError {
        let code = i32::try_from(-code).unwrap_or(i32::MAX);
        // SAFETY: the function takes any number and gives a C string that lives as long as the library.
        let text = unsafe { CStr::from_ptr((self.describe)(code)) }.to_string_lossy().into_owned();
        match code {
            libc::ENOMEM => FabricError::NoMemory { what, text, limit: LockedMemory::of_this_process() },
            _ => FabricError::Failed { what, code, text },
        }
    }

    /// Why memory is not registered. Where no more of it may be locked, systems say so in several ways.
    pub fn not_registered(&self, code: c_int) -> FabricError {
        let code = if matches!(-code, libc::EAGAIN | libc::EPERM) { -libc::ENOMEM } else { code };
        self.failure("registering memory for RDMA", code as isize)
    }

    pub(super) fn check(&self, what: &'static str, code: c_int) -> Result<(), FabricError> {
        if code < 0 { Err(self.failure(what, code as isize)) } else { Ok(()) }
    }

    /// Returns the ways in which `provider` connects to an address, or listens on it.
    pub fn ways(
        self: &Arc<Self>,
        provider: &str,
        address: SocketAddr,
        is_listening: bool,
    ) -> Result<Info, FabricError> {
        let invalid =
            |_| FabricError::NoProvider { provider: provider.into(), reason: "its name has a zero".into() };
        let provider_name = CString::new(provider).map_err(invalid)?;
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let host = CString::new(host).expect("an address has no zero byte");
        let port = CString::new(port).expect("a number has no zero byte");
        let hints = self.hints(&provider_name)?;
        let flags = abi::FI_NUMERICHOST | if is_listening { abi::FI_SOURCE } else { 0 };
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are valid during the call, and what it gives is owned by the `Info`.
        let code = unsafe {
            (self.get_info)(
                abi::API_VERSION,
                host.as_ptr(),
                port.as_ptr(),
                flags,
                hints.pointer.as_ptr(),
                &raw mut found,
            )
        };
        match (code, NonNull::new(found)) {
            (0, Some(pointer)) => Ok(Info { pointer, library: Arc::clone(self) }),
            (0, None) => {
                Err(FabricError::NoProvider { provider: provider.into(), reason: "it offers nothing".into() })
            }
            (code, _) => {
                let reason = self.failure("fi_getinfo", code as isize).to_string();
                Err(FabricError::NoProvider { provider: provider.into(), reason })
            }
        }
    }

    /// Returns the requirements of this crate: connected endpoints with messages and remote reads, used by one
    /// thread.
    fn hints(self: &Arc<Self>, provider: &CStr) -> Result<Info, FabricError> {
        // SAFETY: without an argument the function makes an empty description, or none without memory.
        let pointer = unsafe { (self.duplicate_info)(ptr::null()) };
        let Some(pointer) = NonNull::new(pointer) else {
            return Err(self.failure("fi_allocinfo", -(libc::ENOMEM as isize)));
        };
        let info = Info { pointer, library: Arc::clone(self) };
        // SAFETY: an empty description has all its parts, and it is ours alone. The library frees the name with free,
        // so it comes from strdup.
        unsafe {
            let hints = &mut *pointer.as_ptr();
            hints.caps =
                abi::FI_MSG | abi::FI_RMA | abi::FI_SEND | abi::FI_RECV | abi::FI_READ | abi::FI_REMOTE_READ;
            hints.mode = 0;
            (*hints.ep_attr).kind = abi::FI_EP_MSG;
            let domain = &mut *hints.domain_attr;
            domain.mr_mode = abi::FI_MR_LOCAL | abi::FI_MR_VIRT_ADDR | abi::FI_MR_ALLOCATED | abi::FI_MR_PROV_KEY;
            domain.threading = abi::FI_THREAD_DOMAIN;
            domain.control_progress = abi::FI_PROGRESS_MANUAL;
            domain.data_progress = abi::FI_PROGRESS_MANUAL;
            domain.resource_mgmt = abi::FI_RM_ENABLED;
            (*hints.fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        }
        Ok(info)
    }
}

/// One use of the loaded library; the last that ends unloads it.
struct Loaded(NonNull<libc::c_void>);

// SAFETY: the handle has no ties to a thread.
unsafe impl Send for Loaded {}
// SAFETY: a shared reference does nothing.
unsafe impl Sync for Loaded {}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the handle is open and this is its only owner. What came from the library keeps it: every object has
        // the library, or a parent that has it. It starts no threads.
        unsafe { libc::dlclose(self.0.as_ptr()) };
    }
}

/// Without this, `verbs` keeps closed registrations for reuse, with their keys: a peer could read any content of
/// memory that was once offered to it. The library looks at this when it is loaded.
fn switch_cache_off() {
    // SAFETY: both are C strings. Another thread that reads the environment meanwhile sees the old one or the new one:
    // this process changes it nowhere else, so the C library frees nothing of it.
    unsafe { libc::setenv(c"FI_MR_CACHE_MONITOR".as_ptr(), c"disabled".as_ptr(), 1) };
}

fn loader_error() -> String {
    // SAFETY: dlerror gives a C string or nothing; it is copied before any other call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// A description of a way to an address, or of a request for a connection.
pub struct Info {
    pub(super) pointer: NonNull<abi::FiInfo>,
    pub(super) library: Arc<Library>,
}

// SAFETY: a description is plain memory without ties to a thread.
unsafe impl Send for Info {}

impl Info {
    /// # Safety
    /// The pointer is a description that is freed here alone.
    pub(super) unsafe fn from_raw(pointer: *mut abi::FiInfo, library: &Arc<Library>) -> Option<Self> {
        NonNull::new(pointer).map(|pointer| Info { pointer, library: Arc::clone(library) })
    }

    fn raw(&self) -> &abi::FiInfo {
        // SAFETY: the description lives as long as `self` and nobody changes it.
        unsafe { self.pointer.as_ref() }
    }

    fn domain(&self) -> &abi::FiDomainAttr {
        // SAFETY: descriptions from the library have all their parts.
        unsafe { &*self.raw().domain_attr }
    }

    /// Names of network and device, such as `192.0.2.0/24` and `eth0`.
    pub fn names(&self) -> (String, String) {
        // SAFETY: descriptions from the library have all their parts; names are C strings or null.
        let network = unsafe { text_at((*self.raw().fabric_attr).name) };
        // SAFETY: as above.
        (network, unsafe { text_at(self.domain().name) })
    }

    /// Returns true if memory that only this side uses must be registered, too.
    pub fn needs_local_registration(&self) -> bool {
        self.domain().mr_mode & abi::FI_MR_LOCAL != 0
    }

    /// Returns true if remote addresses are those of the process rather than offsets.
    pub fn has_virtual_addresses(&self) -> bool {
        self.domain().mr_mode & abi::FI_MR_VIRT_ADDR != 0
    }

    /// Returns true if the provider chooses the keys of registered memory.
    pub fn chooses_keys(&self) -> bool {
        self.domain().mr_mode & abi::FI_MR_PROV_KEY != 0
    }

    /// Returns true for iWARP, over which the target of a read is open to writes of the peer that it reads from.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: descriptions from the library have all their parts.
        unsafe { (*self.raw().ep_attr).protocol == abi::FI_PROTO_IWARP }
    }

    /// How long a key may be, in bytes.
    pub fn key_bytes(&self) -> usize {
        self.domain().mr_key_size
    }

    /// Returns true if endpoints of this device can share their receives.
    pub fn has_shared_receives(&self) -> bool {
        self.domain().max_ep_srx_ctx > 0
    }

    /// How many sends and reads an endpoint may have under way.
    pub fn transmit_count_max(&self) -> usize {
        // SAFETY: descriptions from the library have all their parts.
        unsafe { (*self.raw().tx_attr).size }
    }

    /// The address of the other side.
    pub fn peer(&self) -> Option<SocketAddr> {
        let info = self.raw();
        // SAFETY: the library gives the length of the address that it points to.
        unsafe { socket_address(info.dest_addr, info.dest_addrlen) }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the description came from the library and is freed once.
        unsafe { (self.library.free_info)(self.pointer.as_ptr()) };
    }
}

/// # Safety
/// The pointer is null or a C string.
unsafe fn text_at(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// # Safety
/// The pointer is null or has `length` bytes.
pub(super) unsafe fn socket_address(pointer: *const libc::c_void, length: usize) -> Option<SocketAddr> {
    if pointer.is_null() || length < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: each structure is read only where the length has room for it, without alignment.
    unsafe {
        match i32::from(pointer.cast::<libc::sa_family_t>().read_unaligned()) {
            libc::AF_INET if length >= size_of::<libc::sockaddr_in>() => {
                let raw = pointer.cast::<libc::sockaddr_in>().read_unaligned();
                let address = raw.sin_addr.s_addr.to_ne_bytes();
                Some((address, u16::from_be(raw.sin_port)).into())
            }
            libc::AF_INET6 if length >= size_of::<libc::sockaddr_in6>() => {
                let raw = pointer.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((raw.sin6_addr.s6_addr, u16::from_be(raw.sin6_port)).into())
            }
            _ => None,
        }
    }
}
