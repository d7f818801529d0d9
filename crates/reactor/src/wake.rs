//! Waking the loop from other threads, by an eventfd in its ring.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

struct Shared {
    descriptor: OwnedFd,
    is_set: AtomicBool,
}

/// Wakes the loop that made it. Cheap when the loop is being woken already.
#[derive(Clone)]
pub struct Wake(Arc<Shared>);

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; its result is checked before it is used.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Wake(Arc::new(Shared { descriptor, is_set: AtomicBool::new(false) })))
    }

    /// Makes the loop report [`crate::Event::Woken`] soon.
    pub fn wake(&self) {
        if !self.0.is_set.swap(true, Ordering::AcqRel) {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: the buffer lives through the call and has the 8 bytes that are announced.
            let written = unsafe { libc::write(self.0.descriptor.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            assert!(written == 8, "an eventfd takes a small count without waiting");
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }

    /// For epoll, beside the ring.
    pub(crate) fn second_descriptor(&self) -> io::Result<OwnedFd> {
        self.0.descriptor.try_clone()
    }

    /// Must be called before the woken loop looks for work, so that no wake-up is lost.
    pub(crate) fn clear(&self) {
        // A read-modify-write: a plain store could move behind the loop's look at its queues, and a
        // wake-up between the two would be lost.
        self.0.is_set.swap(false, Ordering::AcqRel);
    }
}
