//! Values of the bucket index. All share one form, so that the garbage collector can read the data
//! ids out of any value that was displaced: format byte, length of the head, head as JSON, then one
//! fixed-size piece per run of stored data. Listings decode only the head. The format says where the
//! data is.

use std::collections::BTreeMap;

use atoll_keys::WRAPPED_KEY_BYTES;
use atoll_types::access::Acl;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::GatewayError;
use crate::encryption::Encryption;
use crate::object_lock::ObjectLock;

/// The data of all pieces is in chunks.
const FORMAT_CHUNKS: u8 = 1;
/// There is one piece, and its data is in the index.
const FORMAT_INDEX: u8 = 2;
/// A delete marker: there is no data.
const FORMAT_MARKER: u8 = 3;
/// There is one piece, and its data is beside the index.
const FORMAT_BESIDE: u8 = 4;
const PREAMBLE_BYTES: usize = 5;
const PIECE_BYTES: usize = 16 + WRAPPED_KEY_BYTES + 8;

/// Where the data of a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In chunk objects.
    Chunks,
    /// In the index object that holds the record, under a key of its own.
    Index,
    /// In one object beside the index object that holds the record, in the same PG.
    Beside,
}

/// One run of stored data, sealed under a key of its own: a whole object or a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// A piece that is not in chunks is the only one of its record.
    pub place: Place,
    /// Names the chunk objects, the key in the index, or the object beside it.
    pub data_id: [u8; 16],
    /// The data key, wrapped by the bucket key.
    pub wrapped_key: [u8; WRAPPED_KEY_BYTES],
    /// Length of the plaintext; never zero.
    pub bytes: u64,
}

/// HTTP headers that are stored with an object and returned with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ContentHeaders {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_language: Option<String>,
    /// Unix time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
}

/// The checksums that a client asked for, as S3 writes them (base64), by S3's algorithm name.
pub(crate) type Checksums = BTreeMap<String, String>;

/// Head of the entry of a visible object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryHead {
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    pub modified_ms: u64,
    #[serde(default)]
    pub headers: ContentHeaders,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub checksums: Checksums,
    /// True if the checksums are checksums of the parts' checksums.
    #[serde(default)]
    pub checksum_is_composite: bool,
    #[serde(default, skip_serializing_if = "Encryption::is_usual")]
    pub encryption: Encryption,
    /// The multipart upload that made the object, which identifies a repeated completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// Numbers of the parts that it was made of, if they are not 1, 2, 3 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_numbers: Vec<u32>,
    /// Checksums of its parts, if they have some and are no more than [`PART_CHECKSUMS_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_checksums: Vec<String>,
    /// Without one it is the null version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_id: Option<String>,
    /// The object was deleted: this stands in the place of a version.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_delete_marker: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "ObjectLock::is_none")]
    pub lock: ObjectLock,
    /// S3's name of the storage class that the client gave it, but for `STANDARD`. All are stored alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Canonical id of the account that owns it, if that is not the owner of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `None` for full control of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
}

/// Parts whose checksums are kept with an object: those of more would not fit into its record.
pub(crate) const PART_CHECKSUMS_MAX: usize = 2_000;

/// A part of a complete object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOfObject<'a> {
    pub number: u32,
    /// Where it begins in the object.
    pub offset: u64,
    pub bytes: u64,
    pub checksum: Option<&'a str>,
}

impl EntryHead {
    /// The parts that the object was made of; `None` if it was made in one piece.
    pub(crate) fn parts(&self, pieces: &[Piece]) -> Option<Vec<PartOfObject<'_>>> {
        self.upload_id.as_ref()?;
        // An empty part has no piece, and only the last one can be empty.
        let (_, count) = self.etag.rsplit_once('-')?;
        let mut offset = 0;
        let part = |index: usize| {
            let bytes = pieces.get(index).map_or(0, |piece| piece.bytes);
            let number = self.part_numbers.get(index).copied().unwrap_or(index as u32 + 1);
            let checksum = self.part_checksums.get(index).map(String::as_str);
            offset += bytes;
            PartOfObject { number, offset: offset - bytes, bytes, checksum }
        };
        Some((0..count.parse().ok()?).map(part).collect())
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Head of a multipart upload's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadHead {
    pub initiated_ms: u64,
    /// Canonical id of the account that began it.
    pub owner: String,
    pub headers: ContentHeaders,
    pub metadata: BTreeMap<String, String>,
    /// S3's name of the checksum algorithm asked for.
    #[serde(default)]
    pub checksum_algorithm: Option<String>,
    #[serde(default)]
    pub checksum_is_composite: bool,
    #[serde(default, skip_serializing_if = "Encryption::is_usual")]
    pub encryption: Encryption,
    /// Set while a completion or an abort is at work: no part may come or go then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Closing>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "ObjectLock::is_none")]
    pub lock: ObjectLock,
    /// As in [`EntryHead`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// As in [`EntryHead`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_owner: Option<String>,
    /// As in [`EntryHead`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
}

