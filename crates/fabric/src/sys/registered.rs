//! How many bytes are registered with a device, and how many may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of one device.
pub(super) struct Registered {
    bytes: AtomicUsize,
    bytes_max: usize,
}

/// A region's share of it, until it is closed.
pub(super) struct Share {
    registered: Arc<Registered>,
    bytes: usize,
}

impl Registered {
    pub fn at_most(bytes_max: usize) -> Arc<Self> {
        Arc::new(Registered { bytes: AtomicUsize::new(0), bytes_max })
    }

    /// Nothing if that would be too much.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let with_these = |now: usize| now.checked_add(bytes).filter(|now| *now <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_these).ok()?;
        Some(Share { registered: Arc::clone(self), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.registered.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
