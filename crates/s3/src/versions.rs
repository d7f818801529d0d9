//! The versions of one key, as changes of its index object. The newest version has the key's entry,
//! as in a bucket without versions, be it an object or a delete marker; the older ones stand behind
//! it under `v/`. So a GET reads one record, and whatever is older than the entry is not its concern.
//!
//! Nothing here reads or writes: each function takes the read records, and returns the conditions and the changes.

use atoll_types::records::BucketVersioning;
use atoll_types::{Condition, Mutation};
use bytes::Bytes;

use crate::error::GatewayError;
use crate::names::{
    VERSIONING_KEY, entry_key, garbage_key, new_version_id, null_key, null_place, version_key, version_time_us,
};
use crate::record::{EntryHead, Piece, decode_head, encode_version};

/// The name that S3 has for a version without an id.
pub(crate) const NULL_VERSION: &str = "null";

/// Records of a key before it is changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyRecords {
    /// The entry: the newest version.
    pub newest: Option<Bytes>,
    /// Where the null version is, if it is another one.
    pub null_place: Option<Bytes>,
}

/// A change of the index object of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub conditions: Vec<Condition>,
    pub mutations: Vec<Mutation>,
}

impl Change {
    pub(crate) fn while_newest_is(key: &str, newest: Option<&Bytes>) -> Self {
        let key = entry_key(key);
        let condition = match newest {
            Some(value) => Condition::OmapEquals { key, value: value.clone() },
            None => Condition::OmapAbsent { key },
        };
        Change { conditions: vec![condition], mutations: Vec::new() }
    }
}

/// Returns the value of a bucket's versioning in each index object, for writers.
pub(crate) fn versioning_value(versioning: BucketVersioning) -> Bytes {
    serde_json::to_vec(&versioning).expect("it is plain JSON").into()
}

/// Returns the generation of versioning in an index object.
pub(crate) fn versioning_generation(value: &[u8]) -> Result<u64, GatewayError> {
    let found: Result<BucketVersioning, _> = serde_json::from_slice(value);
    found.map(|versioning| versioning.generation).map_err(|error| GatewayError::Malformed {
        what: "the versioning record of a bucket's index".into(),
        detail: error.to_string(),
    })
}

/// Returns the condition that versioning is as a writer expects it.
pub(crate) fn versioning_is(versioning: Option<BucketVersioning>) -> Condition {
    let key = Bytes::from_static(VERSIONING_KEY);
    match versioning {
        Some(versioning) => Condition::OmapEquals { key, value: versioning_value(versioning) },
        None => Condition::OmapAbsent { key },
    }
}

/// When a version was written, in microseconds: versions of one key differ in it.
fn written_us(head: &EntryHead) -> u64 {
    let of_id = head.version_id.as_deref().and_then(version_time_us);
    of_id.unwrap_or_else(|| head.modified_ms.saturating_mul(1_000))
}

/// Where a version stands once it is not the newest.
pub(crate) fn place_of(head: &EntryHead) -> String {
    head.version_id.clone().unwrap_or_else(|| null_place(written_us(head)))
}

/// Sets or removes the entry in a bucket that never had versions: displaced data is garbage.
pub(crate) fn replace(key: &str, head: &EntryHead, pieces: &[Piece]) -> Change {
    let change = Mutation::OmapReplace {
        key: entry_key(key),
        value: (!head.is_delete_marker).then(|| encode_version(head, pieces)),
        displaced_to: garbage_key(head.modified_ms),
    };
    Change { conditions: Vec::new(), mutations: vec![change] }
}

/// Makes an object or delete marker the newest version of its key, and gives it its version id and a
/// time after that of the version before.
pub(crate) fn add(
    key: &str,
    versioning: BucketVersioning,
    found: &KeyRecords,
    head: &mut EntryHead,
    pieces: &[Piece],
) -> Result<Change, GatewayError> {
    let before: Option<EntryHead> = found.newest.as_deref().map(decode_head).transpose()?;
    let earliest_us = before.as_ref().map_or(0, |before| written_us(before).saturating_add(1));
    if versioning.is_enabled {
        let now_us = head.modified_ms.saturating_mul(1_000).max(earliest_us);
        head.version_id = Some(new_version_id(now_us));
        head.modified_ms = now_us / 1_000;
    } else {
        head.version_id = None;
        head.modified_ms = head.modified_ms.max(earliest_us.div_ceil(1_000));
    }

    let mut change = Change::while_newest_is(key, found.newest.as_ref());
    let mut displaced_to = garbage_key(head.modified_ms);
    if let Some(before) = before.filter(|before| versioning.is_enabled || before.version_id.is_some()) {
        let place = place_of(&before);
        displaced_to = version_key(key, &place);
        if before.version_id.is_none() {
            change.mutations.push(Mutation::OmapSet { key: null_key(key), value: place.into() });
        } else if let Some(null_place) = found.null_place.as_ref().filter(|_| !versioning.is_enabled) {
            // A key has one null version at most, and this is the new one.
            change.mutations.extend(removal(key, null_place, true, head.modified_ms));
        }
    }
    change.mutations.push(Mutation::OmapReplace {
        key: entry_key(key),
        value: Some(encode_version(head, pieces)),
        displaced_to,
    });
    Ok(change)
}

/// Mutations that remove a version which is not the newest.
fn removal(key: &str, place: &[u8], is_null: bool, now_ms: u64) -> Vec<Mutation> {
    let key_of_version = version_key(key, &String::from_utf8_lossy(place));
    let displaced_to = garbage_key(now_ms);
    let mut mutations = vec![Mutation::OmapReplace { key: key_of_version, value: None, displaced_to }];
    if is_null {
        mutations.push(Mutation::OmapRemove { key: null_key(key) });
    }
    mutations
}

/// Removes the newest version. `next` is the place and the record of the one behind it, which becomes
/// the newest.
pub(crate) fn remove_newest(
    key: &str,
    newest: &Bytes,
    next: Option<(&str, &Bytes)>,
    now_ms: u64,
) -> Result<Change, GatewayError> {
    let mut change = Change::while_newest_is(key, Some(newest));
    let displaced_to = garbage_key(now_ms);
    change.mutations.push(Mutation::OmapReplace { key: entry_key(key), value: None, displaced_to });
    if let Some((place, record)) = next {
        let index_key = version_key(key, place);
        change.conditions.push(Condition::OmapEquals { key: index_key.clone(), value: record.clone() });
        let displaced_to = entry_key(key);
        change.mutations.push(Mutation::OmapReplace { key: index_key, value: None, displaced_to });
        if decode_head::<EntryHead>(record)?.version_id.is_none() {
            change.mutations.push(Mutation::OmapRemove { key: null_key(key) });
        }
    }
    Ok(change)
}

/// Removes a version that is not the newest.
pub(crate) fn remove_older(key: &str, place: &str, record: &Bytes, now_ms: u64) -> Result<Change, GatewayError> {
    let unchanged = Condition::OmapEquals { key: version_key(key, place), value: record.clone() };
    let is_null = decode_head::<EntryHead>(record)?.version_id.is_none();
    Ok(Change { conditions: vec![unchanged], mutations: removal(key, place.as_bytes(), is_null, now_ms) })
}

#[cfg(test)]
mod tests;