/// The request that closes an upload, and its begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closing {
    pub token: String,
    pub since_ms: u64,
}

/// Head of a part's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartHead {
    pub size: u64,
    /// MD5 in hexadecimal.
    pub etag: String,
    pub modified_ms: u64,
    #[serde(default)]
    pub checksums: Checksums,
}

fn malformed(detail: impl ToString) -> GatewayError {
    GatewayError::Malformed { what: "a record of the bucket index".into(), detail: detail.to_string() }
}

/// Encodes a record.
pub(crate) fn encode(head: &impl Serialize, pieces: &[Piece]) -> Bytes {
    let format = match pieces {
        [Piece { place: Place::Index, .. }] => FORMAT_INDEX,
        [Piece { place: Place::Beside, .. }] => FORMAT_BESIDE,
        _ => FORMAT_CHUNKS,
    };
    encode_as(format, head, pieces)
}

/// Encodes the record of a version: an object or a delete marker.
pub(crate) fn encode_version(head: &EntryHead, pieces: &[Piece]) -> Bytes {
    if head.is_delete_marker { encode_as(FORMAT_MARKER, head, &[]) } else { encode(head, pieces) }
}

/// Returns true if a record of an entry is a delete marker.
pub(crate) fn is_delete_marker(value: &[u8]) -> bool {
    value.first() == Some(&FORMAT_MARKER)
}

fn encode_as(format: u8, head: &impl Serialize, pieces: &[Piece]) -> Bytes {
    let head = serde_json::to_vec(head).expect("index heads are plain JSON");
    let mut value = BytesMut::with_capacity(PREAMBLE_BYTES + head.len() + pieces.len() * PIECE_BYTES);
    value.put_u8(format);
    value.put_u32_le(u32::try_from(head.len()).expect("index heads are small"));
    value.put_slice(&head);
    for piece in pieces {
        value.put_slice(&piece.data_id);
        value.put_slice(&piece.wrapped_key);
        value.put_u64_le(piece.bytes);
    }
    value.freeze()
}

/// Where a record's data is, its head, and its pieces.
fn split(value: &[u8]) -> Result<(Place, &[u8], &[u8]), GatewayError> {
    let (preamble, rest) = value.split_first_chunk::<PREAMBLE_BYTES>().ok_or_else(|| malformed("too short"))?;
    let [format, length @ ..] = *preamble;
    let place = match format {
        FORMAT_CHUNKS | FORMAT_MARKER => Place::Chunks,
        FORMAT_INDEX => Place::Index,
        FORMAT_BESIDE => Place::Beside,
        _ => return Err(malformed(format!("format {format} is newer than this release knows"))),
    };
    let (head, pieces) = rest
        .split_at_checked(u32::from_le_bytes(length) as usize)
        .ok_or_else(|| malformed("its head is cut short"))?;
    Ok((place, head, pieces))
}

/// Decodes the head of a record.
pub(crate) fn decode_head<T: DeserializeOwned>(value: &[u8]) -> Result<T, GatewayError> {
    serde_json::from_slice(split(value)?.1).map_err(malformed)
}

/// Decodes the pieces of a record of any kind.
pub(crate) fn decode_pieces(value: &[u8]) -> Result<Vec<Piece>, GatewayError> {
    let (place, _, pieces) = split(value)?;
    if !pieces.len().is_multiple_of(PIECE_BYTES) {
        return Err(malformed("its pieces are cut short"));
    }
    if place != Place::Chunks && pieces.len() != PIECE_BYTES {
        return Err(malformed("its data is in the index or beside it, so it must have one piece"));
    }
    pieces.chunks_exact(PIECE_BYTES).map(|piece| decode_piece(place, piece)).collect()
}

