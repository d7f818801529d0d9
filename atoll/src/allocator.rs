//! The allocator of the program: jemalloc, and memory that may have keys of clients in it is wiped when it is freed.
//!
//! The program's only file with `unsafe`.
#![expect(unsafe_code, reason = "an allocator is")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{Ordering, compiler_fence};

use atoll_s3::is_freed_memory_wiped;
use tikv_jemallocator::Jemalloc;

/// Larger pieces have data of objects, and no headers of requests.
const WIPED_BYTES_MAX: usize = 512 << 10;

pub struct WipingAllocator;

/// Returns true if a piece of this size is to be wiped.
#[inline]
fn is_wiped(bytes: usize) -> bool {
    is_freed_memory_wiped() && bytes <= WIPED_BYTES_MAX
}

#[cold]
fn wipe(piece: *mut u8, bytes: usize) {
    // SAFETY: the caller gives the piece back, whose size this is, so it is nobody else's.
    unsafe { piece.write_bytes(0, bytes) };
    // It is not left out because nobody reads it.
    compiler_fence(Ordering::SeqCst);
}

// SAFETY: all pieces come from jemalloc, with the layouts that the callers gave, and go back to it.
unsafe impl GlobalAlloc for WipingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { Jemalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { Jemalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if is_wiped(layout.size()) {
            wipe(piece, layout.size());
        }
        // SAFETY: the same contract.
        unsafe { Jemalloc.dealloc(piece, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !is_wiped(layout.size()) {
            // SAFETY: the same contract.
            return unsafe { Jemalloc.realloc(piece, layout, bytes) };
        }
        // jemalloc would leave the old piece as it is.
        // SAFETY: the caller's size is valid for this alignment.
        let moved_layout = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: the size of a reallocation is not zero.
        let moved = unsafe { Jemalloc.alloc(moved_layout) };
        if !moved.is_null() {
            // SAFETY: both pieces are at least as long, and the new one is another.
            unsafe { moved.copy_from_nonoverlapping(piece, layout.size().min(bytes)) };
            // SAFETY: the caller gives the old piece back.
            unsafe { self.dealloc(piece, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use atoll_s3::WipesFreedMemory;

    use super::*;

    #[test]
    fn freed_memory_is_wiped_while_somebody_holds() {
        let layout = Layout::from_size_align(4_096, 8).unwrap();
        let filled = || {
            // SAFETY: the layout has a size.
            let piece = unsafe { WipingAllocator.alloc(layout) };
            // SAFETY: it was just allocated with this size.
            unsafe { piece.write_bytes(7, layout.size()) };
            piece
        };
        // Grown, it has what it had.
        let wipes = WipesFreedMemory::begin();
        // SAFETY: the piece is of this layout.
        let grown = unsafe { WipingAllocator.realloc(filled(), layout, 8_192) };
        // SAFETY: these bytes were copied.
        assert_eq!(unsafe { std::slice::from_raw_parts(grown, 4_096) }, [7; 4_096]);
        // SAFETY: the piece is of this size, and goes back.
        unsafe { WipingAllocator.dealloc(grown, Layout::from_size_align(8_192, 8).unwrap()) };
        let mut piece = [7_u8; 64];
        if is_wiped(piece.len()) {
            wipe(piece.as_mut_ptr(), piece.len());
        }
        assert_eq!(piece, [0; 64]);
        assert!(!is_wiped(WIPED_BYTES_MAX + 1));
        drop(wipes);
        assert!(!is_wiped(64));
    }
}
