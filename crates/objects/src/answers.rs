//! Answers of OSDs to reads, in the form that the request requires.

use atoll_types::{ObjectName, ReadOutcome};
use bytes::Bytes;

use crate::{ClientError, Extent};

/// To [`ReadRequest::Data`](atoll_types::ReadRequest::Data).
pub fn extent(object: ObjectName, answer: (ReadOutcome, Bytes)) -> Result<Extent, ClientError> {
    match answer {
        (ReadOutcome::Data { object_bytes, version, seals }, data) => {
            Ok(Extent { data, object_bytes, version, seals })
        }
        _ => Err(ClientError::UnexpectedAnswer { object }),
    }
}

/// To [`ReadRequest::OmapGet`](atoll_types::ReadRequest::OmapGet).
pub fn omap_value(object: ObjectName, answer: (ReadOutcome, Bytes)) -> Result<Option<Bytes>, ClientError> {
    match answer {
        (ReadOutcome::OmapValue(value), _) => Ok(value),
        _ => Err(ClientError::UnexpectedAnswer { object }),
    }
}

/// To [`ReadRequest::OmapList`](atoll_types::ReadRequest::OmapList): entries, and whether more follow.
pub fn omap_page(
    object: ObjectName,
    answer: (ReadOutcome, Bytes),
) -> Result<(Vec<(Bytes, Bytes)>, bool), ClientError> {
    match answer {
        (ReadOutcome::OmapPage { entries, more }, _) => Ok((entries, more)),
        _ => Err(ClientError::UnexpectedAnswer { object }),
    }
}
