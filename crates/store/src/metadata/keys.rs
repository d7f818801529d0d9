//! How objects, PGs and shared blocks become keys of the tree. Names and omap keys are
//! escaped so that they can be followed by more without disturbing the order: a zero byte becomes
//! `00 ff`, and the end is `00 00`.
//!
//! ```text
//! 01 | pool u32 | pg u32 | 00                            head and newest transaction of a PG
//! 01 | pool u32 | pg u32 | 01 | first sequence u64 | part u16   log entries of a PG
//! 02 | pool u32 | pg u32 | name | 00                     header of an object
//! 02 | pool u32 | pg u32 | name | 01 | chunk u16         16 blocks of an object and their seals
//! 02 | pool u32 | pg u32 | name | 02 | omap key | part u16      omap value, in parts
//! 03 | device block / 16 u32                             further references to 16 blocks
//! 04                                                     pools are counted
//! 04 | pool u32                                          objects and blocks of a pool
//! ```
//! Numbers in keys are big-endian.

use atoll_codec::CodecError;
use atoll_types::{ObjectName, PgId, PoolId};

use super::page::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

const PG: u8 = 1;
const OBJECT: u8 = 2;
const SHARED: u8 = 3;
const POOL: u8 = 4;
const HEADER: u8 = 0;
const CHUNK: u8 = 1;
const OMAP: u8 = 2;

/// Bytes of a long value that one part holds.
pub(crate) const PART_BYTES: usize = VALUE_BYTES_MAX;
/// Longest value that parts can hold.
pub(crate) const PARTS_BYTES_MAX: usize = PART_BYTES * u16::MAX as usize;
/// Blocks whose further references share one entry.
pub(crate) const SHARED_BLOCKS_PER_ENTRY: u32 = 16;

/// Names an object within a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its PG.
    pub pg: PgId,
    /// Its name.
    pub name: ObjectName,
}

fn push_pg(key: &mut Vec<u8>, pg: PgId) {
    key.extend_from_slice(&pg.pool.0.to_be_bytes());
    key.extend_from_slice(&pg.index.to_be_bytes());
}

fn push_escaped(key: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.contains(&0) {
        key.extend(bytes.iter().flat_map(|&byte| std::iter::once(byte).chain((byte == 0).then_some(0xff))));
    } else {
        key.extend_from_slice(bytes);
    }
    key.extend_from_slice(&[0, 0]);
}

/// Reads escaped bytes up to their end; returns them and the bytes behind them.
fn take_escaped(mut key: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut bytes = Vec::with_capacity(key.len());
    loop {
        match key {
            [0, 0, rest @ ..] => return Some((bytes, rest)),
            [0, 0xff, rest @ ..] => {
                bytes.push(0);
                key = rest;
            }
            [0, ..] | [] => return None,
            [byte, rest @ ..] => {
                bytes.push(*byte);
                key = rest;
            }
        }
    }
}

/// The first bytes of all keys of an object.
pub(crate) fn object(pg: PgId, name: &ObjectName) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + name.as_str().len());
    bytes.push(OBJECT);
    push_pg(&mut bytes, pg);
    push_escaped(&mut bytes, name.as_str().as_bytes());
    bytes
}

fn extended(prefix: &[u8], more: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(prefix.len() + 8);
    bytes.extend_from_slice(prefix);
    more.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// The key behind all keys that begin with `prefix`.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    extended(prefix, &[&[0xff]])
}

pub(crate) fn header(object: &[u8]) -> Vec<u8> {
    extended(object, &[&[HEADER]])
}

/// Makes the first bytes of an object's keys the key of its header.
pub(crate) fn push_header(object: &mut Vec<u8>) {
    object.push(HEADER);
}

pub(crate) fn chunk(object: &[u8], index: usize) -> Vec<u8> {
    let mut key = extended(object, &[]);
    push_chunk(&mut key, index);
    key
}

