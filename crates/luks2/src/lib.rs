//! LUKS2 at rest, in user space: a header that `cryptsetup` can read and change, and the cipher of
//! the data behind it (docs/reference/formats.md, "LUKS2 at rest").
//!
//! This crate knows headers, key slots and sectors. It does not know devices, key services, or the stored data: it
//! uses no other crate of the workspace.
//!
//! The format is a part of the LUKS2 On-Disk Format Specification 1.1 (Milan Brož, cryptsetup): one data segment
//! under `aes-xts-plain64` with a 512-bit key and sectors of 4096 bytes. Bytes go in and bytes come out; the
//! caller reads and writes the device.
//!
//! Bytes of a device may be hostile: everything is bounded before it is used, and nothing here panics on it.

mod anti_forensic;
mod binary_header;
mod digest;
mod error;
mod hash;
mod header;
mod key_derivation;
mod keyslot;
mod kms_token;
mod metadata;
mod volume_cipher;
mod volume_key;
mod xts;

pub use error::Luks2Error;
pub use hash::Luks2Hash;
pub use header::{HEADER_BYTES, Luks2Header};
pub use key_derivation::KeyDerivation;
pub use kms_token::KmsToken;
pub use volume_cipher::{SECTOR_BYTES, VolumeCipher};
pub use volume_key::VolumeKey;
