//! Keys and sealing: the AEAD formats of image blocks and S3 segments (docs/formats.md), the key
//! hierarchy above them, and the key-management services that hold its root.
//!
//! This room knows bytes, keys and nonces, and speaks to key services. It may not know how sealed
//! data is stored or sent, and OSDs never hold a data key: all that they may use of it is [`luks2`],
//! for their device at rest, and [`KeyService`] to unlock it.

mod error;
mod gcm;
mod image_seal;
mod key;
mod key_service;
pub mod luks2;
mod segment_seal;

pub use error::CryptoError;
pub use gcm::{watch_nonces, watched_nonces};
pub use image_seal::{AttachId, BLOCK_SEAL_BYTES, BlockOpener, BlockSealer, SEALED_BLOCK_BYTES};
pub use key::{SecretKey, WRAPPED_KEY_BYTES, fill_random, random_bytes, random_u64, sha256, unwrap_key, wrap_key};
pub use key_service::{
    DEFAULT_KEY, KeyDescription, KeyFile, KeyRing, KeyService, KeyVersion, LocalKeys, Transit, TransitLogin,
    TransitSettings, WrappedBy, is_key_name,
};
pub use segment_seal::{SEGMENT_BYTES, SEGMENT_SEAL_BYTES, SegmentCipher};
