//! The answer to the question if a record of a bucket index names some data, while records move.

use std::collections::HashSet;

use bytes::Bytes;

use crate::data::suspect_piece;
use crate::error::GatewayError;
use crate::index::{Index, after};
use crate::names::{ENTRY_PREFIX, GARBAGE_PREFIX, VERSION_PREFIX, parse_version_key, versions_prefix};
use crate::record::{Piece, decode_pieces};

/// Records of an index that are read at once.
const RECORDS_PER_PAGE: u32 = 500;

type Ids = HashSet<[u8; 16]>;

/// Returns true if a version of a key has one of these pieces. No change that would name them can come any more.
pub(crate) async fn names(index: &Index, key: &str, pieces: &[Piece]) -> Result<bool, GatewayError> {
    let has = |record: &Bytes| {
        let of_record = decode_pieces(record)?;
        Ok::<_, GatewayError>(of_record.iter().any(|one| pieces.iter().any(|piece| one.data_id == piece.data_id)))
    };
    loop {
        let newest = index.entry(key).await?;
        if newest.as_ref().map(has).transpose()?.unwrap_or(false) {
            return Ok(true);
        }
        for (_, record) in index.all(index.shard_of(key), versions_prefix(key)).await? {
            if has(&record)? {
                return Ok(true);
            }
        }
        // Versions move when the newest one comes or goes.
        if index.entry(key).await? == newest {
            return Ok(false);
        }
    }
}

/// Those of some ids that a record of a shard names. Each has an intent, so that no change can come to name it, but
/// records move: from `o/` to `v/` and back, and from both to `g/`, which they do not leave.
pub(crate) async fn named_of(index: &Index, shard: u32, ids: &Ids) -> Result<Ids, GatewayError> {
    let mut named = Ids::new();
    let mut from = Bytes::from_static(ENTRY_PREFIX);
    let mut versions_from = Bytes::from_static(VERSION_PREFIX);
    loop {
        let prefix = Bytes::from_static(ENTRY_PREFIX);
        let (entries, more) = index.page(shard, prefix.clone(), from.clone(), RECORDS_PER_PAGE).await?;
        let Some((last, _)) = entries.last() else { break };
        for (_, record) in &entries {
            note_named(record, ids, &mut named)?;
        }
        // A key without an entry has no versions.
        let last_key = &last[ENTRY_PREFIX.len()..];
        for record in versions_up_to(index, shard, &mut versions_from, last_key).await? {
            note_named(&record, ids, &mut named)?;
        }
        // A version that was not there has come from the entry of its key, or went there, if this one has changed.
        let (again, _) = index.page(shard, prefix, from, RECORDS_PER_PAGE).await?;
        let is_same = |(key, record): &&(Bytes, Bytes)| {
            again.binary_search_by(|(other, _)| other.cmp(key)).is_ok_and(|at| again[at].1 == record)
        };
        for (key, _) in entries.iter().filter(|entry| !is_same(entry)) {
            note_named_by_key(index, &key[ENTRY_PREFIX.len()..], ids, &mut named).await?;
        }
        from = after(last);
        if !more {
            break;
        }
    }
    for (_, record) in index.all(shard, Bytes::from_static(GARBAGE_PREFIX)).await? {
        note_named(&record, ids, &mut named)?;
    }
    Ok(named)
}

async fn note_named_by_key(index: &Index, key: &[u8], ids: &Ids, named: &mut Ids) -> Result<(), GatewayError> {
    let key = String::from_utf8_lossy(key);
    let pieces: Vec<Piece> = ids.iter().map(suspect_piece).collect();
    if names(index, &key, &pieces).await? {
        for piece in pieces {
            if names(index, &key, std::slice::from_ref(&piece)).await? {
                named.insert(piece.data_id);
            }
        }
    }
    Ok(())
}

fn note_named(record: &[u8], ids: &Ids, named: &mut Ids) -> Result<(), GatewayError> {
    named.extend(decode_pieces(record)?.iter().map(|piece| piece.data_id).filter(|id| ids.contains(id)));
    Ok(())
}

/// The versions at and behind `from` of keys up to `last`, as they are now. Moves `from` behind them.
async fn versions_up_to(
    index: &Index,
    shard: u32,
    from: &mut Bytes,
    last: &[u8],
) -> Result<Vec<Bytes>, GatewayError> {
    let mut versions = Vec::new();
    loop {
        let prefix = Bytes::from_static(VERSION_PREFIX);
        let (records, more) = index.page(shard, prefix, from.clone(), RECORDS_PER_PAGE).await?;
        for (key, record) in records {
            let (of, _) = parse_version_key(&key[VERSION_PREFIX.len()..]).ok_or_else(|| malformed(&key))?;
            if of.as_bytes() > last {
                return Ok(versions);
            }
            *from = after(&key);
            versions.push(record);
        }
        if !more {
            return Ok(versions);
        }
    }
}

fn malformed(key: &[u8]) -> GatewayError {
    GatewayError::Malformed {
        what: "the key of a version in a bucket index".into(),
        detail: String::from_utf8_lossy(key).into_owned(),
    }
}