fn decode_piece(place: Place, bytes: &[u8]) -> Result<Piece, GatewayError> {
    let (data_id, rest) = bytes.split_first_chunk().ok_or_else(|| malformed("a piece is cut short"))?;
    let (wrapped_key, rest) = rest.split_first_chunk().ok_or_else(|| malformed("a piece is cut short"))?;
    let length = rest.first_chunk().ok_or_else(|| malformed("a piece is cut short"))?;
    Ok(Piece { place, data_id: *data_id, wrapped_key: *wrapped_key, bytes: u64::from_le_bytes(*length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(place: Place) -> Piece {
        Piece { place, data_id: [1; 16], wrapped_key: [2; WRAPPED_KEY_BYTES], bytes: 7 }
    }

    #[test]
    fn records_survive_and_damage_is_an_error() {
        let head = EntryHead { size: 7, etag: "e".into(), ..Default::default() };
        let piece = piece(Place::Chunks);
        let value = encode(&head, &[piece.clone(), piece.clone()]);
        assert_eq!(decode_head::<EntryHead>(&value).unwrap(), head);
        assert_eq!(decode_pieces(&value).unwrap(), [piece.clone(), piece]);
        for length in 0..value.len() {
            let cut = &value[..length];
            assert!(decode_head::<EntryHead>(cut).is_err() || decode_pieces(cut).is_err() || length >= 5);
        }
        assert!(decode_pieces(&value[..value.len() - 1]).is_err());
        let newer = [&[9], &value[1..]].concat();
        assert!(decode_head::<EntryHead>(&newer).is_err());
    }

    #[test]
    fn the_format_says_where_the_data_is() {
        let head = EntryHead { size: 7, ..Default::default() };
        let value = encode(&head, &[piece(Place::Index)]);
        assert_eq!(value[0], 2);
        assert_eq!(value[1..], encode(&head, &[piece(Place::Chunks)])[1..], "all else is equal");
        assert_eq!(decode_head::<EntryHead>(&value).unwrap(), head);
        assert_eq!(decode_pieces(&value).unwrap(), [piece(Place::Index)]);
        let beside = encode(&head, &[piece(Place::Beside)]);
        assert_eq!((beside[0], &beside[1..]), (4, &value[1..]));
        assert_eq!(decode_pieces(&beside).unwrap(), [piece(Place::Beside)]);
        assert_eq!(encode(&head, &[])[0], 1);
        let marker = EntryHead { is_delete_marker: true, ..Default::default() };
        let value_of_marker = encode_version(&marker, &[]);
        assert!(is_delete_marker(&value_of_marker) && !is_delete_marker(&value));
        assert_eq!(decode_head::<EntryHead>(&value_of_marker).unwrap(), marker);
        assert_eq!(decode_pieces(&value_of_marker).unwrap(), []);
        let none = &value[..value.len() - PIECE_BYTES];
        let two = [&value[..], &value[value.len() - PIECE_BYTES..]].concat();
        let two_beside = [&beside[..], &beside[beside.len() - PIECE_BYTES..]].concat();
        for wrong in [none, &two, &two_beside] {
            assert!(matches!(decode_pieces(wrong), Err(GatewayError::Malformed { .. })));
        }
    }

    #[test]
    fn the_largest_multipart_entry_fits_into_an_omap_value() {
        // Part numbers have up to five digits and a comma; the longest checksum, that of SHA-256, has 44
        // characters between quotes, and a comma. Objects with checksums of their parts have few.
        const LARGEST_BYTES: usize = 64_000 + 10_000 * (PIECE_BYTES + 6);
        const WITH_CHECKSUMS_BYTES: usize = 64_000 + PART_CHECKSUMS_MAX * (PIECE_BYTES + 6 + 47);
        const { assert!(LARGEST_BYTES <= atoll_types::limits::OMAP_VALUE_BYTES_MAX) };
        const { assert!(WITH_CHECKSUMS_BYTES <= LARGEST_BYTES) };
    }

    #[test]
    fn parts_of_an_object_follow_each_other() {
        let pieces = [Piece { bytes: 5, ..piece(Place::Chunks) }, Piece { bytes: 7, ..piece(Place::Chunks) }];
        let single = EntryHead { etag: "e".into(), ..Default::default() };
        assert_eq!(single.parts(&pieces), None);
        let head = EntryHead {
            etag: "e-3".into(),
            upload_id: Some("u".into()),
            part_numbers: vec![2, 5, 6],
            part_checksums: vec!["a".into(), "b".into(), "c".into()],
            ..Default::default()
        };
        let part =
            |number, offset, bytes, checksum| PartOfObject { number, offset, bytes, checksum: Some(checksum) };
        assert_eq!(head.parts(&pieces).unwrap(), [part(2, 0, 5, "a"), part(5, 5, 7, "b"), part(6, 12, 0, "c")]);
    }
}
