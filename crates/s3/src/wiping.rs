//! Wiping of the memory that this process frees, while it serves clients that send keys of their own. The text of such a
//! key passes through buffers of libraries, which do not say when they are done with it.

use std::sync::atomic::{AtomicUsize, Ordering};

static HOLDERS: AtomicUsize = AtomicUsize::new(0);

/// Has freed memory wiped until it is dropped.
#[derive(Debug)]
pub struct WipesFreedMemory(());

impl WipesFreedMemory {
    /// From now on.
    pub fn begin() -> Self {
        HOLDERS.fetch_add(1, Ordering::Relaxed);
        WipesFreedMemory(())
    }
}

impl Drop for WipesFreedMemory {
    fn drop(&mut self) {
        HOLDERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if memory is to be wiped before it is freed. The allocator of the program asks.
#[inline]
pub fn is_freed_memory_wiped() -> bool {
    HOLDERS.load(Ordering::Relaxed) > 0
}
