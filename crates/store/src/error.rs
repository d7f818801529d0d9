//! Errors of a store.

use std::io;

use atoll_codec::CodecError;

use crate::metadata::Unready;

/// Why a transaction was not accepted. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The device has no room for it.
    #[error("no space left on the device")]
    NoSpace,
    /// The transaction breaks a rule of alignment, size or order.
    #[error("invalid transaction: {detail}")]
    Invalid {
        /// Which rule.
        detail: String,
    },
    /// Metadata that the transaction needs is not in memory; load it and submit again.
    #[error("metadata must be loaded first")]
    Cold(crate::Cold),
    /// Metadata makes no sense.
    #[error("metadata is damaged: {detail}; wipe this OSD and let its peers backfill it")]
    Damaged {
        /// The found state.
        detail: String,
    },
    /// A write or sync failed earlier. The content of the device is unknown, so the store takes no more writes;
    /// restart the OSD to recover from the log.
    #[error("the device failed earlier ({cause}); the store takes no more writes until it is opened again")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
}

/// Why a device could not be opened or formatted.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device could not be read or written.
    #[error("the device cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// There is no store on the device.
    #[error(
        "there is no Atoll store on this device (no valid superblock); 'atoll osd create --device' makes one, \
         which destroys the content of the device"
    )]
    NotAStore,
    /// The store was written by another release.
    #[error(
        "the store has format version {version}, this release knows only {supported}: use the release that made it, or \
         wipe this OSD and let its peers backfill it"
    )]
    OtherVersion {
        /// Version on the device.
        version: u32,
        /// The version known.
        supported: u32,
    },
    /// The device is too small.
    #[error("the device has {size_bytes} bytes; a store needs at least {minimum_bytes}")]
    TooSmall {
        /// Its size.
        size_bytes: u64,
        /// The least.
        minimum_bytes: u64,
    },
    /// The device is smaller than when it was formatted.
    #[error("the device has {size_bytes} bytes but the store on it was made with {formatted_bytes}")]
    Shrunk {
        /// Its size.
        size_bytes: u64,
        /// Size when formatted.
        formatted_bytes: u64,
    },
    /// The log is on a device of its own, and that was not given or is another store's.
    #[error("the log of this store is on a device of its own: {detail}; name the right one (--wal-device)")]
    WrongLogDevice {
        /// The reason.
        detail: String,
    },
    /// Metadata that was durable does not check.
    #[error("{what} is damaged: {detail}; wipe this OSD and let its peers backfill it")]
    Damaged {
        /// Checkpoint or log.
        what: &'static str,
        /// The found state.
        detail: String,
    },
}

impl From<Unready> for StoreError {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Cold(cold) => StoreError::Cold(cold),
            Unready::Damaged(error) => StoreError::Damaged { detail: error.to_string() },
            Unready::Invalid(detail) => StoreError::Invalid { detail },
        }
    }
}

impl OpenError {
    pub(crate) fn damaged(what: &'static str) -> impl Fn(CodecError) -> OpenError {
        move |error| OpenError::Damaged { what, detail: error.to_string() }
    }
}
