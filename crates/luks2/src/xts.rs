//! AES-256-XTS (IEEE 1619-2018) of one data unit, by AWS-LC.
//!
//! `aws-lc-rs` does not offer XTS, so this calls the C library that it is made of. This file is the crate's only
//! one with `unsafe`: its public items are safe to call.
#![expect(unsafe_code, reason = "AES-XTS is only there as C functions")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::os::raw::c_int;
use std::ptr::{NonNull, null, null_mut};

use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_copy, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_Cipher, EVP_CipherInit_ex,
    EVP_aes_256_xts,
};

use crate::VolumeKey;

/// Bytes of an AES block, and of the number of a data unit (its "tweak").
pub(crate) const AES_BLOCK_BYTES: usize = 16;
/// The largest data unit that the standard allows: 2^20 AES blocks.
const MAX_UNIT_BYTES: usize = AES_BLOCK_BYTES << 20;

/// Which way a context works. An AES key schedule serves one way only.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Encrypt = 1,
    Decrypt = 0,
}

/// A key schedule, ready for one data unit after the other.
pub(crate) struct XtsContext(NonNull<EVP_CIPHER_CTX>);

// SAFETY: A context is memory that this value alone owns; AWS-LC ties it to no thread.
unsafe impl Send for XtsContext {}
// SAFETY: Everything that changes a context takes `&mut self`. Through `&self` it can only be copied from,
// which reads.
unsafe impl Sync for XtsContext {}

impl XtsContext {
    pub(crate) fn new(key: &VolumeKey, direction: Direction) -> Self {
        let context = Self::empty();
        // SAFETY: The context is valid, EVP_aes_256_xts returns a static table, its key has the 64
        // bytes that `VolumeKey` has, and both a missing engine and a missing tweak are allowed.
        let done = unsafe {
            EVP_CipherInit_ex(
                context.0.as_ptr(),
                EVP_aes_256_xts(),
                null_mut(),
                key.expose().as_ptr(),
                null(),
                direction as c_int,
            )
        };
        assert_eq!(done, 1, "AWS-LC takes any XTS key whose halves differ, which VolumeKey has made sure of");
        context
    }

    /// Transforms the data unit that `tweak` numbers from `source` into `destination`.
    /// Both have the same length, 16 bytes to 16 MiB.
    pub(crate) fn transform(&mut self, tweak: &[u8; AES_BLOCK_BYTES], source: &[u8], destination: &mut [u8]) {
        assert_eq!(source.len(), destination.len(), "XTS does not change the length");
        // SAFETY: Both slices are valid for this length, and a shared and an exclusive slice
        // cannot overlap.
        unsafe { self.transform_raw(tweak, source.as_ptr(), destination.as_mut_ptr(), source.len()) }
    }

    /// Transforms a data unit in its place.
    pub(crate) fn transform_in_place(&mut self, tweak: &[u8; AES_BLOCK_BYTES], unit: &mut [u8]) {
        let (bytes, length) = (unit.as_mut_ptr(), unit.len());
        // SAFETY: The slice is valid for reads and writes of this length. AWS-LC allows source and
        // destination to be the same.
        unsafe { self.transform_raw(tweak, bytes, bytes, length) }
    }

    /// # Safety
    ///
    /// `source` must be valid for reading and `destination` for writing `length` bytes, and they
    /// must be the same or not overlap.
    unsafe fn transform_raw(
        &mut self,
        tweak: &[u8; AES_BLOCK_BYTES],
        source: *const u8,
        destination: *mut u8,
        length: usize,
    ) {
        assert!((AES_BLOCK_BYTES..=MAX_UNIT_BYTES).contains(&length), "a data unit has 16 bytes to 16 MiB");
        let context = self.0.as_ptr();
        // SAFETY: The context has its cipher and key since `new`; a direction of -1 keeps the one
        // it has, and the tweak has 16 bytes. This costs a copy of 16 bytes, not a key schedule.
        let tweaked = unsafe { EVP_CipherInit_ex(context, null(), null_mut(), null(), tweak.as_ptr(), -1) };
        // SAFETY: The caller vouches for the two buffers; XTS reads and writes `length` bytes.
        let done = unsafe { EVP_Cipher(context, destination, source, length) };
        assert_eq!((tweaked, done), (1, 1), "AES-XTS with a key, a tweak and a fitting length does not fail");
    }

    fn empty() -> Self {
        // SAFETY: The function takes nothing and returns a fresh context or null.
        let context = unsafe { EVP_CIPHER_CTX_new() };
        XtsContext(NonNull::new(context).expect("a few hundred bytes of memory can be had"))
    }
}

impl Clone for XtsContext {
    fn clone(&self) -> Self {
        let copy = Self::empty();
        // SAFETY: Both contexts are valid and differ; the source is only read.
        let done = unsafe { EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) };
        assert_eq!(done, 1, "a context with a key can be copied");
        copy
    }
}

impl Drop for XtsContext {
    fn drop(&mut self) {
        // SAFETY: The context is owned and never used again. AWS-LC wipes the key schedule.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}
