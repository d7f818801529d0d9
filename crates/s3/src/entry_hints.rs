//! Probable newest entries of keys, so that a write of an object need not read the entry before it, and a GET
//! reads the data while it reads the entry: every change of an index requires the expected entry, and a GET drops
//! data that it has read for another one. So a hint that is wrong costs one more try and nothing else.

use std::time::Duration;

use bytes::Bytes;

use crate::bucket::ShortCache;

/// Larger records, which are those of many parts, are read.
const RECORD_BYTES_MAX: usize = 2 << 10;
/// Age at which a hint is dropped: others may have changed the entry.
const LIFETIME: Duration = Duration::from_secs(60);
/// Usually of some 500 bytes each.
const HINTS_MAX: usize = 16 << 10;

/// Entries that this gateway has written or read. Writers guess keys that it has not to be new.
pub(crate) struct EntryHints(ShortCache<Bytes>);

fn name(bucket_id: &str, key: &str) -> String {
    format!("{bucket_id}/{key}")
}

impl EntryHints {
    pub(crate) fn new() -> Self {
        EntryHints(ShortCache::with_room(LIFETIME, HINTS_MAX))
    }

    /// The newest entry of a key, as far as it is known.
    pub(crate) fn newest(&self, bucket_id: &str, key: &str) -> Option<Bytes> {
        self.0.get(&name(bucket_id, key))
    }

    /// Notes a written or read entry.
    pub(crate) fn note(&self, bucket_id: &str, key: &str, record: Bytes) {
        match record.len() <= RECORD_BYTES_MAX {
            true => self.0.insert(&name(bucket_id, key), record),
            false => self.forget(bucket_id, key),
        }
    }

    /// Drops a wrong hint.
    pub(crate) fn forget(&self, bucket_id: &str, key: &str) {
        self.0.remove(&name(bucket_id, key));
    }
}
