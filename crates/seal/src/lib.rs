//! Sealing of data at the edge of the cluster: the AEAD formats of image blocks and S3 segments
//! (docs/reference/formats.md), under data keys.
//!
//! This crate knows bytes, data keys and nonces. It may not know how sealed data is stored or sent.
//! OSDs hold no data keys: atoll-osd and the crates below it cannot depend on this crate, which
//! tools/check_dependencies.py checks.

mod error;
mod image_seal;
mod segment_seal;

pub use error::SealError;
pub use image_seal::{AttachId, BLOCK_SEAL_BYTES, BlockOpener, BlockSealer, SEALED_BLOCK_BYTES};
pub use segment_seal::{SEGMENT_BYTES, SEGMENT_SEAL_BYTES, SegmentCipher};