/// Makes the first bytes of an object's keys the key of a chunk.
pub(crate) fn push_chunk(object: &mut Vec<u8>, index: usize) {
    let index = u16::try_from(index).expect("objects have few chunks");
    object.push(CHUNK);
    object.extend_from_slice(&index.to_be_bytes());
}

/// The number of a chunk by its key, which is between those of chunks of the object.
pub(crate) fn chunk_index(object: &[u8], key: &[u8]) -> Result<usize, CodecError> {
    match key.strip_prefix(object) {
        Some(&[CHUNK, high, low]) => Ok(usize::from(u16::from_be_bytes([high, low]))),
        _ => Err(CodecError::Invalid { what: "length of a chunk's key", value: key.len() as u64 }),
    }
}

/// The first bytes of all omap keys of an object.
pub(crate) fn omap(object: &[u8]) -> Vec<u8> {
    extended(object, &[&[OMAP]])
}

/// The first bytes of all parts of an omap value.
pub(crate) fn omap_entry(object: &[u8], omap_key: &[u8]) -> Vec<u8> {
    let mut bytes = omap(object);
    push_escaped(&mut bytes, omap_key);
    bytes
}

/// Where a listing from this omap key on begins.
pub(crate) fn omap_from(object: &[u8], omap_key: &[u8]) -> Vec<u8> {
    let mut bytes = omap_entry(object, omap_key);
    // Without the end mark: keys that go on behind it come later than the key itself.
    bytes.truncate(bytes.len() - 2);
    bytes
}

/// Returns true if an omap key of this object can be stored.
pub(crate) fn omap_key_fits(object: &[u8], omap_key: &[u8]) -> bool {
    omap_entry(object, omap_key).len() + 2 <= KEY_BYTES_MAX
}

pub(crate) fn part(entry: &[u8], index: usize) -> Vec<u8> {
    let index = u16::try_from(index).expect("values have few parts");
    extended(entry, &[&index.to_be_bytes()])
}

/// The omap key and the part of its value, of a key below `omap`.
pub(crate) fn parse_omap<'a>(omap: &[u8], key: &'a [u8]) -> Option<(Vec<u8>, &'a [u8])> {
    take_escaped(key.strip_prefix(omap)?)
}

/// The first bytes of the keys of all objects of a PG.
pub(crate) fn objects_of(pg: PgId) -> Vec<u8> {
    let mut bytes = vec![OBJECT];
    push_pg(&mut bytes, pg);
    bytes
}

/// The first bytes of the keys of a PG's objects whose names begin so.
pub(crate) fn objects_with_prefix(pg: PgId, prefix: &[u8]) -> Vec<u8> {
    let mut bytes = objects_of(pg);
    push_escaped(&mut bytes, prefix);
    // Without the end mark: names go on.
    bytes.truncate(bytes.len() - 2);
    bytes
}

/// The first byte of the keys of all objects.
pub(crate) const OBJECTS: [u8; 1] = [OBJECT];
/// The first byte of the keys of all PGs.
pub(crate) const PGS: [u8; 1] = [PG];
/// The first byte of the keys of shared blocks.
pub(crate) const SHARED_BLOCKS: [u8; 1] = [SHARED];
/// The first byte of the keys of pools, and the key that says that they are counted.
pub(crate) const POOLS: [u8; 1] = [POOL];

fn take_pg(key: &[u8]) -> Option<(PgId, &[u8])> {
    let (pool, key) = key.split_first_chunk()?;
    let (index, key) = key.split_first_chunk()?;
    Some((PgId { pool: PoolId(u32::from_be_bytes(*pool)), index: u32::from_be_bytes(*index) }, key))
}

/// Part of an object that a key belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    Header,
    Chunk(usize),
    Omap,
}

