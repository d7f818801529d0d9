//! Erasure coding: m parity shards for k data shards; any k of the shards restore the others. Pure functions on
//! byte slices. This crate knows a code by its two numbers and a shard by its index. It does no I/O, and knows
//! neither the content of shards, nor how objects are cut, nor the shards' places and versions: the caller brings
//! shards of one version and one length.
//!
//! Its results are a format: parity is stored, and must be understood by every later version. The field and the
//! coefficients are therefore fixed ([`Code`]), the same whichever kernel does the work, and pinned by known
//! answers in `tests/format.rs`.
//!
//! ```
//! use atoll_ec::Code;
//!
//! let code = Code::new(2, 1)?;
//! let (first, second, mut parity) = (*b"data", *b"more", [0; 4]);
//! code.encode(&[&first, &second], &mut [&mut parity]);
//!
//! // The second shard is lost: any two give it back.
//! let mut found = [0; 4];
//! code.reconstruct(&[(0, &first), (2, &parity)], &[1], &mut [&mut found])?;
//! assert_eq!(found, second);
//! # Ok::<(), atoll_ec::CodeError>(())
//! ```

mod code;
mod field;
mod kernel;
mod matrix;
mod portable;
#[cfg(target_arch = "x86_64")]
mod shuffle;

pub use code::{Code, CodeError, MAX_DATA_SHARDS, MAX_PARITY_SHARDS, MIN_DATA_SHARDS};

/// The name of the kernel that does the work on this processor.
pub fn backend() -> &'static str {
    kernel::best().name()
}

/// `target ^= source`. Both have one length.
///
/// ```
/// let mut target = [0b1100];
/// atoll_ec::xor_into(&mut target, &[0b1010]);
/// assert_eq!(target, [0b0110]);
/// ```
pub fn xor_into(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "shards of one length");
    for (target, source) in target.iter_mut().zip(source) {
        *target ^= source;
    }
}
