//! Place of an image's data.

use atoll_types::PoolId;
use atoll_types::records::ImageRecord;

/// Pool of an image's data, and if the data is sealed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The pool.
    pub pool: PoolId,
    /// True if clients seal the data.
    pub is_sealed: bool,
}

impl Destination {
    /// Returns the place of an image's data.
    pub(crate) fn of(record: &ImageRecord) -> Self {
        Destination { pool: record.pool, is_sealed: record.key.is_sealed() }
    }
}
