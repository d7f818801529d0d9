//! Reads of objects for PGs: data through the store's reads, everything else from its metadata, which is
//! loaded if it is not in memory.

use atoll_pg::{ReadFailure, Token};
use atoll_store::{LoadRequest, ObjectKey, ObjectsPage, ReadData, ReadError, StoreError};
use atoll_types::limits::OMAP_LIST_MAX;
use atoll_types::operation::bits;
use atoll_types::{ObjectName, PgId, ReadOutcome, ReadRequest, Refusal};
use bytes::Bytes;

use crate::{Loader, Reader, Storage, StorageEvent};

/// Result of a PG's read.
pub type ReadAnswer = Result<(ReadOutcome, Bytes), ReadFailure>;

impl Storage {
    /// Begins a read for a PG.
    pub fn read_object(&mut self, pg: PgId, token: Token, object: ObjectName, request: ReadRequest) {
        let key = ObjectKey { pg, name: object };
        if let ReadRequest::Data { offset, length, .. } = request {
            return self.read(key, offset, length, Reader::Pg { pg, token });
        }
        let result = match self.read_metadata(&key, &request) {
            Ok(None) => Err(ReadFailure::Refused(Refusal::NoSuchObject)),
            Ok(Some(outcome)) => Ok((outcome, Bytes::new())),
            // What is not in memory is loaded: it is no damage. The PG looks again, since writes may come meanwhile.
            Err(StoreError::Cold(cold)) => return self.load(LoadRequest::Pages(cold), Loader::Read { pg, token }),
            Err(error) => Err(ReadFailure::Refused(Refusal::Corrupt { detail: error.to_string() })),
        };
        self.events.push_back(StorageEvent::Read { pg, token, result });
    }

    /// Returns the answer from metadata alone, if it is in memory.
    fn read_metadata(&self, key: &ObjectKey, request: &ReadRequest) -> Result<Option<ReadOutcome>, StoreError> {
        if let ReadRequest::ObjectList { prefix, after, counts_blocks, .. } = request {
            let page = self.store.objects_page(key.pg, prefix, after.as_ref(), *counts_blocks)?;
            let ObjectsPage { mut objects, next } = page;
            objects.retain(|object| !atoll_pg::is_hidden(&object.name));
            return Ok(Some(ReadOutcome::ObjectPage { objects, next }));
        }
        let Some(info) = self.store.object(key)? else { return Ok(None) };
        Ok(Some(match request {
            ReadRequest::Data { .. } => unreachable!("data is read through the store"),
            ReadRequest::ObjectList { .. } => unreachable!("it was listed above"),
            ReadRequest::Extents { offset, length } => {
                let length = info.size_bytes.saturating_sub(*offset).min(u64::from(*length)) as u32;
                ReadOutcome::Extents {
                    object_bytes: info.size_bytes,
                    version: info.version,
                    blocks: bits(&self.store.mapped_blocks(key, *offset, length)?),
                }
            }
            ReadRequest::Stat => ReadOutcome::Stat {
                object_bytes: info.whole_bytes.unwrap_or(info.size_bytes),
                version: info.version,
            },
            ReadRequest::OmapGet { key: omap_key } => {
                ReadOutcome::OmapValue(self.store.omap_value(key, omap_key)?)
            }
            ReadRequest::OmapList { prefix, from, limit } => {
                let limit = (*limit).min(OMAP_LIST_MAX) as usize;
                let (entries, more) = self.store.omap_page(key, prefix, from, limit)?;
                ReadOutcome::OmapPage { entries, more }
            }
        }))
    }
}

pub(crate) fn answer(result: Result<ReadData, ReadError>) -> ReadAnswer {
    match result {
        Ok(found) => {
            let ReadData { object_bytes, version, seals, .. } = found;
            let outcome = ReadOutcome::Data { object_bytes, version, seals };
            Ok((outcome, found.data))
        }
        Err(ReadError::NoSuchObject) => Err(ReadFailure::Refused(Refusal::NoSuchObject)),
        Err(error @ ReadError::Unaligned { .. }) => {
            Err(ReadFailure::Refused(Refusal::Invalid { detail: error.to_string() }))
        }
        Err(ReadError::Corrupt { blocks }) => Err(ReadFailure::Corrupt { blocks }),
        Err(error @ ReadError::DamagedMetadata { .. }) => {
            Err(ReadFailure::Refused(Refusal::Corrupt { detail: error.to_string() }))
        }
    }
}
