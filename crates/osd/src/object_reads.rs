//! Reads of objects for placement groups: data through the store's reads, everything else at once
//! from its metadata.

use atoll_base::limits::OMAP_LIST_MAX;
use atoll_base::{ObjectName, PgId, ReadOutcome, ReadRequest, Refusal};
use atoll_pg::{ReadFailure, Token};
use atoll_store::{ObjectKey, Onode, ReadData, ReadError};
use bytes::Bytes;

use crate::daemon::{Osd, ReadOwner};

/// Most bytes of keys and values in one page of omap entries.
const OMAP_PAGE_BYTES: usize = 512 << 10;

type ReadAnswer = Result<(ReadOutcome, Bytes), ReadFailure>;

impl Osd {
    pub(crate) fn start_object_read(&mut self, pg: PgId, token: Token, object: ObjectName, request: ReadRequest) {
        let key = ObjectKey { pg, name: object };
        if let ReadRequest::Data { offset, length } = request {
            let read_id = self.store.read(key, offset, length);
            self.reads.insert(read_id, ReadOwner::Group { pg, token });
            return;
        }
        let answer = match self.store.object(&key) {
            None => Err(ReadFailure::Refused(Refusal::NoSuchObject)),
            Some(onode) => Ok((read_metadata(onode, &request), Bytes::new())),
        };
        if let Some(group) = self.pgs.get_mut(&pg) {
            group.read_done(token, answer);
            self.dirty.insert(pg);
        }
    }

    pub(crate) fn object_read_done(&mut self, pg: PgId, token: Token, result: Result<ReadData, ReadError>) {
        if let Some(group) = self.pgs.get_mut(&pg) {
            group.read_done(token, answer(result));
            self.dirty.insert(pg);
        }
    }
}

fn answer(result: Result<ReadData, ReadError>) -> ReadAnswer {
    match result {
        Ok(found) => {
            let outcome = ReadOutcome::Data { object_bytes: found.object_bytes, seals: found.seals };
            Ok((outcome, found.data))
        }
        Err(ReadError::NoSuchObject) => Err(ReadFailure::Refused(Refusal::NoSuchObject)),
        Err(error @ ReadError::Unaligned { .. }) => {
            Err(ReadFailure::Refused(Refusal::Invalid { detail: error.to_string() }))
        }
        Err(ReadError::Corrupt { blocks }) => Err(ReadFailure::Corrupt { blocks }),
    }
}

fn read_metadata(onode: &Onode, request: &ReadRequest) -> ReadOutcome {
    match request {
        ReadRequest::Data { .. } => unreachable!("data is read through the store"),
        ReadRequest::Stat => ReadOutcome::Stat { object_bytes: onode.size_bytes(), version: onode.version() },
        ReadRequest::OmapGet { key } => ReadOutcome::OmapValue(onode.omap().get(key).cloned()),
        ReadRequest::OmapList { prefix, from, limit } => {
            let start = from.max(prefix).clone();
            let mut entries = Vec::new();
            let mut page_bytes = 0;
            let mut more = false;
            let limit = (*limit).min(OMAP_LIST_MAX) as usize;
            for (key, value) in onode.omap().range(start..).take_while(|(key, _)| key.starts_with(prefix)) {
                if entries.len() == limit || page_bytes >= OMAP_PAGE_BYTES {
                    more = true;
                    break;
                }
                page_bytes += key.len() + value.len();
                entries.push((key.clone(), value.clone()));
            }
            ReadOutcome::OmapPage { entries, more }
        }
    }
}