/// Takes a key of an object apart.
pub(crate) fn parse_object(key: &[u8]) -> Option<(ObjectKey, ObjectPart)> {
    let (pg, rest) = take_pg(key.strip_prefix(&OBJECTS)?)?;
    let (name, rest) = take_escaped(rest)?;
    let name = ObjectName::new(std::str::from_utf8(&name).ok()?)?;
    let part = match rest {
        [HEADER] => ObjectPart::Header,
        [CHUNK, index @ ..] => ObjectPart::Chunk(usize::from(u16::from_be_bytes(index.try_into().ok()?))),
        [OMAP, ..] => ObjectPart::Omap,
        _ => return None,
    };
    Some((ObjectKey { pg, name }, part))
}

pub(crate) fn pg(pg: PgId) -> Vec<u8> {
    let mut bytes = vec![PG];
    push_pg(&mut bytes, pg);
    bytes.push(0);
    bytes
}

/// The first bytes of all parts of a PG's log entries from `first_sequence` on.
pub(crate) fn pg_log(pg: PgId, first_sequence: u64) -> Vec<u8> {
    let mut bytes = vec![PG];
    push_pg(&mut bytes, pg);
    bytes.push(1);
    bytes.extend(first_sequence.to_be_bytes());
    bytes
}

/// Takes a key of a PG apart: the PG, and the first sequence if it is of its log.
pub(crate) fn parse_pg(key: &[u8]) -> Option<(PgId, Option<u64>)> {
    let (pg, rest) = take_pg(key.strip_prefix(&PGS)?)?;
    match rest {
        [0] => Some((pg, None)),
        [1, rest @ ..] => Some((pg, Some(u64::from_be_bytes(*rest.first_chunk()?)))),
        _ => None,
    }
}

/// The entry with the counts of a pool.
pub(crate) fn pool(pool: PoolId) -> Vec<u8> {
    extended(&POOLS, &[&pool.0.to_be_bytes()])
}

/// The pool of a key of pools; none of the mark that they are counted.
pub(crate) fn parse_pool(key: &[u8]) -> Option<Option<PoolId>> {
    match key.strip_prefix(&POOLS)? {
        [] => Some(None),
        pool => Some(Some(PoolId(u32::from_be_bytes(pool.try_into().ok()?)))),
    }
}

/// The entry with the further references to a block.
pub(crate) fn shared(block: u32) -> Vec<u8> {
    let mut bytes = vec![SHARED];
    bytes.extend((block / SHARED_BLOCKS_PER_ENTRY).to_be_bytes());
    bytes
}

/// The first block of an entry of shared blocks.
pub(crate) fn parse_shared(key: &[u8]) -> Option<u32> {
    let index = u32::from_be_bytes(key.strip_prefix(&SHARED_BLOCKS)?.try_into().ok()?);
    index.checked_mul(SHARED_BLOCKS_PER_ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn omap_keys_keep_their_order_and_come_back(
            a in proptest::collection::vec(0u8..3, 0..6), b in proptest::collection::vec(0u8..3, 0..6),
        ) {
            let pg = PgId { pool: PoolId(1), index: 2 };
            let object = object(pg, &ObjectName::new("name").unwrap());
            let (key_a, key_b) = (part(&omap_entry(&object, &a), 0xff00), part(&omap_entry(&object, &b), 0));
            if a != b {
                prop_assert_eq!(key_a.cmp(&key_b), a.cmp(&b));
            }
            let omap = omap(&object);
            let (found, rest) = parse_omap(&omap, &key_a).unwrap();
            prop_assert_eq!(&found, &a);
            prop_assert_eq!(rest, &[0xff, 0]);
            prop_assert!(key_a >= omap_from(&object, &a));
            prop_assert!(key_a < end_of(&omap));
            prop_assert_eq!(b >= a, key_b >= omap_from(&object, &a));
        }

        #[test]
        fn random_keys_never_panic(key: Vec<u8>) {
            let _ = parse_object(&key);
            let _ = parse_pg(&key);
            let _ = parse_shared(&key);
            let _ = parse_pool(&key);
        }
    }
}
